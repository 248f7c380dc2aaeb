"""When what happened at barriers: the few columns of many rows that delay is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, literal, or_, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_records
from airflow_barrier.metaservice.rows import STANDING, load_topology, of_topology, topology_version
from airflow_barrier.metaservice.transaction import Group, reads
from airflow_barrier.protocol.delay import AttemptMoments, BarrierMoments
from airflow_barrier.protocol.records import Barrier, BarrierKind
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import Topology


class Readable(NamedTuple):
    """A barrier that readers have. ``since``: the timestamp of the oldest epoch that it has, which is its own unless
    barriers before it were aborted.
    """

    barrier_id: int
    predecessor: int | None
    timestamp: datetime
    opened_at: datetime
    commit_at: datetime
    computed_in: int
    since: datetime


class Delivered(NamedTuple):
    """A delivery to a sink of the DAG ``owner``, and when the oldest of its barriers was committed."""

    sink: str
    owner: str
    commit_at: datetime
    delivered_at: datetime

    @property
    def seconds(self) -> float:
        return (self.delivered_at - self.commit_at).total_seconds()


class Moments(Group):
    """The moments of barriers of the line that stands (opened, staged, committed), and of attempts (begun, ended)."""

    @reads
    def committed(
        self, connection: Connection, topology: str, *, since: datetime, before: int | None = None, limit: int
    ) -> list[Readable]:
        """The newest ``limit`` barriers with an epoch that were committed after ``since`` (UTC), the newest first;
        ``before``: only those with a lower id. Raises UnknownTopologyError.
        """
        topology_version(connection, topology)
        barrier = schema.barrier.c
        query = select(*(barrier[name] for name in Readable._fields[:-1])).where(
            of_topology(schema.barrier, topology),
            barrier.state == BarrierState.COMMIT.value,
            barrier.kind == BarrierKind.EPOCH.value,
        )
        if before is not None:
            query = query.where(barrier.barrier_id < before)
        rows = connection.execute(query.order_by(barrier.barrier_id.desc()).limit(limit)).all()
        found = [row for row in rows if row.commit_at > since]
        lost = _aborted(connection, topology, [(row.predecessor or 0, row.barrier_id) for row in found])
        return [
            Readable._make((*row, min((row.timestamp, *(each.timestamp for each in lost.get(row.barrier_id, ()))))))
            for row in found
        ]

    @reads
    def delivered(self, connection: Connection, topology: str, since: datetime) -> list[Delivered]:
        """Return its sinks' deliveries after ``since`` (UTC); not what a revision computed again, which was committed
        long before.
        """
        delivery = schema.delivery.c
        return _delivered(connection, topology, delivery.first_barrier, delivery.delivered_at > since)

    @reads
    def delivered_at(self, connection: Connection, topology: str, barrier_id: int) -> list[Delivered]:
        """Return its sinks' deliveries of a barrier, as it was first."""
        delivery = schema.delivery.c
        here = literal(barrier_id).between(delivery.first_barrier, delivery.barrier_id)
        return _delivered(connection, topology, literal(barrier_id), here)

    @reads
    def of(self, connection: Connection, topology: str, barrier_ids: Sequence[int]) -> dict[int, BarrierMoments]:
        """Map the ids of the barriers that are there and not aborted to what happened at them.

        Of one that expired and was trimmed no table is known any more. Reads the rows of all their tables and attempts.
        """
        barrier, progress, attempt = schema.barrier, schema.table_progress.c, schema.attempt.c
        is_standing = barrier.c.state != BarrierState.ABORTED.value
        rows = connection.execute(select(barrier).where(_of(barrier, topology, barrier_ids), is_standing))
        standing = to_records(Barrier, rows)
        takers = [each for each in standing if each.kind is BarrierKind.EPOCH]
        lost = _aborted(connection, topology, [(each.predecessor or 0, each.barrier_id) for each in takers])
        barriers = [*standing, *(each for some in lost.values() for each in some)]
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
        for row in connection.execute(query.order_by(attempt.barrier_id, attempt.attempt_id)).all():
            _, job, state = row[:3]
            found = AttemptMoments(job, AttemptState(state), *row[3:])
            attempts[row.barrier_id].setdefault(job, []).append(found)
        sources: dict[int, dict[str, datetime | None]] = {each.barrier_id: {} for each in barriers}
        for row in connection.execute(_put_off(topology, staged)).all():
            sources[row.barrier_id][row.source] = row.made_at

        def moments(of: Barrier, aborted: Iterable[Barrier] = ()) -> BarrierMoments:
            number, members = of.barrier_id, load_topology(connection, topology, of.topology_version)
            tries = attempts[number]
            # an abort takes back what was staged
            at = staged[number] if of.aborted_at is None else _processed(members, staged[number], tries)
            # not those of a job that has joined since, whose history a revision put here
            own = {table: at[table] for table in members.tables if table in at}
            # of a trimmed one the last rows of tables that have left are there still, and nothing that they waited for
            whole = own if len(own) == len(members.tables) else {}
            return BarrierMoments(of, members, whole, tries, sources[number], [moments(each) for each in aborted])

        return {each.barrier_id: moments(each, lost.get(each.barrier_id, ())) for each in standing}


