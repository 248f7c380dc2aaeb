"""A real Kafka broker for the tests of one process, and ones that a test may kill.

Clients without credentials may do everything. The other listeners ask for a name and a password, or for a certificate,
and :data:`USER` may do what a test grants it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from airflow_barrier.protocol.credentials import Credentials
from demo.local_kafka import LocalKafka
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.support.serving import JARS
from tests.support.waiting import patience, wait_for

USER = "barrier"
#: What a login configuration and a JSON document have to quote.
PASSWORD = "geheim \\\"'=;{}"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Reader:
    """Reads topics of the broker at an address, without credentials."""

    def __init__(self, address: str) -> None:
        self.address = address

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def records(self, topic: str, *, committed: bool = True) -> list[Message]:
        """All records of a topic, partition by partition, as they are now: to the last stable offset, or all."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "readers of tests",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
            }
        )
        found: list[Message] = []
        try:
            partitions = consumer.list_topics(topic, patience()).topics[topic].partitions
            for partition in sorted(partitions):
                consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
                while True:
                    message = consumer.poll(patience())
                    assert message is not None, f"{topic}: no record and no end"
                    error = message.error()
                    if error is None:
                        found.append(message)
                    elif error.name() == "_PARTITION_EOF":
                        break
                    else:
                        raise AssertionError(error)
        finally:
            consumer.close()
        return found


class Kafka(LocalKafka):
    """:attr:`credentials` are those of whoever may do everything, :attr:`user_credentials` those of USER, as are the
    others by TLS.
    """

    def __init__(self, **options: str) -> None:
        self._sasl, self._sasl_tls, self._tls = (f"127.0.0.1:{free_port()}" for _ in range(3))
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
        jaas = f'{_LOGIN} required user_{USER}="{password}";'.replace("\\", "\\\\")
        listeners = {"SASL_PLAINTEXT": self._sasl, "SASL_SSL": self._sasl_tls, "SSL": self._tls}
        own = {
            "listeners": ",".join(f"{protocol}://{address}" for protocol, address in listeners.items()),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "message.max.bytes": "4194304",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        }
        super().__init__(free_port(), free_port(), JARS, own | options)
        self.authority = Authority(self._folder)
        certificate, key = self.authority.signed("broker")
        store = self._folder / "store.pem"
        store.write_text(certificate.read_text() + key.read_text())
        self._options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
        }
        self.patience = patience()

    @property
    def credentials(self) -> Credentials:
        return Credentials("kafka_default", extra={"bootstrap.servers": self.address, "group.id": "somebody"})

    @property
    def user_credentials(self) -> Credentials:
        extra = {
            "bootstrap.servers": self._sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        return Credentials("kafka_default", extra=extra)

    @property
    def tls_credentials(self) -> Credentials:
        """By name and password over TLS."""
        own = {
            "bootstrap.servers": self._sasl_tls,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
        }
        return Credentials("kafka_default", extra={**self.user_credentials.extra, **own})

    @cached_property
    def certificate_credentials(self) -> Credentials:
        """By a certificate, whose key is encrypted."""
        certificate, key = self.authority.signed(USER, PASSWORD)
        extra = {
            "bootstrap.servers": self._tls,
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.key.password": PASSWORD,
        }
        return Credentials("kafka_default", extra=extra)

    def topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic's name."""
        name = f"t-{uuid4().hex}"
        self.create_topic(name, partitions, **config)
        return name

    def allow(
        self,
        user: str,
        operation: AclOperation,
        name: str,
        kind: ResourceType = ResourceType.TOPIC,
        *,
        prefix: bool = False,
    ) -> None:
        """Let a user do that with the topic, or whatever else ``kind`` is, of this name, or whose name begins so."""
        pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        acl = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        admin = self.admin()
        admin.create_acls([acl])[acl].result(self.patience)

    def producer(self, **settings: Any) -> Producer:
        own = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.address, "linger.ms": 0, **own})

    def send(self, topic: str, *records: Mapping[str, Any]) -> None:
        """Records as ``Producer.produce`` takes them: value, key, partition, timestamp (ms), headers."""
        producer = self.producer()
        for record in records:
            producer.produce(topic, **record)
        assert producer.flush(self.patience) == 0, "the broker takes no records"

    def settle(self, topic: str) -> None:
        """Wait until no transaction is open: its marks come a moment after its producer has been told of its end."""
        admin = self.admin()
        partitions = admin.list_topics(topic, self.patience).topics[topic].partitions
        latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}

        def ends(level: IsolationLevel) -> list[int]:
            found = admin.list_offsets(latest, isolation_level=level)
            return [answer.result(self.patience).offset for answer in found.values()]

        wait_for(
            f"the transactions of {topic} to end",
            lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED),
        )

    @contextmanager
    def as_of_now(self) -> Iterator[None]:
        """What the block does is lost at its end, as when a broker's disk is restored from a backup."""
        self.stop()
        data, backup = self._folder / "data", self._folder / "backup"
        shutil.copytree(data, backup)
        self.start()
        yield
        self.stop()
        shutil.rmtree(data)
        backup.rename(data)
        self.start()

    def compact(self, topic: str, left: int) -> None:
        """Wait until compaction has left so many records. It spares the newest segment, which gets one more."""

        def compacted() -> bool:
            self.send(topic, {"key": b"the newest segment's", "value": b"."})
            return len([each for each in self.records(topic) if each.key() != b"the newest segment's"]) == left

        wait_for(f"{topic} to be compacted", compacted)

    def records(self, topic: str, *, committed: bool = True) -> list[Message]:
        """See :meth:`Reader.records`."""
        return Reader(self.address).records(topic, committed=committed)


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """The broker that tests share: they make topics on it and leave it alone otherwise."""
    with Kafka() as broker:
        broker.start()
        yield broker


@pytest.fixture
def own_kafka() -> Iterator[Kafka]:
    """A broker of the test's own, which it may kill and start again."""
    with Kafka() as broker:
        broker.start()
        yield broker
