"""How one process delivers to Kafka: one producer, and one transaction a barrier, with all records and the ledger's.

The producer's transactional id is the sink's. Who opens the sink takes it over (``init_transactions``): the brokers end
what an older deliverer left open, and take nothing from it any more. Only then the ledger says what was delivered last.

Where the outcome of a call is not known, nothing is aborted: what is still on its way could come after that. The
producer is dropped, and the next one ends its transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Counts, Remedy, Rows, SinkDeclaration
from airflow_barrier.protocol.errors import (
    FencedDelivererError,
    RowRefusedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_barrier.protocol.names import one_line
from airflow_barrier.sinks.json_rows import check_columns, counted, key_of_rows
from airflow_barrier.sinks.kafka import client
from airflow_barrier.sinks.kafka import ledger as ledgers
from airflow_barrier.sinks.kafka.client import Cluster
from airflow_barrier.sinks.kafka.ledger import Record
from airflow_barrier.sinks.kafka.records import Produced, records_of
from airflow_barrier.sinks.kafka.topics import (
    Topic,
    find_ledger,
    find_topics,
    grants,
    make_ledger,
    transactional_id,
    wait_for_ledger,
)
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord, check_follows, command, opened
from airflow_barrier.sinks.port import Delivery

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

#: What a record that brokers do not take comes to; None: it is no row's fault.
_Refused = Callable[[Message], RowRefusedError | None]
#: Records that wait in the producer, in kilobytes: fewer than a slow broker takes before they are given up.
_WAITING = 32 * 1024
#: Bytes of a batch, where topics take as much.
_BATCH = 1_000_000
#: The timestamp of records for which the client looks at the clock.
_NOW = 0


class KafkaChannel:
    """See :class:`~airflow_barrier.sinks.port.Channel`."""

    def __init__(self, declared: SinkDeclaration, credentials: Credentials | None) -> None:
        self._declared = declared
        self._ledger: str = declared.options["ledger"]
        self._targets = declared.targets
        self._id = transactional_id(declared)
        needed = partial(grants, targets=list(self._targets.values()), ledger=self._ledger, transactional_id=self._id)
        self._cluster = Cluster(str(self), credentials, needed)
        self._producer: Producer | None = None
        self._deliverer: Deliverer | None = None
        self._record: LedgerRecord | None = None
        self._not_taken: tuple[KafkaError, Message] | None = None

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._drop()
        self._cluster.__exit__(*error)

    def __str__(self) -> str:
        return f"sink {self._declared.name}"

    # --- before anything is delivered -------------------------------------------------------------

    def validate(self, schemas: Mapping[str, pa.Schema]) -> Mapping[str, tuple[str, ...]]:
        """See the port."""
        for table, schema in sorted(schemas.items()):
            check_columns(str(self), table, schema, self._key(table))
        topics = self._find_topics()
        ledger = find_ledger(str(self), self._cluster, self._ledger)
        if ledger is None:
            make_ledger(str(self), self._cluster, self._ledger, really=False)
        self._check_timeout()
        if ledger is None or not self._was_opened():  # or whoever delivers would be fenced
            self._take_over(topics, ledger, self._id)
            self._drop()
        keyed = self._declared.rows is Rows.CHANGES
        return {table: tuple(self._key(table)) if keyed else () for table in schemas}

    def _check_timeout(self) -> None:
        """Compare with the brokers' limit, if the connection's user may see it: else brokers refuse when the sink is
        opened.
        """
        most = self._cluster.setting("transaction.max.timeout.ms")
        seconds: int = self._declared.options["transaction_timeout"]
        if most is not None and seconds * 1000 > int(most):
            raise SinkRefusedError(
                f"{self}: expected a transaction_timeout that the brokers at {self._cluster.address} allow, of {most} "
                f"ms at most, found {seconds} s; {client.SHORTER}"
            )

    def _was_opened(self) -> bool:
        records = ledgers.read(str(self), self._cluster, self._ledger, to_its_end=False)
        return any(sink == self._declared.name for _, sink in records)

    def _key(self, table: str) -> tuple[str, ...]:
        return tuple(key_of_rows(self._declared.options, self._targets[table]))

    def _find_topics(self) -> dict[str, Topic]:
        return find_topics(str(self), self._cluster, list(self._targets.values()))

    # --- opening ----------------------------------------------------------------------------------

    def look(self, deliverer: Deliverer) -> LedgerRecord:
        """See the port."""
        ours = self._empty_record(deliverer, self._find_topics())
        if find_ledger(str(self), self._cluster, self._ledger) is None:
            return ours
        records = ledgers.read(str(self), self._cluster, self._ledger, to_its_end=True)
        return ledgers.check(deliverer, self._ledger, records, ours, None)

    def open(self, deliverer: Deliverer, remedy: Remedy | None = None) -> LedgerRecord:
        """See the port."""
        self._deliverer = deliverer
        topics = self._find_topics()
        ours = self._empty_record(deliverer, topics)
        ledger = find_ledger(str(self), self._cluster, self._ledger)
        if ledger is None:
            make_ledger(str(self), self._cluster, self._ledger)
            ledger = wait_for_ledger(str(self), self._cluster, self._ledger)

        def look(to_its_end: bool) -> tuple[Record, Record | None]:
            records = ledgers.read(str(self), self._cluster, self._ledger, to_its_end=to_its_end)
            found = ledgers.check(deliverer, self._ledger, records, ours, remedy)
            return Record(found, self._id), records.get((deliverer.topology, deliverer.sink))

        _, known = look(to_its_end=False)  # who is refused fences nobody
        fenced: set[str] = set()
        while True:
            if known is not None and known.transactional_id not in {*fenced, self._id}:
                # somebody delivers as the sink was declared before, with other topics
                fenced.add(known.transactional_id)
                self._take_over(topics, ledger, known.transactional_id)  # safety: earlier-declaration-is-fenced
            self._take_over(topics, ledger, self._id)
            record, known = look(
                to_its_end=True,  # safety: read-to-the-high-watermark
            )
            if known is None or known.transactional_id in {*fenced, self._id}:
                break
        if known != record:
            with self._transaction() as producer:
                self._send_ledger(producer, ledgers.opened_value(deliverer, record))
            record, _ = look(to_its_end=True)  # of two sinks that open at once, one sees the other
        self._record = record.ledger
        return record.ledger

    def _empty_record(self, deliverer: Deliverer, topics: Mapping[str, Topic]) -> LedgerRecord:
        identities = {name: ledgers.identity_of(topic) for name, topic in topics.items()}
        return LedgerRecord.of(deliverer, self._declared, self._cluster.id, identities)

    def _take_over(self, topics: Mapping[str, Topic], ledger: Topic | None, transactional_id: str) -> None:
        self._drop()
        limits = [topic.largest for topic in topics.values()]
        largest = max(limits if ledger is None else [*limits, ledger.largest])
        settings = {
            "message.max.bytes": min(max(largest, 1_000), 1_000_000_000),  # what librdkafka takes
            "batch.size": min(_BATCH, *limits),
            "queue.buffering.max.kbytes": max(_WAITING, 2 * largest // 1024),
            "delivery.report.only.error": True,
        }
        timeout: int = self._declared.options["transaction_timeout"]
        self._producer = self._cluster.producer(transactional_id, timeout, settings)

    # --- delivering -------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> Mapping[str, Counts]:
        """See the port."""
        who, record = self._deliverer, self._record
        assert who is not None, "open() comes before deliver()"
        assert record is not None
        if delivery.former is not None:
            raise SinkRefusedError(
                f"{self}: expected a target that can be compared with its tables, found topics, which keep what was "
                "written; declare a sink of another name for new topics, which are delivered the tables whole first, "
                f"and have readers go over to them. If the topics hold what the ledger says: {command('adopt', who)}"
            )
        check_follows(str(self), delivery.position, delivery.after, record.position)
        topics = self._find_topics()
        ours = self._empty_record(who, topics)
        opened(who, ledgers.words_of(who, self._ledger), record, ours, None)  # topics may have been made anew since
        now = record.delivered(ours, delivery.position)
        counts: dict[str, Counts] = {}
        with self._in_time(), self._transaction() as producer:
            for table in sorted(delivery.tables):
                counts[table] = self._send_rows(producer, table, topics[self._targets[table]], delivery)
            value = ledgers.delivered_value(who, Record(now, self._id), delivery, counts)
            self._send_ledger(producer, value)
        self._record = now
        return counts

    def _send_rows(self, producer: Producer, table: str, topic: Topic, delivery: Delivery) -> Counts:
        assert self._deliverer is not None
        ops: Counter[str] = Counter()
        refused = partial(self._row_refused, topic.name, table, delivery)
        for op, record in records_of(str(self), self._deliverer.topology, table, topic, self._key(table), delivery):
            self._send(producer, topic.name, record, refused)
            ops[op] += 1
        self._finish(producer, refused)
        return counted(ops)

    def _send_ledger(self, producer: Producer, value: bytes) -> None:
        assert self._deliverer is not None
        self._send(producer, self._ledger, (value, ledgers.key_of(self._deliverer), 0, []), lambda _: None)

    def _send(self, producer: Producer, topic: str, record: Produced, refused: _Refused) -> None:
        """Send records. The producer is asked what became of them when it holds no more: to ask after each one costs
        more.

        So do names of arguments.
        """
        value, key, partition, headers = record
        ends = self._told, None, _NOW
        while True:
            try:
                return client.call("produce", producer.produce, topic, value, key, partition, *ends, headers)
            except BufferError:
                producer.poll(0.5)
                self._check_taken(refused)

    def _finish(self, producer: Producer, refused: _Refused) -> None:
        """Wait until the brokers have taken all records, each of which is given up after a while."""
        while producer.flush(0.5) and self._not_taken is None:
            pass
        self._check_taken(refused)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._not_taken is None:
            self._not_taken = error, message

    def _check_taken(self, refused: _Refused) -> None:
        """Raises the first error that brokers have told of a record."""
        if self._not_taken is None:
            return
        error, message = self._not_taken
        said = refused(message) if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD) else None
        if said is not None:
            raise said
        raise KafkaException(error)

    def _row_refused(self, topic: str, table: str, delivery: Delivery, message: Message) -> RowRefusedError:
        assert self._not_taken is not None
        key = (message.key() or b"no key").decode()
        return RowRefusedError(
            f"{self}: expected topic {topic} to take every row of {delivery.position} of {table}, found one that it "
            f"refuses: {self._not_taken[0].str()}, in the row with {one_line(key)[:500]}. Nothing of this barrier was "
            "delivered. See what the topic takes, or correct the row by a revision; then clear the task"
        )

    # --- transactions -----------------------------------------------------------------------------

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Brokers that end a transaction, since it takes too long, fence its producer as if another one had come."""
        timeout: int = self._declared.options["transaction_timeout"]
        began = monotonic()
        try:
            yield
        except FencedDelivererError as error:
            seconds = monotonic() - began
            if seconds < timeout:
                raise
            raise SinkUnavailableError(
                f"{self}: expected a barrier to be sent within the transaction_timeout of {timeout} s, found that it "
                f"took {seconds:.0f} s, and that the brokers have ended its transaction; nothing of this barrier was "
                "delivered. Try again; if it takes as long then, give the sink a longer transaction_timeout=..., and "
                "the brokers a transaction.max.timeout.ms that allows it"
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[Producer]:
        """One transaction, which the end of the block commits. It is aborted where no call's outcome is in doubt."""
        producer = self._producer
        if producer is None:
            raise self._cluster.unavailable("an earlier call whose outcome is not known")
        self._not_taken = None
        asked = False
        try:
            with self._cluster.in_words(producer):
                client.call("begin_transaction", producer.begin_transaction)
                yield producer
                self._finish(producer, lambda _: None)
                asked = True
                client.call("commit_transaction", producer.commit_transaction, client.STEP)
        except (SinkUnavailableError, FencedDelivererError):
            self._drop()
            raise
        except BaseException:
            if not asked:
                self._abort(producer)
            self._drop()
            raise

    def _abort(self, producer: Producer) -> None:
        """So that readers need not wait until the brokers end it. If it cannot be, they do."""
        with suppress(SinkUnavailableError, SinkRefusedError, KafkaException), self._cluster.in_words(producer):
            client.call("abort_transaction", producer.abort_transaction, client.STEP)

    def _drop(self) -> None:
        """Let go of the producer, and of what it has not sent. Its transaction, if there is one, ends the next one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException):
                producer.purge(blocking=False)
