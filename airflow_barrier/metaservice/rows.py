"""Database rows as the protocol's values, and the questions that every part asks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Row,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    literal,
    select,
    update,
)

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.database import forget_kept, kept_by
from airflow_barrier.metaservice.mapping import to_record, to_records
from airflow_barrier.protocol.codec import decode
from airflow_barrier.protocol.errors import BarrierAbortedError, UnknownBarrierError, UnknownTopologyError
from airflow_barrier.protocol.records import (
    Attempt,
    Barrier,
    TableProgress,
)
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, BarrierState, TableState
from airflow_barrier.protocol.topology import Topology

_T = TypeVar("_T")

#: The line that stands: what readers follow. What revision r stages is in line r until it is published, and what it
#: replaced is in line -r from then on. The key column ``line`` says which, ``computed_in`` the revision whose work a
#: row is.
STANDING = 0
#: Topologies by their digest: to read the definition of a thousand jobs takes longer than all else of a step.
_topologies: dict[str, Topology] = {}
_topologies_lock = threading.Lock()
_TOPOLOGIES_KEPT = 64
#: How many names go into one IN (...): databases bound the parameters of a statement.
_CHUNK = 5000


def chunks(names: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """``names``, or numbers, in parts that fit into one statement."""
    for start in range(0, len(names), _CHUNK):
        yield names[start : start + _CHUNK]


def of_topology(
    table: Table, topology: str | BindParameter[str], line: int | BindParameter[int] = STANDING
) -> ColumnElement[bool]:
    """The condition: rows of a topology."""
    return and_(table.c.topology == topology, table.c.line == line)


def of_barrier(
    table: Table,
    topology: str | BindParameter[str],
    barrier_id: int | BindParameter[int],
    line: int | BindParameter[int] = STANDING,
) -> ColumnElement[bool]:
    """The condition: rows of a barrier."""
    return and_(of_topology(table, topology, line), table.c.barrier_id == barrier_id)


# What every step asks many times is put together once: that takes longer than an embedded database takes to answer.
_NAME: BindParameter[str] = bindparam("topology")
_ID: BindParameter[int] = bindparam("barrier_id")
_LINE: BindParameter[int] = bindparam("line")
_VERSION = select(schema.topology.c.version).where(schema.topology.c.name == _NAME)
#: Whoever waits asks whether there was a change: each that locks the topology may be one.
_LOCK = (
    update(schema.topology)
    .where(schema.topology.c.name == _NAME)
    .values(changes=schema.topology.c.changes + 1)
    .returning(schema.topology.c.version)
)
_OF_VERSION = (schema.topology_version.c.topology == _NAME, schema.topology_version.c.version == bindparam("version"))
_DIGEST = select(schema.topology_version.c.digest).where(*_OF_VERSION)
_DEFINITION = select(schema.topology_version.c.definition).where(*_OF_VERSION)
_BARRIER = select(schema.barrier).where(of_barrier(schema.barrier, _NAME, _ID, _LINE))
_NEWEST = (
    select(schema.barrier)
    .where(of_topology(schema.barrier, _NAME), schema.barrier.c.state.in_(bindparam("states", expanding=True)))
    .order_by(schema.barrier.c.barrier_id.desc())
    .limit(1)
)
_UNCOMMITTED = (
    select(schema.barrier)
    .where(of_topology(schema.barrier, _NAME, _LINE), schema.UNCOMMITTED, schema.barrier.c.barrier_id >= _ID)
    .order_by(schema.barrier.c.barrier_id)
)
_PROGRESS = (
    select(schema.table_progress)
    .where(of_barrier(schema.table_progress, _NAME, _ID, _LINE))
    .order_by(schema.table_progress.c.table_name)
)
_PENDING = (
    select(literal(1))
    .where(
        of_barrier(schema.table_progress, _NAME, _ID, _LINE), schema.table_progress.c.state == TableState.PENDING.value
    )
    .limit(1)
)
_PROGRESS_OF_SOME = _PROGRESS.where(schema.table_progress.c.table_name.in_(bindparam("tables", expanding=True)))
_PROGRESSES = (
    select(schema.table_progress)
    .where(
        of_topology(schema.table_progress, _NAME, _LINE),
        schema.table_progress.c.barrier_id.in_(bindparam("barrier_ids", expanding=True)),
    )
    .order_by(schema.table_progress.c.table_name)
)
_PROGRESSES_OF_SOME = _PROGRESSES.where(schema.table_progress.c.table_name.in_(bindparam("tables", expanding=True)))
_ATTEMPT = select(schema.attempt).where(schema.attempt.c.attempt_id == bindparam("attempt_id"))
_NEWEST_ATTEMPT = (
    select(schema.attempt)
    .where(of_barrier(schema.attempt, _NAME, _ID, _LINE), schema.attempt.c.job == bindparam("job"))
    .order_by(schema.attempt.c.attempt_id.desc())
    .limit(1)
)
_ATTEMPTS = (
    select(schema.attempt).where(of_barrier(schema.attempt, _NAME, _ID, _LINE)).order_by(schema.attempt.c.attempt_id)
)


def rows_at(connection: Connection, query: Select[Any], **values: Any) -> Sequence[Row[Any]]:
    """The rows of one table that a query finds, whose parameters have these ``values``.

    A transaction asks the database once: what it found is kept until it writes to the table.
    """
    found: Sequence[Row[Any]] | None = kept_by(connection, _table_of(query)).get(_key(query, values))
    return found if found is not None else _keep(connection, query, connection.execute(query, values).all(), **values)


def _keep(connection: Connection, query: Select[Any], rows: Sequence[Row[Any]], **values: Any) -> Sequence[Row[Any]]:
    kept_by(connection, _table_of(query))[_key(query, values)] = rows
    return rows


def _key(query: Select[Any], values: Mapping[str, Any]) -> Hashable:
    return query, *(tuple(value) if isinstance(value, list) else value for value in values.values())


@cache
def _table_of(query: Select[Any]) -> str:
    (table,) = query.get_final_froms()
    return str(cast(Table, table).name)


def row_at(connection: Connection, query: Select[Any], **values: Any) -> Row[Any] | None:
    found = rows_at(connection, query, **values)
    return found[0] if found else None


# --- topologies -----------------------------------------------------------------------------------


def lock_topology(connection: Connection, name: str) -> int:
    """The current version, with the topology's row locked: from here to the end this is its only writer."""
    return _version(connection, name, lock=True)


