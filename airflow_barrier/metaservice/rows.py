"""Database rows as the protocol's values, and the questions that every part asks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar

from sqlalchemy import BindParameter, ColumnElement, Connection, Table, and_, bindparam, literal, select, update

from airflow_barrier.metaservice import schema
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
_ATTEMPT = select(schema.attempt).where(schema.attempt.c.attempt_id == bindparam("attempt_id"))
_ATTEMPTS = (
    select(schema.attempt).where(of_barrier(schema.attempt, _NAME, _ID, _LINE)).order_by(schema.attempt.c.attempt_id)
)


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


def topology_version(connection: Connection, name: str) -> int:
    return _version(connection, name, lock=False)


def _version(connection: Connection, name: str, lock: bool) -> int:
    query = _LOCK if lock else _VERSION  # safety: topology-row-lock
    version = connection.execute(query, {"topology": name}).scalar_one_or_none()
    if version is None:
        raise _unknown(connection, name)
    return int(version)


def _unknown(connection: Connection, name: str) -> UnknownTopologyError:
    known = connection.execute(select(schema.topology.c.name).order_by(schema.topology.c.name)).scalars()
    return UnknownTopologyError(
        f"topology {name!r}: expected one that a DAG has registered, found only: {', '.join(known) or 'none'}; "
        "correct the name, or run the DAG that declares it"
    )


def load_topology(connection: Connection, name: str, version: int) -> Topology:
    key = {"topology": name, "version": version}
    digest = connection.execute(_DIGEST, key).scalar_one_or_none()
    if digest is None:
        raise UnknownTopologyError(
            f"topology {name}: expected version {version}, found versions up to {topology_version(connection, name)}; "
            "ask for one of these"
        )
    return topology_of(connection, name, version, digest)


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
    key = {"topology": topology, "barrier_id": barrier_id, "line": line}
    row = connection.execute(_BARRIER, key).one_or_none()
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
    wanted = {"topology": topology, "states": [state.value for state in states]}
    row = connection.execute(_NEWEST, wanted).one_or_none()
    return None if row is None else to_record(Barrier, row)


def uncommitted(connection: Connection, topology: str, first: int = 0, line: int = STANDING) -> list[Barrier]:
    """The barriers in flight, from ``first`` on, in order."""
    rows = connection.execute(_UNCOMMITTED, {"topology": topology, "barrier_id": first, "line": line})
    return to_records(Barrier, rows)


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
        rows = connection.execute(_PROGRESS, key)
    else:
        rows = connection.execute(_PROGRESS_OF_SOME, {**key, "tables": list(tables)})
    return {row.table_name: to_record(TableProgress, row) for row in rows}


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
    row = connection.execute(_ATTEMPT, {"attempt_id": attempt_id}).one_or_none()
    if row is None:
        raise UnknownBarrierError(
            f"attempt {attempt_id}: expected one that was requested, found none; either its barrier expired or was "
            "aborted since, and its details were trimmed, or this is not the MetaService that it was requested from"
        )
    return to_record(Attempt, row)


def attempts_of(connection: Connection, topology: str, barrier_id: int, line: int = STANDING) -> list[Attempt]:
    """All attempts of a barrier, oldest first."""
    rows = connection.execute(_ATTEMPTS, {"topology": topology, "barrier_id": barrier_id, "line": line})
    return to_records(Attempt, rows)


def barrier_key(topology: str, barrier_id: int, line: int = STANDING) -> dict[str, str | int]:
    """The key columns of what belongs to a barrier."""
    return {"topology": topology, "line": line, "barrier_id": barrier_id}
