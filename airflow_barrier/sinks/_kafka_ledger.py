"""The ledger of sinks at a Kafka cluster: a topic that keeps the newest record of each sink.

A record's key names the topology and the sink; its value says whose it is, which topics are delivered to, and which
barrier was delivered last. It is written in the transaction of the barrier's own records.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from airflow_barrier.protocol.deliveries import Counts, Position
from airflow_barrier.protocol.errors import LedgerError
from airflow_barrier.sinks._kafka_client import ANSWER, Cluster
from airflow_barrier.sinks._kafka_topics import Topic
from airflow_barrier.sinks.port import Deliverer, Delivery

log = logging.getLogger(__name__)

_FORMAT = 1
#: Seconds that somebody's open transaction may stand before the ledger's end.
PATIENCE = 20
#: Records of a ledger that a compaction has come to are few.
_MANY = 10_000
#: What a consumer goes on after. It looks for the coordinator of its group, too, which it makes no use of.
_NO_MATTER = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError.GROUP_AUTHORIZATION_FAILED)


@dataclass(frozen=True)
class Identity:
    """Whose records these are, and of which topics: what tells them from those of others, and from copies."""

    incarnation: str
    cluster: str
    topics: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, deliverer: Deliverer, cluster: str, topics: Mapping[str, Topic]) -> Identity:
        told = {name: {"id": topic.id, "partitions": topic.partitions} for name, topic in topics.items()}
        return cls(deliverer.incarnation, cluster, told)


@dataclass(frozen=True)
class Record:
    """What the ledger says of a sink; ``position`` None: that somebody has opened it, and nothing was delivered."""

    format: int
    identity: Identity
    position: Position | None


Records = Mapping[tuple[str, str], Record]


def key_of(who: Deliverer) -> bytes:
    return json.dumps({"topology": who.topology, "sink": who.sink}, separators=(",", ":")).encode()


def opened(who: Deliverer, identity: Identity, position: Position | None) -> bytes:
    """The value by which a deliverer says that the sink is its own."""
    return _encoded(who, identity, position, {})


def delivered(who: Deliverer, identity: Identity, delivery: Delivery, counts: Mapping[str, Counts]) -> bytes:
    said = {"timestamp": delivery.timestamp.isoformat(), "counts": {each: asdict(counts[each]) for each in counts}}
    return _encoded(who, identity, delivery.position, said)


def _encoded(who: Deliverer, identity: Identity, position: Position | None, said: Mapping[str, Any]) -> bytes:
    at = {"barrier": position and position.barrier_id, "revision": position and position.revision}
    return json.dumps({"format": _FORMAT, **asdict(identity), **at, **said, "request_key": who.request_key}).encode()


# --- reading --------------------------------------------------------------------------------------


def read(what: str, cluster: Cluster, ledger: str, *, to_its_end: bool) -> Records:
    """The newest record of each sink, among those that are committed.

    The end is that of all records, committed or not: a transaction that somebody has left open hides what was committed
    after it, and that may be our own newest record. Raises SinkUnavailableError if one stands there for long. Without
    ``to_its_end``, what can be read now is enough.
    """
    try:
        end = cluster.end_of(TopicPartition(ledger, 0))
    except KafkaException as error:
        cluster.explain(error.args[0])
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
    consumer = cluster.consumer(**{"isolation.level": "read_committed"})
    try:
        with cluster.in_words():  # it waits for a partition's leader for 0.5 s unless it knows of it
            consumer.list_topics(ledger, timeout=ANSWER)
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
        position = None if said["barrier"] is None else Position(said["barrier"], said["revision"])
        return Record(said["format"], Identity(said["incarnation"], said["cluster"], said["topics"]), position)
    except (ValueError, TypeError, KeyError) as error:
        raise _foreign(what, ledger, message, error) from None


def _foreign(what: str, ledger: str, message: Message, error: Exception) -> LedgerError:
    return LedgerError(
        f"{what}: expected records of sinks only in the ledger {ledger}, found another one at offset "
        f"{message.offset()} ({type(error).__name__}); name a topic for the ledger that nobody else writes to"
    )


# --- whose it is ----------------------------------------------------------------------------------


def check(who: Deliverer, ledger: str, records: Records, ours: Identity, *, adopt: bool) -> Position | None:
    """What the ledger says was delivered last. Raises LedgerError if it is another's, unless we ``adopt`` it."""
    _check_nobody_elses(who, ledger, records, sorted(ours.topics))
    found = records.get((who.topology, who.sink))
    if found is None:
        return None
    if found.position is not None and not adopt:
        _check_identity(who, ledger, found, ours)
    return found.position