def incarnation_of(connection: Connection, topology: str) -> str:
    """Return the mark that tells a topology's attempts from those of a time that was lost."""
    table = schema.topology
    found = connection.execute(select(table.c.incarnation).where(table.c.name == topology)).scalar_one_or_none()
    if found is None:
        raise _unknown(connection, topology)
    return str(found)


def incarnation_now(topology: str) -> ScalarSelect[str]:
    """:func:`incarnation_of`, for a statement that writes it."""
    return select(schema.topology.c.incarnation).where(schema.topology.c.name == topology).scalar_subquery()


def topology_version(connection: Connection, name: str) -> int:
    return _version(connection, name, lock=False)


def _version(connection: Connection, name: str, lock: bool) -> int:
    query = _LOCK if lock else _VERSION  # safety: topology-row-lock
    version = connection.execute(query, {"topology": name}).scalar_one_or_none()
    if version is None:
        raise _unknown(connection, name)
    if lock:
        forget_kept(connection)  # safety: lock-forgets
    return int(version)


def _unknown(connection: Connection, name: str) -> UnknownTopologyError:
    known = connection.execute(select(schema.topology.c.name).order_by(schema.topology.c.name)).scalars()
    return UnknownTopologyError(
        f"topology {name!r}: expected one that a DAG has registered, found only: {', '.join(known) or 'none'}; "
        "correct the name, or run the DAG that declares it"
    )


def load_topology(connection: Connection, name: str, version: int) -> Topology:
    found = row_at(connection, _DIGEST, topology=name, version=version)
    if found is None:
        raise UnknownTopologyError(
            f"topology {name}: expected version {version}, found versions up to {topology_version(connection, name)}; "
            "ask for one of these"
        )
    return topology_of(connection, name, version, found.digest)


def topology_of(connection: Connection, name: str, version: int, digest: str) -> Topology:
    """Return it as :func:`load_topology` does, for who knows the version's digest already."""
    topology = _topologies.get(digest)
    if topology is None:
        # not under the lock: a database that does not answer would hold up those of others
        key = {"topology": name, "version": version}
        topology = decode(Topology, connection.execute(_DEFINITION, key).scalar_one())
        with _topologies_lock:
            if len(_topologies) >= _TOPOLOGIES_KEPT:
                _topologies.clear()
            _topologies[digest] = topology
    return topology  # what was found, and not another look: another thread may have cleared them since


# --- barriers -------------------------------------------------------------------------------------


def load_barrier(connection: Connection, topology: str, barrier_id: int, line: int = STANDING) -> Barrier:
    """Raises UnknownBarrierError (UnknownTopologyError if not even that is known)."""
    row = row_at(connection, _BARRIER, topology=topology, barrier_id=barrier_id, line=line)
    if row is None:
        topology_version(connection, topology)
        newest = head(connection, topology)
        found = f"found barriers up to {newest.barrier_id}" if newest else "none was opened yet"
        raise UnknownBarrierError(
            f"barrier {barrier_id} of {topology}: expected one that was opened, {found}; correct the number, or "
            "wait until it is opened"
        )
    return to_record(Barrier, row)


