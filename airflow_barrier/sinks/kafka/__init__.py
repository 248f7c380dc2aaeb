"""Topics of a Kafka cluster as a sink: the records of a barrier and the ledger's record are one transaction.

    barrier.deliver("shop.prices", to=KafkaSink("prices", key=["id"]))

The topics are there already, and others may write to them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows, SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import name_fault
from airflow_barrier.sinks.logs import check_rows, keys_of
from airflow_barrier.sinks.port import Channel
from airflow_barrier.systems import kafka_settings

#: Seconds: a shorter transaction would end before a broker that does not answer is told.
_SHORTEST = 60


@dataclass(frozen=True)
class KafkaSink:
    """``topic``: the target, where one table is delivered; where there are several, ``deliver`` maps each to its topic
    and the sink needs a ``name``, which is the topic's otherwise. ``conn_id``: an Airflow connection of type `kafka`.

    ``key``: with ``rows="changes"``, the columns that tell rows apart, of all topics, or topic -> columns. They are the
    records' key. With ``rows="appends"`` none is needed; without one, records have no key.

    ``ledger``: the topic for the sink's own record, of one partition and compacted. It is made if it is not there, and
    may be shared by sinks and topologies. ``transactional_id_prefix``: what the sink's transactional id begins with,
    for clusters that grant ids by prefix. ``transaction_timeout``: seconds that a barrier's transaction may take, at
    most what the brokers allow (``transaction.max.timeout.ms``).

    >>> KafkaSink("prices", key=["id"]).name
    'prices'
    """

    topic: str | None = None
    conn_id: str = "kafka_default"
    key: Sequence[str] | Mapping[str, Sequence[str]] = ()
    name: str = ""
    ledger: str = "airflow_barrier_ledger"
    transactional_id_prefix: str = "airflow_barrier"
    transaction_timeout: int = 900

    kind: ClassVar[str] = "kafka"
    conn_type: ClassVar[str] = kafka_settings.CONN_TYPE

    location: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.name and self.topic is not None:
            object.__setattr__(self, "name", self.topic)
        if fault := name_fault(self.name):
            raise ConfigurationError(
                f"KafkaSink: expected a name, found {fault}; give it one, by name=... or by the target's: "
                "KafkaSink('topic')"
            )
        for topic in filter(None, (self.topic, self.ledger)):
            self._check_topic(topic)
        if fault := name_fault(self.transactional_id_prefix):
            raise ConfigurationError(
                f"sink {self.name}: transactional_id_prefix: expected a name, found {fault}; correct it"
            )
        if self.transaction_timeout < _SHORTEST:
            raise ConfigurationError(
                f"sink {self.name}: transaction_timeout: expected {_SHORTEST} seconds or more, found "
                f"{self.transaction_timeout}; a broker that does not answer is waited for half a minute"
            )

    def declare(self, tables: str | Mapping[str, str], rows: Rows, owner: str) -> SinkDeclaration:
        """See :meth:`~airflow_barrier.sinks.port.Sink.declare`."""
        check_rows(self.name, rows, "a topic")
        if isinstance(tables, str):
            if self.topic is None:
                raise ConfigurationError(
                    f"sink {self.name}: expected the topic of {tables}, found none; name it: KafkaSink('topic')"
                )
            tables = {tables: self.topic}
        elif self.topic is not None:
            raise ConfigurationError(
                f"sink {self.name}: expected the topics in the mapping alone, found {self.topic!r} beside it; leave "
                "that out"
            )
        targets = dict(sorted(tables.items()))
        for topic in targets.values():
            self._check_topic(topic)
        if len({*targets.values(), self.ledger}) <= len(targets) or not targets:
            raise ConfigurationError(
                f"sink {self.name}: expected a topic of its own for each table, and another one for the ledger "
                f"({self.ledger}), found {targets}; a topic is fed from one table"
            )
        options: dict[str, Any] = {
            "conn_id": self.conn_id,
            "ledger": self.ledger,
            "keys": keys_of(self.name, self.key, list(targets.values()), rows, "topic"),
            "transactional_id_prefix": self.transactional_id_prefix,
            "transaction_timeout": self.transaction_timeout,
        }
        return SinkDeclaration(self.name, owner, self.kind, targets, options, rows)

    @classmethod
    def of(cls, declared: SinkDeclaration) -> KafkaSink:
        """The adapter again, from its declaration."""
        options = dict(declared.options)
        return cls(name=declared.name, key=options.pop("keys"), **options)

    def dataset(self, target: str, credentials: Credentials | None) -> tuple[str, str]:
        """See :meth:`~airflow_barrier.sinks.port.Sink.dataset`."""
        return kafka_settings.dataset(target, credentials)

    def corrections_fault(self, declared: SinkDeclaration) -> str | None:
        """See :meth:`~airflow_barrier.sinks.port.Sink.corrections_fault`."""
        if declared.rows is Rows.APPENDS:
            return "it gets what is appended (rows='appends'), and records of a topic do not change"
        return None

    def connect(self, declared: SinkDeclaration, credentials: Credentials | None) -> Channel:
        """See :meth:`~airflow_barrier.sinks.port.Sink.connect`."""
        from airflow_barrier.sinks.kafka.channel import KafkaChannel

        return KafkaChannel(declared, credentials)

    def _check_topic(self, topic: str) -> None:
        if fault := kafka_settings.topic_fault(topic):
            raise ConfigurationError(f"sink {self.name}: {fault}")
