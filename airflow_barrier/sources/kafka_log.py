"""Where a topic's partitions begin and end: what is asked of the brokers, with bounded waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, SourceUnavailableError

#: Seconds that brokers may take to answer.
_PATIENCE = 10.0
#: Between two looks whether the client has been refused.
_LOOK = 0.2
#: What no waiting helps against.
_NOT_LET_IN = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "no right to read it; grant the connection's user Read and Describe on it",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "no such topic; create it, or correct the name",
}


@dataclass(frozen=True)
class Offset:
    """A place in a partition: a record's, or where the next one will be. ``timestamp``: the record's, in ms since
    1970; -1 where there is none. ``epoch``: that of the partition's leader, -1 where brokers do not say it.
    """

    offset: int
    timestamp: int
    epoch: int


@dataclass(frozen=True)
class Log:
    """One topic, which the source of this name reads. ``settings`` are librdkafka's.

    Every method raises SourceUnavailableError (retryable) if brokers do not answer or let nobody in, and
    SourceDataError for a topic that is not there, or may not be read. ConfigurationError tells of settings that the
    client does not take, such as a file that it cannot read.
    """

    source: str
    topic: str
    settings: Mapping[str, Any] = field(repr=False)

    @property
    def what(self) -> str:
        return f"source {self.source}"

    def look(self) -> None:
        self.stable_ends(self.partitions)

    @cached_property
    def topic_id(self) -> str:
        """Another one for a topic of this name that was made anew."""
        return str(self._described.topic_id)

    @cached_property
    def partitions(self) -> list[int]:
        return sorted(partition.id for partition in self._described.partitions)

    @cached_property
    def _described(self) -> Any:
        with self._asking("what the topic is"):
            asked = self._admin.describe_topics(TopicCollection([self.topic]), request_timeout=_PATIENCE)
            return self._answered(asked[self.topic])

    def stable_ends(self, partitions: list[int]) -> dict[int, Offset]:
        """The last stable offset of each: records before it are committed or aborted, and stay so."""
        return self._offsets(
            "where it ends",
            dict.fromkeys(partitions, OffsetSpec.latest()),
            settled=True,  # safety: up-to-the-last-stable-offset
        )

    def beginnings(self, partitions: list[int]) -> dict[int, Offset]:
        """The first offset that is retained."""
        return self._offsets("where it begins", dict.fromkeys(partitions, OffsetSpec.earliest()))

    def first_after(self, partitions: list[int], moment: datetime) -> dict[int, Offset | None]:
        """The first record of each whose timestamp is later, to the millisecond; None: there is none yet."""
        later = OffsetSpec.for_timestamp(millis(moment) + 1)
        found = self._offsets(f"what is later than {moment.isoformat()}", dict.fromkeys(partitions, later))
        return {partition: place if place.offset >= 0 else None for partition, place in found.items()}

    def timestamps(self, partition: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Offset and timestamp (ms) of the records from ``begin`` to before ``end``, which are read here one batch
        after the other. It may end early, with those that are gone.
        """
        consumer = Consumer(
            {
                **self._own_settings,
                "group.id": "airflow_barrier",  # is never joined: nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, partition, begin)])
            while True:
                message = consumer.poll(_PATIENCE)
                if message is None:
                    raise self._unavailable("for its records", "no answer")
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return
                if error is not None:
                    raise self._unavailable("for its records", error.str())
                offset = message.offset()
                assert offset is not None, "a record has one"
                if offset >= end:
                    return
                yield offset, message.timestamp()[1]
        finally:
            consumer.close()

    def _offsets(self, asked: str, specs: Mapping[int, Any], *, settled: bool = False) -> dict[int, Offset]:
        """``settled``: before each transaction that is open."""
        level = IsolationLevel.READ_COMMITTED if settled else IsolationLevel.READ_UNCOMMITTED
        with self._asking(asked):
            found = self._admin.list_offsets(
                {TopicPartition(self.topic, partition): spec for partition, spec in specs.items()},
                isolation_level=level,
                request_timeout=_PATIENCE,
            )
            results = {place.partition: self._answered(answer) for place, answer in found.items()}
        return {
            partition: Offset(each.offset, each.timestamp, -1 if each.leader_epoch is None else each.leader_epoch)
            for partition, each in results.items()
        }

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient(self._own_settings)

    @cached_property
    def _own_settings(self) -> dict[str, Any]:
        # what goes wrong is in our own errors: the client writes to standard error by itself
        return {**self.settings, "client.id": "airflow_barrier", "log_level": 0, "error_cb": self._heard.append}

    @cached_property
    def _heard(self) -> list[KafkaError]:
        """What the client has said of its connections: the reason why an answer does not come."""
        return []

    def _answered(self, answer: Future[Any]) -> Any:
        """What comes of a request. One that brokers do not let in is told at once: the client would go on trying."""
        for _ in range(int(_PATIENCE / _LOOK)):
            self._admin.poll(0)  # by which the client says what it has heard
            if any(error.code() in _NOT_LET_IN for error in self._heard):
                break
            with suppress(FutureTimeoutError):
                return answer.result(_LOOK)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    @contextmanager
    def _asking(self, asked: str) -> Iterator[None]:
        try:
            yield
        except KafkaException as failed:
            error = failed.args[0]
            refused = _REFUSED.get(error.code())
            if refused is not None:
                raise SourceDataError(f"{self.what}: expected topic {self.topic}, found {refused}") from failed
            if error.code() == KafkaError._INVALID_ARG:
                raise ConfigurationError(
                    f"{self.what}: expected settings in its connection's extra that Kafka's client takes, found: "
                    f"{error.str()}; correct them"
                ) from failed
            raise self._unavailable(asked, error.str()) from failed

    def _unavailable(self, asked: str, found: str) -> SourceUnavailableError:
        why = next((error.str() for error in self._heard if error.code() != KafkaError._ALL_BROKERS_DOWN), found)
        return SourceUnavailableError(
            f"{self.what}: expected an answer of Kafka at {self.settings['bootstrap.servers']} to the question {asked} "
            f"(topic {self.topic}), found: {why}; see that brokers run there and let the connection's user in"
        )


def millis(moment: datetime) -> int:
    """Since 1970 in UTC, as Kafka counts, without the rest."""
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
