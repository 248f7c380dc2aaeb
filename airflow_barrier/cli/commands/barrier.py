"""`airflow-barrier barrier list` and `show`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import barrier_argument, one_or_more
from airflow_barrier.cli.commands.status import show_trouble
from airflow_barrier.cli.connection import database_options, meta_service
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line, moment, one_line_of, row, state_of, table
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


def _define_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology")
    parser.add_argument(
        "--state",
        action="append",
        type=str.upper,
        choices=[state.value for state in BarrierState],
        help="only barriers in this state; several may be given, each by an option of its own",
    )
    parser.add_argument("--limit", type=one_or_more, default=20, help="at most so many (default: %(default)s)")
    database_options(parser)


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


def _show_list(barriers: Sequence[Barrier], console: Console) -> None:
    if not barriers:
        line(console, "no such barrier")
        return
    shown = table(console, "barrier", "timestamp (UTC)", "state", "opened", "PRECOMMIT", "COMMIT", "opened by")
    for one in barriers:
        row(
            shown,
            one.barrier_id,
            one.timestamp if one.barrier_id else "baseline",
            state_of(one.state),
            one.opened_at,
            one.precommit_at,
            one.commit_at,
            str(one.run),
        )
    console.print(shown)


LIST = Command(
    "list",
    "List a topology's barriers, the newest first. Barrier 0 is the baseline.",
    _define_list,
    _list,
    examples=("shopping", "shopping --state OPEN --state BLOCKED", "shopping --state COMMIT --limit 1 --json"),
)


# --- show -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """All about one barrier. ``expected``: the jobs for whom all is there, and that are not late yet."""

    barrier: Barrier
    tables: tuple[TableProgress, ...]
    attempts: tuple[Attempt, ...]
    cuts: tuple[Cut, ...]
    failed: Sequence[Failed]
    late: Sequence[Late]
    expected: Sequence[Late]


def _define_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology")
    barrier_argument(parser)
    database_options(parser)


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
    _show_tables(found.tables, console)
    _show_attempts(found.attempts, console)
    _show_cuts(found.cuts, console)


def _show_tables(tables: Sequence[TableProgress], console: Console) -> None:
    shown = table(console, "table", "job", "state", "snapshot", "from barrier", "PROCESSED (UTC)", "WRITTEN (UTC)")
    for one in tables:
        row(
            shown,
            one.table,
            one.job,
            one.state.value,
            one.snapshot_id,
            one.carried_from,
            one.processed_at,
            one.written_at,
        )
    console.print(shown)


def _show_attempts(attempts: Sequence[Attempt], console: Console) -> None:
    if not attempts:
        line(console, "no job has asked for an attempt")
        return
    from airflow_barrier.coordinator.doing import state_said

    shown = table(console, "attempt", "job", "state", "requested (UTC)", "started", "closed", "ended", "it says")
    for one in attempts:
        row(
            shown,
            one.attempt_id,
            one.job,
            state_said(one.state),
            one.requested_at,
            one.started_at,
            one.closed_at,
            one.ended_at or one.processed_at,
            one.reason or (f"waits for {', '.join(map(str, one.waited_for))}" if _is_waiting(one) else None),
        )
    console.print(shown)


def _is_waiting(attempt: Attempt) -> bool:
    return attempt.state is AttemptState.REQUESTED and bool(attempt.waited_for)


def _show_cuts(cuts: Sequence[Cut], console: Console) -> None:
    if not cuts:
        return
    shown = table(console, "source", "from", "to", "items")
    for one in cuts:
        row(shown, one.source, one_line_of(one.start), one_line_of(one.end), len(one.items) or None)
    console.print(shown)


SHOW = Command(
    "show",
    "Show one barrier: its times, tables, attempts and cuts, who has failed, who is late, and for whom else all is "
    "there: a job is late once that is so for longer than usual, and jobs that wait for others are not.",
    _define_show,
    _show,
    examples=("shopping 3", "shopping 3 --json | jq '.late[].job'"),
)
