"""How far tables are, and what happened."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import load_barrier, standing, to_audit
from airflow_barrier.protocol.errors import ConfigurationError, UnknownTableError
from airflow_barrier.protocol.records import AuditEntry, Barrier, Reached, TableProgress
from airflow_barrier.protocol.states import DECIDED_BARRIERS, BarrierState, TableState

_READ_COMMITTED = DECIDED_BARRIERS | {BarrierState.PRECOMMIT}
#: Which states count as having reached one, and which state of its tables a barrier's means.
_BARRIER_TARGETS = {
    BarrierState.PRECOMMIT: (_READ_COMMITTED, TableState.PROCESSED),
    BarrierState.COMMIT: (frozenset({BarrierState.COMMIT}), TableState.WRITTEN),
}
_TABLE_TARGETS = {
    TableState.PROCESSED: frozenset({TableState.PROCESSED, TableState.WRITTEN}),
    TableState.WRITTEN: frozenset({TableState.WRITTEN}),
}


def _chosen(rows: dict[str, TableProgress], tables: Sequence[str] | None, barrier: Barrier) -> dict[str, TableProgress]:
    if tables is None:
        return rows
    unknown = sorted(set(tables) - set(rows))
    if unknown:
        raise UnknownTableError(
            f"{barrier}: expected its tables, which are {', '.join(sorted(rows)) or 'none'}; found "
            f"{', '.join(unknown)}; correct the name, or wait for a barrier that has it"
        )
    return {name: rows[name] for name in tables}


def reached(
    connection: Connection,
    topology: str,
    barrier_id: int,
    tables: Sequence[str] | None,
    target: TableState | BarrierState,
) -> Reached:
    """Whether ``tables`` (None: all of the barrier's) are at ``target`` or beyond."""
    barrier = load_barrier(connection, topology, barrier_id)
    # what a maintenance barrier passes by is there as soon as it was there before
    stands = standing(connection, barrier)
    rows = _chosen(stands, tables, barrier)
    if isinstance(target, BarrierState):
        if target not in _BARRIER_TARGETS:
            raise ConfigurationError(
                f"{barrier}: expected to wait for PRECOMMIT or COMMIT, found {target.value}; wait for one of these"
            )
        barrier_states, table_target = _BARRIER_TARGETS[target]
        done = barrier.state in barrier_states or (
            target is BarrierState.PRECOMMIT and _only_to_be_carried(barrier, stands)
        )
    else:
        table_target = target
        done = False
    if table_target not in _TABLE_TARGETS:
        raise ConfigurationError(
            f"{barrier}: expected to wait for PROCESSED or WRITTEN, found {target.value}; wait for one of these"
        )
    missing = tuple(name for name, row in rows.items() if row.state not in _TABLE_TARGETS[table_target])
    return Reached(
        done=done if isinstance(target, BarrierState) else not missing,
        missing=missing,
        aborted=barrier.state is BarrierState.ABORTED,
        barrier_state=barrier.state,
    )


def _only_to_be_carried(barrier: Barrier, stands: dict[str, TableProgress]) -> bool:
    """Whether a maintenance barrier lacks nothing that its commit does not do by itself."""
    open_still = barrier.is_maintenance and barrier.state is BarrierState.OPEN
    return open_still and all(row.state is not TableState.PENDING for row in stands.values())


def audit(connection: Connection, topology: str, barrier_id: int | None, limit: int) -> list[AuditEntry]:
    """The newest ``limit`` entries, oldest of them first."""
    table = schema.audit
    query = select(table).where(table.c.topology == topology)
    if barrier_id is not None:
        query = query.where(table.c.barrier_id == barrier_id)
    rows = connection.execute(query.order_by(table.c.audit_id.desc()).limit(limit)).all()
    return [to_audit(row) for row in reversed(rows)]