def head(connection: Connection, topology: str) -> Barrier | None:
    """The newest barrier that is not aborted. The next one builds on it."""
    return newest(connection, topology, [state for state in BarrierState if state is not BarrierState.ABORTED])


def epoch_of(connection: Connection, barrier: Barrier) -> Barrier:
    """The barrier itself or, for maintenance barriers, which have no epoch, the one below them that has."""
    while barrier.is_maintenance:
        barrier = load_barrier(connection, barrier.topology, barrier.predecessor or 0)
    return barrier


def newest(connection: Connection, topology: str, states: Iterable[BarrierState]) -> Barrier | None:
    """The newest barrier in one of these states: walks back from the newest, past what is in flight."""
    row = row_at(connection, _NEWEST, topology=topology, states=[state.value for state in states])
    return None if row is None else to_record(Barrier, row)


def uncommitted(connection: Connection, topology: str, first: int = 0, line: int = STANDING) -> list[Barrier]:
    """The barriers in flight, from ``first`` on, in order."""
    return to_records(Barrier, rows_at(connection, _UNCOMMITTED, topology=topology, barrier_id=first, line=line))


def raise_aborted(barrier: Barrier) -> NoReturn:
    raise BarrierAbortedError(
        f"{barrier} was aborted ({barrier.reason}); its epoch joins the next barrier's: there is nothing left to do "
        "for it"
    )


# --- tables ---------------------------------------------------------------------------------------


def progress(
    connection: Connection,
    topology: str,
    barrier_id: int,
    line: int = STANDING,
    tables: Collection[str] | None = None,
) -> dict[str, TableProgress]:
    """Every table of a barrier, in the order of their names; of a revision's, those that it computes again.

    A step of one job asks for its own ``tables``, so that what a barrier costs grows with its tables, not their square.
    """
    key = {"topology": topology, "barrier_id": barrier_id, "line": line}
    if tables is None:
        rows = rows_at(connection, _PROGRESS, **key)
    else:
        rows = rows_at(connection, _PROGRESS_OF_SOME, **key, tables=sorted(tables))
    return {row.table_name: to_record(TableProgress, row) for row in rows}


def read_progress(
    connection: Connection, topology: str, barrier_ids: Iterable[int], tables: Collection[str] | None = None
) -> None:
    """Read what :func:`progress` is about to be asked of several barriers, all at once."""
    some = {} if tables is None else {"tables": sorted(tables)}
    query, of_one = (_PROGRESSES, _PROGRESS) if tables is None else (_PROGRESSES_OF_SOME, _PROGRESS_OF_SOME)
    kept = kept_by(connection, schema.table_progress.name)
    ids = [
        each
        for each in sorted(set(barrier_ids))
        if _key(of_one, {"topology": topology, "barrier_id": each, "line": STANDING, **some}) not in kept
    ]
    if not ids:
        return
    found: dict[int, list[Row[Any]]] = {barrier_id: [] for barrier_id in ids}
    for row in connection.execute(query, {"topology": topology, "barrier_ids": ids, "line": STANDING, **some}):
        found[row.barrier_id].append(row)
    for barrier_id, rows in found.items():
        _keep(connection, of_one, rows, topology=topology, barrier_id=barrier_id, line=STANDING, **some)


def own_progress(
    connection: Connection, barrier: Barrier, tables: Collection[str] | None = None
) -> dict[str, TableProgress]:
    """The tables that have to be PROCESSED for ``barrier``: of a revision's barrier only what it computes again."""
    return progress(connection, barrier.topology, barrier.barrier_id, barrier.line, tables)


def is_complete(connection: Connection, barrier: Barrier) -> bool:
    """Return whether none of the tables that have to be PROCESSED for ``barrier`` is PENDING."""
    key = {"topology": barrier.topology, "barrier_id": barrier.barrier_id, "line": barrier.line}
    return connection.execute(_PENDING, key).first() is None


