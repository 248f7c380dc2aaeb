"""`airflow-barrier barrier resolve`: a person leads a BLOCKED barrier out."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.cli.arguments import barrier_argument, reason_option, topology_argument
from airflow_barrier.cli.connection import actor, connected, connection_option
from airflow_barrier.cli.frame import DONE, Command
from airflow_barrier.cli.screen import answer, line
from airflow_barrier.protocol.states import BarrierState, Decision

if TYPE_CHECKING:
    from rich.console import Console

    from airflow_barrier.api import models
    from airflow_barrier.coordinator.committing import Committed, NotYet
    from airflow_barrier.coordinator.resolving import Resolved


@dataclass(frozen=True)
class Answer:
    """The decision, and what ``--commit`` came to: the barrier, or why not yet; None without it."""

    resolved: Resolved
    committed: Committed | NotYet | None


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", required=True, help="namespace.table")
    which = parser.add_mutually_exclusive_group(required=True)
    for decision, text in (
        (Decision.KEEP_OURS, "publish this epoch instead of theirs"),
        (Decision.ADOPT_THEIRS, "let theirs stand; this epoch's rows of the table are dropped"),
    ):
        which.add_argument(
            f"--{decision.value}", dest="decision", action="store_const", const=decision, help=text, default=None
        )
    reason_option()(parser)
    parser.add_argument("--commit", action="store_true", help="roll the barrier forward at once")


def _run(options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.committing import commit_barrier
    from airflow_barrier.coordinator.resolving import resolve_table

    with connected(options.conn_id) as deployment:
        resolved = resolve_table(
            deployment,
            options.topology,
            options.barrier,
            options.table,
            options.decision,
            reason=options.reason,
            actor=actor(),
        )
        committed = None
        try:
            if options.commit:
                committed = commit_barrier(deployment, options.topology, options.barrier, actor=actor())
        finally:  # the decision stands, whatever becomes of the commit
            answer(options, Answer(resolved, committed), _show, _told)
    return DONE


def _told(found: Answer) -> models.Done:
    from airflow_barrier.api.outcomes import of_decision

    return of_decision(found.resolved, found.committed)


def _show(found: Answer, console: Console) -> None:
    from airflow_barrier.coordinator.committing import NotYet

    barrier, committed = found.resolved.barrier, found.committed
    for text in _explained(found.resolved):
        line(console, text)
    if isinstance(committed, NotYet):
        line(console, committed.reason)
    elif committed is not None:
        line(console, f"{committed.barrier} is COMMIT")
    elif barrier.state is BarrierState.BLOCKED:
        line(console, f"{barrier} is still BLOCKED: {barrier.reason}")
    else:
        line(console, f"{barrier} is COMMITTING: clear its commit task, or wait for the next run's, to publish it")


def _explained(resolved: Resolved) -> Iterator[str]:
    """Yield what the decision means, plainly."""
    barrier, table = resolved.barrier, resolved.table
    if resolved.decision is None:
        yield f"{barrier}: nothing is in the way of {table} any more"
        return
    kept = f"; it is kept by the tag {resolved.tag}" if resolved.tag else ""
    if resolved.decision is Decision.KEEP_OURS:
        yield f"{barrier}: {table} is published with our snapshot {resolved.ours}"
        yield f"  theirs, {_snapshot(resolved.theirs)}, no longer counts{kept}"
        return
    yield f"{barrier}: {table} stays at theirs, {_snapshot(resolved.theirs)}"
    yield f"  NOT published: this epoch's rows of {table}, {_snapshot(resolved.ours)}{kept if resolved.ours else ''}"
    if resolved.computed_from_ours:
        yield f"  computed from ours, and published as they are: {', '.join(resolved.computed_from_ours)}"
    for attempt in resolved.voided:
        which = f"job {attempt.job} at barrier {attempt.barrier_id}"
        yield f"  to be run again, since it stood on ours: {which} (clear its task)"


def _snapshot(snapshot_id: int | None) -> str:
    return "no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"


RESOLVE = Command(
    "resolve",
    "Decide about a table that is in the way of a BLOCKED barrier. Somebody else changed it while the barrier was "
    "COMMITTING. The barrier's reason (see `status`) names the table, what was expected and what was found."
    "\n\n"
    "--keep-ours publishes what this barrier staged, instead of exactly the snapshot that the table's main is at now. "
    "If main moves again before that, the barrier is BLOCKED again. --adopt-theirs lets that snapshot stand: this "
    "epoch's rows of the table are not published. What does not stand is kept by the tag "
    "barrier_TOPOLOGY_bBARRIER_rREVISION_set_aside."
    "\n\n"
    "The next commit of the topology (its task cleared, the next run's, or --commit) rolls the barrier forward. Events "
    "of Airflow's assets come from commit tasks only.",
    (topology_argument, barrier_argument, _options, connection_option),
    _run,
    examples=(
        'shopping 3 --table shop.amount --keep-ours --reason "ticket 17: wrong table"',
        'shopping 3 --table shop.amount --adopt-theirs --reason "ticket 18: approved repair" --commit',
    ),
)
