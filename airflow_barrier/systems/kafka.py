"""How one process talks to a Kafka cluster: clients that wait a bounded time, and what went wrong in words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    FencedDelivererError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_barrier.systems.kafka_settings import client_settings

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Self

    _Parameters = ParamSpec("_Parameters")

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

#: Seconds: for one answer, and until a record that was sent, or a transaction's step, is given up.
ANSWER, STEP = 15, 25
#: Milliseconds.
_BOUNDS = {
    "socket.timeout.ms": 10_000,
    "socket.connection.setup.timeout.ms": 10_000,
    "reconnect.backoff.max.ms": 1_000,
}
#: What to do about a transaction's timeout that brokers do not allow.
SHORTER = "name a shorter transaction_timeout=..., or raise the brokers' transaction.max.timeout.ms"
#: What no waiting helps against.
_NOT_LET_IN = (KafkaError._AUTHENTICATION, KafkaError._SSL)
#: Who leads a partition is being settled.
_LED_ANEW = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_FORBIDDEN = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
_REFUSED = (
    *_FORBIDDEN,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_VERSION,
)


def call(
    name: str, ask: Callable[_Parameters, _Result], *arguments: _Parameters.args, **options: _Parameters.kwargs
) -> _Result:
    """Every call that may change something at the cluster goes through here, so that it can be watched."""
    return ask(*arguments, **options)


class _Quiet:
    """What librdkafka logs is for who looks into it: what matters of it is in our errors."""

    def log(self, level: int, message: str, *arguments: object) -> None:
        log.debug(message, *arguments)


class Cluster:
    """A Kafka cluster as ``credentials`` enter it. A context manager; ``what`` enters it is for errors."""

    def __init__(self, what: str, credentials: Credentials | None, grants: Callable[[str], str]) -> None:
        """``grants``: principal -> the rights that are needed."""
        self._what = what
        self._settings = {**client_settings(what, credentials), **_BOUNDS, "error_cb": self._remember}
        self._conn_id = credentials.conn_id if credentials else ""
        self._grants = grants
        self._last_error: KafkaError | None = None
        self._fatal: KafkaError | None = None
        self._has_sent = False
        self.id = ""

    def __enter__(self) -> Self:
        try:
            self._admin = AdminClient(self._settings, logger=_Quiet())
        except KafkaException as error:
            raise ConfigurationError(
                f"{self._what}: expected settings in the extra of connection {self._conn_id} that Kafka's client "
                f"takes, found: {error.args[0].str()}; correct them"
            ) from error
        self.id = self.answer(self._admin.describe_cluster()).cluster_id
        return self

    def __exit__(self, *error: object) -> None:
        del self._admin

    @property
    def admin(self) -> AdminClient:
        return self._admin

    @property
    def address(self) -> str:
        return str(self._settings["bootstrap.servers"])

    @property
    def needed(self) -> str:
        """The rights that are needed, for a person to grant."""
        return self._grants(f"User:{self._settings.get('sasl.username', '...')}")

    def answer(self, future: Future[_Result], passing: tuple[int, ...] = ()) -> _Result:
        """What an administrative request came to. KafkaException is raised as it is where brokers refuse it.

        ``passing``: codes of what is over in a moment, for who asks again; they are raised as they are, too.
        """
        end = monotonic() + ANSWER
        while True:
            try:
                return future.result(0.25)
            except FutureTimeoutError:
                self._admin.poll(0)  # what it has to say of connections comes by this
                error = self._last_error
                if monotonic() > end or (error is not None and error.code() in _NOT_LET_IN):
                    raise self.unavailable(f"no answer within {ANSWER} s") from None
            except KafkaException as error:
                if error.args[0].code() in (*_REFUSED, KafkaError.TOPIC_ALREADY_EXISTS, *passing):
                    raise
                raise self.unavailable(error.args[0].str()) from None

    def end_of(self, partition: TopicPartition) -> int:
        """The offset after its newest record, committed or not. KafkaException is raised as by :meth:`answer`.

        Brokers that have just made a topic, or lost one of them, disagree for a moment about who leads the partition.
        """
        end = monotonic() + ANSWER
        while True:
            asked = self._admin.list_offsets(
                {partition: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED
            )[partition]
            try:
                return int(self.answer(asked, passing=_LED_ANEW if monotonic() < end else ()).offset)
            except KafkaException as error:
                if error.args[0].code() not in _LED_ANEW:
                    raise
                sleep(0.1)

    def setting(self, name: str) -> str | None:
        """What the brokers have as that; None: who enters may not see it."""
        try:
            (first, *_) = self.answer(self._admin.describe_cluster()).nodes
            resource = ConfigResource(ResourceType.BROKER, str(first.id))
            found: str = self.answer(self._admin.describe_configs([resource])[resource])[name].value
        except KafkaException as error:
            if error.args[0].code() in _FORBIDDEN:
                return None
            self.explain(error.args[0])
        return found

    def consumer(self, **settings: Any) -> Consumer:
        """One that reads what it is assigned, for nobody's group."""
        own = {
            "group.id": "airflow_barrier",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # an end is told once a broker has waited that long for more
        }
        return Consumer({**self._settings, **own, **settings}, logger=_Quiet())

    def producer(self, transactional_id: str, transaction_timeout: int, settings: Mapping[str, Any]) -> Producer:
        """One whose transactions fence those of older ones; see :meth:`begin`."""
        self._fatal, self._has_sent = None, True
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout * 1000,
            "delivery.timeout.ms": STEP * 1000,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # Java's, by which other producers and joins of topics go
            "linger.ms": 5,
        }
        producer = Producer({**self._settings, **own, **settings}, logger=_Quiet())
        with self.in_words():
            producer.list_topics(timeout=ANSWER)  # it waits for its coordinator in steps of 0.5 s until it is connected
            call("init_transactions", producer.init_transactions, STEP)
        return producer

    def _remember(self, error: KafkaError) -> None:
        self._last_error = error
        if error.fatal():
            self._fatal = error

    # --- what went wrong --------------------------------------------------------------------------

    @contextmanager
    def in_words(self) -> Iterator[None]:
        """The client's errors as ours."""
        try:
            yield
        except KafkaException as error:
            self.explain(error.args[0])

    def explain(self, error: KafkaError) -> NoReturn:
        """Raises the error that says what it means."""
        if error.code() in (KafkaError._FATAL, KafkaError._STATE) and self._fatal is not None:
            error = self._fatal
        if error.code() in _FENCED:
            raise FencedDelivererError(  # safety: topics-fence-deliverers
                f"{self._what}: expected to be its only deliverer, found that another one has opened it since "
                f"({error.str()}); nothing of this barrier was delivered by this one"
            )
        if error.code() in (KafkaError._INVALID_ARG, KafkaError._STATE, KafkaError._CONFLICT):
            raise KafkaException(error)  # a mistake of ours
        if error.code() in _REFUSED:
            raise self.refused(error)
        raise self.unavailable(error.str())

    def refused(self, error: KafkaError) -> SinkRefusedError:
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            todo = SHORTER
        elif error.code() in _FORBIDDEN:
            todo = f"grant what it needs: {self.needed}"
        else:
            todo = "correct what it names"
        return SinkRefusedError(
            f"{self._what}: expected that Kafka at {self.address} does what a delivery takes, found: "
            f"{error.str().rstrip('.')}; {todo}"
        )

    def unavailable(self, found: str) -> SinkUnavailableError:
        last = self._last_error
        if last is not None and last.code() in _NOT_LET_IN:
            return SinkUnavailableError(
                f"{self._what}: expected Kafka at {self.address} to let in whom connection {self._conn_id} names, "
                f"found: {last.str()}; see that its name, password and certificates are right"
            )
        told = "whether this was delivered the ledger says to the next try; " if self._has_sent else ""
        also = "" if last is None or last.str() in found else f" ({last.str()})"
        return SinkUnavailableError(
            f"{self._what}: expected Kafka at {self.address} to answer, found: {found}{also}; {told}see that it runs, "
            f"and that connection {self._conn_id} leads there"
        )
