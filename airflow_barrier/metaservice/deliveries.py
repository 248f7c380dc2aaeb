"""Sinks: who delivers to them, and what their ledgers were last heard to say.

A sink's own ledger is the truth about what it has received. What stands here is a copy of it, for those who wait, for
people, and for expiry, which spares what a sink lacks. All changes are made under the topology's lock: expiry goes by
them, and each audit entry says the state that the sink was in.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    ScalarSelect,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)

from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.mapping import to_record, to_records
from airflow_barrier.metaservice.rows import STANDING, load_topology, topology_version
from airflow_barrier.metaservice.schema import DatabaseLater, DatabaseNow
from airflow_barrier.metaservice.transaction import Group, changes, locked, reads
from airflow_barrier.metaservice.transitions import Event, record
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.deliveries import (
    Counts,
    DeliveryRecord,
    Position,
    Remedy,
    SinkDeclaration,
    SinkRecord,
    SinkState,
)
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    SinkClaimedError,
    SinkTakenError,
    UnknownSinkError,
    UnknownTableError,
)
from airflow_barrier.protocol.names import name_fault
from airflow_barrier.protocol.records import BarrierKind
from airflow_barrier.protocol.states import BarrierState

#: How long barriers that a sink lacks are kept for it, unless somebody says otherwise: a week.
HOLD_SECONDS = 7 * 24 * 3600
#: Ten years. Databases know no times before their calendars begin.
_LONGEST_HOLD_SECONDS = 10 * 365 * 24 * 3600

_SINK, _DELIVERY = schema.sink.c, schema.delivery.c
_LACKED = schema.barrier.alias("lacked")
#: A sink lacks a barrier for longer than anything is held for it. Maintenance barriers have no rows to deliver.
_OVERDUE = (
    exists()
    .where(
        _LACKED.c.topology == _SINK.topology,
        _LACKED.c.line == STANDING,
        _LACKED.c.barrier_id > _SINK.barrier_id,
        _LACKED.c.state == BarrierState.COMMIT.value,
        _LACKED.c.kind != BarrierKind.MAINTENANCE.value,
        _LACKED.c.commit_at < DatabaseLater(-_SINK.hold_seconds),
    )
    .correlate(schema.sink)
)
_LAGS = text('SELECT sink, lag_barriers, lag_since FROM "__META_DELIVERY" WHERE topology = :topology').columns(
    lag_since=schema.UtcTime
)


class Deliveries(Group):
    """Systems that tables are delivered to, and what they have received."""

    def register(
        self, topology: str, declaration: SinkDeclaration, actor: str, hold_seconds: int | None = None
    ) -> SinkRecord:
        """A sink as its DAG declares it, new or again. Nothing is written for one that is registered like that.

        ``hold_seconds``: how long barriers that it lacks are kept for it (None: a week). That counts for a new sink;
        later :meth:`hold` changes it. Raises SinkClaimedError if another DAG delivers to it, and UnknownTableError for
        a table that is none of the topology. Its ledger says whether it may be declared otherwise than it was.
        """
        if fault := name_fault(declaration.name):
            raise ConfigurationError(
                f"sink {declaration.name!a} of {topology}: expected a name that every database and log can hold, found "
                f"{fault}; rename it"
            )
        _check_hold(topology, declaration.name, HOLD_SECONDS if hold_seconds is None else hold_seconds)
        found = self._read(lambda c: _find(c, topology, declaration.name))
        if found is not None and not _changed(found, declaration):
            return found
        return self._write_locked(topology, lambda c: _register(c, topology, declaration, actor, hold_seconds))

    @reads
    def get(self, connection: Connection, topology: str, name: str) -> SinkRecord:
        """Raises UnknownSinkError, which says which sinks there are."""
        return _load(connection, topology, name)

    @reads
    def of(self, connection: Connection, topology: str) -> list[SinkRecord]:
        """All sinks of a topology that DAGs declare, by their names."""
        topology_version(connection, topology)
        return _sinks_of(connection, topology)

    @reads
    def lags(self, connection: Connection, topology: str) -> dict[str, tuple[int, datetime | None]]:
        """Map each sink to its number of missing committed barriers, and when the oldest was committed (UTC)."""
        rows = connection.execute(_LAGS, {"topology": topology})
        return {row.sink: (row.lag_barriers, row.lag_since) for row in rows}

    @locked
    def claim(
        self, connection: Connection, topology: str, name: str, request_key: str, expected: str | None
    ) -> SinkRecord:
        """Write down that a task delivers to the sink from here on, if ``expected`` did so until now; returns the sink.

        Again is fine. It is the sink that fences the task before. Raises SinkTakenError (retryable) if another one came
        first.
        """
        before = _load(connection, topology, name)
        was = _SINK.deliverer.is_not_distinct_from(expected)
        moved = connection.execute(
            update(schema.sink)
            .where(
                _here(topology, name),
                or_(was, _SINK.deliverer == request_key),  # safety: one-claims-a-sink
            )
            .values(deliverer=request_key)
        ).rowcount
        sink = _load(connection, topology, name)
        if not moved:
            raise SinkTakenError(  # safety: lost-claim-is-told
                f"{sink}: expected that {expected or 'no task'} delivers to it, found {sink.deliverer}, which came "
                "first; look what it has delivered, and claim the sink from it"
            )
        if before.deliverer != request_key:
            _record(connection, sink, Event("claimed", request_key, {"before": expected}))
        return sink

    @locked
    def unclaim(self, connection: Connection, topology: str, name: str, request_key: str) -> None:
        """Write down that a task's delivery has ended, so that those who wait for it go on. Again is fine.

        Nothing happens where another one has claimed the sink since.
        """
        connection.execute(
            update(schema.sink)
            .where(
                _here(topology, name),
                _SINK.deliverer == request_key,  # safety: ends-its-own-claim
            )
            .values(deliverer=None)
        )

    @locked
    def delivered(
        self,
        connection: Connection,
        topology: str,
        name: str,
        position: Position,
        *,
        counts: Counts,
        seconds: float,
        actor: str,
        first_barrier: int | None = None,
        reset: bool = False,
    ) -> SinkRecord:
        """Remember that the sink's ledger has come to ``position``, and that the last try did not fail. Again is fine.

        ``first_barrier``: delivered along with it, in one step, were the barriers from this one on (None: it alone).
        What is remembered never goes back, unless a person's remedy was applied (``reset``), which is done with then.
        """
        sink = _load(connection, topology, name)
        at = _of(topology, name, position)
        if reset:
            connection.execute(delete(schema.delivery).where(at))
        if connection.execute(select(_DELIVERY.barrier_id).where(at)).one_or_none() is None:
            connection.execute(
                insert(schema.delivery).values(
                    topology=topology,
                    sink=name,
                    barrier_id=position.barrier_id,
                    revision=position.revision,
                    first_barrier=position.barrier_id if first_barrier is None else first_barrier,
                    **vars(counts),
                    seconds=seconds,
                    actor=actor,
                    delivered_at=DatabaseNow(),
                )
            )
            detail = {"position": str(position), **vars(counts), "reset": reset}
            _record(connection, sink, Event("delivered", actor, detail), position.barrier_id)
        if reset:
            _set(connection, sink, remedy=None)
        if reset or sink.position is None or position >= sink.position:  # safety: deliveries-go-forward
            new = reset or position != sink.position
            _set(
                connection,
                sink,
                barrier_id=position.barrier_id,
                revision=position.revision,
                delivered_at=DatabaseNow() if new else _SINK.delivered_at,
                error=None,
                failed_at=None,
                failures=0,
            )
        return _load(connection, topology, name)

    @locked
    def failed(self, connection: Connection, topology: str, name: str, error: str, actor: str) -> SinkRecord:
        """Remember why a delivery failed, until one succeeds."""
        sink = _load(connection, topology, name)
        _set(connection, sink, error=error, failed_at=DatabaseNow(), failures=_SINK.failures + 1)
        _record(connection, sink, Event("failed", actor, {"error": error, "failures": sink.failures + 1}))
        return _load(connection, topology, name)

    @reads
    def unannounced(self, connection: Connection, topology: str, name: str, by: str) -> list[DeliveryRecord]:
        """Deliveries that Airflow has not been told of, oldest barrier first. Those that task ``by`` has told of are
        among them: the worker may have died before Airflow heard it.
        """
        silent = or_(
            _DELIVERY.announced_by.is_(None),
            _DELIVERY.announced_by == by,  # safety: told-until-it-is-heard
        )
        query = select(schema.delivery).where(_of(topology, name), silent)
        rows = connection.execute(query.order_by(_DELIVERY.barrier_id, _DELIVERY.revision))
        return to_records(DeliveryRecord, rows)

    @changes
    def announce(
        self, connection: Connection, topology: str, name: str, positions: Collection[Position], by: str
    ) -> None:
        """Task ``by`` tells Airflow of these. Again is fine."""
        keys = [(position.barrier_id, position.revision) for position in positions]
        connection.execute(
            update(schema.delivery)
            .where(
                _of(topology, name),
                tuple_(_DELIVERY.barrier_id, _DELIVERY.revision).in_(keys),
                _DELIVERY.announced_by.is_(None),
            )
            .values(announced_by=by)
        )

    @reads
    def holding(self, connection: Connection, topology: str) -> list[SinkRecord]:
        """The sinks that hold what they received last, and all barriers since, against expiry."""
        held = (_SINK.barrier_id.is_not(None), _SINK.released_at.is_(None), ~_OVERDUE)
        query = select(schema.sink).where(_SINK.topology == topology, *held)
        return [_to_sink(row) for row in connection.execute(query.order_by(_SINK.name))]

    @reads
    def history(self, connection: Connection, topology: str, name: str, limit: int = 100) -> list[DeliveryRecord]:
        """Return the last deliveries, newest first, of barriers that are not trimmed yet."""
        _load(connection, topology, name)
        newest_first = (_DELIVERY.delivered_at.desc(), _DELIVERY.barrier_id.desc(), _DELIVERY.revision.desc())
        query = select(schema.delivery).where(_of(topology, name)).order_by(*newest_first).limit(limit)
        return to_records(DeliveryRecord, connection.execute(query))

    @reads
    def took(self, connection: Connection, topology: str, name: str, until: datetime, limit: int = 20) -> list[float]:
        """Return how many seconds after its COMMIT each of the last deliveries until then was, newest first."""
        delivered = schema.barrier.alias("delivered")
        at = and_(
            delivered.c.topology == _DELIVERY.topology,
            delivered.c.line == STANDING,
            delivered.c.barrier_id == _DELIVERY.first_barrier,
        )
        rows = connection.execute(
            select(_DELIVERY.delivered_at, delivered.c.commit_at)
            .join(delivered, at)
            # what a revision computed again was committed long before
            .where(_of(topology, name), _DELIVERY.revision == STANDING, _DELIVERY.delivered_at <= until)
            .order_by(_DELIVERY.barrier_id.desc())
            .limit(limit)
        )
        return [(row.delivered_at - row.commit_at).total_seconds() for row in rows]

    # --- what a person decides ------------------------------------------------------------------------

    @locked
    def pause(self, connection: Connection, topology: str, name: str, actor: str, reason: str) -> SinkRecord:
        """Nothing is delivered any more until :meth:`resume`; what the sink lacks is held meanwhile. Again is fine."""
        return _move(connection, topology, name, SinkState.PAUSED, Event("paused", actor, {"reason": reason}))

    @locked
    def resume(self, connection: Connection, topology: str, name: str, actor: str, reason: str) -> SinkRecord:
        """Barriers are delivered again. Again is fine."""
        return _move(connection, topology, name, SinkState.ACTIVE, Event("resumed", actor, {"reason": reason}))

    @locked
    def decide(
        self, connection: Connection, topology: str, name: str, remedy: Remedy, actor: str, reason: str
    ) -> SinkRecord:
        """Set what the next delivery does about a ledger that contradicts what is remembered. Again is fine."""
        sink = _load(connection, topology, name)
        _set(connection, sink, remedy=remedy.value)
        _record(connection, sink, Event("decided", actor, {"remedy": remedy.value, "reason": reason}))
        return _load(connection, topology, name)

    @locked
    def hold(self, connection: Connection, topology: str, name: str, seconds: int, actor: str) -> SinkRecord:
        """Keep barriers that the sink lacks for so many seconds from when the oldest of them was committed.

        0: none is kept. Raises ConfigurationError for less than that or more than ten years.
        """
        _check_hold(topology, name, seconds)
        sink = _load(connection, topology, name)
        if sink.hold_seconds != seconds:
            _set(connection, sink, hold_seconds=seconds)
            _record(connection, sink, Event("hold", actor, {"before": sink.hold_seconds, "seconds": seconds}))
        return _load(connection, topology, name)

    @locked
    def release(self, connection: Connection, topology: str, name: str, actor: str, reason: str) -> SinkRecord:
        """Let go of a sink: it holds no barrier any more, and any DAG may declare it. Returns what was known of it.

        What was delivered stays in the sink, as does its ledger, which is asked once the sink is declared again, there
        or elsewhere; what people have decided about it counts then. Again is fine.
        """
        sink = _load(connection, topology, name)
        if sink.released_at is None:
            _set(connection, sink, released_at=DatabaseNow(), barrier_id=None, revision=None)
            detail = {"owner": sink.owner, "position": sink.position and str(sink.position), "reason": reason}
            _record(connection, sink, Event("released", actor, detail))
        return sink


def first_held(topology: str) -> ScalarSelect[int | None]:
    """The barrier from which on all are held for a sink (NULL: none is): what it received last.

    The next delivery is the difference between that and a later one.
    """
    return (
        select(func.min(_SINK.barrier_id))
        .where(_SINK.topology == topology, _SINK.released_at.is_(None), ~_OVERDUE)
        .scalar_subquery()
    )


def _sinks_of(connection: Connection, topology: str) -> list[SinkRecord]:
    declared = (_SINK.topology == topology, _SINK.released_at.is_(None))
    rows = connection.execute(select(schema.sink).where(*declared).order_by(_SINK.name))
    return [_to_sink(row) for row in rows]


def _here(topology: str, name: str) -> ColumnElement[bool]:
    return and_(_SINK.topology == topology, _SINK.name == name)


def _of(topology: str, name: str, position: Position | None = None) -> ColumnElement[bool]:
    """The condition: what a sink was delivered, at any or at one position."""
    here = and_(_DELIVERY.topology == topology, _DELIVERY.sink == name)
    if position is None:
        return here
    return and_(here, _DELIVERY.barrier_id == position.barrier_id, _DELIVERY.revision == position.revision)


def _to_sink(row: Row[Any]) -> SinkRecord:
    return to_record(SinkRecord, row, definition=decode(SinkDeclaration, row.definition))


def _find(connection: Connection, topology: str, name: str) -> SinkRecord | None:
    row = connection.execute(select(schema.sink).where(_here(topology, name))).one_or_none()
    return None if row is None else _to_sink(row)


def _load(connection: Connection, topology: str, name: str) -> SinkRecord:
    sink = _find(connection, topology, name)
    if sink is None:
        topology_version(connection, topology)
        known = ", ".join(each.name for each in _sinks_of(connection, topology))
        raise UnknownSinkError(
            f"sink {name!r}: expected one of topology {topology}, found only: {known or 'none'}; correct the name, or "
            "run the DAG that delivers to it"
        )
    return sink


def _set(connection: Connection, sink: SinkRecord, **values: Any) -> None:
    connection.execute(update(schema.sink).where(_here(sink.topology, sink.name)).values(**values))


def _record(connection: Connection, sink: SinkRecord, event: Event, barrier_id: int | None = None) -> None:
    """An entry that does not change the sink's state."""
    state = sink.state.value
    record(connection, event, sink.topology, barrier_id, "sink", [sink.name], state, state)


