"""The address by which engines read whole barriers: that it answers, and of this deployment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from airflow_barrier.cli.connection import TOKEN_VARIABLE, connected
from airflow_barrier.cli.doctor.check import Case, Finding, fail, ok, skipped
from airflow_barrier.protocol.errors import MetaServiceMissingError

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService

_ABOUT = "catalogs of readers"


def catalogs(case: Case) -> Iterator[Finding]:
    """Connect as an engine does, see whether the MetaService knows of it, and let go."""
    if case.reader_uri is None:
        return
    try:
        with connected(case.conn_id) as deployment:
            meta = deployment.meta
            opened = (each.name for each in meta.overviews.known() if meta.barriers.newest(each.name, limit=1))
            topology = next(opened, None)
            if topology is None:
                yield skipped(_ABOUT, "no barrier has been opened yet")
            else:
                yield _connected(case.reader_uri, case.conn_id, topology, meta)
    except MetaServiceMissingError:  # which its own check has told
        yield skipped(_ABOUT, "the MetaService is not made yet")


def _connected(uri: str, conn_id: str, topology: str, meta: MetaService) -> Finding:
    from pyiceberg.catalog.rest import RestCatalog

    from airflow_barrier.reading.catalog_pins import Pin

    held = {lease.lease_id for lease in meta.leases.of(topology)}
    token = os.environ.get(TOKEN_VARIABLE)
    with closing(RestCatalog("doctor", uri=uri, warehouse=topology, **({"token": token} if token else {}))) as catalog:
        pin = Pin.parse(catalog.properties["prefix"])
        if pin.lease_id not in {lease.lease_id for lease in meta.leases.of(topology)} - held:
            return fail(
                _ABOUT,
                f"expected {uri} to serve {conn_id}, found another deployment, which has a topology {topology}, too; "
                f"serve this one, by airflow-barrier serve --iceberg --conn-id {conn_id}",
            )
        for namespace in catalog.list_namespaces()[:1]:
            for table in catalog.list_tables(namespace)[:1]:
                catalog.load_table(table)
        meta.leases.release(pin.lease_id)
    return ok(_ABOUT, f"{uri} answers; {topology} is read at {pin}")
