"""Maintenance barriers: the rows of the predecessor, in other files. They have no epoch, no cut and no timestamp.

Each table is a job of its own there, so that it waits for nothing but itself. A table without a live attempt is passed
by: it keeps the snapshot that it had, and is carried over when a job needs it. A compaction that dies therefore delays
others only until its attempt ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.attempts import Request, load_attempt, precommit_if_complete, request_attempt
from airflow_barrier.metaservice.barriers import Opening, check_gate, check_room, current_topology, insert_open
from airflow_barrier.metaservice.rows import (
    STANDING,
    attempts_of,
    barrier_key,
    head,
    incarnation_of,
    load_barrier,
    load_topology,
    lock_topology,
    progress,
    standing,
    uncommitted,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.topologies import version_of
from airflow_barrier.metaservice.transitions import Event, move_tables, record
from airflow_barrier.protocol.errors import UnknownTableError
from airflow_barrier.protocol.records import Barrier, BarrierKind, RunRef, StagedTable, TableProgress
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from airflow_barrier.protocol.topology import maintenance_topology

#: The generation of attempts that nobody made: their tables were carried.
_CARRIED = "carried"


@dataclass(frozen=True)
class Upkeep:
    """What a maintenance barrier is opened with. ``tables``: those to be maintained (None: all). Its jobs are those of
    the DAG of ``run``.
    """

    topology: str
    tables: Sequence[str] | None
    run: RunRef
    request_key: str
    generation: str
    max_open: int
    actor: str


def open_maintenance(connection: Connection, upkeep: Upkeep) -> Barrier | None:
    """The topology's unfinished maintenance barrier, or a new one on its head.

    None: it has no barrier yet, or its newest one is this maintenance already, so that nothing is new in the tables.

    Attempts are requested along with it, so that no table is passed by before its turn comes.
    """
    lock_topology(connection, upkeep.topology)  # safety: topology-lock
    open_now = uncommitted(connection, upkeep.topology)
    unfinished = next((barrier for barrier in open_now if barrier.is_maintenance), None)
    if unfinished is not None:
        return unfinished
    latest = head(connection, upkeep.topology)
    tables = _tables(connection, latest) if latest is not None else ()
    if latest is None or not tables:
        return None
    check_gate(connection, upkeep.topology)
    chosen = _chosen(latest, tables, upkeep.tables)
    if set(chosen) <= _maintained(connection, latest):
        return None
    jobs = maintenance_topology(upkeep.topology, tables, upkeep.run.dag_id)
    opening = Opening(
        topology=upkeep.topology,
        topology_version=version_of(connection, jobs),
        timestamp=latest.timestamp,
        cuts=(),
        predecessor=latest.barrier_id,
        kind=BarrierKind.MAINTENANCE,
        run=upkeep.run,
        timestamp_from="predecessor",
        max_open=upkeep.max_open,
        baseline={},
        actor=upkeep.actor,
    )
    check_room(opening, open_now)
    barrier_id = insert_open(connection, opening, jobs)
    for table in chosen:
        request_attempt(connection, _request(upkeep, barrier_id, jobs.writer(table).name))
    return load_barrier(connection, upkeep.topology, barrier_id)


def carry(
    connection: Connection, topology: str, barrier_id: int, actor: str, tables: Sequence[str] | None = None
) -> int:
    """Carry what nobody takes of a maintenance barrier and is there to be carried; returns how many tables.

    ``tables``: only of these (None: of all). Other barriers, and one that is aborted, have nothing to be carried.
    """
    lock_topology(connection, topology)  # safety: topology-lock
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
    carried = Event(_CARRIED, actor)
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
                generation=_CARRIED,
                incarnation=incarnation,
                requested_at=DatabaseNow(),
                processed_at=DatabaseNow(),
                waited_for=[],
                inputs={},
                previous={},
                bases={row.table: stood.snapshot_id},
                staged={row.table: asdict(StagedTable(row.table, None, unchanged=True))},
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


def pass_by(connection: Connection, attempt_id: int) -> None:
    """Carry what an attempt is about to build on, where the barrier before its own is a maintenance barrier."""
    attempt = load_attempt(connection, attempt_id)
    barrier = load_barrier(connection, attempt.topology, attempt.barrier_id, attempt.line)
    if barrier.line != STANDING:  # what a revision builds on is committed, or carried for who builds on it first
        return
    before = load_barrier(connection, attempt.topology, barrier.predecessor or 0)
    if not before.is_maintenance or before.state is not BarrierState.OPEN:
        return
    job = load_topology(connection, barrier.topology, barrier.topology_version).job(attempt.job)
    carry(connection, attempt.topology, before.barrier_id, attempt.request_key, (*job.inlets, *job.outlets))


def _tables(connection: Connection, latest: Barrier) -> tuple[str, ...]:
    """Those that the newest barrier has and that have not left since."""
    still = set(current_topology(connection, latest.topology).tables)
    rows = progress(connection, latest.topology, latest.barrier_id) if latest.barrier_id else {}
    return tuple(table for table in rows if table in still)


def _chosen(latest: Barrier, tables: Sequence[str], wanted: Sequence[str] | None) -> Sequence[str]:
    unknown = sorted(set(wanted or ()) - set(tables))
    if unknown:
        raise UnknownTableError(
            f"{latest}: expected tables that it has, which are {', '.join(tables)}; found {', '.join(unknown)}; "
            "correct the name, or wait until the table has joined"
        )
    return tables if wanted is None else wanted


def _maintained(connection: Connection, latest: Barrier) -> set[str]:
    """The tables that ``latest`` has maintained, if it is that kind of barrier and COMMIT."""
    if not latest.is_maintenance or latest.state is not BarrierState.COMMIT:
        return set()
    return {
        table
        for attempt in attempts_of(connection, latest.topology, latest.barrier_id)
        if attempt.state is AttemptState.PROCESSED and attempt.generation != _CARRIED
        for table in attempt.bases
    }


def _request(upkeep: Upkeep, barrier_id: int, job: str) -> Request:
    return Request(upkeep.topology, barrier_id, job, upkeep.request_key, upkeep.generation, upkeep.actor)
