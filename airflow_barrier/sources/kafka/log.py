"""Where a topic's partitions begin and end: what is asked of the brokers, with bounded waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, ConfigResource, OffsetSpec, ResourceType

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.systems.kafka import OF_THE_GROUP, Cluster

#: Seconds that a consumer waits for a record, before it looks whether there is time left.
_LOOK = 0.2
#: Where a partition has no record: at its end, or retention has passed where we begin.
_NO_RECORD = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)
#: So many offsets before a place a record is looked for: markers of transactions may stand between.
_NEAR = (2, 32, 512)
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "no right to read it; grant the connection's user Read and Describe on it",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "no such topic; create it, or correct the name",
}


@dataclass(frozen=True)
class Offset:
    """A place in a partition: a record's, or where the next one will be. ``timestamp``: the record's, in ms since
    1970; -1 where there is none. ``epoch``: that of the partition's leader, in which the record was written; -1 where
    brokers do not say it.
    """

    offset: int
    timestamp: int
    epoch: int


@dataclass(frozen=True)
class Log:
    """One topic, which the source of this name reads.

    Every method raises SourceUnavailableError (retryable) if brokers do not answer or let nobody in, and
    SourceDataError for a topic that is not there, or may not be read. ConfigurationError tells of settings that the
    client does not take, such as a file that it cannot read.
    """

    cluster: Cluster
    source: str
    topic: str
    _told: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def what(self) -> str:
        return self.cluster.what

    def look(self) -> None:
        self.stable_ends(self.partitions)

    @property
    def topic_id(self) -> str:
        """Another one for a topic of this name that was made anew."""
        return str(self._described.topic_id)

    @property
    def partitions(self) -> list[int]:
        return sorted(partition.id for partition in self._described.partitions)

    @property
    def _described(self) -> Any:
        """Asked once. By cached_property all topics would wait for the answer about one, before Python 3.12."""
        if not self._told:
            with self._in_words():
                asked = self.cluster.admin.describe_topics(
                    TopicCollection([self.topic]),
                    include_authorized_operations=True,
                    request_timeout=self.cluster.patience,
                )
                told = self.cluster.answer(asked[self.topic])
                allowed = told.authorized_operations
                if allowed is not None and AclOperation.READ not in allowed:  # who may describe it is told its offsets
                    raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
            self._told.append(told)
        return self._told[0]

    def stable_ends(self, partitions: list[int]) -> dict[int, Offset]:
        """The last stable offset of each: records before it are committed or aborted, and stay so."""
        return self._offsets(
            dict.fromkeys(partitions, OffsetSpec.latest()),
            settled=True,  # safety: up-to-the-last-stable-offset
        )

    def beginnings(self, partitions: list[int]) -> dict[int, Offset]:
        """The first offset that is retained."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.earliest()))

    def first_after(self, partitions: list[int], moment: datetime) -> dict[int, Offset | None]:
        """The first record of each whose timestamp is later, to the millisecond; None: there is none yet."""
        later = OffsetSpec.for_timestamp(millis(moment) + 1)
        found = self._offsets(dict.fromkeys(partitions, later))
        return {partition: place if place.offset >= 0 else None for partition, place in found.items()}

    def records(self, partition: int, begin: int, end: int) -> Iterator[Offset]:
        """Yield where the committed records from ``begin`` to before ``end`` are, which are read here one batch after
        the other. It may end early, with those that are gone.
        """
        with self._reading({partition: begin}) as consumer:
            while True:
                message = consumer.poll(self.cluster.patience)
                if message is None:
                    raise self.cluster.unavailable(f"no answer within {self.cluster.patience:g} s")
                error = message.error()
                if error is not None and error.code() == OF_THE_GROUP:
                    continue
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                if error is not None:
                    raise self.cluster.unavailable(error.str())
                offset = message.offset()
                assert offset is not None, "a record has one"
                if offset >= end:
                    return
                epoch = message.leader_epoch()
                yield Offset(offset, message.timestamp()[1], -1 if epoch is None else epoch)

    def epoch_before(self, partition: int, end: int) -> int:
        """The leader's epoch in which the last committed record before ``end`` was written; -1: none is found near."""
        first = self.beginnings([partition])[partition].offset
        for back in _NEAR:
            epochs = [record.epoch for record in self.records(partition, max(first, end - back), end)]
            if epochs:
                return epochs[-1]
        return -1

    def first_timestamps(self, begins: Mapping[int, int]) -> dict[int, int]:
        """Map each partition to the timestamp (ms) of its first committed record from an offset on. Those that have
        none, or whose record does not come in time, are left out.
        """
        found: dict[int, int] = {}
        left, end = set(begins), monotonic() + self.cluster.patience
        with self._reading(begins) as consumer:
            while left and monotonic() < end:
                message = consumer.poll(_LOOK)
                if message is None:
                    continue
                partition, error = message.partition(), message.error()
                if error is not None and error.code() == OF_THE_GROUP:
                    continue
                if partition is None or (error is not None and error.code() not in _NO_RECORD):
                    raise self.cluster.unavailable("no record" if error is None else error.str())
                if error is None and partition in left:
                    found[partition] = message.timestamp()[1]
                left.discard(partition)
                consumer.pause([TopicPartition(self.topic, partition)])
        return found

    @contextmanager
    def _reading(self, begins: Mapping[int, int]) -> Iterator[Consumer]:
        """Committed records of each partition from an offset on, and where it ends."""
        consumer = self.cluster.consumer()
        try:
            consumer.assign([TopicPartition(self.topic, partition, begin) for partition, begin in begins.items()])
            yield consumer
        finally:
            consumer.close()

    def config(self) -> Mapping[str, str] | None:
        """The topic's settings, also those that it has of its brokers; None: the user may not see them."""
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        with self._in_words():
            asked = self.cluster.admin.describe_configs([resource], request_timeout=self.cluster.patience)[resource]
            try:
                return {name: entry.value for name, entry in self.cluster.answer(asked).items()}
            except KafkaException as refused:
                if refused.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return None
                raise

    def _offsets(self, specs: Mapping[int, OffsetSpec], *, settled: bool = False) -> dict[int, Offset]:
        """``settled``: before each transaction that is open."""
        level = IsolationLevel.READ_COMMITTED if settled else IsolationLevel.READ_UNCOMMITTED
        with self._in_words():
            found = self.cluster.offsets(
                {TopicPartition(self.topic, partition): spec for partition, spec in specs.items()}, level
            )
        return {
            partition: Offset(each.offset, each.timestamp, -1 if each.leader_epoch is None else each.leader_epoch)
            for partition, each in found.items()
        }

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as failed:
            error = failed.args[0]
            if error.code() in _REFUSED:
                found = f"expected topic {self.topic}, found {_REFUSED[error.code()]}"
                raise SourceDataError(f"{self.what}: {found}") from failed
            raise self.cluster.unavailable(error.str()) from failed


def millis(moment: datetime) -> int:
    """Return whole milliseconds since 1970 in UTC, as Kafka counts."""
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
