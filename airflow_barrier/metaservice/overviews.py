"""What pages show of many rows at once: plain columns, a query for all of them, and no more than what is asked for.

No query here grows with a topology's history: each goes by keys, from the newest barrier back, or to what is open.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Connection,
    Subquery,
    Text,
    and_,
    column,
    func,
    select,
    text,
    type_coerce,
)

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record, to_records
from airflow_barrier.metaservice.revision_rows import load_revision
from airflow_barrier.metaservice.rows import (
    STANDING,
    chunks,
    load_topology,
    of_barrier,
    of_topology,
    topology_of,
    topology_version,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transaction import Group, reads
from airflow_barrier.protocol.deliveries import DeliveryRecord, SinkState
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import AttemptProgress, Barrier
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from airflow_barrier.protocol.topology import Topology

_R = TypeVar("_R")

_TOPOLOGY, _VERSION, _BARRIER = schema.topology.c, schema.topology_version.c, schema.barrier.c
_PROGRESS, _ATTEMPT = schema.table_progress.c, schema.attempt.c
#: Of each definition, by its digest, what :class:`Known` has of it. That is small; definitions are not.
_glances: dict[str, tuple[Mapping[str, int], float | None, Mapping[str, str]]] = {}
_glances_lock = threading.Lock()
_GLANCES_KEPT = 10_000
#: What makes one value of many names: rows are dear.
_TOGETHER = {"sqlite": "json_group_array", "postgresql": "json_agg"}
#: Places from one parameter, however many they are.
_PLACES = {
    "sqlite": "SELECT json_extract(value, '$[0]') AS topology, json_extract(value, '$[1]') AS barrier_id, "
    "json_extract(value, '$[2]') AS name FROM json_each(:places)",
    "postgresql": "SELECT value ->> 0 AS topology, CAST(value ->> 1 AS BIGINT) AS barrier_id, value ->> 2 AS name "
    "FROM json_array_elements(CAST(:places AS JSON))",
}


class Known(NamedTuple):
    """A topology as it is declared now. ``dags``: how many of its tables each DAG writes. ``freshness``: its objective,
    in seconds. ``names``: by DAG those of its jobs and tables, a line each, in lower case.
    """

    name: str
    version: int
    dags: Mapping[str, int]
    freshness: float | None
    names: Mapping[str, str]


class InFlight(NamedTuple):
    """A barrier that is neither committed nor aborted, and the digest of its topology."""

    barrier: Barrier
    digest: str


class TableRow(NamedTuple):
    barrier_id: int
    table: str
    state: TableState
    carried_from: int | None


class TableAt(NamedTuple):
    """A table at a barrier in full."""

    table: str
    state: TableState
    carried_from: int | None
    snapshot_id: int | None
    processed_at: datetime | None
    written_at: datetime | None


class Place(NamedTuple):
    """A table, or a job, at a barrier."""

    topology: str
    barrier_id: int
    name: str


class OfRun(NamedTuple):
    """The subjects of a DAG's run. ``opened``: (topology, barrier). ``asked``: (topology, line, barrier, job) and the
    task that asked for the attempt, as its key ends: `task/map index`. ``revised``: (topology, revision, barrier), of
    barrier 0 those that it waits for.
    """

    opened: list[tuple[str, int]]
    asked: list[tuple[str, int, int, str, str]]
    revised: list[tuple[str, int, int]]


class Stamp(NamedTuple):
    """A topology's mark: while it is the same, so are its barriers, tables and attempts, apart from what expires."""

    database: Hashable
    incarnation: str
    changes: int


class Newest(NamedTuple):
    """The newest attempt of a job at a barrier, and how many there were."""

    attempt: AttemptProgress
    tries: int


_ATTEMPT_COLUMNS = [_ATTEMPT[each.name] for each in fields(AttemptProgress)]


