"""How one process delivers to Pravega: one transaction a barrier, and entries in the ledger around it.

Who opens the sink says so in the ledger, and ends the transaction that an older deliverer may be about to commit: what
is committed then was committed before. See :mod:`airflow_barrier.sinks.pravega.ledger`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Counts, Remedy, Rows, SinkDeclaration
from airflow_barrier.protocol.errors import (
    FencedDelivererError,
    LedgerError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_barrier.sinks.json_rows import check_columns, counted, key_of_rows
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord, check_follows, command, opened
from airflow_barrier.sinks.port import Delivery
from airflow_barrier.sinks.pravega import ledger as ledgers
from airflow_barrier.sinks.pravega.client import ABORTED, COMMITTED, OPEN, UNKNOWN, Client
from airflow_barrier.sinks.pravega.events import Event, events_of
from airflow_barrier.sinks.pravega.ledger import BEGUN, OPENED, SETTLED, Entry, Ledger
from airflow_barrier.sinks.pravega.streams import Stream, find_ledger, find_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

#: Seconds until a transaction that is being committed or aborted has ended.
PATIENCE = 20
_PAUSE = 0.02
#: Bytes and number of events that are sent at once.
_BATCH, _MANY = 1_000_000, 5_000


class PravegaChannel:
    """See :class:`~airflow_barrier.sinks.port.Channel`."""

    def __init__(self, declared: SinkDeclaration, credentials: Credentials | None) -> None:
        self._declared = declared
        self._targets = declared.targets
        self._scope: str = declared.options["scope"]
        self._at: tuple[str, str] = (self._scope, declared.options["stream"])
        self._ledger: str = declared.options["ledger"]
        self._client = Client(str(self), credentials)
        self._deliverer: Deliverer | None = None
        #: the newest entry of our own, None: what became of the last call is not known
        self._entry: Entry | None = None

    def __enter__(self) -> Self:
        self._client.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._entry = None
        self._client.__exit__(*error)

    def __str__(self) -> str:
        return f"sink {self._declared.name}"

    # --- before anything is delivered -------------------------------------------------------------

    def validate(self, schemas: Mapping[str, pa.Schema]) -> Mapping[str, tuple[str, ...]]:
        """See the port."""
        for table, schema in sorted(schemas.items()):
            check_columns(str(self), table, schema, self._key(table))
        find_stream(self._client, *self._at)
        find_ledger(self._client, self._scope, self._ledger)
        keyed = self._declared.rows is Rows.CHANGES
        return {table: self._key(table) if keyed else () for table in schemas}

    def _key(self, table: str) -> tuple[str, ...]:
        return tuple(key_of_rows(self._declared.options, self._targets[table]))

    # --- opening ----------------------------------------------------------------------------------

    def look(self, deliverer: Deliverer) -> LedgerRecord:
        """See the port."""
        ours = self._empty_record(deliverer, find_stream(self._client, *self._at))
        if not find_ledger(self._client, self._scope, self._ledger):
            return ours
        return self._check(deliverer, self._read(), ours, None, ends=False)

    def open(self, deliverer: Deliverer, remedy: Remedy | None = None) -> LedgerRecord:
        """See the port."""
        self._deliverer, self._entry = deliverer, None
        ours = self._empty_record(deliverer, find_stream(self._client, *self._at))
        if not find_ledger(self._client, self._scope, self._ledger):
            self._client.change("make", self._scope, self._ledger)
        before = self._read()
        found = self._check(deliverer, before, ours, remedy, ends=False)  # who is refused fences nobody
        entry = Entry(OPENED, before.epoch + 1, uuid4().hex, found)
        self._append(entry, {})
        now = self._read()
        if now.opener != entry.opener:
            raise self._fenced()  # safety: one-opens-a-stream
        record = self._check(deliverer, now, ours, remedy, ends=True)
        self._entry = Entry(SETTLED, entry.epoch, entry.opener, record)
        self._append(self._entry, {})
        self._forget_older(entry.opener)
        return record

    def _empty_record(self, deliverer: Deliverer, stream: Stream) -> LedgerRecord:
        identities = {label: stream.identity_of(label) for label in self._targets.values()}
        place = f"{self._client.address}/{self._scope}"
        return LedgerRecord.of(deliverer, self._declared, place, identities)

    def _check(
        self, who: Deliverer, found: Ledger, ours: LedgerRecord, remedy: Remedy | None, *, ends: bool
    ) -> LedgerRecord:
        """Return the record to go on from, with what a transaction has come to whose outcome the ledger does not say.

        ``ends``: one that is open ends now. Else it has delivered nothing yet.
        """
        record = ledgers.check(who, self._ledger, found.record, ours, remedy)
        if found.begun is not None and self._was_committed(who, found.begun, remedy, ends=ends):
            return ledgers.check(who, self._ledger, found.begun.record, ours, remedy)
        return record

    def _was_committed(self, who: Deliverer, begun: Entry, remedy: Remedy | None, *, ends: bool) -> bool:
        assert begun.transaction is not None
        state = self._outcome(begun.transaction, ends=ends)
        if state != UNKNOWN:
            return state == COMMITTED
        if remedy is None:
            raise LedgerError(  # safety: outcome-is-known
                f"{who}: expected Pravega to say whether {begun.record.position} was delivered, by the transaction "
                f"{begun.transaction:x} of stream {'/'.join(self._at)}, found that it does not know it any more: it "
                "forgets them about a day after their end. Look into the stream: if events say "
                f'"barrier": {begun.record.position and begun.record.position.barrier_id} and "revision": '
                f"{begun.record.position and begun.record.position.revision}: {command('adopt', who)} If none do: "
                f"{command('redeliver', who)} and, once that was refused: {command('adopt', who)}"
            )
        return remedy is Remedy.ADOPT

    def _outcome(self, transaction: int, *, ends: bool) -> int:
        """The state of a transaction, once it is not about to change."""
        deadline = monotonic() + PATIENCE
        while True:
            state: int = self._client.ask("state", *self._at, transaction)
            if state in (COMMITTED, ABORTED, UNKNOWN) or (state == OPEN and not ends):
                return state
            if state == OPEN:
                self._client.change("abort_transaction", *self._at, transaction)  # safety: older-transaction-ends
            if monotonic() > deadline:
                raise self._client.unavailable(f"that the transaction {transaction:x} does not end (state {state})")
            sleep(_PAUSE)

    # --- delivering -------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> Mapping[str, Counts]:
        """See the port."""
        who, entry = self._deliverer, self._entry
        assert who is not None, "open() comes before deliver()"
        if delivery.former is not None:
            raise SinkRefusedError(
                f"{self}: expected a target that can be compared with its tables, found a stream, which keeps what was "
                "written; declare a sink of another name for a new stream, which is delivered the tables whole first, "
                f"and have readers go over to it. If the stream holds what the ledger says: {command('adopt', who)}"
            )
        if entry is None:
            raise self._client.unavailable("an earlier call whose outcome is not known")
        check_follows(str(self), delivery.position, delivery.after, entry.record.position)
        ours = self._empty_record(who, find_stream(self._client, *self._at))
        words = ledgers.words_of(who, self._ledger)
        opened(who, words, entry.record, ours, None)  # the stream may have been made anew since
        record = entry.record.delivered(ours, delivery.position)
        with self._in_transaction() as transaction:
            counts = self._send(delivery)
            self._entry = None
            said = ledgers.said_of(delivery, counts)
            self._append(Entry(BEGUN, entry.epoch, entry.opener, record, transaction), said)
            self._check_stands(transaction)
        self._commit(transaction, entry)
        settled = Entry(SETTLED, entry.epoch, entry.opener, record, transaction)
        self._append(settled, said)
        self._forget_older(entry.opener)
        self._entry = settled
        return counts

    def _send(self, delivery: Delivery) -> dict[str, Counts]:
        """Send all rows, and return what became of them by table."""
        assert self._deliverer is not None
        batch: list[Event] = []
        size = 0
        counts = {}
        for table in sorted(delivery.tables):
            ops: Counter[str] = Counter()
            topology, label, key = self._deliverer.topology, self._targets[table], self._key(table)
            for op, event in events_of(str(self), topology, table, label, key, delivery):
                ops[op] += 1
                batch.append(event)
                size += len(event[1])
                if size >= _BATCH or len(batch) >= _MANY:
                    self._client.change("send", batch)
                    batch, size = [], 0
            counts[table] = counted(ops)
        if batch:
            self._client.change("send", batch)
        return counts

    # --- transactions -----------------------------------------------------------------------------

    @contextmanager
    def _in_transaction(self) -> Iterator[int]:
        """A transaction that is ready to be committed at the end of the block."""
        transaction: int = self._client.change("begin_transaction", *self._at)
        try:
            yield transaction
        except BaseException:
            with suppress(SinkUnavailableError):  # it ends when nobody has spoken of it for a while
                self._client.change("abort_transaction", *self._at, transaction)
            raise

    def _check_stands(self, transaction: int) -> None:
        """See that the entry counts: then whoever opens the sink from now on finds the transaction, and ends it."""
        begun = self._read().begun
        if begun is None or begun.transaction != transaction:
            raise self._fenced()  # safety: stream-fences-deliverers

    def _commit(self, transaction: int, entry: Entry) -> None:
        """Commit it, or see that it is not. Pravega has all events before it is asked to."""
        fault = self._client.change("commit_transaction", *self._at, transaction)
        state = self._outcome(transaction, ends=True)
        if state == COMMITTED:
            return
        if self._read().opener != entry.opener:
            raise self._fenced()  # safety: stream-fences-deliverers
        raise self._client.unavailable(
            f"that it has not committed the transaction {transaction:x} (state {state}): {fault or 'nothing'}"
        )

    def _fenced(self) -> FencedDelivererError:
        return FencedDelivererError(
            f"{self}: expected to be its only deliverer, found that another one has opened it since; nothing of this "
            "barrier was delivered by this one"
        )

    # --- the ledger -------------------------------------------------------------------------------

    def _read(self) -> Ledger:
        return ledgers.read(str(self), self._ledger, self._client.ask("entries", self._scope, self._ledger))

    def _append(self, entry: Entry, said: Mapping[str, Any]) -> None:
        assert self._deliverer is not None
        self._client.change("append", self._scope, self._ledger, entry.encoded(self._deliverer, said))

    def _forget_older(self, opener: str) -> None:
        """Let go of the entries before our newest one, which says all that they come to. Somebody who opens the sink
        looks for his own among them.
        """
        found = self._read()
        if found.opener == opener:
            self._client.change("truncate", self._scope, self._ledger, found.offset)
