"""Which snapshot of each table a reader gets, and the lease that holds it for him."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from sqlalchemy import (
    Connection,
    Row,
    Select,
    TextClause,
    bindparam,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from airflow_barrier.metaservice import leases, schema
from airflow_barrier.metaservice.mapping import to_record, to_records
from airflow_barrier.metaservice.revision_rows import load_revision
from airflow_barrier.metaservice.rows import (
    STANDING,
    load_barrier,
    of_barrier,
    of_topology,
    progress,
    raise_aborted,
    topology_version,
)
from airflow_barrier.metaservice.schema import DatabaseNow
from airflow_barrier.metaservice.transaction import Group, reads
from airflow_barrier.protocol.codec import decode
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    ExpiredBarrierError,
    NotReadableYetError,
    UnknownBarrierError,
    UnknownRevisionError,
    UnknownTableError,
)
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level, Resolution, ResolvedTable
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import DECIDED_BARRIERS, UNCOMMITTED_BARRIERS, BarrierState, TableState
from airflow_barrier.protocol.topology import Topology

#: At which states of a barrier a level reads it; as text, so that planners see which index holds them.
_STATES = {
    Level.READ_UNCOMMITTED: schema.NOT_ABORTED,
    Level.READ_COMMITTED: text("state IN ('PRECOMMIT', 'COMMITTING', 'BLOCKED', 'COMMIT')"),
    Level.REPEATABLE_READ: text("state = 'COMMIT'"),
}
#: Which barriers a level reads, for errors and checks.
_READABLE = {
    Level.READ_UNCOMMITTED: frozenset(BarrierState) - {BarrierState.ABORTED},
    Level.READ_COMMITTED: DECIDED_BARRIERS | {BarrierState.PRECOMMIT},
    Level.REPEATABLE_READ: frozenset({BarrierState.COMMIT}),
}
_LEAST = {Level.READ_COMMITTED: BarrierState.PRECOMMIT, Level.REPEATABLE_READ: BarrierState.COMMIT}
#: Not after a time. Timestamps rise with ids among those that are not aborted, of which there is an index by time.
_OLDER = (schema.NOT_ABORTED, schema.barrier.c.barrier_id > 0, schema.barrier.c.timestamp <= bindparam("at"))
#: How many names go into a statement. Of more, all are read and the rest is left out here.
_FEW = 200
#: How many names an error tells.
_NAMED = 20


@dataclass(frozen=True)
class Asked:
    """A reader's question; ``at``: a barrier's id, a time (aware) or None for the newest."""

    topology: str
    level: Level
    tables: Sequence[str] | None
    at: int | datetime | None
    revision: int | None = None

    @property
    def by(self) -> type[int] | type[datetime] | None:
        """The type of ``at``, if it is not None."""
        if self.at is None:
            return None
        return datetime if isinstance(self.at, datetime) else int

    @property
    def few(self) -> bool:
        return self.tables is not None and len(self.tables) <= _FEW


class Answers(Group):
    """Answers to readers."""

    def resolve(
        self,
        topology: str,
        level: Level,
        tables: Sequence[str] | None = None,
        *,
        at: int | datetime | None = None,
        revision: int | None = None,
        hold: Hold | None = None,
    ) -> Resolution:
        """Return the snapshot of each of ``tables`` (None: all of the barrier's) that a reader at ``level`` gets.

        ``at``: a barrier's id; a time (aware), which means the newest barrier at or before it; None: the newest one.
        Each among those that are as far as the level wants; before any is, the newest is the baseline. With ``hold``
        the same transaction takes a lease on what is answered. ``revision``: as the barrier ``at`` was in that
        revision (0: as it was computed first), though another one stands since; at repeatable read.

        Raises UnknownRevisionError; UnknownTableError for a table that the barrier does not have, naming the first that
        has it; UnknownBarrierError before the first open, for a barrier that is not there, and for a time before the
        first one; BarrierAbortedError; NotReadableYetError (retryable) for a barrier that is not so far;
        ExpiredBarrierError, naming the oldest that can be read.

        >>> meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=3, hold=Hold("report", 60))  # doctest: +SKIP
        """
        asked = Asked(topology, level, tables, at, revision)
        check_asked(asked)
        if hold is None:
            return self._read(lambda c: resolve(c, asked, None))
        return self._write(lambda c: resolve(c, asked, hold))

    @reads
    def readable(self, connection: Connection, topology: str) -> list[Barrier]:
        """The barriers that can be read at repeatable read by their id, oldest first; the baseline is none."""
        return readable(connection, topology)

    @reads
    def first_with(self, connection: Connection, topology: str, table: str) -> Barrier | None:
        """The first barrier that has a table; None: no barrier has been opened since it joined."""
        return _first_with(connection, topology, table)


def resolve(connection: Connection, asked: Asked, hold: Hold | None) -> Resolution:
    """The answer and, in the same transaction, the lease on it."""
    reader = _READERS[asked.level] if asked.revision is None else _in_revision
    while True:
        found = reader(connection, asked)
        if hold is None:
            return found.resolution
        lease = leases.grant(connection, asked.topology, found.first, found.through, found.rollbacks, hold)
        # None: since our look it was rolled back, or began to expire. The next look sees that.
        if lease is not None:
            return replace(found.resolution, lease=lease)


@dataclass(frozen=True)
class _Found:
    """An answer, and what a lease on it has to hold."""

    resolution: Resolution
    first: int
    through: int
    rollbacks: int


# --- read committed and repeatable read: one statement, one barrier -----------------------------------


class _JsonObject(FunctionElement[str]):
    """All keys and values of a group as the text of one JSON object: rows by the thousand are dear to fetch."""

    inherit_cache = True


@compiles(_JsonObject, "sqlite")
def _sqlite_object(element: _JsonObject, compiler: Any, **kw: Any) -> str:
    return f"json_group_object({compiler.process(element.clauses, **kw)})"


@compiles(_JsonObject, "postgresql")
def _postgresql_object(element: _JsonObject, compiler: Any, **kw: Any) -> str:
    return f"CAST(json_object_agg({compiler.process(element.clauses, **kw)}) AS TEXT)"


_decoder = msgspec.json.Decoder(dict[str, int | None])


def _statement(states: TextClause, at: type[int] | type[datetime] | None, few: bool) -> Select[Any]:
    """A barrier with its tables. In one statement they are as of one moment, also while others write."""
    barrier, row = schema.barrier.c, schema.table_progress.c
    tables = select(_JsonObject(row.table_name, row.snapshot_id)).where(
        row.topology == barrier.topology, row.line == barrier.line, row.barrier_id == barrier.barrier_id
    )
    if few:
        tables = tables.where(row.table_name.in_(bindparam("tables", expanding=True)))
    answer = select(schema.barrier, DatabaseNow().label("now"), tables.scalar_subquery().label("tables"))
    answer = answer.where(of_topology(schema.barrier, bindparam("topology")))
    if at is int:
        return answer.where(barrier.barrier_id == bindparam("at"))
    if at is datetime:
        return answer.where(*_OLDER, states).order_by(barrier.timestamp.desc(), barrier.barrier_id.desc()).limit(1)
    return answer.where(states).order_by(barrier.barrier_id.desc()).limit(1)


_STATEMENTS = {
    (level, at, few): _statement(_STATES[level], at, few)
    for level in (Level.READ_COMMITTED, Level.REPEATABLE_READ)
    for at in (int, datetime, None)
    for few in (True, False)
}


def _at_one_barrier(connection: Connection, asked: Asked) -> _Found:
    row = _row(connection, asked)
    while True:
        below = _below(connection, row)
        if below is None:
            row = _row(connection, asked)
            continue
        first, rollbacks = below
        if first == row.barrier_id:
            break
        # What the lease is compared with has to be older than the answer, or a rollback between the two is missed.
        before, row = row, _row(connection, asked)
        if (row.barrier_id, row.state, row.rollbacks) == (before.barrier_id, before.state, before.rollbacks):
            break
    barrier = to_record(Barrier, row)
    snapshots = _decoder.decode(row.tables) if row.tables else {}
    number, revision = barrier.barrier_id, barrier.computed_in
    rows = {name: ResolvedTable(name, each, number, revision) for name, each in sorted(snapshots.items())}
    tables = _chosen(connection, asked, rows, barrier)
    timestamp = barrier.timestamp if number else None
    resolution = Resolution(asked.topology, asked.level, number, revision, tables, timestamp, row.now)
    return _Found(resolution, first, number, rollbacks)


def _row(connection: Connection, asked: Asked) -> Row[Any]:
    wanted = {"topology": asked.topology, "at": asked.at, "tables": list(asked.tables or ())}
    row = connection.execute(_STATEMENTS[asked.level, asked.by, asked.few], wanted).one_or_none()
    if row is None:
        _raise_no_barrier(connection, asked)
    _check_readable(connection, asked, to_record(Barrier, row))
    return row


def _below(connection: Connection, row: Row[Any]) -> tuple[int, int] | None:
    """Return the barrier from which a lease has to hold, and the rollbacks from there: what a barrier in flight carries
    is on branches of those in flight below it. None: the barrier has been committed or aborted since that look at it.
    """
    if row.state == BarrierState.COMMIT.value:
        return row.barrier_id, row.rollbacks
    between = _since_commit(connection, row.topology, row.barrier_id)
    in_flight = [each.barrier_id for each in between if BarrierState(each.state) in UNCOMMITTED_BARRIERS]
    if not in_flight:
        return None
    first = min(in_flight)
    return first, sum(each.rollbacks for each in between if each.barrier_id >= first)


# --- read uncommitted: each table at a barrier of its own ---------------------------------------------

_HEAD = (
    select(schema.barrier, DatabaseNow().label("now"))
    .where(of_topology(schema.barrier, bindparam("topology")))
    .limit(1)
)
_HEADS = {
    None: _HEAD.where(schema.NOT_ABORTED).order_by(schema.barrier.c.barrier_id.desc()),
    int: _HEAD.where(schema.barrier.c.barrier_id == bindparam("at")),
    datetime: _HEAD.where(*_OLDER).order_by(schema.barrier.c.timestamp.desc(), schema.barrier.c.barrier_id.desc()),
}
_LAST = (
    select(schema.barrier.c.barrier_id)
    .where(
        of_topology(schema.barrier, bindparam("topology")),
        _STATES[Level.REPEATABLE_READ],
        schema.barrier.c.barrier_id <= bindparam("head"),
    )
    .order_by(schema.barrier.c.barrier_id.desc())
    .limit(1)
)
_BETWEEN = (
    select(
        schema.barrier.c.barrier_id,
        schema.barrier.c.state,
        schema.barrier.c.rollbacks,
        schema.barrier.c.computed_in,
    )
    .where(
        of_topology(schema.barrier, bindparam("topology")),
        schema.barrier.c.barrier_id.between(bindparam("last"), bindparam("head")),
    )
    .order_by(schema.barrier.c.barrier_id)
)
_ROW = schema.table_progress.c
_STAGED = (
    select(_ROW.barrier_id, _JsonObject(_ROW.table_name, _ROW.snapshot_id).label("tables"))
    .where(
        of_topology(schema.table_progress, bindparam("topology")),
        _ROW.barrier_id.in_(bindparam("barriers", expanding=True)),
        _ROW.state != TableState.PENDING.value,
    )
    .group_by(_ROW.barrier_id)
    .order_by(_ROW.barrier_id)
)
_MEMBERS = select(_JsonObject(_ROW.table_name, _ROW.barrier_id)).where(
    of_barrier(schema.table_progress, bindparam("topology"), bindparam("barrier_id"))
)


def _since_commit(connection: Connection, topology: str, head: int) -> list[Row[Any]]:
    """The barriers from the newest one that is COMMIT up to ``head``."""
    last = connection.execute(_LAST, {"topology": topology, "head": head}).scalar_one()
    return list(connection.execute(_BETWEEN, {"topology": topology, "last": last, "head": head}))


def _members(connection: Connection, topology: str, barrier_id: int) -> list[str]:
    """The tables of a barrier, by name."""
    found = connection.execute(_MEMBERS, {"topology": topology, "barrier_id": barrier_id}).scalar_one()
    return sorted(_decoder.decode(found)) if found else []


def _newest_of_each(connection: Connection, asked: Asked) -> _Found:
    """The newest staged row of each table of the newest barrier.

    Only what is in flight, the last commit and the baseline can hold it, so history is not read. These are several
    statements: whoever wants a lease learns from it if they do not belong together.
    """
    topology = {"topology": asked.topology}
    while True:
        latest = connection.execute(_HEADS[asked.by], {**topology, "at": asked.at}).one_or_none()
        if latest is None:
            _raise_no_barrier(connection, asked)
        number = latest.barrier_id
        _check_readable(connection, asked, to_record(Barrier, latest))
        between = _since_commit(connection, asked.topology, number)
        # Aborted since that look: this rollback is in `between`, so that the lease would not learn of it.
        if BarrierState(between[-1].state) is not BarrierState.ABORTED:
            break
    last = between[0].barrier_id
    computed_in = {row.barrier_id: row.computed_in for row in between}
    in_flight = [row.barrier_id for row in between if BarrierState(row.state) in UNCOMMITTED_BARRIERS]
    staged = {
        name: ResolvedTable(name, snapshot, row.barrier_id, computed_in.get(row.barrier_id, 0))
        for row in connection.execute(_STAGED, {**topology, "barriers": [0, last, *in_flight]})
        for name, snapshot in _decoder.decode(row.tables).items()
    }
    rows = {name: staged[name] for name in _members(connection, asked.topology, number) if name in staged}
    tables = _chosen(connection, asked, rows, to_record(Barrier, latest))
    resolution = Resolution(asked.topology, asked.level, None, None, tables, None, latest.now)
    return _Found(resolution, last, number, sum(row.rollbacks for row in between))


# --- as a barrier was in another revision ---------------------------------------------------------------


def _in_revision(connection: Connection, asked: Asked) -> _Found:
    """Return the work of revision ``asked.revision``: it stands, or is kept in the line of the one that replaced it.

    Each line keeps the tables that were replaced with it, and the later ones say the others; what a revision has and
    replaced nothing joined by it.
    """
    row = _row(connection, replace(asked, revision=None))
    lines = _replaced(connection, asked.topology, row.barrier_id)
    rows = progress(connection, asked.topology, row.barrier_id)
    barrier = to_record(Barrier, row)
    while barrier.computed_in != asked.revision:
        if not lines:
            raise UnknownRevisionError(
                f"{to_record(Barrier, row)}: expected that revision {asked.revision} computed it, found that revisions "
                f"{', '.join(str(number) for number in _numbers(connection, asked.topology, row.barrier_id))} did; "
                "ask for one of these"
            )
        barrier = lines.pop(0)
        for name in load_revision(connection, asked.topology, -barrier.line).tables:
            rows.pop(name, None)
        rows.update(progress(connection, asked.topology, barrier.barrier_id, barrier.line))
    number = barrier.barrier_id
    resolved = {
        name: ResolvedTable(name, each.snapshot_id, number, barrier.computed_in) for name, each in sorted(rows.items())
    }
    tables = _chosen(connection, asked, resolved, barrier)
    resolution = Resolution(
        asked.topology, asked.level, number, barrier.computed_in, tables, barrier.timestamp, row.now
    )
    return _Found(resolution, number, number, row.rollbacks)


def _replaced(connection: Connection, topology: str, barrier_id: int) -> list[Barrier]:
    """The barrier as it was before each revision that replaced it, the latest first."""
    table = schema.barrier
    rows = connection.execute(
        select(table)
        .where(
            table.c.topology == topology,
            table.c.barrier_id == barrier_id,
            table.c.line < STANDING,
            table.c.state == BarrierState.COMMIT.value,
        )
        .order_by(table.c.line)
    )
    return to_records(Barrier, rows)


def _numbers(connection: Connection, topology: str, barrier_id: int) -> list[int]:
    """The revisions in which a barrier can be read."""
    standing = load_barrier(connection, topology, barrier_id)
    return sorted(each.computed_in for each in (standing, *_replaced(connection, topology, barrier_id)))


_READERS = {
    Level.READ_UNCOMMITTED: _newest_of_each,
    Level.READ_COMMITTED: _at_one_barrier,
    Level.REPEATABLE_READ: _at_one_barrier,
}


# --- what can be read ---------------------------------------------------------------------------------


def readable(connection: Connection, topology: str, limit: int | None = None) -> list[Barrier]:
    """The barriers that are COMMIT and not expiring, oldest first, without the baseline."""
    query = (
        select(schema.barrier)
        .where(of_topology(schema.barrier, topology), schema.READABLE, schema.barrier.c.barrier_id > 0)
        .order_by(schema.barrier.c.barrier_id)
    )
    return to_records(Barrier, connection.execute(query if limit is None else query.limit(limit)))


def check_asked(asked: Asked) -> None:
    """Raise :class:`ConfigurationError` for what nobody can read at or by, UnknownBarrierError for a number below 1."""
    if isinstance(asked.tables, str):
        raise ConfigurationError(
            f"topology {asked.topology}: expected a list of tables, found the text {asked.tables!r}; write "
            f"[{asked.tables!r}]"
        )
    if asked.at is not None and not isinstance(asked.at, (int, datetime)):
        raise ConfigurationError(
            f"topology {asked.topology}: expected a barrier's number or a datetime to read at, found {asked.at!r}; "
            "pass an int, or an aware datetime"
        )
    if isinstance(asked.at, datetime) and asked.at.tzinfo is None:
        raise ConfigurationError(
            f"topology {asked.topology}: expected a time with a time zone to read at, found {asked.at}; pass an aware "
            "datetime, best in UTC"
        )
    if asked.revision is not None and (type(asked.at) is not int or asked.level is not Level.REPEATABLE_READ):
        raise ConfigurationError(
            f"topology {asked.topology}: expected a barrier's number and repeatable read to read as of revision "
            f"{asked.revision}, found at={asked.at!r} and {asked.level.value}; say which barrier, such as at=3"
        )
    if isinstance(asked.at, int) and asked.at < 1:
        raise UnknownBarrierError(
            f"topology {asked.topology}: expected the number of a barrier to read at, from 1 on, found {asked.at}; the "
            "baseline is read only as long as there is no barrier"
        )


def _check_readable(connection: Connection, asked: Asked, barrier: Barrier) -> None:
    """Raises BarrierAbortedError, NotReadableYetError, ExpiredBarrierError."""
    if barrier.state is BarrierState.ABORTED:
        raise_aborted(barrier)  # safety: aborted-is-not-read
    if barrier.state not in _READABLE[asked.level]:
        raise NotReadableYetError(  # safety: not-read-before-its-level
            f"{barrier}: expected {_LEAST[asked.level].value} to read it at {asked.level.value}, found "
            f"{barrier.state.value}; wait for it, or read at an earlier barrier"
        )
    if barrier.expiring_at is not None:
        oldest = next(iter(readable(connection, barrier.topology, limit=1)), None)
        raise ExpiredBarrierError(  # safety: expired-is-not-read
            f"{barrier}: expected a barrier that can be read, found one that expired on "
            f"{barrier.expiring_at:%Y-%m-%d %H:%M} UTC; the oldest that can still be read is {oldest}"
        )


def _raise_no_barrier(connection: Connection, asked: Asked) -> NoReturn:
    topology, at = asked.topology, asked.at
    if isinstance(at, int):
        load_barrier(connection, topology, at)  # raises: there is none
    if isinstance(at, datetime) and (first := _first_barrier(connection, topology, _STATES[asked.level])) is not None:
        raise UnknownBarrierError(
            f"topology {topology}: expected a time from its first barrier on, which at {asked.level.value} is "
            f"{first}, found {at.isoformat()}; ask for that time or a later one"
        )
    topology_version(connection, topology)
    raise UnknownBarrierError(
        f"topology {topology}: expected a barrier to read at, found that none was opened yet; run the DAG that "
        "opens them"
    )


def _first_barrier(connection: Connection, topology: str, *conditions: Any) -> Barrier | None:
    """The first barrier with these, expired or not; the baseline is none."""
    row = connection.execute(
        select(schema.barrier)
        .where(of_topology(schema.barrier, topology), schema.barrier.c.barrier_id > 0, *conditions)
        .order_by(schema.barrier.c.barrier_id)
        .limit(1)
    ).one_or_none()
    return None if row is None else to_record(Barrier, row)


def _chosen(
    connection: Connection, asked: Asked, rows: Mapping[str, ResolvedTable], barrier: Barrier
) -> Mapping[str, ResolvedTable]:
    if asked.tables is None:
        return rows
    unknown = [name for name in asked.tables if name not in rows]
    if unknown:
        _raise_unknown_table(connection, asked.topology, unknown, barrier)
    return {name: rows[name] for name in asked.tables}


def _raise_unknown_table(connection: Connection, topology: str, unknown: Sequence[str], barrier: Barrier) -> NoReturn:
    for table in unknown:
        first = _first_with(connection, topology, table)
        if first is not None and first.barrier_id > barrier.barrier_id:
            raise UnknownTableError(
                f"{barrier}: expected tables that it has, found {table}, which joined with {first}; read at that one "
                "or later"
            )
    members = _members(connection, topology, barrier.barrier_id)
    more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
    raise UnknownTableError(
        f"{barrier}: expected tables that it has, which are {', '.join(members[:_NAMED]) or 'none'}{more}; found "
        f"{', '.join(unknown[:_NAMED])}; correct the name, or wait for a barrier that has it"
    )


def _first_with(connection: Connection, topology: str, table: str) -> Barrier | None:
    """The first barrier that has a table. Which tables it has is fixed by the version that it was opened with."""
    version = schema.topology_version.c
    versions = connection.execute(select(version.version, version.definition).where(version.topology == topology))
    having = [row.version for row in versions if table in decode(Topology, row.definition).tables]
    return _first_barrier(connection, topology, schema.NOT_ABORTED, schema.barrier.c.topology_version.in_(having))
