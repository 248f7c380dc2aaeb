"""How far tables are, and what happened."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import STANDING, load_barrier, load_topology, standing, to_audit
from airflow_barrier.protocol.errors import ConfigurationError, UnknownTableError
from airflow_barrier.protocol.records import AuditEntry, Barrier, Reached, TableProgress
from airflow_barrier.protocol.states import DECIDED_BARRIERS, BarrierState, TableState

_ENDED = frozenset({BarrierState.COMMIT, BarrierState.ABORTED})
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


def _chosen(members: Sequence[str], tables: Sequence[str] | None, barrier: Barrier) -> tuple[str, ...]:
    if tables is None:
        return tuple(members)
    unknown = sorted(set(tables) - set(members))
    if unknown:
        raise UnknownTableError(
            f"{barrier}: expected its tables, which are {', '.join(sorted(members)) or 'none'}; found "
            f"{', '.join(unknown)}; correct the name, or wait for a barrier that has it"
        )
    return tuple(tables)


def reached(
    connection: Connection,
    topology: str,
    barrier_id: int,
    tables: Sequence[str] | None,
    target: TableState | BarrierState,
    line: int = STANDING,
) -> Reached:
    """Whether ``tables`` (None: all of the barrier's) are at ``target`` or beyond; ``line``: a revision's."""
    barrier = load_barrier(connection, topology, barrier_id, line)
    table_target = _table_target(barrier, target)
    if barrier.state in _ENDED and barrier_id > 0:
        # the rows of its tables may have been trimmed; which ones it had is known all the same
        members = load_topology(connection, topology, barrier.topology_version).tables
        wanted = _chosen(members, tables, barrier)
        aborted = barrier.state is BarrierState.ABORTED
        return Reached(not aborted, wanted if aborted else (), aborted, barrier.state)
    # what a maintenance barrier passes by is there as soon as it was there before
    stands = standing(connection, barrier)
    wanted = _chosen(tuple(stands), tables, barrier)
    missing = tuple(name for name in wanted if stands[name].state not in _TABLE_TARGETS[table_target])
    done = not missing
    if isinstance(target, BarrierState):
        done = barrier.state in _BARRIER_TARGETS[target][0] or (
            target is BarrierState.PRECOMMIT and _only_to_be_carried(barrier, stands)
        )
    return Reached(done, missing, False, barrier.state)


def _table_target(barrier: Barrier, target: TableState | BarrierState) -> TableState:
    if isinstance(target, BarrierState):
        if target not in _BARRIER_TARGETS:
            raise ConfigurationError(
                f"{barrier}: expected to wait for PRECOMMIT or COMMIT, found {target.value}; wait for one of these"
            )
        return _BARRIER_TARGETS[target][1]
    if target not in _TABLE_TARGETS:
        raise ConfigurationError(
            f"{barrier}: expected to wait for PROCESSED or WRITTEN, found {target.value}; wait for one of these"
        )
    return target


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
