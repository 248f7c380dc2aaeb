"""Delivering barriers to a sink: what it lacks, in order, each together with the record in the sink's own ledger.

Who opens, stages and commits barriers learns nothing of sinks. What has been delivered is asked of the sink, whose
ledger is moved in the transaction of the rows; the MetaService remembers what it said.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from types import MappingProxyType
from typing import TYPE_CHECKING

import tenacity

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import CHANGE, Counts, Position, Remedy, Rows, SinkDeclaration, SinkRecord
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    ExpiredBarrierError,
    FencedDelivererError,
    LedgerError,
    MissingTableError,
    SinkBehindError,
    SinkRefusedError,
    SinkUnavailableError,
    StoreUnavailableError,
    UnknownBarrierError,
    UnknownRevisionError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.table import Table
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord
from airflow_barrier.sinks.port import Channel, Delivery, RowBatches
from airflow_barrier.spark.delivering import Extract

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: Writes extracts as Parquet files into a folder, and returns the URIs of each one's in order.
WriteExtracts = Callable[[Sequence[Extract], str], list[list[str]]]

#: Rows that are in memory at once.
_BATCH = 50_000
#: How long a barrier is held that is being delivered: also one that expiry does not spare for the sink any more.
_HELD_SECONDS = 24 * 3600
#: Barriers that one task delivers; the next one goes on.
_MOST = 1000
#: A sink that goes away in the middle is tried so often, after so many seconds and twice, four times as many.
_TRIES, _PAUSE = 4, 1.0


@dataclass(frozen=True)
class Receipt:
    """One barrier that a sink has received just now, or (``told``) had received without anybody having said so."""

    barrier: Barrier
    counts: Mapping[str, Counts]
    seconds: float
    told: bool = False


def deliver(
    deployment: Deployment,
    sink: SinkRecord,
    through: Barrier,
    credentials: Credentials | None,
    write_extracts: WriteExtracts,
    *,
    request_key: str,
    actor: str,
    collapse: bool = False,
) -> list[Receipt]:
    """Deliver every barrier that ``sink`` lacks, up to and including ``through``, which is COMMIT, in order; or, with
    ``collapse``, what has changed by all of them together, in one step.

    A barrier that was corrected by a revision since it was delivered is delivered again first: what differs. Returns
    what the sink has received. Whatever breaks, what the ledger has stays delivered, and the next call goes on there.

    ``request_key``: the task and its try that have claimed the sink; the claim ends with the call. Raises what
    :class:`~airflow_barrier.sinks.port.Channel` raises; FencedDelivererError if another one has claimed it since;
    LedgerError if the ledger is ahead of this MetaService or behind what it remembers; SinkBehindError if a barrier
    that is needed cannot be read any more.
    """
    done: list[Receipt] = []

    def once() -> None:
        _check_claim(deployment, sink, request_key)
        with _connect(deployment, sink.definition, credentials) as channel:
            worker = _Worker(deployment, sink, channel, write_extracts, request_key, actor)
            done.extend(worker.run(through, collapse))  # also what came before an error

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(SinkUnavailableError),
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_exponential(_PAUSE, exp_base=4),
        before_sleep=lambda state: log.warning("%s", state.outcome and state.outcome.exception()),
        reraise=True,
    )
    try:
        retrying(once)
    except Exception as error:
        # what a superseded one meets, such as rows in the way or files that are gone, is its successor's doing
        _check_claim(deployment, sink, request_key)
        # of errors that are not ours only the kind: there is no telling what they quote
        said = str(error) if isinstance(error, BarrierError) else type(error).__name__
        deployment.meta.deliveries.failed(sink.topology, sink.name, said, actor)
        raise
    finally:
        _end_claim(deployment, sink, request_key)
    return done


def sink_fault(
    deployment: Deployment,
    topology: str,
    declared: SinkDeclaration,
    credentials: Credentials | None,
    tables: Mapping[str, Table],
) -> str | None:
    """Return the fault that keeps a sink from taking its tables as they are now, in words; None: none can be seen yet.

    ``tables``: those that are made when their jobs join, as they are declared. That others are not there yet is left
    to whoever looks at tables: of the sink all the rest is looked at.
    """
    try:
        with _validated(deployment, declared, credentials, tables) as channel:
            sink = _registered(deployment, topology).get(declared.name)
            return None if sink is None else _ledger_fault(deployment, channel, sink)
    except BarrierError as error:
        return str(error)


def look_at_sinks(
    deployment: Deployment,
    topology: str,
    declared: Mapping[str, tuple[SinkDeclaration, Callable[[], Credentials | None]]],
) -> None:
    """Check a DAG's sinks, before its start task opens a barrier. ``declared``: name -> declaration and credentials.

    A sink that has received nothing yet is tried. If it cannot take its tables, the topology's first barrier is not
    opened: raises SinkRefusedError, SinkUnavailableError (retryable) or ConfigurationError. A topology that has
    barriers goes on, since nobody waits for a sink: then it is a warning.
    """
    meta = deployment.meta
    registered = _registered(deployment, topology)
    for name, (declaration, credentials) in declared.items():
        if name in registered and registered[name].position is not None:
            continue
        try:
            with _validated(deployment, declaration, credentials()):
                pass
        except BarrierError as error:
            if topology not in meta.topologies.names() or meta.barriers.head(topology) is None:
                raise
            log.warning("Nothing can be delivered to sink %s of %s yet: %s", name, topology, error)


def let_go_of_sinks(deployment: Deployment, opened: Barrier, owner: str, declared: Collection[str], actor: str) -> None:
    """Release the sinks that the DAG delivered to and no longer declares, when its start task has opened a new barrier.
    They hold no barriers from then on. A run that opens none may be of an older version of the DAG.
    """
    for sink in deployment.meta.deliveries.of(opened.topology):
        if sink.owner == owner and sink.name not in declared:
            deployment.meta.deliveries.release(
                sink.topology, sink.name, actor, f"DAG {owner} declares it no more at {opened}"
            )
            log.warning(
                "Let go of %s, since DAG %s declares it no more: nothing is held for it any longer", sink, owner
            )


def _registered(deployment: Deployment, topology: str) -> dict[str, SinkRecord]:
    try:
        return {sink.name: sink for sink in deployment.meta.deliveries.of(topology)}
    except UnknownTopologyError:
        return {}


@contextmanager
def _validated(
    deployment: Deployment,
    declared: SinkDeclaration,
    credentials: Credentials | None,
    tables: Mapping[str, Table] = MappingProxyType({}),
) -> Iterator[Channel]:
    """A channel to the sink, which can take its tables as they are now, as far as they are there or in ``tables``."""
    found = {table: _schema_of(deployment, table, tables.get(table)) for table in sorted(declared.targets)}
    schemas = {table: schema for table, schema in found.items() if schema is not None}
    with _connect(deployment, declared, credentials) as channel:
        _validate(declared.name, channel, schemas)
        yield channel


def _validate(sink: str, channel: Channel, schemas: Mapping[str, pa.Schema]) -> Mapping[str, tuple[str, ...]]:
    """Validate the tables at the channel, and check that none has the column of a delivery's own."""
    for table, schema in schemas.items():
        if CHANGE in schema.names:
            raise SinkRefusedError(  # safety: change-is-the-deliverys
                f"sink {sink}: table {table}: expected no column {CHANGE}, by which a delivery says what became of a "
                "row, found one; deliver a table without it, or where it has another name"
            )
    return channel.validate(schemas)


