"""`airflow-barrier topology list` and `show`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import one_or_more, topology_argument
from airflow_barrier.cli.connection import database_options, deployment_name, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import Columns, answer, line, row, show_table, table, tell
from airflow_barrier.protocol.codec import digest
from airflow_barrier.protocol.states import BarrierState

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.topology import ExternalSource, Job, Topology


# --- list -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listed:
    """One topology, counted. ``committed`` is the barrier that repeatable read serves; None before the first one."""

    topology: str
    version: int
    dags: tuple[str, ...]
    jobs: int
    tables: int
    open_barriers: int
    committed: int | None
    committed_timestamp: datetime | None


def _list(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        if options.json:
            from airflow_barrier.api.topologies import all_topologies

            tell(options, all_topologies(meta, deployment_name(options)))
        else:
            answer(options, [_listed(meta, name) for name in meta.topologies.names()], _show_list)
    return DONE


def _listed(meta: MetaService, name: str) -> Listed:
    version = meta.topologies.version(name)
    topology = meta.topologies.get(name, version)
    committed = next(iter(meta.barriers.newest(name, [BarrierState.COMMIT], limit=1)), None)
    return Listed(
        name,
        version,
        dags=tuple(sorted({job.owner for job in topology.jobs})),
        jobs=len(topology.jobs),
        tables=len(topology.tables),
        open_barriers=len(meta.barriers.uncommitted(name)),
        committed=committed.barrier_id if committed else None,
        committed_timestamp=committed.timestamp if committed and committed.barrier_id else None,
    )


_LISTED: Columns[Listed] = {
    "topology": lambda one: one.topology,
    "version": lambda one: one.version,
    "DAGs": lambda one: ", ".join(one.dags),
    "jobs": lambda one: one.jobs,
    "tables": lambda one: one.tables,
    "open": lambda one: one.open_barriers,
    "COMMIT": lambda one: one.committed,
    "timestamp (UTC)": lambda one: one.committed_timestamp,
}


def _show_list(topologies: Sequence[Listed], console: Console) -> None:
    if not topologies:
        line(console, "No topology is registered yet: the first run of a DAG with a BarrierGroup does it.")
        return
    show_table(console, _LISTED, topologies)


LIST = Command(
    "list",
    "List the topologies: their DAGs, and the barrier that repeatable read serves.",
    (database_options,),
    _list,
    examples=("", "--json | jq -r '.topologies[].topology'"),
)


# --- show -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableShown:
    """A table of a topology; ``root`` if its job reads external sources."""

    table: str
    writer: str
    dag: str
    readers: tuple[str, ...]
    root: bool


@dataclass(frozen=True)
class Shown:
    """A topology as of a version. ``digest``: equal digests are equal topologies."""

    topology: str
    version: int
    digest: str
    jobs: tuple[Job, ...]
    tables: tuple[TableShown, ...]
    externals: tuple[ExternalSource, ...]


def _version_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", type=one_or_more, help="as of this version (default: the next barrier's)")


def _show(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        version = options.version or meta.topologies.version(options.topology)
        topology = meta.topologies.get(options.topology, version)
    answer(options, _shown(topology, version), _show_one)
    return DONE


def _shown(topology: Topology, version: int) -> Shown:
    writers = {name: topology.writer(name) for name in topology.tables}
    tables = (
        TableShown(
            name,
            writer.name,
            writer.owner,
            tuple(job.name for job in topology.readers(name)),
            name in topology.root_tables,
        )
        for name, writer in writers.items()
    )
    return Shown(topology.name, version, digest(topology), topology.jobs, tuple(tables), topology.externals)


def _show_one(found: Shown, console: Console) -> None:
    line(console, f"{found.topology} (version {found.version})", "bold")
    jobs = table(console, "job", "DAG", "reads", "writes")
    for job in found.jobs:
        inlets = [*(f"{source.name} ({source.kind})" for source in job.externals), *job.inlets]
        row(jobs, job.name, job.owner, inlets, job.outlets)
    console.print(jobs)
    tables = table(console, "table", "", "written by", "read by")
    for one in found.tables:
        row(tables, one.table, "root" if one.root else "intermediate", one.writer, ", ".join(one.readers))
    console.print(tables)


SHOW = Command(
    "show",
    "Show a topology: its jobs, their DAGs, and who writes and reads each table.",
    (topology_argument, _version_option, database_options),
    _show,
    examples=("shopping", "shopping --version 2", "shopping --json | jq -r '.tables[].table'"),
)
