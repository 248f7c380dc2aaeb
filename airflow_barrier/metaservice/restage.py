"""Staging a job anew after its output was PROCESSED: everything that stands on it goes with it, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.leases import roll_back
from airflow_barrier.metaservice.rows import (
    STANDING,
    attempts_of,
    load_topology,
    own_progress,
    progress_before,
    standing,
    uncommitted,
)
from airflow_barrier.metaservice.transitions import Event, end_attempt, move_barrier, record, unstage_tables
from airflow_barrier.protocol.records import Attempt, Barrier, TableProgress
from airflow_barrier.protocol.restaging import CONSUMING, Membership, consumers, consumers_of_table, voided
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState


def restage(connection: Connection, barrier: Barrier, attempt: Attempt, actor: str) -> None:
    """Void what consumed ``attempt``, make the tables PENDING and the barriers OPEN again, and leave a note.

    The attempt itself is the caller's to fence. Its barrier is not decided, so no later one is.
    """
    barriers = uncommitted(connection, barrier.topology, first=barrier.barrier_id, line=barrier.line)
    gone = _standing(connection, barriers, consumers(_memberships(connection, barriers), attempt.job))
    event = Event(
        "restaged",
        actor,
        {"job": attempt.job, "attempt_id": attempt.attempt_id, "voided": [each.attempt_id for each in gone]},
    )
    reason = f"job {attempt.job} is staged anew at barrier {barrier.barrier_id}, and this stands on its output"
    for each in gone:
        end_attempt(connection, each, AttemptState.VOIDED, reason, event)  # safety: restaging-voids-consumers
    ended = {attempt.attempt_id, *(each.attempt_id for each in gone)}
    for later in barriers:
        _reopen(connection, later, ended, event)
    record(connection, event, barrier.topology, barrier.barrier_id, "topology", [barrier.topology])
    if barrier.line == STANDING:
        restage_revision(connection, barrier, event)


def replace_table(connection: Connection, barrier: Barrier, table: str, actor: str, reason: str) -> tuple[Attempt, ...]:
    """Void what later barriers built on a table of ``barrier``, which is decided, of which another snapshot stands now.

    Returns the voided attempts, whose jobs have to be run again.
    """
    later = uncommitted(connection, barrier.topology, first=barrier.barrier_id + 1)
    stands_on = consumers_of_table(barrier.barrier_id, table, _memberships(connection, later))
    gone = _standing(connection, later, stands_on)
    event = Event("restaged", actor, {"table": table, "voided": [each.attempt_id for each in gone]})
    for each in gone:
        end_attempt(connection, each, AttemptState.VOIDED, reason, event)  # safety: restaging-voids-consumers
    ended = {each.attempt_id for each in gone}
    for one in later:
        _reopen(connection, one, ended, event)
    if gone:
        record(connection, event, barrier.topology, barrier.barrier_id, "topology", [barrier.topology])
    restage_revision(connection, barrier, event)
    return gone


def restage_revision(connection: Connection, barrier: Barrier, event: Event) -> None:
    """Void what the revision under way computed, from ``barrier`` on, from snapshots that do not stand any more."""
    line = connection.execute(
        select(schema.revision.c.revision).where(
            schema.revision.c.topology == barrier.topology, schema.REVISION_UNDER_WAY
        )
    ).scalar_one_or_none()
    if line is None:
        return
    revised = uncommitted(connection, barrier.topology, barrier.barrier_id, line)
    gone: dict[int, Attempt] = {}
    for number, each in enumerate(revised):
        here, before = standing(connection, each), progress_before(connection, each)
        for attempt in attempts_of(connection, each.topology, each.barrier_id, line):
            if attempt.state in CONSUMING and not _stands_on(attempt, here, before):
                later = consumers(_memberships(connection, revised[number:]), attempt.job)
                voids = (attempt, *_standing(connection, revised[number:], later))
                gone.update({void.attempt_id: void for void in voids})
    reason = f"what it was computed from was staged anew at {barrier}"
    for void in gone.values():
        end_attempt(connection, void, AttemptState.VOIDED, reason, event)  # safety: restaging-voids-revised
    for each in revised:
        _reopen(connection, each, set(gone), event)


def _stands_on(attempt: Attempt, here: Mapping[str, TableProgress], before: Mapping[str, TableProgress]) -> bool:
    """Return whether the tables that it read, at its barrier and the one before, are still what they were."""
    pinned = [(here[table], snapshot) for table, snapshot in attempt.inputs.items()]
    pinned += [(before[table], snapshot) for table, snapshot in attempt.previous.items() if table in before]
    return all(
        row.state is not TableState.PENDING and row.snapshot_id == snapshot
        for row, snapshot in pinned
        # what the revision itself staged is seen to by those who stage it anew
        if row.line == STANDING
    )


def _memberships(connection: Connection, barriers: Sequence[Barrier]) -> list[Membership]:
    return [
        Membership(each.barrier_id, each.predecessor, load_topology(connection, each.topology, each.topology_version))
        for each in barriers
    ]


def _standing(
    connection: Connection, barriers: Sequence[Barrier], stands_on: Mapping[int, tuple[str, ...]]
) -> tuple[Attempt, ...]:
    attempts = [each for b in barriers for each in attempts_of(connection, b.topology, b.barrier_id, b.line)]
    return voided(attempts, stands_on)


def _reopen(connection: Connection, barrier: Barrier, ended: set[int], event: Event) -> None:
    """The tables that the ended attempts staged are PENDING again, and so the barrier is not PRECOMMIT any more."""
    tables = [
        each.table
        for each in own_progress(connection, barrier).values()
        if each.state is TableState.PROCESSED and each.attempt_id in ended
    ]
    unstage_tables(connection, barrier, tables, event)  # safety: restaging-unstages-tables
    if tables:
        roll_back(connection, barrier)  # safety: restaging-is-told-readers
    if tables and barrier.state is BarrierState.PRECOMMIT:
        # what a check has found there does not count any more
        move_barrier(
            connection, barrier, BarrierState.OPEN, event, precommit_at=None, reason=None
        )  # safety: restaging-reopens
