"""Barriers as a person looks for them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import of_topology, to_barrier, topology_version
from airflow_barrier.protocol.records import Barrier
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
    return [to_barrier(row) for row in connection.execute(query)]
