"""`airflow-barrier snapshots`"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.connection import connection_option, settings
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, row, table
from airflow_barrier.protocol.errors import UnknownBarrierError
from airflow_barrier.protocol.levels import Level, ResolvedTable
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.tags import TagPolicy

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.metaservice.store import MetaService


@dataclass(frozen=True)
class Snapshot:
    """What to read of one table. ``snapshot_id`` is None for a table without rows.

    ``tag`` names the same for any engine; None if it is not published, or the tag policy has let the tag go.
    """

    table: str
    snapshot_id: int | None
    barrier_id: int
    revision: int
    tag: str | None


def _define(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("barrier", type=int, nargs="?", help="a barrier that is COMMIT, as `barrier list` shows it")
    which.add_argument(
        "--level",
        choices=[level.value for level in Level],
        default=Level.REPEATABLE_READ.value,
        help="the newest of this level (default: %(default)s)",
    )
    connection_option(parser)


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.deployment import with_password
    from airflow_barrier.metaservice.store import MetaService

    found = settings(options.conn_id)
    url = with_password(found.metaservice_url, found.metaservice_password)
    with closing(MetaService(url, create=False)) as meta:
        if options.barrier is None:
            resolved: Iterable[ResolvedTable] = meta.resolve(options.topology, Level(options.level)).tables.values()
        else:
            resolved = _at(meta, options.topology, options.barrier)
        newest = meta.resolve(options.topology, Level.REPEATABLE_READ, []).barrier_id or 0
    policy = TagPolicy.parse(found.tag_policy)
    answer(options, [_snapshot(options.topology, one, newest, policy) for one in resolved], _show)
    return DONE


def _at(meta: MetaService, topology: str, barrier_id: int) -> list[ResolvedTable]:
    barrier = meta.barrier(topology, barrier_id)
    if barrier.state is not BarrierState.COMMIT:
        raise UnknownBarrierError(
            f"{barrier}: expected a barrier that is COMMIT, found {barrier.state.value}; name another, or a --level"
        )
    rows = meta.progress(topology, barrier_id)
    return [ResolvedTable(one.table, one.snapshot_id, one.barrier_id, one.revision) for one in rows]


def _snapshot(topology: str, one: ResolvedTable, newest: int, policy: TagPolicy) -> Snapshot:
    # the baseline is what was there before: no barrier published it
    published = 0 < one.barrier_id <= newest and one.snapshot_id is not None
    tagged = published and policy.keeps(one.barrier_id, newest)
    tag = tag_name(topology, one.barrier_id, one.revision) if tagged else None
    return Snapshot(one.table, one.snapshot_id, one.barrier_id, one.revision, tag)


def _show(snapshots: Sequence[Snapshot], console: Console) -> None:
    shown = table(console, "table", "snapshot", "barrier", "tag")
    for one in snapshots:
        row(shown, one.table, one.snapshot_id, one.barrier_id, one.tag)
    console.print(shown)


SNAPSHOTS = Command(
    "snapshots",
    "Say which snapshot of each table belongs to a barrier, and its tag. At read uncommitted each table has a barrier "
    "of its\nown. A tag is named as long as the connection's tag policy keeps it.",
    _define,
    _run,
    examples=("shopping", "shopping 3", "shopping --level read_committed --json"),
)
