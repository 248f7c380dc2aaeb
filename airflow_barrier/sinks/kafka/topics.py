"""The topics that a sink delivers to, and the one of its ledger: what they are, and who may do what there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, ConfigResource, NewTopic, ResourceType

from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import SinkRefusedError
from airflow_barrier.sinks.kafka import client
from airflow_barrier.sinks.kafka.client import Cluster

#: What a deliverer needs, beside Describe, which each of these brings.
_TARGET = (AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
_LEDGER = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
_LEDGER_CONFIG = {"cleanup.policy": "compact", "retention.ms": "-1"}
_NAMES = {AclOperation.READ: "Read", AclOperation.WRITE: "Write", AclOperation.DESCRIBE_CONFIGS: "DescribeConfigs"}


@dataclass(frozen=True)
class Topic:
    """``id`` is another one when a topic of this name is made anew. ``config``: its settings, None: they are hidden."""

    name: str
    id: str
    partitions: int
    operations: frozenset[AclOperation] | None
    config: Mapping[str, str]

    @property
    def largest(self) -> int:
        """Bytes of a batch of records."""
        return int(self.config["max.message.bytes"])


def transactional_id(declared: SinkDeclaration) -> str:
    """Return the id by which Kafka tells the sink's newest deliverer from older ones.

    It is the same for ever, or an older version's deliverer would write beside ours; and the same for whoever delivers
    to these topics by this ledger under this name, or they would, too.
    """
    told = json.dumps([declared.options["ledger"], *sorted(declared.targets.values())])
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    return f"{declared.options['transactional_id_prefix']}.{declared.name}.{digest}"


def grants(principal: str, targets: Sequence[str], ledger: str, transactional_id: str) -> str:
    """The rights of a deliverer, as Kafka's own tool is given them."""
    allowed = [
        *(_grant(_TARGET, f"--topic {topic}") for topic in sorted(targets)),
        _grant(_LEDGER, f"--topic {ledger}"),
        f"--operation Write --operation Describe --transactional-id '{transactional_id}'",
    ]
    return "; ".join(f"kafka-acls.sh --add --allow-principal '{principal}' {each}" for each in allowed)


def _grant(operations: Sequence[AclOperation], resource: str) -> str:
    return " ".join([*(f"--operation {_NAMES[each]}" for each in operations), resource])


def find_topics(what: str, cluster: Cluster, names: Sequence[str]) -> dict[str, Topic]:
    """The targets. Raises SinkRefusedError for one that is not there, or that this deliverer may not write to."""
    found = {name: _find(cluster, name) for name in sorted(names)}
    if missing := sorted(name for name, topic in found.items() if topic is None):
        raise SinkRefusedError(
            f"{what}: expected the topics {', '.join(sorted(names))} at {cluster.address}, found no "
            f"{', '.join(missing)}; create what is missing, with the partitions that it is to keep"
        )
    topics = {name: topic for name, topic in found.items() if topic is not None}
    for topic in topics.values():
        _check_rights(what, cluster, topic, _TARGET)
    return topics


def find_ledger(what: str, cluster: Cluster, name: str) -> Topic | None:
    """The ledger's topic; None: it is not there. Raises SinkRefusedError if it could lose a record."""
    topic = _find(cluster, name)
    if topic is None:
        return None
    _check_rights(what, cluster, topic, _LEDGER)
    wanted = {"partitions": "1", **_LEDGER_CONFIG, "remote.storage.enable": "false"}
    is_now = {"partitions": str(topic.partitions), "remote.storage.enable": "false", **topic.config}
    odd = [f"{setting} {is_now[setting]}" for setting, value in wanted.items() if is_now[setting] != value]
    if odd:
        raise SinkRefusedError(
            f"{what}: expected that the ledger {name} keeps the newest record of each key for ever, in one partition "
            f"({', '.join(f'{setting} {value}' for setting, value in wanted.items())}), found {', '.join(odd)}; "
            "correct that, or name another topic for the ledger: KafkaSink(..., ledger=...)"
        )
    return topic


def make_ledger(what: str, cluster: Cluster, name: str, *, really: bool = True) -> None:
    """Make the ledger's topic, or see that it could be made."""
    # how often it is kept the brokers say, where it is not said
    topic = NewTopic(name, num_partitions=1, config=dict(_LEDGER_CONFIG))
    try:
        cluster.answer(
            client.call("create_topics", cluster.admin.create_topics, [topic], validate_only=not really)[name]
        )
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
            raise SinkRefusedError(
                f"{what}: expected the topic {name} for the ledger at {cluster.address}, or the right to make it, "
                f"found neither; make it (--partitions 1 --config cleanup.policy=compact --config retention.ms=-1), "
                f"and grant what a delivery needs: {cluster.needed}"
            ) from None
        cluster.explain(error.args[0])


def wait_for_ledger(what: str, cluster: Cluster, name: str) -> Topic:
    """It takes brokers a moment to know of a new topic."""
    end = monotonic() + cluster.patience
    while (topic := find_ledger(what, cluster, name)) is None:
        if monotonic() > end:
            raise cluster.unavailable(f"no topic {name}, which was made")
        sleep(0.1)
    return topic


def _find(cluster: Cluster, name: str) -> Topic | None:
    asked = cluster.admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        described = cluster.answer(asked[name])
        operations = described.authorized_operations
        allowed = None if operations is None else frozenset(operations)
        config: Mapping[str, Any] = {}
        if allowed is None or AclOperation.DESCRIBE_CONFIGS in allowed:
            config = cluster.answer(cluster.admin.describe_configs([resource])[resource])
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        cluster.explain(error.args[0])
    settings = {setting: entry.value for setting, entry in config.items()}
    return Topic(name, str(described.topic_id), len(described.partitions), allowed, settings)


def _check_rights(what: str, cluster: Cluster, topic: Topic, operations: Sequence[AclOperation]) -> None:
    if topic.operations is not None and not topic.operations.issuperset(operations):
        lacking = ", ".join(_NAMES[each] for each in operations if each not in topic.operations)
        raise SinkRefusedError(
            f"{what}: expected the rights of a deliverer on topic {topic.name}, found no {lacking}; grant what it "
            f"needs: {cluster.needed}"
        )
