"""`airflow-barrier barrier resolve`: a person leads a BLOCKED barrier out."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.states import BarrierState, Decision

if TYPE_CHECKING:
    from airflow_barrier.coordinator.resolving import Resolved
    from airflow_barrier.coordinator.settings import Settings

_DESCRIPTION = """\
Decide whose snapshot of a table stands, where somebody else changed the table while its barrier was COMMITTING. The
reason of a BLOCKED barrier (see `status`) names the table, what was expected and what was found.

--keep-ours publishes what this barrier staged, instead of exactly the snapshot that the table's main is at now. If main
moves again before that, the barrier is BLOCKED again. --adopt-theirs lets that snapshot stand: this epoch's rows of the
table are not published. What does not stand is kept by the tag barrier_TOPOLOGY_bBARRIER_rREVISION_set_aside.

The next commit of the topology (its task cleared, the next run's, or --commit) rolls the barrier forward. Events of
Airflow's assets come from commit tasks only."""


def add_barrier_command(commands: Any, settings: Callable[[str], Settings]) -> None:
    """``settings``: those of an Airflow connection, by its id."""
    command = commands.add_parser("barrier", help="lead a BLOCKED barrier out")
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    action = actions.add_parser(
        "resolve",
        help="decide about a table that is in the way",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    action.add_argument("topology")
    action.add_argument("barrier", type=int, help="the barrier's id, as `status` shows it")
    action.add_argument("--table", required=True, help="namespace.table")
    which = action.add_mutually_exclusive_group(required=True)
    for decision, text in (
        (Decision.KEEP_OURS, "publish this epoch instead of theirs"),
        (Decision.ADOPT_THEIRS, "let theirs stand; this epoch's rows of the table are dropped"),
    ):
        which.add_argument(
            f"--{decision.value}", dest="decision", action="store_const", const=decision, help=text, default=None
        )
    action.add_argument("--reason", required=True, help="why, for the audit")
    action.add_argument("--commit", action="store_true", help="roll the barrier forward at once")
    action.add_argument("--conn-id", default="barrier_default", help="Airflow connection (default: %(default)s)")
    action.set_defaults(run=partial(_resolve, settings))


def _resolve(settings: Callable[[str], Settings], options: argparse.Namespace) -> int:
    from airflow_barrier.coordinator.committing import NotYet, commit_barrier
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.resolving import resolve_table

    actor = f"{getpass.getuser()} (airflow-barrier)"
    deployment = Deployment.connect(settings(options.conn_id))
    try:
        resolved = resolve_table(
            deployment,
            options.topology,
            options.barrier,
            options.table,
            options.decision,
            reason=options.reason,
            actor=actor,
        )
        for line in _told(resolved):
            print(line)
        if options.commit:
            outcome = commit_barrier(deployment, options.topology, options.barrier, actor=actor)
            print(outcome.reason if isinstance(outcome, NotYet) else f"{outcome.barrier} is COMMIT")
        elif resolved.barrier.state is BarrierState.BLOCKED:
            print(f"{resolved.barrier} is still BLOCKED: {resolved.barrier.reason}")
        else:
            print(f"{resolved.barrier} is COMMITTING: clear its commit task, or wait for the next run's, to publish it")
    finally:
        deployment.close()
    return 0


def _told(resolved: Resolved) -> Iterator[str]:
    """What the decision means, plainly."""
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