class Overviews(Group):
    """The line that stands, at a glance. A barrier that is asked for need not be there."""

    def together(self, work: Callable[[Overviews], _R]) -> _R:
        """Run ``work`` with overviews of one transaction: its answers are as of one moment."""
        return self._read(lambda connection: work(Overviews(connection)))

    @reads
    def now(self, connection: Connection) -> datetime:
        """The database's clock (UTC)."""
        return connection.execute(select(DatabaseNow())).scalar_one()

    # --- topologies -----------------------------------------------------------------------------------

    @reads
    def known(self, connection: Connection) -> list[Known]:
        """All topologies, in the order of their names; without rehearsals."""
        found = connection.execute(
            select(_TOPOLOGY.name, _TOPOLOGY.version, _VERSION.digest)
            .join(
                schema.topology_version,
                and_(_VERSION.topology == _TOPOLOGY.name, _VERSION.version == _TOPOLOGY.version),
            )
            .order_by(_TOPOLOGY.name)
        )
        rows = [row for row in found if not is_rehearsal(row.name)]
        glances = _glances_of(connection, rows)
        return [Known(row.name, row.version, *glances[row.digest]) for row in rows]

    @reads
    def topology_of(self, connection: Connection, at: InFlight) -> Topology:
        """The topology as of a barrier."""
        return topology_of(connection, at.barrier.topology, at.barrier.topology_version, at.digest)

    @reads
    def version(self, connection: Connection, name: str) -> int:
        """The current version of a topology. Raises UnknownTopologyError."""
        return topology_version(connection, name)

    @reads
    def topology(self, connection: Connection, name: str, version: int) -> Topology:
        """The topology as of a version."""
        return load_topology(connection, name, version)

    @reads
    def stamps(self, connection: Connection, topologies: Sequence[str]) -> dict[str, Stamp]:
        """Map each topology to its stamp."""
        columns = (_TOPOLOGY.name, _TOPOLOGY.incarnation, _TOPOLOGY.changes)
        return {
            name: Stamp(connection.engine.url, incarnation, changes)
            for names in chunks(topologies)
            for name, incarnation, changes in connection.execute(select(*columns).where(_TOPOLOGY.name.in_(names)))
        }

    # --- barriers -------------------------------------------------------------------------------------

    @reads
    def recent(self, connection: Connection, topologies: Sequence[str], count: int) -> dict[str, list[Barrier]]:
        """Map each topology to the barriers with its ``count`` newest numbers, newest first, without the baseline."""
        found: dict[str, list[Barrier]] = {name: [] for name in topologies}
        newest = (
            select(func.coalesce(func.max(_BARRIER.barrier_id), 0))
            .where(_BARRIER.topology == _TOPOLOGY.name, _BARRIER.line == STANDING)
            .correlate(schema.topology)
            .scalar_subquery()
        )
        places = [
            Place(name, number, "")
            for names in chunks(topologies)
            for name, last in connection.execute(select(_TOPOLOGY.name, newest).where(_TOPOLOGY.name.in_(names)))
            for number in range(max(last - count, 0) + 1, last + 1)
        ]
        # Numbers, not a condition on them: for that, databases read all barriers, and look for the newest at each.
        at = _places(connection)
        rows = connection.execute(
            select(schema.barrier).join(at, _belongs_to(schema.barrier, at)), {"places": json.dumps(places)}
        )
        for barrier in sorted(to_records(Barrier, rows), key=lambda barrier: -barrier.barrier_id):
            found[barrier.topology].append(barrier)
        return found

    @reads
    def in_flight(self, connection: Connection, topologies: Sequence[str]) -> dict[str, list[InFlight]]:
        """Map each topology to its barriers that are neither committed nor aborted, oldest first."""
        found: dict[str, list[InFlight]] = {name: [] for name in topologies}
        here = and_(_VERSION.topology == _BARRIER.topology, _VERSION.version == _BARRIER.topology_version)
        for names in chunks(topologies):
            rows = connection.execute(
                select(schema.barrier, _VERSION.digest)
                .join(schema.topology_version, here)
                .where(_BARRIER.topology.in_(names), _BARRIER.line == STANDING, schema.UNCOMMITTED)
                .order_by(_BARRIER.topology, _BARRIER.barrier_id)
            )
            for row in rows:
                found[row.topology].append(InFlight(to_record(Barrier, row), row.digest))
        return found

    @reads
    def served(self, connection: Connection, topology: str, states: Collection[BarrierState]) -> Barrier | None:
        """The newest barrier in one of ``states``; the baseline is one."""
        row = connection.execute(
            select(schema.barrier)
            .where(of_topology(schema.barrier, topology), _BARRIER.state.in_([state.value for state in states]))
            .order_by(_BARRIER.barrier_id.desc())
            .limit(1)
        ).one_or_none()
        return None if row is None else to_record(Barrier, row)

    @reads
    def before(self, connection: Connection, topology: str, before: int | None, limit: int) -> list[Barrier]:
        """The newest ``limit`` barriers with numbers below ``before`` (None: all), the newest first, without the
        baseline.
        """
        below = [] if before is None else [_BARRIER.barrier_id < before]
        rows = connection.execute(
            select(schema.barrier)
            .where(of_topology(schema.barrier, topology), _BARRIER.barrier_id > 0, *below)
            .order_by(_BARRIER.barrier_id.desc())
            .limit(limit)
        )
        return to_records(Barrier, rows)

    @reads
    def at(self, connection: Connection, topology: str, barriers: Collection[int]) -> list[Barrier]:
        """The barriers of these numbers, in order."""
        rows = connection.execute(
            select(schema.barrier).where(_at(schema.barrier, topology, list(barriers))).order_by(_BARRIER.barrier_id)
        )
        return to_records(Barrier, rows)

    @reads
    def revised(self, connection: Connection, topology: str, number: int) -> tuple[Revision, list[Barrier]]:
        """A revision, and the barriers that it computes again while it is under way. Raises UnknownRevisionError."""
        revision = load_revision(connection, topology, number)
        rows = connection.execute(
            select(schema.barrier)
            .where(of_topology(schema.barrier, topology, number), schema.NOT_ABORTED)
            .order_by(_BARRIER.barrier_id)
        )
        return revision, to_records(Barrier, rows)

    @reads
    def revising(self, connection: Connection, topologies: Sequence[str]) -> dict[str, int]:
        """Map topologies to their revision under way, if they have one."""
        revision = schema.revision.c
        return {
            topology: number
            for names in chunks(topologies)
            for topology, number in connection.execute(
                select(revision.topology, revision.revision).where(
                    revision.topology.in_(names), schema.REVISION_UNDER_WAY
                )
            )
        }

    # --- tables ---------------------------------------------------------------------------------------

    @reads
    def tables(
        self, connection: Connection, topology: str, barriers: Sequence[int], names: Sequence[str]
    ) -> list[TableRow]:
        """Return the states of the tables of these ``names`` at these barriers, as far as they were not trimmed."""
        columns = (_PROGRESS.barrier_id, _PROGRESS.table_name, _PROGRESS.state, _PROGRESS.carried_from)
        return [
            TableRow(barrier_id, table, TableState(state), carried_from)
            for some in chunks(names)
            for barrier_id, table, state, carried_from in connection.execute(
                select(*columns).where(_at(schema.table_progress, topology, barriers), _PROGRESS.table_name.in_(some))
            ).all()
        ]

    @reads
    def tables_at(self, connection: Connection, topology: str, barrier_id: int) -> list[TableAt]:
        """The tables of a barrier, as far as they were not trimmed."""
        names = ("table_name", *TableAt._fields[1:])
        rows = connection.execute(
            select(*(_PROGRESS[name] for name in names)).where(of_barrier(schema.table_progress, topology, barrier_id))
        ).all()
        return [TableAt(table, TableState(state), *rest) for table, state, *rest in rows]

    @reads
    def pending(self, connection: Connection, topologies: Sequence[str]) -> dict[tuple[str, int], set[str]]:
        """The tables that are PENDING at each barrier in flight: (topology, barrier) -> names."""
        found: dict[tuple[str, int], set[str]] = {}
        together = getattr(func, _TOGETHER[connection.dialect.name])
        for names in chunks(topologies):
            at = _in_flight(names)
            # a question of each barrier: joined with them, PostgreSQL reads the tables of all barriers that are known
            tables = (
                select(type_coerce(together(_PROGRESS.table_name), JSON))
                .where(_belongs_to(schema.table_progress, at), _PROGRESS.state == TableState.PENDING.value)
                .correlate(at)
                .scalar_subquery()
            )
            rows = connection.execute(select(at.c.topology, at.c.barrier_id, tables))
            found.update(((topology, barrier_id), set(pending)) for topology, barrier_id, pending in rows if pending)
        return found

    @reads
    def processed_at(self, connection: Connection, tables: Collection[Place]) -> dict[Place, datetime]:
        """Map these tables to when they were PROCESSED, as far as they were."""
        at = _places(connection)
        here = and_(_belongs_to(schema.table_progress, at), _PROGRESS.table_name == at.c.name)
        rows = connection.execute(
            select(_PROGRESS.topology, _PROGRESS.barrier_id, _PROGRESS.table_name, _PROGRESS.processed_at)
            .join(at, here)
            .where(_PROGRESS.processed_at.is_not(None)),
            {"places": json.dumps(list(tables))},
        ).all()
        return {Place(*place): processed for *place, processed in rows}

    # --- attempts -------------------------------------------------------------------------------------

    @reads
    def newest_attempts(
        self,
        connection: Connection,
        topology: str,
        barriers: Sequence[int],
        jobs: Collection[str],
        line: int = STANDING,
    ) -> dict[tuple[int, str], Newest]:
        """Map (barrier, job) to the newest attempt of each of ``jobs`` at these barriers, if it was asked for."""
        found = {}
        for some in chunks(sorted(jobs) if barriers else []):
            newest = (
                select(func.max(_ATTEMPT.attempt_id).label("attempt_id"), func.count().label("asked"))
                .where(_at(schema.attempt, topology, barriers, line), _ATTEMPT.job.in_(some))
                .group_by(_ATTEMPT.barrier_id, _ATTEMPT.job)
                .subquery("newest")
            )
            query = select(*[*_ATTEMPT_COLUMNS, newest.c.asked])
            for row in connection.execute(query.join(newest, newest.c.attempt_id == _ATTEMPT.attempt_id)):
                attempt = to_record(AttemptProgress, row)
                found[attempt.barrier_id, attempt.job] = Newest(attempt, row.asked)
        return found

    @reads
    def newest_at(self, connection: Connection, jobs: Collection[Place]) -> dict[Place, AttemptProgress]:
        """The newest attempt of each of these jobs, if it was asked for."""
        at, tries = _places(connection), schema.attempt.alias("tries")
        here = and_(_belongs_to(tries, at), tries.c.job == at.c.name)
        newest = select(func.max(tries.c.attempt_id)).where(here).correlate(at).scalar_subquery()
        rows = connection.execute(
            select(*_ATTEMPT_COLUMNS).join(at, _ATTEMPT.attempt_id == newest), {"places": json.dumps(list(jobs))}
        )
        found = to_records(AttemptProgress, rows)
        return {Place(each.topology, each.barrier_id, each.job): each for each in found}

    @reads
    def failed(self, connection: Connection, topologies: Sequence[str]) -> dict[tuple[str, int], list[AttemptProgress]]:
        """(topology, barrier in flight) -> the attempts there that have failed, if no other one of their job was asked
        for since.
        """
        found: dict[tuple[str, int], list[AttemptProgress]] = {}
        later = schema.attempt.alias("later")
        for names in chunks(topologies):
            at = _in_flight(names)
            since = (
                select(later.c.attempt_id)
                .where(_belongs_to(later, at), later.c.job == _ATTEMPT.job, later.c.attempt_id > _ATTEMPT.attempt_id)
                .exists()
            )
            rows = connection.execute(
                select(*_ATTEMPT_COLUMNS)
                .join(at, _belongs_to(schema.attempt, at))
                .where(_ATTEMPT.state == AttemptState.ABORTED.value, ~since)
            )
            for attempt in to_records(AttemptProgress, rows):
                found.setdefault((attempt.topology, attempt.barrier_id), []).append(attempt)
        return found

    @reads
    def requested(self, connection: Connection, topologies: Sequence[str]) -> dict[str, int]:
        """Return how many attempts at barriers in flight are REQUESTED and have not started, by topology."""
        found = dict.fromkeys(topologies, 0)
        for names in chunks(topologies):
            at = _in_flight(names)
            found.update(
                (topology, count)
                for topology, count in connection.execute(
                    select(_ATTEMPT.topology, func.count())
                    .join(at, _belongs_to(schema.attempt, at))
                    .where(_ATTEMPT.state == AttemptState.REQUESTED.value)
                    .group_by(_ATTEMPT.topology)
                )
            )
        return found

    @reads
    def attempts(self, connection: Connection, topology: str, barrier_id: int) -> list[AttemptProgress]:
        """All attempts of a barrier, oldest first."""
        rows = connection.execute(
            select(*_ATTEMPT_COLUMNS)
            .where(of_barrier(schema.attempt, topology, barrier_id))
            .order_by(_ATTEMPT.attempt_id)
        )
        return to_records(AttemptProgress, rows)

    # --- runs -----------------------------------------------------------------------------------------

    @reads
    def of_run(self, connection: Connection, topologies: Collection[str], dag_id: str, run_id: str) -> OfRun:
        """Return the subjects of a run in these topologies. A run has as many attempts as its tasks have tries."""
        mine, bound = f"{dag_id}/{run_id}", schema.revision_run.c
        asked = connection.execute(
            select(_ATTEMPT.topology, _ATTEMPT.line, _ATTEMPT.barrier_id, _ATTEMPT.job, _ATTEMPT.request_key)
            # from the slash behind the run to what comes after all slashes
            .where(_ATTEMPT.request_key >= f"{mine}/", _ATTEMPT.request_key < f"{mine}0")
        ).all()
        revised = connection.execute(
            select(bound.topology, bound.revision, bound.barrier_id)
            .where(bound.dag_id == dag_id, bound.run_id == run_id)
            .order_by(bound.revision.desc(), bound.barrier_id)
        ).all()
        opened = [
            (topology, barrier_id)
            for names in chunks(sorted(topologies))
            for topology, barrier_id in connection.execute(
                select(_BARRIER.topology, _BARRIER.barrier_id).where(
                    _BARRIER.topology.in_(names),
                    _BARRIER.line == STANDING,
                    _BARRIER.run_dag_id == dag_id,
                    _BARRIER.run_id == run_id,
                )
            )
        ]
        return OfRun(
            opened,
            [
                (topology, line, barrier_id, job, task)
                for topology, line, barrier_id, job, key in asked
                for task in (key[len(mine) + 1 :],)
                # another run's id may begin as this one's, with a slash behind it
                if topology in topologies and task.count("/") == 1
            ],
            [tuple(row) for row in revised if row.topology in topologies],
        )

    # --- sinks ----------------------------------------------------------------------------------------

    @reads
    def failing_sinks(self, connection: Connection, topologies: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
        """Map each topology to the sinks to which the last delivery failed, but for those that a person has stopped:
        each with the DAG that delivers.
        """
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in topologies}
        sink = schema.sink.c
        for names in chunks(topologies):
            rows = connection.execute(
                select(sink.topology, sink.name, sink.owner)
                .where(sink.topology.in_(names), sink.error.is_not(None), sink.state == SinkState.ACTIVE.value)
                .where(sink.released_at.is_(None))
                .order_by(sink.topology, sink.name)
            )
            for topology, name, owner in rows:
                found[topology].append((name, owner))
        return found

    @reads
    def deliveries(
        self, connection: Connection, topology: str, barrier_id: int, sinks: Sequence[str]
    ) -> list[DeliveryRecord]:
        """Return the deliveries of a barrier to these sinks, in each revision."""
        table = schema.delivery
        rows = connection.execute(
            select(table)
            .where(table.c.topology == topology, table.c.sink.in_(sinks), table.c.barrier_id == barrier_id)
            .order_by(table.c.sink, table.c.revision)
        )
        return to_records(DeliveryRecord, rows)