def _move(connection: Connection, topology: str, name: str, after: SinkState, event: Event) -> SinkRecord:
    sink = _load(connection, topology, name)
    if sink.state is not after:
        _set(connection, sink, state=after.value)
        record(connection, event, topology, None, "sink", [name], sink.state.value, after.value)
    return _load(connection, topology, name)


# --- registering --------------------------------------------------------------------------------------


def _check_hold(topology: str, name: str, seconds: int) -> None:
    if not 0 <= seconds <= _LONGEST_HOLD_SECONDS:
        raise ConfigurationError(
            f"sink {name} of {topology}: expected to hold what it lacks for 0 to {_LONGEST_HOLD_SECONDS} seconds (ten "
            f"years), found {seconds}; choose a time between these"
        )


def _register(
    connection: Connection, topology: str, declaration: SinkDeclaration, actor: str, hold_seconds: int | None
) -> SinkRecord:
    name = declaration.name
    found = _find(connection, topology, name)
    changed = ["new"] if found is None else _changed(found, declaration)
    if found is not None and not changed:
        return found
    if found is not None and found.released_at is None and found.owner != declaration.owner:
        raise SinkClaimedError(  # safety: sink-of-one-dag
            f"topology {topology}: DAG {declaration.owner} declares sink {name}, to which DAG {found.owner} delivers; "
            f"a sink is of one DAG: give this one another name, or take it out of DAG {found.owner} and let go of it: "
            f"airflow-barrier sink release {topology} {name} --reason ..."
        )
    tables = load_topology(connection, topology, topology_version(connection, topology)).tables
    unknown = [table for table in declaration.targets if table not in tables]
    if unknown:
        raise UnknownTableError(
            f"topology {topology}: expected tables of the topology for sink {name}, found {', '.join(unknown)}; its "
            f"tables are: {', '.join(tables)}"
        )
    values = {"owner": declaration.owner, "definition": encode(declaration)}
    state = SinkState.ACTIVE if found is None else found.state
    if found is None:
        connection.execute(
            insert(schema.sink).values(
                topology=topology,
                name=name,
                **values,
                state=state.value,
                hold_seconds=HOLD_SECONDS if hold_seconds is None else hold_seconds,
                created_at=DatabaseNow(),
            )
        )
    else:
        _set(connection, found, **values, released_at=None)
    event = Event("registered", actor, {"owner": declaration.owner, "changed": changed})
    record(connection, event, topology, None, "sink", [name], None if found is None else state.value, state.value)
    return _load(connection, topology, name)


def _changed(found: SinkRecord, declaration: SinkDeclaration) -> list[str]:
    """The names of what is declared otherwise than before; ``released_at`` if it was let go of."""
    old, new = encode(found.definition), encode(declaration)
    return [each for each in new if old[each] != new[each]] + ["released_at"] * (found.released_at is not None)
