"""The address by which engines read whole barriers: that it answers, and of this deployment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

from airflow_barrier.cli.doctor.check import Case, Finding, fail, ok, skipped
from airflow_barrier.cli.doctor.deployment import known

#: Of whoever asks, where the server wants one.
TOKEN_VARIABLE = "AIRFLOW_BARRIER_TOKEN"


def catalogs(case: Case) -> Iterator[Finding]:
    """Connects as an engine does, looks whether the MetaService knows of it, and lets go."""
    if case.reader_uri is None:
        return
    from pyiceberg.catalog.rest import RestCatalog

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.reading.catalog_pins import Pin

    with closing(Deployment.connect(known(case))) as deployment:
        meta = deployment.meta
        topologies = [each.name for each in meta.overviews.known() if meta.barriers.newest(each.name, limit=1)]
        if not topologies:
            yield skipped("catalogs of readers", "no barrier has been opened yet")
            return
        topology = topologies[0]
        held = {lease.lease_id for lease in meta.leases.of(topology)}
        token = os.environ.get(TOKEN_VARIABLE)
        with closing(
            RestCatalog("doctor", uri=case.reader_uri, warehouse=topology, **({"token": token} if token else {}))
        ) as catalog:
            pin = Pin.parse(catalog.properties["prefix"])
            if pin.lease_id not in {lease.lease_id for lease in meta.leases.of(topology)} - held:
                yield fail(
                    "catalogs of readers",
                    f"expected {case.reader_uri} to serve {case.conn_id}, found another deployment, which has a "
                    f"topology {topology}, too; serve this one, by airflow-barrier serve --iceberg --conn-id "
                    f"{case.conn_id}",
                )
                return
            for namespace in catalog.list_namespaces()[:1]:
                for table in catalog.list_tables(namespace)[:1]:
                    catalog.load_table(table)
            meta.leases.release(pin.lease_id)
    yield ok("catalogs of readers", f"{case.reader_uri} answers; {topology} is read at {pin}")
