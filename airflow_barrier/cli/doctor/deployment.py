"""The connection of the type `barrier`, and what it names: MetaService and catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from airflow_barrier.cli import connection as connections
from airflow_barrier.cli.doctor.check import Case, Finding, fail, ok, warn
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_barrier.coordinator.settings import Settings


def connection(case: Case) -> Iterator[Finding]:
    about = f"connection {case.conn_id}"
    try:
        case.settings = connections.settings(case.conn_id)
    except ConfigurationError as error:
        yield fail(about, str(error).removeprefix(f"{about}: "))
        return
    yield ok(about, f"warehouse {case.settings.warehouse}")
    folder = case.settings.warehouse.removeprefix("file://")
    if folder.startswith("/") and (found := _write_fault(Path(folder))) is not None:
        yield fail(
            "warehouse",
            f"expected that this user may write to {folder}, found {found}; correct the connection's warehouse, or "
            "give this user the right to it",
        )


def _write_fault(folder: Path) -> str | None:
    """Return in words why nothing can be written there; of a folder that is not there yet, why it cannot be made."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with TemporaryFile(dir=there):
            return None
    except OSError as error:
        return str(error)


def meta_service(case: Case) -> Iterator[Finding]:
    import socket

    from airflow_barrier.hooks.barrier import BarrierHook, embedded_file, warning_of

    settings = known(case)
    said = BarrierHook(case.conn_id).check_meta_service(settings)
    file = embedded_file(settings)
    where = "" if file is None else f" Looked at on host {socket.gethostname()}: run this on a worker, too"
    yield ok("MetaService", said.removeprefix("MetaService ") + where)
    if remark := warning_of(settings):
        yield warn("MetaService", remark)


def catalog(case: Case) -> Iterator[Finding]:
    from airflow_barrier.coordinator.deployment import tables_of
    from airflow_barrier.hooks.barrier import has_catalog

    settings = known(case)
    if not has_catalog(settings):
        yield ok("catalog", "in the MetaService's database, and made with it")
        return
    with closing(tables_of(settings)) as tables:
        yield ok("catalog", tables.check())
        tables.prove()  # as the first barrier does; of a good catalog it is remembered


def known(case: Case) -> Settings:
    """The settings, for checks that need the connection."""
    assert case.settings is not None, "a check that needs the connection says so"
    return case.settings
