"""The ledger of sinks at a Kafka cluster: a topic that keeps the newest record of each sink.

A record's key names the topology and the sink; its value is the sink's
:class:`~airflow_barrier.sinks.ledger.LedgerRecord`. It is written in the transaction of the barrier's own records.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from airflow_barrier.protocol.deliveries import Counts, Remedy
from airflow_barrier.protocol.errors import LedgerError
from airflow_barrier.sinks.kafka.client import Cluster
from airflow_barrier.sinks.kafka.topics import Topic
from airflow_barrier.sinks.ledger import Deliverer, LedgerRecord, Words, check_others, opened
from airflow_barrier.sinks.port import Delivery
from airflow_barrier.systems.kafka import OF_THE_GROUP

log = logging.getLogger(__name__)

#: Seconds that somebody's open transaction may stand before the ledger's end.
PATIENCE = 20
#: Records of a ledger that a compaction has come to are few.
_MANY = 10_000
#: What a consumer goes on after.
_NO_MATTER = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, OF_THE_GROUP)


@dataclass(frozen=True)
class Record:
    """A sink's record in the ledger. ``transactional_id``: the one that it was opened by last."""

    ledger: LedgerRecord
    transactional_id: str


Records = Mapping[tuple[str, str], Record]


def key_of(who: Deliverer) -> bytes:
    return json.dumps({"topology": who.topology, "sink": who.sink}, separators=(",", ":")).encode()


def opened_value(who: Deliverer, record: Record) -> bytes:
    """The value by which a deliverer says that the sink is its own."""
    return _encoded(who, record, {})


def delivered_value(who: Deliverer, record: Record, delivery: Delivery, counts: Mapping[str, Counts]) -> bytes:
    said = {"timestamp": delivery.timestamp.isoformat(), "counts": {each: asdict(counts[each]) for each in counts}}
    return _encoded(who, record, said)


def _encoded(who: Deliverer, record: Record, said: Mapping[str, Any]) -> bytes:
    position = record.ledger.position
    at = {"barrier": position and position.barrier_id, "revision": position and position.revision}
    own = {"transactional_id": record.transactional_id, "request_key": who.request_key}
    return json.dumps({**record.ledger.to_json(), **at, **said, **own}).encode()


# --- reading --------------------------------------------------------------------------------------


def read(what: str, cluster: Cluster, ledger: str, *, to_its_end: bool) -> Records:
    """The newest record of each sink, among those that are committed.

    The end is that of all records, committed or not: a transaction that somebody has left open hides what was committed
    after it, and that may be our own newest record. Raises SinkUnavailableError if one stands there for long. Without
    ``to_its_end``, what can be read now is enough.
    """
    end = cluster.end_of(TopicPartition(ledger, 0))
    found: dict[tuple[str, str], Record] = {}
    number = 0
    for message in _messages(cluster, ledger, end, to_its_end):
        number += 1
        key = _key(what, ledger, message)
        value = message.value()
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _record(what, ledger, message, value)
    if number > _MANY:
        log.warning(
            "%s: expected that the ledger %s keeps few records besides the newest of each sink, found %s; see that its "
            "brokers compact it (log.cleaner.enable)",
            what,
            ledger,
            number,
        )
    return found


def _messages(cluster: Cluster, ledger: str, end: int, to_its_end: bool) -> Iterator[Message]:
    consumer = cluster.consumer()
    try:
        with cluster.in_words():  # it waits for a partition's leader for 0.5 s unless it knows of it
            consumer.list_topics(ledger, timeout=cluster.patience)
        consumer.assign([TopicPartition(ledger, 0, OFFSET_BEGINNING)])
        reached, deadline = 0, monotonic() + PATIENCE
        while reached < end:
            message = consumer.poll(0.25)
            error = None if message is None else message.error()
            if message is not None and error is None:
                reached, deadline = (message.offset() or 0) + 1, monotonic() + PATIENCE
                yield message
            elif message is not None and error is not None and error.code() == KafkaError._PARTITION_EOF:
                reached = message.offset() or 0  # markers of transactions take offsets, too
                if not to_its_end:
                    return
            elif error is not None and error.code() not in _NO_MATTER:
                cluster.explain(error)
            if reached < end and monotonic() > deadline:
                raise cluster.unavailable(
                    f"that the ledger {ledger} can be read up to offset {reached} of {end} of its partition 0, where a "
                    f"transaction is open (kafka-transactions.sh describe-producers --topic {ledger} --partition 0 "
                    "says whose)"
                )
    finally:
        consumer.close()


def _key(what: str, ledger: str, message: Message) -> tuple[str, str]:
    try:
        key = json.loads(message.key() or b"")
        return str(key["topology"]), str(key["sink"])
    except (ValueError, TypeError, KeyError) as error:
        raise _foreign(what, ledger, message, error) from None


def _record(what: str, ledger: str, message: Message, value: bytes) -> Record:
    try:
        said = json.loads(value)
        return Record(LedgerRecord.from_json(said), str(said["transactional_id"]))
    except (ValueError, TypeError, KeyError) as error:
        raise _foreign(what, ledger, message, error) from None


def _foreign(what: str, ledger: str, message: Message, error: Exception) -> LedgerError:
    return LedgerError(
        f"{what}: expected records of sinks only in the ledger {ledger}, found another one at offset "
        f"{message.offset()} ({type(error).__name__}); name a topic for the ledger that nobody else writes to"
    )


# --- whose it is ----------------------------------------------------------------------------------


def check(who: Deliverer, ledger: str, records: Records, ours: LedgerRecord, remedy: Remedy | None) -> LedgerRecord:
    """Return the record to go on from. Raises LedgerError if the ledger, or a topic, is another's."""
    others = [records[key].ledger for key in sorted(records) if key != (who.topology, who.sink)]
    words = words_of(who, ledger)
    check_others(who, words, ours, others, ledger)
    found = records.get((who.topology, who.sink))
    return opened(who, words, None if found is None else found.ledger, ours, remedy)


def words_of(who: Deliverer, ledger: str) -> Words:
    return Words(
        ledger=f"ledger {ledger}",
        place="cluster",
        target="topic",
        another="give this sink other topics and another ledger",
        copied="If the topics were copied up to there as well, and deliveries move to this cluster",
        anew="Else declare a sink of another name for new topics, which are delivered the tables whole first",
    )


def identity_of(topic: Topic) -> dict[str, Any]:
    """Return the topic's identity. Partitions belong to it: with others, keys go elsewhere, and their order breaks."""
    return {"id": topic.id, "partitions": topic.partitions}