def _glances_of(
    connection: Connection, rows: Iterable[Any]
) -> dict[str, tuple[Mapping[str, int], float | None, Mapping[str, str]]]:
    """Map digests to glances; what nobody asked for before is read from the definitions, one after the other."""
    found: dict[str, tuple[Mapping[str, int], float | None, Mapping[str, str]]] = {}
    for row in rows:
        glance = _glances.get(row.digest)
        if glance is None:
            counted: dict[str, int] = {}
            names: dict[str, list[str]] = {}
            topology = load_topology(connection, row.name, row.version)
            for job in topology.jobs:
                counted[job.owner] = counted.get(job.owner, 0) + len(job.outlets)
                names.setdefault(job.owner, []).extend([job.name, *job.outlets])
            glance = counted, topology.freshness, {dag: "\n".join(its).lower() for dag, its in names.items()}
            with _glances_lock:
                if len(_glances) >= _GLANCES_KEPT:
                    _glances.clear()
                _glances[row.digest] = glance
        found[row.digest] = glance
    return found


def _at(table: Any, topology: str, barriers: Sequence[int], line: int = STANDING) -> ColumnElement[bool]:
    return and_(of_topology(table, topology, line), table.c.barrier_id.in_(barriers))


def _in_flight(topologies: Sequence[str]) -> Subquery:
    """Distinct anyway: said so, it is looked up first. Otherwise SQLite reads all rows that it is joined with, as long
    as nobody has called ANALYZE.
    """
    return (
        select(_BARRIER.topology, _BARRIER.barrier_id)
        .where(_BARRIER.topology.in_(topologies), _BARRIER.line == STANDING, schema.UNCOMMITTED)
        .distinct()
        .subquery("in_flight")
    )


def _places(connection: Connection) -> Subquery:
    columns = (column("topology", Text), column("barrier_id", BigInteger), column("name", Text))
    return text(_PLACES[connection.dialect.name]).columns(*columns).subquery("place")


def _belongs_to(table: Any, at: Subquery) -> ColumnElement[bool]:
    return and_(table.c.topology == at.c.topology, table.c.line == STANDING, table.c.barrier_id == at.c.barrier_id)