def _schema_of(deployment: Deployment, table: str, declared: Table | None) -> pa.Schema | None:
    """Return the table's schema, or the declared one if it is yet to be made; None: it was not declared."""
    try:
        (main,) = deployment.tables.mains([table]).values()
    except MissingTableError:
        return None if declared is None else deployment.tables.schema_of(declared)
    return deployment.tables.schema_at(table, main)


def _ledger_fault(deployment: Deployment, channel: Channel, sink: SinkRecord) -> str | None:
    """Return in words that the sink's ledger is behind what was delivered; None: it is not, or a person saw to it."""
    if sink.position is None or sink.remedy is not None:
        return None
    incarnation = deployment.meta.topologies.incarnation(sink.topology)
    position = channel.look(Deliverer(sink.topology, incarnation, sink.name, "")).position
    if position is not None and position >= sink.position:
        return None
    return str(_behind(sink, position, sink.position))


def _behind(sink: SinkRecord, position: Position | None, known: Position | None) -> LedgerError:
    command = f"{sink.topology} {sink.name} --reason ..."
    adopt = f"If it holds just what its ledger says, go on from there: airflow-barrier sink adopt {command} "
    lost = "" if position else ", or the ledger was emptied or made anew, or is not the one that it was"
    return LedgerError(
        f"{sink}: expected that its ledger says {known}, which was delivered, found {position or 'that nothing was'}: "
        "the sink was restored from a backup, or fell back to a server that lags"
        f"{lost}. {adopt if position else ''}To compare it with the tables, and change what differs: "
        f"airflow-barrier sink redeliver {command}"
    )


