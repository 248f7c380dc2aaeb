"""Staging a job anew after its output was PROCESSED: everything that stands on it goes with it, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from airflow_barrier.metaservice.leases import roll_back
from airflow_barrier.metaservice.rows import attempts_of, load_topology, progress, uncommitted
from airflow_barrier.metaservice.transitions import Event, end_attempt, move_barrier, record, unstage_tables
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.restaging import Membership, consumers, consumers_of_table, voided
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState


def restage(connection: Connection, barrier: Barrier, attempt: Attempt, actor: str) -> None:
    """Void what consumed ``attempt``, make the tables PENDING and the barriers OPEN again, and leave a note.

    The attempt itself is the caller's to fence. Its barrier is not decided, so no later one is.
    """
    barriers = uncommitted(connection, barrier.topology, first=barrier.barrier_id)
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
    return gone


def _memberships(connection: Connection, barriers: Sequence[Barrier]) -> list[Membership]:
    return [
        Membership(each.barrier_id, each.predecessor, load_topology(connection, each.topology, each.topology_version))
        for each in barriers
    ]


def _standing(
    connection: Connection, barriers: Sequence[Barrier], stands_on: Mapping[int, tuple[str, ...]]
) -> tuple[Attempt, ...]:
    attempts = [each for later in barriers for each in attempts_of(connection, later.topology, later.barrier_id)]
    return voided(attempts, stands_on)


def _reopen(connection: Connection, barrier: Barrier, ended: set[int], event: Event) -> None:
    """The tables that the ended attempts staged are PENDING again, and so the barrier is not PRECOMMIT any more."""
    tables = [
        each.table
        for each in progress(connection, barrier.topology, barrier.barrier_id).values()
        if each.state is TableState.PROCESSED and each.attempt_id in ended
    ]
    unstage_tables(connection, barrier, tables, event)  # safety: restaging-unstages-tables
    if tables:
        roll_back(connection, barrier)  # safety: restaging-is-told-readers
    if tables and barrier.state is BarrierState.PRECOMMIT:
        move_barrier(connection, barrier, BarrierState.OPEN, event, precommit_at=None)  # safety: restaging-reopens