def check_same(who: Deliverer, ledger: str, before: Identity, now: Identity, position: Position | None) -> None:
    """That topics are as they were when the sink was opened. Raises LedgerError."""
    if position is not None:
        _check_identity(who, ledger, Record(_FORMAT, before, position), now)


def _check_nobody_elses(who: Deliverer, ledger: str, records: Records, topics: Sequence[str]) -> None:
    for (topology, sink), record in sorted(records.items()):
        if (topology, sink) != (who.topology, who.sink) and not set(topics).isdisjoint(record.identity.topics):
            other = key_of(Deliverer(topology, "", sink, "")).decode()
            raise LedgerError(  # safety: topic-of-one-sink
                f"{who}: expected topics ({', '.join(topics)}) to which no other sink delivers, found that sink {sink} "
                f"of {topology} does; name other topics. If that sink is gone, have the ledger forget it: write a "
                f"record with the key {other} and without a value into topic {ledger}"
            )


def _check_identity(who: Deliverer, ledger: str, found: Record, ours: Identity) -> None:
    of = f"{who}: ledger {ledger}"
    adopt = f"airflow-barrier sink adopt {who.topology} {who.sink} --reason ..."
    theirs = found.identity
    if found.format != _FORMAT:
        raise LedgerError(  # safety: topics-ledger-of-this-format
            f"{of}: expected format {_FORMAT}, found {found.format}; run the version of airflow-provider-barrier that "
            "wrote it, or a newer one"
        )
    if theirs.incarnation != ours.incarnation:
        raise LedgerError(  # safety: topics-ledger-of-this-incarnation
            f"{of}: expected the record of this MetaService (incarnation {ours.incarnation}), found that of another "
            f"one ({theirs.incarnation}), which delivered up to {found.position}. If this MetaService was recovered "
            f"and goes on with the sink: {adopt} If it is a clone of one that still delivers, give this sink other "
            "topics and another ledger"
        )
    if theirs.cluster != ours.cluster:
        raise LedgerError(  # safety: ledger-of-this-cluster
            f"{of}: expected the cluster that it was begun in ({ours.cluster}), found a copy of the ledger of "
            f"{theirs.cluster}, which was delivered up to {found.position}. If the topics were copied up to there as "
            f"well, and deliveries move to this cluster: {adopt}"
        )
    for name, topic in ours.topics.items():
        known = theirs.topics.get(name, topic)
        if known["id"] != topic["id"]:
            raise LedgerError(  # safety: topic-of-this-ledger
                f"{of}: expected topic {name} to be the one that was delivered up to {found.position}, found one that "
                f"was made anew since. If it holds all that was delivered: {adopt} Else declare a sink of another name "
                "for a new topic, which is delivered the tables whole first"
            )
        if known["partitions"] != topic["partitions"]:
            raise LedgerError(  # safety: order-per-key
                f"{of}: expected topic {name} to have {known['partitions']} partitions, as when {found.position} was "
                f"delivered, found {topic['partitions']}: keys would go to other partitions than before, and their "
                f"order would break. If no reader needs the order of a key across this change: {adopt} Else declare a "
                "sink of another name for a new topic, which is delivered the tables whole first"
            )
