"""A Kafka cluster as a deliverer uses it: a producer whose transactions fence older ones, and refusals in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import FencedDelivererError, SinkRefusedError, SinkUnavailableError
from airflow_barrier.systems import kafka

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Self

    _Parameters = ParamSpec("_Parameters")

_Result = TypeVar("_Result")

#: Seconds until a record that was sent, or a transaction's step, is given up.
STEP = 25
#: What to do about a transaction's timeout that brokers do not allow.
SHORTER = "name a shorter transaction_timeout=..., or raise the brokers' transaction.max.timeout.ms"
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


class Cluster(kafka.Cluster):
    """A cluster as ``credentials`` enter it, for who delivers. A context manager.

    :param grants: principal -> the rights that are needed.
    """

    def __init__(self, what: str, credentials: Credentials | None, grants: Callable[[str], str]) -> None:
        super().__init__(what, credentials, SinkUnavailableError)
        self._grants = grants
        self.id = ""

    def __enter__(self) -> Self:
        self.id = self.answer(self.admin.describe_cluster()).cluster_id
        return self

    def __exit__(self, *error: object) -> None:
        self.__dict__.pop("admin", None)  # which closes its connections

    @property
    def needed(self) -> str:
        """The rights that are needed, for a person to grant."""
        return self._grants(f"User:{self._settings.get('sasl.username', '...')}")

    def answer(self, future: Future[_Result]) -> _Result:
        """Return what an administrative request came to. Raises KafkaException as it is where a person has to do
        something, and SinkUnavailableError for all else.
        """
        try:
            return super().answer(future)
        except KafkaException as error:
            if error.args[0].code() in (*_REFUSED, *kafka.LED_ANEW, KafkaError.TOPIC_ALREADY_EXISTS):
                raise
            raise self.unavailable(error.args[0].str()) from None

    def end_of(self, partition: TopicPartition) -> int:
        """The offset after its newest record, committed or not."""
        with self.in_words():
            found = self.offsets({partition: OffsetSpec.latest()}, IsolationLevel.READ_UNCOMMITTED)
        return int(found[partition.partition].offset)

    def setting(self, name: str) -> str | None:
        """Return the brokers' setting of that name; None: the connection's user may not see it."""
        try:
            (first, *_) = self.answer(self.admin.describe_cluster()).nodes
            resource = ConfigResource(ResourceType.BROKER, str(first.id))
            found: str = self.answer(self.admin.describe_configs([resource])[resource])[name].value
        except KafkaException as error:
            if error.args[0].code() in _FORBIDDEN:
                return None
            self.explain(error.args[0])
        return found

    def producer(self, transactional_id: str, transaction_timeout: int, settings: Mapping[str, Any]) -> Producer:
        """A producer whose transactions fence those of older ones."""
        self._heard.clear()
        self.outcome = "whether this was delivered the ledger says to the next try; "
        own = {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout * 1000,
            "delivery.timeout.ms": STEP * 1000,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # Java's, by which other producers and joins of topics go
            "linger.ms": 5,
        }
        producer = Producer({**self._settings, **own, **settings}, logger=kafka.QUIET)
        with self.in_words():
            # it waits for its coordinator in steps of 0.5 s until it is connected
            producer.list_topics(timeout=self.patience)
            call("init_transactions", producer.init_transactions, STEP)
        return producer

    # --- what went wrong --------------------------------------------------------------------------

    @contextmanager
    def in_words(self, producer: Producer | None = None) -> Iterator[None]:
        """The client's errors as ours; those of the producer's calls by what has ended it."""
        try:
            yield
        except KafkaException as error:
            said = error.args[0]
            if producer is not None and said.code() in (KafkaError._FATAL, KafkaError._STATE):
                said = _cause(producer, said)
            self.explain(said)

    def explain(self, error: KafkaError) -> NoReturn:
        """Raises the error that says what it means."""
        if error.code() in _FENCED:
            raise FencedDelivererError(  # safety: topics-fence-deliverers
                f"{self.what}: expected to be its only deliverer, found that another one has opened it since "
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
            f"{self.what}: expected that Kafka at {self.address} does what a delivery takes, found: "
            f"{error.str().rstrip('.')}; {todo}"
        )


def _cause(producer: Producer, error: KafkaError) -> KafkaError:
    """Return the error that has ended the producer, or ``error`` if it has not ended. The callback for errors may not
    have heard of it yet; a step of a transaction is refused with it at once.
    """
    try:
        producer.begin_transaction()
    except KafkaException as refused:
        return refused.args[0] if refused.args[0].fatal() else error
    return error
