"""Maintenance barriers: the rows of the predecessor, in other files. They have no epoch, no cut and no timestamp.

Each table is a job of its own there, so that it waits for nothing but itself. A table without a live attempt is passed
by: it keeps the snapshot that it had, and is carried over when a job needs it. A compaction that dies therefore delays
others only until its attempt ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from airflow_barrier.metaservice.attempts import Attempts, Request
from airflow_barrier.metaservice.barriers import Opening, check_gate, check_room, current_topology, insert_open
from airflow_barrier.metaservice.carrying import CARRIED, carry
from airflow_barrier.metaservice.rows import (
    attempts_of,
    head,
    load_barrier,
    progress,
    uncommitted,
)
from airflow_barrier.metaservice.topologies import version_of
from airflow_barrier.metaservice.transaction import Group, locked
from airflow_barrier.protocol.errors import UnknownTableError
from airflow_barrier.protocol.records import Barrier, BarrierKind, RunRef
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import maintenance_topology


@dataclass(frozen=True)
class Upkeep:
    """The input to opening a maintenance barrier. ``tables``: those to be maintained (None: all). Its jobs are those of
    the DAG of ``run``.
    """

    topology: str
    tables: Sequence[str] | None
    run: RunRef
    request_key: str
    generation: str
    max_open: int
    actor: str


class Maintenance(Group):
    """Maintenance barriers."""

    @locked
    def open(self, connection: Connection, upkeep: Upkeep) -> Barrier | None:
        """Open a barrier on the head at which ``tables`` (None: all) get other files for the same rows, or return the
        one that is unfinished; None: there is nothing to maintain.

        An attempt of job ``compaction of <table>``, owned by the DAG of ``run``, is requested for each along with it.
        Raises TooManyOpenBarriersError when ``max_open`` are uncommitted, UnknownTableError.
        """
        open_now = uncommitted(connection, upkeep.topology)
        unfinished = next((barrier for barrier in open_now if barrier.is_maintenance), None)
        if unfinished is not None:
            return unfinished
        latest = head(connection, upkeep.topology)
        tables = _tables(connection, latest) if latest is not None else ()
        if latest is None or not tables:
            return None
        chosen = _chosen(latest, tables, upkeep.tables)
        if set(chosen) <= _maintained(connection, latest):
            return None
        check_gate(connection, upkeep.topology)
        jobs = maintenance_topology(upkeep.topology, tables, upkeep.run.dag_id)
        opening = Opening(
            topology=upkeep.topology,
            topology_version=version_of(connection, jobs),
            timestamp=latest.timestamp,
            cuts=(),
            predecessor=latest.barrier_id,
            kind=BarrierKind.MAINTENANCE,
            run=upkeep.run,
            timestamp_from="predecessor",
            max_open=upkeep.max_open,
            baseline={},
            actor=upkeep.actor,
        )
        check_room(opening, open_now)
        barrier_id = insert_open(connection, opening, jobs).barrier_id
        for table in chosen:
            Attempts(connection).request(_request(upkeep, barrier_id, jobs.writer(table).name))
        return load_barrier(connection, upkeep.topology, barrier_id)

    @locked
    def carry(self, connection: Connection, topology: str, barrier_id: int, actor: str) -> int:
        """Carry, at a maintenance barrier, the tables that no live attempt takes; returns how many were carried now.

        Tables that are not PROCESSED at the barrier before it are left for later.
        """
        return carry(connection, topology, barrier_id, actor)


def _tables(connection: Connection, latest: Barrier) -> tuple[str, ...]:
    """Return the tables that the newest barrier has and that have not left since."""
    still = set(current_topology(connection, latest.topology).tables)
    rows = progress(connection, latest.topology, latest.barrier_id) if latest.barrier_id else {}
    return tuple(table for table in rows if table in still)


def _chosen(latest: Barrier, tables: Sequence[str], wanted: Sequence[str] | None) -> Sequence[str]:
    unknown = sorted(set(wanted or ()) - set(tables))
    if unknown:
        raise UnknownTableError(
            f"{latest}: expected tables that it has, which are {', '.join(tables)}; found {', '.join(unknown)}; "
            "correct the name, or wait until the table has joined"
        )
    return tables if wanted is None else wanted


def _maintained(connection: Connection, latest: Barrier) -> set[str]:
    """The tables that ``latest`` has maintained, if it is that kind of barrier and COMMIT."""
    if not latest.is_maintenance or latest.state is not BarrierState.COMMIT:
        return set()
    return {
        table
        for attempt in attempts_of(connection, latest.topology, latest.barrier_id)
        if attempt.state is AttemptState.PROCESSED and attempt.generation != CARRIED
        for table in attempt.bases
    }


def _request(upkeep: Upkeep, barrier_id: int, job: str) -> Request:
    return Request(upkeep.topology, barrier_id, job, upkeep.request_key, upkeep.generation, upkeep.actor)