def _connect(deployment: Deployment, declared: SinkDeclaration, credentials: Credentials | None) -> Channel:
    try:
        return deployment.sink_of(declared).connect(declared, credentials)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"sink {declared.name}: expected the client of a sink of kind {declared.kind} on this worker, found no "
            f"module {error.name}; install airflow-provider-barrier with the extra that docs/deliveries.md names for it"
        ) from error


def _check_claim(deployment: Deployment, sink: SinkRecord, request_key: str) -> None:
    """One that slept must not open the sink again, which would fence its successor; nor is what it meets the sink's.

    Raises FencedDelivererError.
    """
    deliverer = deployment.meta.deliveries.get(sink.topology, sink.name).deliverer
    if deliverer != request_key:
        raise FencedDelivererError(  # safety: opened-by-whom-it-is-claimed
            f"{sink}: expected that {request_key} delivers to it, found that {deliverer or 'a task that is done'} has "
            "claimed it since; what it lacks is delivered by that one"
        )


def _end_claim(deployment: Deployment, sink: SinkRecord, request_key: str) -> None:
    """End the claim, so that waiting tasks go on at once. If that cannot be stored, they ask Airflow who runs."""
    try:
        deployment.meta.deliveries.unclaim(sink.topology, sink.name, request_key)
    except StoreUnavailableError as error:
        log.warning("%s: %s has ended its delivery, which cannot be written down: %s", sink, request_key, error)


