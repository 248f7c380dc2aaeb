"""Forgetting the details of barriers that nobody can read any more: what there is per table and attempt.

The barriers themselves stay, with their cuts and the items that these used up: ids are not used again, predecessors
lead back, and each input record is in one epoch. So do the newest row of each table that has left, by which a job that
comes back goes on, and the audit of barriers as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import Connection, and_, delete, or_, select, update

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record
from airflow_barrier.metaservice.resolving import readable
from airflow_barrier.metaservice.rows import (
    epoch_of,
    lock_topology,
    newest,
    of_barrier,
    of_topology,
    progress,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState

#: How many barriers one transaction trims: others wait for it.
_AT_ONCE = 20


def trim(connection: Connection, topology: str, before: datetime, actor: str) -> list[int]:
    """Trim some barriers that expired before a time, oldest first. Empty: none is left.

    What was aborted goes when the barriers below it have gone: until then people ask what became of it.
    """
    lock_topology(connection, topology)  # safety: topology-lock
    newest_commit = newest(connection, topology, {BarrierState.COMMIT})
    if newest_commit is None or newest_commit.barrier_id == 0:
        return []
    last = epoch_of(connection, newest_commit)
    barriers = _candidates(connection, topology, before, last.barrier_id)
    tables = {each.barrier_id: set(progress(connection, topology, each.barrier_id)) for each in barriers}
    kept = _newest_rows(barriers, tables, progress(connection, topology, last.barrier_id))
    for barrier in barriers:
        _trim_one(connection, barrier, kept[barrier.barrier_id])
    ids = [barrier.barrier_id for barrier in barriers]
    if ids:
        _trim_aside(connection, topology, ids)
        connection.execute(
            update(schema.barrier)
            .where(of_topology(schema.barrier, topology), schema.barrier.c.barrier_id.in_(ids))
            .values(trimmed_at=DatabaseNow())
        )
        record(connection, Event("trimmed", actor, {"barriers": ids}), topology, None, "topology", [topology])
    return ids


def trimmed(connection: Connection, topology: str, first: int, last: int) -> list[Barrier]:
    """The barriers from ``first`` to ``last`` that were committed, if all that there are and will be are trimmed; or
    none.
    """
    barrier = schema.barrier.c
    here = and_(of_topology(schema.barrier, topology), barrier.barrier_id.between(max(first, 1), last))
    newer = select(barrier.barrier_id).where(of_topology(schema.barrier, topology), barrier.barrier_id > last).limit(1)
    left = select(barrier.barrier_id).where(here, barrier.trimmed_at.is_(None)).limit(1)
    if connection.scalar(newer) is None or connection.scalar(left) is not None:
        return []
    rows = connection.execute(
        select(schema.barrier).where(here, barrier.state == BarrierState.COMMIT.value).order_by(barrier.barrier_id)
    )
    return [to_record(Barrier, row) for row in rows]


def _candidates(connection: Connection, topology: str, before: datetime, last: int) -> list[Barrier]:
    barrier = schema.barrier.c
    (oldest,) = readable(connection, topology, limit=1)  # the newest COMMIT does not expire
    rows = connection.execute(
        select(schema.barrier)
        .where(
            of_topology(schema.barrier, topology),
            schema.UNTRIMMED,
            or_(
                barrier.expired_at < before,
                and_(barrier.aborted_at < before, barrier.barrier_id < oldest.barrier_id),
            ),
            # of what was aborted since, attempts may still have branches, and readers hold them
            barrier.barrier_id < last,  # safety: trims-the-past-only
        )
        .order_by(barrier.barrier_id)
        .limit(_AT_ONCE)
    )
    return [to_record(Barrier, row) for row in rows]


def _newest_rows(
    barriers: Sequence[Barrier], tables: dict[int, set[str]], members: Collection[str]
) -> dict[int, set[str]]:
    """Which tables have their newest row at each of ``barriers``, or may have: ``members`` have a newer one."""
    kept: dict[int, set[str]] = {}
    newer = set(members)
    for barrier in reversed(barriers):
        # a maintenance barrier is nobody's last epoch
        counts = barrier.state is BarrierState.COMMIT and not barrier.is_maintenance
        here = tables[barrier.barrier_id] if counts else set()
        kept[barrier.barrier_id] = here - newer
        newer |= here
    return kept


def _trim_one(connection: Connection, barrier: Barrier, kept: set[str]) -> None:
    topology, number = barrier.topology, barrier.barrier_id
    audit, row = schema.audit.c, schema.table_progress.c
    connection.execute(
        delete(schema.table_progress).where(
            of_barrier(schema.table_progress, topology, number),
            row.table_name.not_in(kept),  # safety: newest-row-stays
        )
    )
    connection.execute(delete(schema.attempt).where(of_barrier(schema.attempt, topology, number)))
    of_tables = and_(audit.kind == "table", audit.subject.not_in(kept))
    connection.execute(
        delete(schema.audit).where(
            audit.topology == topology, audit.barrier_id == number, or_(audit.kind == "attempt", of_tables)
        )
    )


def _trim_aside(connection: Connection, topology: str, ids: Sequence[int]) -> None:
    """What revisions of these barriers replaced, or staged and were cancelled."""
    revision = schema.revision.c
    numbers = connection.scalars(
        select(revision.revision).where(revision.topology == topology, revision.first_barrier <= max(ids))
    ).all()
    for table in (schema.table_progress, schema.attempt) if numbers else ():
        lines = [line for number in numbers for line in (number, -number)]
        connection.execute(
            delete(table).where(table.c.topology == topology, table.c.line.in_(lines), table.c.barrier_id.in_(ids))
        )
