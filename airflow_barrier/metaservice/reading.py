"""Which snapshots a reader gets, how far tables are, and what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from sqlalchemy import Connection, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.rows import (
    head,
    load_barrier,
    newest,
    of_topology,
    progress,
    to_audit,
    to_progress,
    topology_version,
    uncommitted,
)
from airflow_barrier.protocol.errors import ConfigurationError, UnknownBarrierError, UnknownTableError
from airflow_barrier.protocol.levels import Level, Resolution, ResolvedTable
from airflow_barrier.protocol.records import AuditEntry, Reached, TableProgress
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


def resolve(connection: Connection, topology: str, level: Level, tables: Sequence[str] | None) -> Resolution:
    """The snapshot of each table at a level; ``tables`` None: all."""
    if level is Level.READ_UNCOMMITTED:
        rows = _newest_rows(connection, topology)
        found = _chosen(topology, rows, tables, "in any barrier that was opened")
        return Resolution(topology, level, None, None, _resolved(found))
    states = _READ_COMMITTED if level is Level.READ_COMMITTED else {BarrierState.COMMIT}
    barrier = newest(connection, topology, states)
    if barrier is None:
        _raise_no_barrier(connection, topology)
    found = _chosen(topology, progress(connection, topology, barrier.barrier_id), tables, f"at {barrier}")
    resolved = {
        name: ResolvedTable(name, row.snapshot_id, barrier.barrier_id, barrier.revision) for name, row in found.items()
    }
    return Resolution(topology, level, barrier.barrier_id, barrier.revision, resolved)


def _newest_rows(connection: Connection, topology: str) -> dict[str, TableProgress]:
    """The newest staged row of each table of the newest barrier.

    Only what is in flight, the last commit and the baseline can hold it, so history is not read.
    """
    last, latest = newest(connection, topology, {BarrierState.COMMIT}), head(connection, topology)
    if last is None or latest is None:
        _raise_no_barrier(connection, topology)
    members = progress(connection, topology, latest.barrier_id)
    ids = {0, last.barrier_id, *(barrier.barrier_id for barrier in uncommitted(connection, topology))}
    table = schema.table_progress
    rows = connection.execute(
        select(table)
        .where(of_topology(table, topology), table.c.barrier_id.in_(ids), table.c.state != TableState.PENDING.value)
        .order_by(table.c.barrier_id, table.c.table_name)
    )
    return {row.table_name: to_progress(row) for row in rows if row.table_name in members}


def _resolved(rows: dict[str, TableProgress]) -> dict[str, ResolvedTable]:
    return {name: ResolvedTable(name, row.snapshot_id, row.barrier_id, row.revision) for name, row in rows.items()}


def _chosen(
    topology: str, rows: dict[str, TableProgress], tables: Sequence[str] | None, where: str
) -> dict[str, TableProgress]:
    if tables is None:
        return rows
    unknown = sorted(set(tables) - set(rows))
    if unknown:
        raise UnknownTableError(
            f"topology {topology}: expected tables {where}, which are {', '.join(sorted(rows)) or 'none'}; found "
            f"{', '.join(unknown)}; correct the name, or wait for a barrier that has it"
        )
    return {name: rows[name] for name in tables}


def _raise_no_barrier(connection: Connection, topology: str) -> NoReturn:
    topology_version(connection, topology)
    raise UnknownBarrierError(
        f"topology {topology}: expected a barrier to read at, found that none was opened yet; run the DAG that "
        "opens them"
    )


def reached(
    connection: Connection,
    topology: str,
    barrier_id: int,
    tables: Sequence[str] | None,
    target: TableState | BarrierState,
) -> Reached:
    """Whether ``tables`` (None: all of the barrier's) are at ``target`` or beyond."""
    barrier = load_barrier(connection, topology, barrier_id)
    rows = _chosen(topology, progress(connection, topology, barrier_id), tables, f"at {barrier}")
    if isinstance(target, BarrierState):
        if target not in _BARRIER_TARGETS:
            raise ConfigurationError(
                f"{barrier}: expected to wait for PRECOMMIT or COMMIT, found {target.value}; wait for one of these"
            )
        barrier_states, table_target = _BARRIER_TARGETS[target]
        done = barrier.state in barrier_states
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


def audit(connection: Connection, topology: str, barrier_id: int | None, limit: int) -> list[AuditEntry]:
    """The newest ``limit`` entries, oldest of them first."""
    table = schema.audit
    query = select(table).where(table.c.topology == topology)
    if barrier_id is not None:
        query = query.where(table.c.barrier_id == barrier_id)
    rows = connection.execute(query.order_by(table.c.audit_id.desc()).limit(limit)).all()
    return [to_audit(row) for row in reversed(rows)]