class _Worker:
    """One connection's worth of deliveries."""

    def __init__(
        self,
        deployment: Deployment,
        sink: SinkRecord,
        channel: Channel,
        write_extracts: WriteExtracts,
        request_key: str,
        actor: str,
    ) -> None:
        self._deployment = deployment
        self._sink = sink
        self._channel = channel
        self._write_extracts = write_extracts
        self._request_key = request_key
        self._actor = actor
        #: of one's own: a deliverer that is fenced by now may still write, and clear what it has written
        self._own_folder = f"{self._folder}/{uuid.uuid4()}"
        self._keys: Mapping[str, tuple[str, ...]] = {}
        self._position: Position | None = None
        #: what the targets' tables were at their positions; one that is not in here has received nothing yet
        self._start: dict[str, int | None] = {}
        #: while the targets are compared, table -> the snapshots (of which table) whose rows its target may hold
        self._former: dict[str, set[tuple[str, int]]] | None = None

    def run(self, through: Barrier, collapse: bool) -> Iterator[Receipt]:
        self._keys = _validate(self._sink.name, self._channel, self._schemas(through))
        record = self._channel.open(self._deliverer, self._sink.remedy)
        self._position = record.position
        self._clear()
        if self._sink.remedy is Remedy.REDELIVER:
            self._load_anew(record)
            yield self._deliver(through, through)
            return
        yield from self._catch_up()
        self._find_start(record)
        lacking = list(self._lacking(through))
        for barrier in lacking[-1:] if collapse else lacking:
            yield self._deliver(barrier, lacking[0] if collapse else barrier)

    def _clear(self) -> None:
        """End what those have left who are fenced now: their files, and the leases of deliverers that were killed."""
        self._deployment.tables.clear(self._folder)
        leases = self._deployment.meta.leases
        for lease in leases.of(self._sink.topology):
            if lease.holder == self._holder:
                leases.release(lease.lease_id)

    @property
    def _holder(self) -> str:
        return f"delivery to {self._sink}"

    @property
    def _deliverer(self) -> Deliverer:
        sink = self._sink
        incarnation = self._deployment.meta.topologies.incarnation(sink.topology)
        return Deliverer(sink.topology, incarnation, sink.name, self._request_key)

    @property
    def _folder(self) -> str:
        digest = hashlib.sha256(self._sink.name.encode()).hexdigest()[:16]
        return self._deployment.tables.location("_barrier", self._sink.topology, "deliveries", digest)

    def _schemas(self, barrier: Barrier) -> dict[str, pa.Schema]:
        snapshots = self._at(barrier.barrier_id).snapshots
        return {table: self._deployment.tables.schema_at(table, snapshots[table]) for table in self._tables}

    @property
    def _tables(self) -> list[str]:
        return sorted(self._sink.definition.targets)

    # --- which barriers ---------------------------------------------------------------------------

    def _catch_up(self) -> Iterator[Receipt]:
        """Compare what the ledger says with what the MetaService remembers; the ledger is right, or an error says what
        to do.
        """
        meta, topology, name = self._deployment.meta, self._sink.topology, self._sink.name
        position, known = self._position, meta.deliveries.get(topology, name).position
        if position == known and self._sink.remedy is None:
            return
        newest = meta.barriers.newest(topology, [BarrierState.COMMIT], limit=1)[0]
        if position is not None and position.barrier_id > newest.barrier_id:
            raise LedgerError(  # safety: ledger-not-ahead
                f"{self._sink}: expected that its ledger knows no barrier that is not COMMIT (the newest is "
                f"{newest.barrier_id}), found {position}: the MetaService has lost barriers that were delivered. "
                f"Catch it up from its tables: airflow-barrier recover {topology}"
            )
        if self._sink.remedy is Remedy.ADOPT and position is not None:
            log.warning(
                "%s goes on from %s, as its ledger says; %s is what was remembered", self._sink, position, known
            )
        elif position is None or (known is not None and position < known):
            raise _behind(self._sink, position, known)  # safety: ledger-not-behind
        else:
            log.info("%s had received %s, and nobody had been told", self._sink, position)
        self._tell(position, {}, 0.0)
        yield Receipt(meta.barriers.get(topology, position.barrier_id), {}, 0.0, told=True)

    def _load_anew(self, record: LedgerRecord) -> None:
        """See what the targets may hold, by the ledger and by what is remembered, as far as it can still be read."""
        known = self._deployment.meta.deliveries.get(self._sink.topology, self._sink.name).position
        thens = {table: record.targets[target] for table, target in self._sink.definition.targets.items()}
        positions = {known, *(then.position for then in thens.values())}
        read = {position: self._readable(position) for position in positions if position is not None}
        self._former = {
            table: {
                (of, snapshot)
                for of, position in {(then.declared["table"], then.position), (table, known)}
                if position is not None and (snapshot := read[position].get(of)) is not None
            }
            for table, then in thens.items()
        }

    def _readable(self, position: Position) -> Mapping[str, int | None]:
        try:
            return self._since(position)
        except SinkBehindError as error:
            log.warning("%s: of rows that the tables have no more, some may stay: %s", self._sink, error)
            return {}

    def _find_start(self, record: LedgerRecord) -> None:
        """A target that has received nothing is delivered whole beside the others' changes."""
        positions = {
            table: position
            for table, target in self._sink.definition.targets.items()
            if (position := record.targets[target].position) is not None
        }
        read = {position: self._since(position) for position in set(positions.values())}
        self._start = {table: read[position].get(table) for table, position in positions.items()}

    def _lacking(self, through: Barrier) -> Iterator[Barrier]:
        """Yield the barriers to deliver, oldest first: a sink that has received nothing gets the tables whole, once."""
        if self._position is None:
            yield through
            return
        last = self._position
        # maintenance barriers have no rows of their own to deliver
        since = self._deployment.meta.barriers.epochs(
            self._sink.topology, first=last.barrier_id, committed=True, limit=_MOST
        )
        for barrier in since:
            corrected = barrier.barrier_id == last.barrier_id and barrier.computed_in != last.revision
            new = last.barrier_id < barrier.barrier_id <= through.barrier_id
            if (corrected or new) and barrier.expiring_at is None:
                yield barrier

    def _since(self, position: Position) -> dict[str, int | None]:
        """Return the tables' snapshots at the barrier delivered last, also if a revision has replaced that since."""
        try:
            found = self._deployment.meta.answers.resolve(
                self._sink.topology, Level.REPEATABLE_READ, at=position.barrier_id, revision=position.revision
            )
        except (ExpiredBarrierError, UnknownBarrierError, UnknownRevisionError) as error:
            raise SinkBehindError(  # safety: sink-beyond-history
                f"{self._sink}: expected to read barrier {position}, which it received last, to tell what has changed "
                f"since; found: {error}. Have its targets compared with the tables: airflow-barrier sink redeliver "
                f"{self._sink.topology} {self._sink.name} --reason ..."
            ) from error
        return found.snapshots

    def _at(self, barrier_id: int, hold: Hold | None = None) -> Resolution:
        return self._deployment.meta.answers.resolve(
            self._sink.topology, Level.REPEATABLE_READ, self._tables, at=barrier_id, hold=hold
        )

    # --- one barrier ------------------------------------------------------------------------------

    def _deliver(self, barrier: Barrier, first: Barrier) -> Receipt:
        """``first``: those from it on are delivered along."""
        # by its revision as of now: one may have been published since we looked
        found = self._at(barrier.barrier_id, Hold(self._holder, _HELD_SECONDS))
        assert found.lease is not None
        try:
            return self._deliver_held(barrier, first, found)
        finally:
            self._deployment.meta.leases.release(found.lease.lease_id)

    def _deliver_held(self, barrier: Barrier, first: Barrier, found: Resolution) -> Receipt:
        began = time.monotonic()
        former = self._former
        wanted = _Wanted(self._deployment)
        whole = set(self._tables) if former is not None else set(self._tables) - set(self._start)
        delivery = Delivery(
            barrier.barrier_id,
            found.revision or 0,
            barrier.timestamp,
            self._position,
            self._sink.definition.rows,
            whole,
            {table: self._rows(table, snapshot, table in whole, wanted) for table, snapshot in found.snapshots.items()},
            None if former is None else {table: self._keys_of(table, former[table], wanted) for table in self._tables},
        )
        wanted.take(self._write_extracts, f"{self._own_folder}/{uuid.uuid4()}")
        counts = self._channel.deliver(delivery)
        self._position, self._start, self._former = delivery.position, dict(found.snapshots), None
        seconds = time.monotonic() - began
        self._tell(delivery.position, counts, seconds, first.barrier_id)
        self._deployment.tables.clear(self._own_folder)
        log.info(
            "Delivered %s to %s in %.1f s%s: %s",
            barrier,
            self._sink,
            seconds,
            f", {', '.join(sorted(whole))} whole" if whole else "",
            "; ".join(f"{self._sink.definition.targets[table]}: {count}" for table, count in counts.items()),
        )
        return Receipt(barrier, counts, seconds)

    def _rows(self, table: str, end: int | None, whole: bool, wanted: _Wanted) -> RowBatches:
        rows, start = self._sink.definition.rows, self._start.get(table)
        schema = self._deployment.tables.schema_at(table, end)
        if rows is Rows.CHANGES and not whole:
            schema = schema.insert(0, _change_field())
        if end is None or (start == end and not whole and rows is not Rows.TABLE):
            return wanted.rows(schema)
        return wanted.rows(schema, Extract(table, start, end, rows, whole or rows is Rows.TABLE, self._keys[table]))

    def _keys_of(self, table: str, former: Collection[tuple[str, int]], wanted: _Wanted) -> RowBatches:
        """The keys of all rows of these snapshots; one may come several times."""
        import pyarrow as pa

        schema, key = self._deployment.tables.schema_at(table, None), self._keys[table]
        return wanted.rows(
            pa.schema([schema.field(column) for column in key]),
            *(
                Extract(of, None, snapshot, Rows.TABLE, whole=True, key=key, only_key=True)
                for of, snapshot in sorted(former)
            ),
        )

    def _tell(self, position: Position, counts: Mapping[str, Counts], seconds: float, first: int | None = None) -> None:
        self._deployment.meta.deliveries.delivered(
            self._sink.topology,
            self._sink.name,
            position,
            counts=reduce(add, counts.values(), Counts()),
            seconds=seconds,
            actor=self._actor,
            first_barrier=first,
            reset=self._sink.remedy is not None,
        )
        if self._sink.remedy is not None:
            self._sink = replace(self._sink, remedy=None)


