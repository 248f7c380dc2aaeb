"""Rehearsals: a barrier in a topology of its own, which ends by being forgotten with all its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.barriers import Opening, insert_open
from airflow_barrier.metaservice.cuts import insert_cut
from airflow_barrier.metaservice.mapping import to_columns, to_record
from airflow_barrier.metaservice.rows import barrier_key, newest, of_topology
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.starts import insert_starts
from airflow_barrier.metaservice.topologies import insert_topology, wait_for_turn
from airflow_barrier.metaservice.transaction import Group, changes, reads
from airflow_barrier.metaservice.transitions import Event, move_tables, record
from airflow_barrier.protocol.errors import IllegalTransitionError
from airflow_barrier.protocol.names import is_rehearsal, rehearsals_of
from airflow_barrier.protocol.records import Barrier, BarrierKind, Cut, JobStart, RunRef
from airflow_barrier.protocol.states import BarrierState, TableState
from airflow_barrier.protocol.topology import Topology


@dataclass(frozen=True)
class Rehearsal:
    """The input to a rehearsal.

    ``topology`` is called as :func:`~airflow_barrier.protocol.names.rehearsal_name` says. ``base``: the barrier of the
    rehearsed topology that it builds on, ``standing``: the snapshot of each table there. ``carried``: the tables whose
    jobs do not run. ``timestamp`` is aware; ``starts`` are of jobs that ``base`` has not.
    """

    topology: Topology
    base: Barrier
    standing: Mapping[str, int | None]
    carried: Sequence[str]
    timestamp: datetime
    timestamp_from: str
    run: RunRef
    cuts: Sequence[Cut]
    starts: Sequence[JobStart]
    actor: str


@dataclass(frozen=True)
class Held:
    """A rehearsal that is not forgotten yet, and which run holds it."""

    topology: str
    run: RunRef
    begun_at: datetime


class Rehearsals(Group):
    """Rehearsals of topologies. No table is claimed for one, and nobody who asks for topologies is told of it."""

    @reads
    def base(self, connection: Connection, topology: str, before: datetime) -> Barrier | None:
        """The newest barrier with an epoch that is COMMIT, of a timestamp earlier than ``before`` (UTC)."""
        table = schema.barrier
        row = connection.execute(
            select(table)
            .where(
                of_topology(table, topology),
                table.c.timestamp < before,
                table.c.state == BarrierState.COMMIT.value,
                table.c.kind == BarrierKind.EPOCH.value,
                schema.NOT_ABORTED,  # said as text, planners see that there is an index by time
            )
            .order_by(table.c.timestamp.desc(), table.c.barrier_id.desc())
            .limit(1)
        ).one_or_none()
        return None if row is None else to_record(Barrier, row)

    @changes
    def begin(self, connection: Connection, rehearsal: Rehearsal) -> Barrier:
        """Open the barrier after ``base``, under its number, with the carried tables PROCESSED as they stand there; or
        observe the one that another try of the same task has opened.
        """
        name, base, actor = rehearsal.topology.name, rehearsal.base, rehearsal.actor
        wait_for_turn(connection)
        there = newest(connection, name, [BarrierState.OPEN, BarrierState.PRECOMMIT])
        if there is not None:
            return there
        insert_topology(connection, rehearsal.topology)
        _insert_base(connection, rehearsal)
        opening = Opening(
            name,
            rehearsal.timestamp,
            topology_version=1,
            cuts=rehearsal.cuts,
            predecessor=base.barrier_id,
            run=rehearsal.run,
            timestamp_from=rehearsal.timestamp_from,
            max_open=1,
            baseline={},
            actor=actor,
        )
        barrier = insert_open(connection, opening, rehearsal.topology)
        for cut in rehearsal.cuts:
            insert_cut(connection, barrier, cut)
        insert_starts(connection, name, barrier.barrier_id, rehearsal.starts, actor)
        event = Event("carried", actor, {"from": base.barrier_id})
        for table in rehearsal.carried:
            move_tables(
                connection,
                barrier,
                [table],
                TableState.PENDING,
                TableState.PROCESSED,
                event,
                snapshot_id=rehearsal.standing[table],
                carried_from=base.barrier_id,
                processed_at=DatabaseNow(),
            )
        return barrier

    @reads
    def of(self, connection: Connection, topology: str) -> list[Held]:
        """The rehearsals of a topology, whatever became of their runs."""
        barrier, name = schema.barrier, schema.topology.c.name
        rows = connection.execute(
            select(barrier)
            .join(schema.topology, barrier.c.topology == name)
            .where(name.startswith(rehearsals_of(topology), autoescape=True), barrier.c.predecessor.is_not(None))
            .order_by(name)
        )
        found = [to_record(Barrier, row) for row in rows]
        return [Held(each.topology, each.run, each.opened_at) for each in found]

    @changes
    def drop(self, connection: Connection, topology: str) -> None:
        """Forget a rehearsal, with everything that was written down of it. Again is fine."""
        if not is_rehearsal(topology):
            raise IllegalTransitionError(  # safety: only-rehearsals-are-forgotten
                f"topology {topology}: expected a rehearsal to forget, found none by its name; nothing was deleted"
            )
        for table in reversed(schema.metadata.sorted_tables):
            key = schema.topology.c.name if table is schema.topology else table.c.get("topology")
            if key is not None:
                connection.execute(delete(table).where(key == topology))


def _insert_base(connection: Connection, rehearsal: Rehearsal) -> None:
    """The barrier that it builds on, as it stands, with the tables of the rehearsed jobs alone."""
    name, base = rehearsal.topology.name, rehearsal.base
    key = barrier_key(name, base.barrier_id)
    connection.execute(
        insert(schema.barrier).values(
            **key,
            timestamp=base.timestamp,
            state=BarrierState.COMMIT.value,
            topology_version=1,
            **to_columns(Barrier, kind=base.kind, run=base.run, timestamp_from=base.timestamp_from),
            opened_at=DatabaseNow(),
            commit_at=DatabaseNow(),
        )
    )
    connection.execute(
        insert(schema.table_progress).values(state=TableState.WRITTEN.value, written_at=DatabaseNow()),
        [
            {**key, "table_name": table, "job": rehearsal.topology.writer(table).name, "snapshot_id": snapshot}
            for table, snapshot in sorted(rehearsal.standing.items())
        ],
    )
    event, number = Event("rehearsed on", rehearsal.actor), base.barrier_id
    record(connection, event, name, number, "barrier", [str(number)], after=BarrierState.COMMIT.value)
    pending, written = TableState.PENDING.value, TableState.WRITTEN.value
    record(connection, event, name, number, "table", sorted(rehearsal.standing), pending, written)
