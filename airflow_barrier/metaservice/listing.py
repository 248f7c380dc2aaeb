"""Barriers as a person looks for them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, func, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.rows import of_topology, topology_version
from airflow_barrier.protocol.records import Barrier, BarrierKind
from airflow_barrier.protocol.states import BarrierState


def barriers(connection: Connection, topology: str, states: Sequence[BarrierState], limit: int) -> list[Barrier]:
    """The newest ``limit`` barriers in one of ``states``, the newest first. Raises UnknownTopologyError."""
    topology_version(connection, topology)
    query = (
        select(schema.barrier)
        .where(of_topology(schema.barrier, topology), schema.barrier.c.state.in_([state.value for state in states]))
        .order_by(schema.barrier.c.barrier_id.desc())
        .limit(limit)
    )
    return [to_record(Barrier, row) for row in connection.execute(query)]


def epochs(
    connection: Connection,
    topology: str,
    *,
    first: int = 1,
    after: datetime | None = None,
    committed: bool = False,
    limit: int,
) -> list[Barrier]:
    """The oldest ``limit`` barriers that have an epoch which counts, oldest first: from barrier ``first`` on, and of
    those only the ones later than ``after``. ``committed``: none but those that are COMMIT.
    """
    barrier = schema.barrier.c
    query = select(schema.barrier).where(*_with_epoch(topology, committed, first))
    if after is None:
        query = query.order_by(barrier.barrier_id)
    else:  # timestamps rise with ids; said as text, planners see that there is an index by time
        query = query.where(schema.NOT_ABORTED, barrier.timestamp > after)
        query = query.order_by(barrier.timestamp, barrier.barrier_id)
    return [to_record(Barrier, row) for row in connection.execute(query.limit(limit))]


def newest_epochs(connection: Connection, topology: str, limit: int) -> list[Barrier]:
    """The newest ``limit`` barriers that are COMMIT and have an epoch, the newest first."""
    query = select(schema.barrier).where(*_with_epoch(topology, committed=True))
    rows = connection.execute(query.order_by(schema.barrier.c.barrier_id.desc()).limit(limit))
    return [to_record(Barrier, row) for row in rows]


def oldest_readable_epoch(connection: Connection, topology: str) -> Barrier | None:
    """The oldest barrier with an epoch that is COMMIT and has not begun to expire."""
    query = select(schema.barrier).where(*_with_epoch(topology, committed=True), schema.READABLE)
    row = connection.execute(query.order_by(schema.barrier.c.barrier_id).limit(1)).one_or_none()
    return None if row is None else to_record(Barrier, row)


def count_epochs(connection: Connection, topology: str, first: int) -> int:
    """How many barriers from ``first`` on have an epoch that counts."""
    where = _with_epoch(topology, committed=False, first=first)
    return int(connection.execute(select(func.count()).select_from(schema.barrier).where(*where)).scalar_one())


def _with_epoch(topology: str, committed: bool, first: int = 1) -> list[ColumnElement[bool]]:
    """The condition: neither aborted nor the baseline, nor maintenance, which has none of its own."""
    barrier, states = schema.barrier.c, BarrierState
    return [
        of_topology(schema.barrier, topology),
        barrier.state == states.COMMIT.value if committed else barrier.state != states.ABORTED.value,
        barrier.barrier_id >= max(first, 1),
        barrier.kind != BarrierKind.MAINTENANCE.value,
    ]