def standing(
    connection: Connection, barrier: Barrier, tables: Collection[str] | None = None
) -> dict[str, TableProgress]:
    """Return the row of each table of ``barrier``: of one that a maintenance barrier passes by, that from before.

    A revision's barrier takes what it does not compute again from the line that stands. ``tables``: only of these.
    """
    if barrier.line != STANDING:
        there = load_barrier(connection, barrier.topology, barrier.barrier_id)
        return {**standing(connection, there, tables), **own_progress(connection, barrier, tables)}
    rows = own_progress(connection, barrier, tables)
    if not barrier.is_maintenance or barrier.state is not BarrierState.OPEN:
        return rows
    taken = {a.job for a in attempts_of(connection, barrier.topology, barrier.barrier_id) if a.state in LIVE_ATTEMPTS}
    before = progress_before(connection, barrier, tables)
    passed_by = {
        name: before[name]
        for name, row in rows.items()
        if row.state is TableState.PENDING and row.job not in taken  # safety: taken-is-not-passed-by
    }
    return {**rows, **passed_by}


def progress_before(
    connection: Connection, barrier: Barrier, tables: Collection[str] | None = None
) -> dict[str, TableProgress]:
    """Return the row of each table just before ``barrier``: at its predecessor or, if it joins here, in the baseline.

    ``tables``: only of these.
    """
    if barrier.line != STANDING:
        return _progress_before_revised(connection, barrier, tables)
    if barrier.predecessor is None:
        return {}
    predecessor = load_barrier(connection, barrier.topology, barrier.predecessor)
    read_progress(connection, barrier.topology, (0, barrier.predecessor), tables)
    return {
        **progress(connection, barrier.topology, 0, tables=tables),
        **standing(connection, predecessor, tables),
    }


def _progress_before_revised(
    connection: Connection, barrier: Barrier, tables: Collection[str] | None
) -> dict[str, TableProgress]:
    """Return the line that stands, with what the revision has computed again at the barrier before instead."""
    there = load_barrier(connection, barrier.topology, barrier.barrier_id)
    before = progress_before(connection, there, tables)
    table = schema.revision
    row = connection.execute(
        select(table).where(table.c.topology == barrier.topology, table.c.revision == barrier.line)
    ).one()
    if barrier.barrier_id > row.first_barrier:
        revised = progress(connection, barrier.topology, barrier.predecessor or 0, barrier.line, tables)
        return {**before, **revised}
    if row.mode == RevisionMode.INCREMENTAL.value:
        # barrier 0 says how a table joined last, which may have been later, or at a barrier that was aborted
        joined = _joined_with(connection, there)
        return {name: replace(each, snapshot_id=joined.get(name, each.snapshot_id)) for name, each in before.items()}
    # what is computed from the beginning stands on nothing, and sees all of its inlets as new; what joins was in no
    # barrier before
    own = own_progress(connection, barrier, tables)
    joining = {name: _baseline(each) for name, each in own.items() if name not in before}
    return {name: replace(each, snapshot_id=None) for name, each in {**before, **joining}.items()}


def _joined_with(connection: Connection, barrier: Barrier) -> dict[str, int | None]:
    """Map the tables of the jobs that joined with a barrier to what they held."""
    table = schema.job_start
    baselines = connection.execute(
        select(table.c.baseline).where(of_barrier(table, barrier.topology, barrier.barrier_id))
    ).scalars()
    return {name: snapshot for baseline in baselines for name, snapshot in baseline.items()}


def _baseline(row: TableProgress) -> TableProgress:
    """Return the row that barrier 0 gets of a table that joins."""
    return TableProgress(row.topology, 0, row.table, None, TableState.WRITTEN)


# --- attempts -------------------------------------------------------------------------------------


def load_attempt(connection: Connection, attempt_id: int) -> Attempt:
    row = row_at(connection, _ATTEMPT, attempt_id=attempt_id)
    if row is None:
        raise UnknownBarrierError(
            f"attempt {attempt_id}: expected one that was requested, found none; either its barrier expired or was "
            "aborted since, and its details were trimmed, or this is not the MetaService that it was requested from"
        )
    return to_record(Attempt, row)


def newest_attempt(
    connection: Connection, topology: str, barrier_id: int, job: str, line: int = STANDING
) -> Attempt | None:
    """The newest attempt of a job at a barrier, whatever became of it."""
    row = row_at(connection, _NEWEST_ATTEMPT, topology=topology, barrier_id=barrier_id, line=line, job=job)
    return None if row is None else to_record(Attempt, row)


def attempts_of(connection: Connection, topology: str, barrier_id: int, line: int = STANDING) -> list[Attempt]:
    """All attempts of a barrier, oldest first."""
    rows = rows_at(connection, _ATTEMPTS, topology=topology, barrier_id=barrier_id, line=line)
    return to_records(Attempt, rows)


def barrier_key(topology: str, barrier_id: int, line: int = STANDING) -> dict[str, str | int]:
    """The key columns of what belongs to a barrier."""
    return {"topology": topology, "line": line, "barrier_id": barrier_id}
