"""How far tables are, and what happened."""

from __future__ import annotations

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.rows import STANDING, load_barrier, load_topology, standing
from airflow_barrier.protocol.reaching import Standing
from airflow_barrier.protocol.records import AuditEntry
from airflow_barrier.protocol.states import BarrierState, TableState


def stands(connection: Connection, topology: str, barrier_id: int, line: int = STANDING) -> Standing:
    """Where each table of a barrier stands; ``line``: in a revision."""
    barrier = load_barrier(connection, topology, barrier_id, line)
    if barrier.state in (BarrierState.COMMIT, BarrierState.ABORTED) and barrier_id > 0:
        # the rows of its tables may have been trimmed; which ones it had is known all the same
        members = load_topology(connection, topology, barrier.topology_version).tables
        state = TableState.WRITTEN if barrier.state is BarrierState.COMMIT else TableState.PENDING
        return Standing(barrier, dict.fromkeys(members, state))
    # what a maintenance barrier passes by is there as soon as it was there before
    return Standing(barrier, {name: row.state for name, row in standing(connection, barrier).items()})


def audit(connection: Connection, topology: str, barrier_id: int | None, limit: int) -> list[AuditEntry]:
    """The newest ``limit`` entries, oldest of them first."""
    table = schema.audit
    query = select(table).where(table.c.topology == topology)
    if barrier_id is not None:
        query = query.where(table.c.barrier_id == barrier_id)
    rows = connection.execute(query.order_by(table.c.audit_id.desc()).limit(limit)).all()
    return [to_record(AuditEntry, row) for row in reversed(rows)]
