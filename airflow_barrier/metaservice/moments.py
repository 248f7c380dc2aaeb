"""When what happened at barriers: the few columns of many rows that delay is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.rows import load_topology, of_topology, topology_version
from airflow_barrier.metaservice.transaction import Group, reads
from airflow_barrier.protocol.delay import AttemptMoments, BarrierMoments
from airflow_barrier.protocol.records import Barrier, BarrierKind
from airflow_barrier.protocol.states import AttemptState, BarrierState


class Readable(NamedTuple):
    """A barrier that readers have."""

    barrier_id: int
    predecessor: int | None
    timestamp: datetime
    opened_at: datetime
    commit_at: datetime
    computed_in: int


class Moments(Group):
    """When barriers of the line that stands were opened, staged and committed, and when attempts began and ended."""

    @reads
    def committed(
        self, connection: Connection, topology: str, *, since: datetime, before: int | None = None, limit: int
    ) -> list[Readable]:
        """The newest ``limit`` barriers with an epoch that were committed after ``since`` (UTC), the newest first;
        ``before``: only those with a lower id. Raises UnknownTopologyError.
        """
        topology_version(connection, topology)
        barrier = schema.barrier.c
        query = select(*(barrier[name] for name in Readable._fields)).where(
            of_topology(schema.barrier, topology),
            barrier.state == BarrierState.COMMIT.value,
            barrier.kind == BarrierKind.EPOCH.value,
        )
        if before is not None:
            query = query.where(barrier.barrier_id < before)
        rows = connection.execute(query.order_by(barrier.barrier_id.desc()).limit(limit)).all()
        return [each for each in map(Readable._make, rows) if each.commit_at > since]

    @reads
    def of(self, connection: Connection, topology: str, barrier_ids: Sequence[int]) -> dict[int, BarrierMoments]:
        """What happened at those of the barriers that are there and not aborted, by their ids.

        Of one that expired and was trimmed no table is known any more. Reads the rows of all their tables and attempts.
        """
        barrier, progress, attempt = schema.barrier, schema.table_progress.c, schema.attempt.c
        query = select(barrier).where(
            _of(barrier, topology, barrier_ids), barrier.c.state != BarrierState.ABORTED.value
        )
        barriers = [to_record(Barrier, row) for row in connection.execute(query)]
        staged: dict[int, dict[str, datetime | None]] = {each.barrier_id: {} for each in barriers}
        attempts: dict[int, dict[str, list[AttemptMoments]]] = {each.barrier_id: {} for each in barriers}
        for barrier_id, table, processed_at in connection.execute(
            select(progress.barrier_id, progress.table_name, progress.processed_at)
            .where(_of(schema.table_progress, topology, staged))
            .order_by(progress.barrier_id, progress.table_name)
        ).all():
            staged[barrier_id][table] = processed_at
        columns = [attempt.barrier_id, *(attempt[name] for name in AttemptMoments._fields)]
        query = select(*columns).where(_of(schema.attempt, topology, staged))
        for barrier_id, job, state, *moments in connection.execute(
            query.order_by(attempt.barrier_id, attempt.attempt_id)
        ).all():
            attempts[barrier_id].setdefault(job, []).append(AttemptMoments(job, AttemptState(state), *moments))
        found = {}
        for each in barriers:
            members = load_topology(connection, topology, each.topology_version)
            # not those of a job that has joined since, whose history a revision put here
            at = staged[each.barrier_id]
            own = {table: at[table] for table in members.tables if table in at}
            # of a trimmed one the last rows of tables that have left are there still, and nothing that they waited for
            whole = own if len(own) == len(members.tables) else {}
            found[each.barrier_id] = BarrierMoments(each, members, whole, attempts[each.barrier_id])
        return found


def _of(table: Table, topology: str, barrier_ids: Iterable[int]) -> ColumnElement[bool]:
    return of_topology(table, topology) & table.c.barrier_id.in_(list(barrier_ids))