def _aborted(connection: Connection, topology: str, takers: Iterable[tuple[int, int]]) -> dict[int, list[Barrier]]:
    """Map each barrier to those that were aborted between its predecessor and it, oldest first: it has their epochs."""
    apart = [(predecessor, barrier_id) for predecessor, barrier_id in takers if predecessor < barrier_id - 1]
    if not apart:
        return {}
    barrier = schema.barrier.c
    query = select(schema.barrier).where(
        of_topology(schema.barrier, topology),
        barrier.barrier_id.between(min(apart)[0], max(apart)[1]),
        barrier.state == BarrierState.ABORTED.value,
        barrier.kind == BarrierKind.EPOCH.value,
    )
    aborted = to_records(Barrier, connection.execute(query.order_by(barrier.barrier_id)))
    return {
        barrier_id: [each for each in aborted if predecessor < each.barrier_id < barrier_id]
        for predecessor, barrier_id in apart
    }


def _delivered(
    connection: Connection, topology: str, barrier_id: ColumnElement[int], where: ColumnElement[bool]
) -> list[Delivered]:
    """``barrier_id``: whose commit it is."""
    delivery, barrier, sink = schema.delivery, schema.barrier, schema.sink
    rows = connection.execute(
        select(delivery.c.sink, sink.c.owner, barrier.c.commit_at, delivery.c.delivered_at)
        .select_from(delivery)
        .join(barrier, and_(of_topology(barrier, topology), barrier.c.barrier_id == barrier_id))
        .join(sink, and_(sink.c.topology == delivery.c.topology, sink.c.name == delivery.c.sink))
        .where(delivery.c.topology == topology, delivery.c.revision == STANDING, where)
        .order_by(delivery.c.sink, delivery.c.barrier_id)
    )
    return [Delivered(*row) for row in rows]


def _put_off(topology: str, barrier_ids: Iterable[int]) -> Select[tuple[int, str, datetime | None]]:
    """The cuts that were not made when their barriers opened, and when they were."""
    cut, barrier = schema.cut, schema.barrier
    opened = and_(of_topology(barrier, topology), barrier.c.barrier_id == cut.c.barrier_id)
    return (
        select(cut.c.barrier_id, cut.c.source, cut.c.made_at)
        .join(barrier, opened)
        .where(_of(cut, topology, barrier_ids), or_(cut.c.made_at.is_(None), cut.c.made_at > barrier.c.opened_at))
    )


def _processed(
    topology: Topology, tables: Iterable[str], attempts: Mapping[str, Sequence[AttemptMoments]]
) -> dict[str, datetime | None]:
    """Map each table to when it was staged, by the newest attempt of its job."""
    newest = {job: tries[-1].processed_at for job, tries in attempts.items()}
    return {table: newest.get(topology.writer(table).name) for table in tables if table in topology.tables}


def _of(table: Table, topology: str, barrier_ids: Iterable[int]) -> ColumnElement[bool]:
    return of_topology(table, topology) & table.c.barrier_id.in_(list(barrier_ids))
