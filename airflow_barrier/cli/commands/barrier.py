"""`airflow-barrier barrier list` and `show`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import barrier_argument, one_or_more, topology_argument
from airflow_barrier.cli.commands.status import show_trouble
from airflow_barrier.cli.connection import database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import Columns, answer, line, moment, one_line_of, show_table, state_of
from airflow_barrier.protocol.states import AttemptState, BarrierState

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.coordinator.failing import Failed
    from airflow_barrier.coordinator.lateness import Late
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.records import Attempt, Barrier, Cut, TableProgress

_TIMES = ("opened_at", "precommit_at", "committing_at", "commit_at", "aborted_at", "expiring_at", "expired_at")


# --- list -----------------------------------------------------------------------------------------


def _list_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        action="append",
        type=str.upper,
        choices=[state.value for state in BarrierState],
        help="only barriers in this state; several may be given, each by an option of its own",
    )
    parser.add_argument("--limit", type=one_or_more, default=20, help="at most so many (default: %(default)s)")


def _list(options: argparse.Namespace) -> int:
    states = [BarrierState(state) for state in options.state or BarrierState]
    with meta_service(options) as meta:
        found = meta.barriers.newest(options.topology, states, limit=options.limit + 1)

        def told(_: Sequence[Barrier]) -> models.Barriers:
            from airflow_barrier.api.barriers import barriers_of
            from airflow_barrier.cli.telling import sight_of

            return barriers_of(sight_of(options, meta), found, options.limit)

        answer(options, found[: options.limit], _show_list, told)
    return DONE


_LISTED: Columns[Barrier] = {
    "barrier": lambda one: one.barrier_id,
    "timestamp (UTC)": lambda one: one.timestamp if one.barrier_id else "baseline",
    "state": lambda one: state_of(one.state),
    "opened": lambda one: one.opened_at,
    "PRECOMMIT": lambda one: one.precommit_at,
    "COMMIT": lambda one: one.commit_at,
    "opened by": lambda one: one.run,
}


def _show_list(barriers: Sequence[Barrier], console: Console) -> None:
    if not barriers:
        line(console, "no such barrier")
        return
    show_table(console, _LISTED, barriers)


LIST = Command(
    "list",
    "List a topology's barriers, the newest first. Barrier 0 is the baseline.",
    (topology_argument, _list_options, database_options),
    _list,
    examples=("shopping", "shopping --state OPEN --state BLOCKED", "shopping --state COMMIT --limit 1 --json"),
)


# --- show -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """All about one barrier. ``expected``: the jobs that it waits for and that are not late yet."""

    barrier: Barrier
    tables: tuple[TableProgress, ...]
    attempts: tuple[Attempt, ...]
    cuts: tuple[Cut, ...]
    failed: Sequence[Failed]
    late: Sequence[Late]
    expected: Sequence[Late]


def _show(options: argparse.Namespace) -> int:
    with meta_service(options) as meta:
        found = _look(meta, options.topology, options.barrier)
    answer(options, found, _show_one)
    return DONE


def _look(meta: MetaService, topology: str, barrier_id: int) -> Shown:
    from airflow_barrier.coordinator.lateness import standings

    barrier = meta.barriers.get(topology, barrier_id)
    standing = meta.overviews.together(lambda rows: standings(rows, {topology: None}))[topology].at(barrier_id)
    cuts = meta.cuts.of(topology, barrier_id)
    return Shown(
        barrier,
        tables=tuple(meta.barriers.progress(topology, barrier_id)),
        attempts=tuple(meta.attempts.of(topology, barrier_id)),
        cuts=tuple(cuts[name] for name in sorted(cuts)),
        failed=standing.failed,
        late=standing.late,
        expected=standing.expected,
    )


_TABLES: Columns[TableProgress] = {
    "table": lambda one: one.table,
    "job": lambda one: one.job,
    "state": lambda one: one.state.value,
    "snapshot": lambda one: one.snapshot_id,
    "from barrier": lambda one: one.carried_from,
    "PROCESSED (UTC)": lambda one: one.processed_at,
    "WRITTEN (UTC)": lambda one: one.written_at,
}
_CUTS: Columns[Cut] = {
    "source": lambda one: one.source,
    "from": lambda one: one_line_of(one.start),
    "to": lambda one: one_line_of(one.end),
    "items": lambda one: len(one.items) or None,
}


def _show_one(found: Shown, console: Console) -> None:
    barrier = found.barrier
    line(console, f"{barrier}, revision {barrier.computed_in}: {barrier.state.value}", "bold")
    line(console, f"  timestamp from the {barrier.opening}")
    if barrier.predecessor is not None:
        line(console, f"  after barrier {barrier.predecessor}, topology version {barrier.topology_version}")
    if barrier.reason:
        line(console, f"  {barrier.reason}")
    times = [(name.removesuffix("_at"), getattr(barrier, name)) for name in _TIMES]
    line(console, "  " + ", ".join(f"{name} {moment(at)}" for name, at in times if at is not None) + " (UTC)")
    show_trouble(found.failed, found.late, console)
    for each in found.expected:
        line(console, f"  {each.summary} (since {moment(each.since)} UTC, not late yet)")
    show_table(console, _TABLES, found.tables)
    _show_attempts(found.attempts, console)
    if found.cuts:
        show_table(console, _CUTS, found.cuts)


def _show_attempts(attempts: Sequence[Attempt], console: Console) -> None:
    if not attempts:
        line(console, "no job has asked for an attempt")
        return
    from airflow_barrier.coordinator.doing import state_said

    columns: Columns[Attempt] = {
        "attempt": lambda one: one.attempt_id,
        "job": lambda one: one.job,
        "state": lambda one: state_said(one.state),
        "requested (UTC)": lambda one: one.requested_at,
        "started": lambda one: one.started_at,
        "closed": lambda one: one.closed_at,
        "ended": lambda one: one.ended_at or one.processed_at,
        "it says": lambda one: one.reason or _waits(one),
    }
    show_table(console, columns, attempts)


def _waits(attempt: Attempt) -> str | None:
    is_waiting = attempt.state is AttemptState.REQUESTED and attempt.waited_for
    return f"waits for {', '.join(map(str, attempt.waited_for))}" if is_waiting else None


SHOW = Command(
    "show",
    "Show one barrier: its times, tables, attempts and cuts, and the jobs that it waits for. Some have failed, some "
    "are late, and others are not late yet. A job is late if it could have begun for longer than usual; a job that "
    "waits for another one is not.",
    (topology_argument, barrier_argument, database_options),
    _show,
    examples=("shopping 3", "shopping 3 --json | jq '.late[].job'"),
)
