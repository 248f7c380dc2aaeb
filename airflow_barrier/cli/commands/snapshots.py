"""`airflow-barrier snapshots`"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import barrier_argument, level_argument, moment_of, number_from_0, topology_argument
from airflow_barrier.cli.connection import actor, database_options, level, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line, moment, row, table
from airflow_barrier.protocol.leases import Hold, Lease
from airflow_barrier.protocol.levels import Level, Resolution, ResolvedTable
from airflow_barrier.protocol.names import tag_name

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Snapshot:
    """The snapshot to read of one table. ``snapshot_id`` is None for a table without rows.

    ``tag`` names the same for any engine; None if no barrier has published it.
    """

    table: str
    snapshot_id: int | None
    barrier_id: int
    revision: int
    tag: str | None


@dataclass(frozen=True)
class Snapshots:
    """A reader's snapshots; ``barrier_id``, ``revision`` and ``timestamp`` are None at read uncommitted."""

    topology: str
    level: Level
    barrier_id: int | None
    revision: int | None
    timestamp: datetime | None
    resolved_at: datetime
    lease: Lease | None
    tables: tuple[Snapshot, ...]


def _options(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    barrier_argument(which, nargs="?")
    which.add_argument(
        "--at", type=moment_of, metavar="TIME", help="the newest barrier at or before it: ISO 8601, in UTC by default"
    )
    level_argument(parser)
    parser.add_argument(
        "--revision", type=number_from_0, metavar="N", help="as the barrier was in this one (0: as computed first)"
    )
    parser.add_argument("--hold", type=float, metavar="SECONDS", help="keep it from being expired for so long")


def _run(options: argparse.Namespace) -> int:
    hold = None if options.hold is None else Hold(actor(), options.hold)
    at = options.barrier if options.barrier is not None else options.at
    with meta_service(options) as meta:
        found = meta.answers.resolve(options.topology, level(options), at=at, revision=options.revision, hold=hold)
        published = meta.answers.resolve(options.topology, Level.REPEATABLE_READ, []).barrier_id or 0
    answer(options, _with_tags(found, published), _show)
    return DONE


def _with_tags(found: Resolution, published: int) -> Snapshots:
    return Snapshots(
        found.topology,
        found.level,
        found.barrier_id,
        found.revision,
        found.timestamp,
        found.resolved_at,
        found.lease,
        tuple(
            Snapshot(one.table, one.snapshot_id, one.barrier_id, one.revision, _tag(found.topology, one, published))
            for one in found.tables.values()
        ),
    )


def _tag(topology: str, one: ResolvedTable, published: int) -> str | None:
    # the baseline is what was there before, so no barrier published it
    tagged = 0 < one.barrier_id <= published and one.snapshot_id is not None
    return tag_name(topology, one.barrier_id, one.revision) if tagged else None


def _show(found: Snapshots, console: Console) -> None:
    shown = table(console, "table", "snapshot", "barrier", "tag")
    for one in found.tables:
        row(shown, one.table, one.snapshot_id, one.barrier_id, one.tag)
    console.print(shown)
    if found.lease is not None:
        line(console, f"held until {moment(found.lease.expires_at)} UTC: {found.lease}")


SNAPSHOTS = Command(
    "snapshots",
    "Say which snapshot of each table a reader gets, and its tag. At one barrier, or at read uncommitted each table at "
    "its own. Without --hold the barrier may be expired before somebody reads it.",
    (topology_argument, _options, database_options),
    _run,
    examples=(
        "shopping",
        "shopping 3",
        "shopping 3 --revision 0",
        'shopping --at "2026-01-05 00:00" --hold 3600 --json',
        "shopping --level read_committed",
    ),
)
