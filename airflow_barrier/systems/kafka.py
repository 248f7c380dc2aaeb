"""A Kafka cluster as sources and sinks ask it: clients that wait a bounded time, and what went wrong in words."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cached_property
from time import monotonic, sleep
from typing import TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo, OffsetSpec

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SinkUnavailableError, SourceUnavailableError
from airflow_barrier.systems.kafka_settings import client_settings

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

#: Seconds for one answer.
ANSWER = 15.0
#: Seconds between two looks at what the client has heard.
_LOOK = 0.25
#: Milliseconds.
_BOUNDS = {
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 1_000,
}
#: What no waiting helps against.
_NOT_LET_IN = (KafkaError._AUTHENTICATION, KafkaError._SSL)
#: Who leads a partition is being settled: brokers that have just made a topic, or lost one of them, disagree.
LED_ANEW = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
#: A consumer looks for the coordinator of its group, too, which it makes no use of.
OF_THE_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED


class _Quiet:
    """Put librdkafka's own log lines at level DEBUG: our errors say what matters of them."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        log.debug(message, *arguments)


QUIET = _Quiet()


class Cluster:
    """A Kafka cluster as ``credentials`` enter it, and as errors tell of it.

    :param what: who asks, such as `source purchases`.
    :param unavailable_error: for brokers that do not answer, or let nobody in.
    :param patience: seconds for one answer; None: :data:`ANSWER`.

    Raises ConfigurationError for settings that a client cannot have, also when it is first used.
    """

    #: What is not known of what was sent, for errors.
    outcome = ""

    def __init__(
        self,
        what: str,
        credentials: Credentials | None,
        unavailable_error: type[SourceUnavailableError | SinkUnavailableError],
        patience: float | None = None,
    ) -> None:
        self.what = what
        self.patience = ANSWER if patience is None else patience
        self._unavailable_error = unavailable_error
        #: what the client has said of its connections: why an answer does not come
        self._heard: deque[KafkaError] = deque(maxlen=100)
        own = {**_BOUNDS, "client.id": "airflow_barrier", "error_cb": self._heard.append}
        self._settings = {**client_settings(what, credentials), **own}
        self._conn_id = credentials.conn_id if credentials else ""

    @property
    def address(self) -> str:
        return str(self._settings["bootstrap.servers"])

    @cached_property
    def admin(self) -> AdminClient:
        try:
            return AdminClient(self._settings, logger=QUIET)
        except KafkaException as error:
            raise ConfigurationError(
                f"{self.what}: expected settings in the extra of connection {self._conn_id} that Kafka's client takes, "
                f"found: {error.args[0].str()}; correct them"
            ) from error

    def answer(self, future: Future[_Result]) -> _Result:
        """Return what an administrative request came to.

        Raises KafkaException as it is where brokers refuse the request, and the error for brokers that do not answer. A
        login that they refuse is told at once: the client would go on trying.
        """
        end = monotonic() + self.patience
        while True:
            try:
                return future.result(_LOOK)
            except FutureTimeoutError:
                self.admin.poll(0)  # what it has to say of connections comes by this
                if monotonic() > end or self._keeps_out is not None:
                    raise self.unavailable(f"no answer within {self.patience:g} s") from None

    def offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], level: IsolationLevel
    ) -> dict[int, ListOffsetsResultInfo]:
        """Return what each partition has at the place that is asked for. Raises what :meth:`answer` does."""
        end = monotonic() + self.patience
        while True:
            asked = self.admin.list_offsets(dict(specs), isolation_level=level, request_timeout=self.patience)
            try:
                return {place.partition: self.answer(future) for place, future in asked.items()}
            except KafkaException as error:
                if error.args[0].code() not in LED_ANEW or monotonic() > end:
                    raise
                sleep(0.1)

    def consumer(self) -> Consumer:
        """One that reads committed records of what it is assigned, for nobody's group, and says where a partition
        ends.
        """
        own = {
            "group.id": "airflow_barrier",  # is never joined: nothing is committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # an end is told once a broker has waited that long for more
        }
        return Consumer({**self._settings, **own}, logger=QUIET)

    def unavailable(self, found: str) -> SourceUnavailableError | SinkUnavailableError:
        if self._keeps_out is not None:
            return self._unavailable_error(
                f"{self.what}: expected Kafka at {self.address} to let in whom connection {self._conn_id} names, "
                f"found: {self._keeps_out.str()}; see that its name, password and certificates are right"
            )
        also = "" if self._last is None or self._last.str() in found else f" ({self._last.str()})"
        return self._unavailable_error(
            f"{self.what}: expected Kafka at {self.address} to answer, found: {found}{also}; {self.outcome}see that it "
            f"runs, and that connection {self._conn_id} leads there"
        )

    @property
    def _keeps_out(self) -> KafkaError | None:
        """The error by which brokers refuse the login, if that is what they said last."""
        return self._last if self._last is not None and self._last.code() in _NOT_LET_IN else None

    @property
    def _last(self) -> KafkaError | None:
        """The last error of a connection. That all brokers are down follows it, and tells no reason."""
        return next((error for error in reversed(self._heard) if error.code() != KafkaError._ALL_BROKERS_DOWN), None)
