"""Carrying the tables that a maintenance barrier passes by: they stand where they stood before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, insert

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import (
    STANDING,
    barrier_key,
    incarnation_of,
    load_barrier,
    load_topology,
    progress,
    standing,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transitions import Event, move_tables, precommit_if_complete, record
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.records import Attempt, Barrier, StagedTable, TableProgress
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState

#: The generation of attempts that nobody made: their tables were carried.
CARRIED = "carried"


def carry(
    connection: Connection, topology: str, barrier_id: int, actor: str, tables: Sequence[str] | None = None
) -> int:
    """Carry what nobody takes of a maintenance barrier and is there to be carried; returns how many tables.

    ``tables``: only of these (None: of all). Other barriers, and one that is aborted, have nothing to be carried.
    """
    barrier = load_barrier(connection, topology, barrier_id)
    here = progress(connection, topology, barrier_id, tables=tables)
    stands = standing(connection, barrier, tables)
    passed_by = [
        row
        for row in here.values()
        if row.state is TableState.PENDING and stands[row.table].state is not TableState.PENDING
    ]
    _carry(connection, barrier, passed_by, stands, actor)
    if passed_by:
        precommit_if_complete(connection, barrier, actor)
    return len(passed_by)


def _carry(
    connection: Connection,
    barrier: Barrier,
    passed_by: Sequence[TableProgress],
    stands: Mapping[str, TableProgress],
    actor: str,
) -> None:
    """All in one go: with a thousand tables, what a job goes through for each of them would take minutes.

    Each gets an attempt, PROCESSED from the beginning: who restages what a table stands on finds it by that.
    """
    incarnation = incarnation_of(connection, barrier.topology)
    carried = Event(CARRIED, actor)
    attempts = []
    for row in passed_by:
        stood = stands[row.table]
        attempt_id = connection.execute(
            insert(schema.attempt)
            .values(
                **barrier_key(barrier.topology, barrier.barrier_id),
                job=row.job,
                state=AttemptState.PROCESSED.value,
                request_key=f"carried for {actor}",
                generation=CARRIED,
                incarnation=incarnation,
                requested_at=DatabaseNow(),
                processed_at=DatabaseNow(),
                waited_for=[],
                inputs={},
                previous={},
                bases={row.table: stood.snapshot_id},
                staged=encode({row.table: StagedTable(row.table, None, unchanged=True)}),
                code={},
            )
            .returning(schema.attempt.c.attempt_id)
        ).scalar_one()
        attempts.append(str(attempt_id))
        move_tables(
            connection,
            barrier,
            [row.table],
            TableState.PENDING,
            TableState.PROCESSED,
            carried,
            snapshot_id=stood.snapshot_id,
            attempt_id=attempt_id,
            carried_from=stood.origin,
            processed_at=DatabaseNow(),
        )
    after = AttemptState.PROCESSED.value
    record(connection, carried, barrier.topology, barrier.barrier_id, "attempt", attempts, after=after)


def pass_by(connection: Connection, attempt: Attempt) -> None:
    """Carry what an attempt is about to build on, where the barrier before its own is a maintenance barrier."""
    barrier = load_barrier(connection, attempt.topology, attempt.barrier_id, attempt.line)
    if barrier.line != STANDING:  # what a revision builds on is committed, or carried for who builds on it first
        return
    before = load_barrier(connection, attempt.topology, barrier.predecessor or 0)
    if not before.is_maintenance or before.state is not BarrierState.OPEN:
        return
    job = load_topology(connection, barrier.topology, barrier.topology_version).job(attempt.job)
    carry(connection, attempt.topology, before.barrier_id, attempt.request_key, (*job.inlets, *job.outlets))
