"""Where the first epoch of each job begins: what its tables held already when it joined."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, false, insert, or_, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record, to_records
from airflow_barrier.metaservice.rows import barrier_key, load_barrier, of_barrier, of_topology
from airflow_barrier.metaservice.transaction import Group, reads
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.records import Barrier, BarrierKind, JobStart, TableProgress
from airflow_barrier.protocol.states import BarrierState


class Starts(Group):
    """The starts of jobs, with what their tables held then."""

    @reads
    def last(self, connection: Connection, topology: str, job: str) -> tuple[Barrier, JobStart] | None:
        """Return a job's last start, and the first barrier that had it, aborted or not; None: it never joined."""
        return last_start(connection, topology, job)

    @reads
    def to_read(self, connection: Connection, topology: str, revised_from: int | None) -> list[JobStart]:
        """Return starts of jobs that joined with barriers that are neither committed nor aborted, or with those from
        ``revised_from`` on: up to where they have read their inlets, which they are about to read on.
        """
        table, barrier = schema.job_start, schema.barrier
        revised = false() if revised_from is None else table.c.barrier_id >= revised_from
        rows = connection.execute(
            select(table)
            .join(barrier, and_(of_topology(barrier, topology), barrier.c.barrier_id == table.c.barrier_id))
            .where(of_topology(table, topology), schema.NOT_ABORTED, or_(schema.UNCOMMITTED, revised))
            .order_by(table.c.barrier_id, table.c.job)
        )
        return to_records(JobStart, rows)

    @reads
    def last_progress(self, connection: Connection, topology: str, table: str) -> TableProgress | None:
        """The table at the newest barrier whose epoch it has and that is not aborted; None: it was in none."""
        return last_progress(connection, topology, table)


def insert_starts(
    connection: Connection, topology: str, barrier_id: int, starts: Sequence[JobStart], actor: str
) -> None:
    """Write down how jobs join with a barrier that is being opened."""
    rows = []
    for start in starts:
        said = {
            "start_from": start.start_from,
            "baseline": dict(start.baseline),
            "previous": dict(start.previous),
            "externals": dict(start.externals),
        }
        rows.append({**barrier_key(topology, barrier_id), "job": start.job, **said})
        event = Event("job joined", actor, {"job": start.job, **said})
        record(connection, event, topology, barrier_id, "topology", [topology])
    if rows:
        connection.execute(insert(schema.job_start), rows)


def start_of(connection: Connection, topology: str, barrier_id: int, job: str) -> JobStart | None:
    """None unless the job joined with this barrier."""
    table = schema.job_start
    row = connection.execute(
        select(table).where(of_barrier(table, topology, barrier_id), table.c.job == job)
    ).one_or_none()
    return None if row is None else to_record(JobStart, row)


def starts_at(connection: Connection, topology: str, barrier_id: int) -> list[JobStart]:
    """Return the starts of jobs that joined with a barrier."""
    table = schema.job_start
    rows = connection.execute(select(table).where(of_barrier(table, topology, barrier_id)).order_by(table.c.job))
    return to_records(JobStart, rows)


def last_start(connection: Connection, topology: str, job: str) -> tuple[Barrier, JobStart] | None:
    table = schema.job_start
    row = connection.execute(
        select(table)
        .where(of_topology(table, topology), table.c.job == job)
        .order_by(table.c.barrier_id.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else (load_barrier(connection, topology, row.barrier_id), to_record(JobStart, row))


def last_progress(connection: Connection, topology: str, table: str) -> TableProgress | None:
    """A table at the newest barrier whose epoch it has; aborted ones and the baseline aside."""
    progress, barrier = schema.table_progress, schema.barrier
    joined = connection.execute(
        select(progress.c.table_name).where(of_barrier(progress, topology, 0), progress.c.table_name == table)
    ).one_or_none()
    if joined is None:  # and it need not be looked for in all of history
        return None
    row = connection.execute(
        select(progress)
        .join(barrier, and_(of_topology(barrier, topology), barrier.c.barrier_id == progress.c.barrier_id))
        .where(
            of_topology(progress, topology),
            progress.c.table_name == table,
            progress.c.barrier_id > 0,
            barrier.c.state != BarrierState.ABORTED.value,
            barrier.c.kind != BarrierKind.MAINTENANCE.value,  # safety: resumes-after-an-epoch
        )
        .order_by(progress.c.barrier_id.desc())
        .limit(1)
    ).one_or_none()
    return None if row is None else to_record(TableProgress, row)