class _Wanted:
    """The extracts of one step, of all its tables. Spark writes them in one go: starting may take longer than
    writing.
    """

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._wanted: list[tuple[Extract, ParquetRows]] = []

    def rows(self, schema: pa.Schema, *extracts: Extract) -> ParquetRows:
        """The rows of these extracts; they can be read once all is taken."""
        rows = ParquetRows(self._deployment, schema, [])
        self._wanted += [(extract, rows) for extract in extracts]
        return rows

    def take(self, write_extracts: WriteExtracts, folder: str) -> None:
        if not self._wanted:
            return
        written = write_extracts([extract for extract, _ in self._wanted], folder)
        for (_, rows), uris in zip(self._wanted, written, strict=True):
            rows.uris.extend(uris)


@dataclass(frozen=True)
class ParquetRows:
    """:class:`~airflow_barrier.sinks.port.RowBatches` of Parquet files of the warehouse."""

    deployment: Deployment
    schema: pa.Schema
    uris: list[str]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.deployment.tables.batches(self.uris, _BATCH)
        except FileNotFoundError as error:
            raise FencedDelivererError(
                f"expected the rows that were taken for this delivery in {error.filename}, found them swept away: "
                "another one has opened it since"
            ) from error


def _change_field() -> pa.Field:
    import pyarrow as pa

    return pa.field(CHANGE, pa.string())
