"""How far a topology is behind a real topic, and how long retention leaves the rest."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation, NewPartitions

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.sources.port import Lag
from tests.sources.landing import Cutter
from tests.support.kafka import USER
from tests.support.kafka import Kafka as Broker

#: To the millisecond, as timestamps of records are.
NOW = datetime.now(timezone.utc).replace(microsecond=0)
HOUR = timedelta(hours=1)
COMPACTED = "its topic is compacted, so no revision reads its epochs again"
KEPT = {"cleanup_policy": "delete", "retention_ms": str(10 * 3600 * 1000)}


def entered(broker: Broker, topic: str, **settings: Any) -> Kafka:
    return Kafka(topic, format="binary", **settings).within(Limits(), broker.credentials)


def send(broker: Broker, topic: str, *hours_ago: float, partition: int = 0) -> None:
    at = [int((NOW - each * HOUR).timestamp() * 1000) for each in hours_ago]
    broker.send(topic, *({"value": b"v", "partition": partition, "timestamp": each} for each in at))


def lag(source: Any, cut: Cut | None) -> Lag:
    found = source.lag(cut, NOW)
    assert isinstance(found, Lag)
    return found


def parts(found: Lag) -> dict[str, tuple[Any, ...]]:
    return {
        part.part: (part.cut_end, part.stable_end, part.behind, part.gone, part.oldest, part.retention_left)
        for part in found.parts
    }


def test_it_counts_from_where_the_newest_cut_ended_to_the_last_stable_offset(kafka: Broker) -> None:
    topic = kafka.topic(3, **KEPT)
    barriers = Cutter(entered(kafka, topic))
    send(kafka, topic, 6, 5)
    send(kafka, topic, 3, partition=1)
    before = lag(barriers.source, None)
    assert (before.unit, before.called, before.behind, before.retention) == ("offsets", "partition", 3, 10 * HOUR)
    assert parts(before) == {
        "partition 0": (None, 2, 2, 0, NOW - 6 * HOUR, 4 * HOUR),
        "partition 1": (None, 1, 1, 0, NOW - 3 * HOUR, 7 * HOUR),
        "partition 2": (None, 0, 0, 0, None, None),
    }
    assert (before.retention_left, before.is_urgent) == (4 * HOUR, True)
    cut = barriers.cut(NOW)
    after = lag(barriers.source, cut)
    assert (after.behind, after.worst, after.retention_left, after.is_urgent) == (0, None, None, False)
    send(kafka, topic, 2, 4)
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(kafka.patience)
    send(kafka, topic, 1, partition=3)
    found = lag(barriers.source, cut)
    assert parts(found) == {
        "partition 0": (2, 4, 2, 0, NOW - 2 * HOUR, 8 * HOUR),
        "partition 1": (1, 1, 0, 0, None, None),
        "partition 2": (0, 0, 0, 0, None, None),
        "partition 3": (None, 1, 1, 0, NOW - HOUR, 9 * HOUR),
    }
    assert found.worst is not None
    assert (found.behind, found.worst.part, found.is_urgent) == (3, "partition 0", False)


def test_offsets_without_records_are_behind_and_do_not_run_out(kafka: Broker) -> None:
    topic = kafka.topic(**KEPT)
    others = kafka.producer(transactional_id=f"{topic}-others")
    others.init_transactions(kafka.patience)
    others.begin_transaction()
    others.produce(topic, b"aborted", partition=0, timestamp=int((NOW - 9 * HOUR).timestamp() * 1000))
    others.flush(kafka.patience)
    assert parts(lag(entered(kafka, topic), None)) == {"partition 0": (None, 0, 0, 0, None, None)}
    others.abort_transaction(kafka.patience)
    kafka.settle(topic)
    assert parts(lag(entered(kafka, topic), None)) == {"partition 0": (None, 2, 2, 0, None, None)}
    send(kafka, topic, 1)
    assert parts(lag(entered(kafka, topic), None)) == {"partition 0": (None, 3, 3, 0, NOW - HOUR, 9 * HOUR)}


@pytest.mark.parametrize(
    ("config", "note"),
    [
        ({"retention_ms": "-1"}, None),
        ({"retention_ms": str(2**63 - 1)}, None),
        ({"cleanup_policy": "compact", "retention_ms": "36000000"}, COMPACTED),
    ],
)
def test_what_is_kept_for_ever_does_not_run_out(kafka: Broker, config: dict[str, str], note: str | None) -> None:
    topic = kafka.topic(**config)
    kafka.send(topic, {"key": b"k", "value": b"v", "timestamp": 1})
    found = lag(entered(kafka, topic), None)
    assert (found.behind, found.retention, found.retention_left, found.note) == (1, None, None, note)
    assert not found.is_urgent


def test_what_is_both_compacted_and_deleted_runs_out(kafka: Broker) -> None:
    topic = kafka.topic(cleanup_policy="compact,delete", retention_ms="36000000")
    kafka.send(topic, {"key": b"k", "value": b"v", "timestamp": int((NOW - HOUR).timestamp() * 1000)})
    assert lag(entered(kafka, topic), None).retention_left == 9 * HOUR


def test_any_clock_is_told(kafka: Broker) -> None:
    topic = kafka.topic(2, message_timestamp_after_max_ms=str(2**63 - 1), **KEPT)
    kafka.send(topic, {"value": b"v", "partition": 0, "timestamp": 2**62})
    send(kafka, topic, 12, partition=1)
    found = lag(entered(kafka, topic), None)
    left = [part.retention_left for part in found.parts]
    assert left[0] is not None
    assert (left[0] > 1000 * 365 * 24 * HOUR, left[1]) == (True, -2 * HOUR)


@pytest.mark.kills("lag-of-the-same-topic")
def test_what_is_gone_is_counted_and_another_topic_is_told(kafka: Broker) -> None:
    topic = kafka.topic(**KEPT)
    barriers = Cutter(entered(kafka, topic))
    send(kafka, topic, 1)
    cut = barriers.cut(NOW)
    send(kafka, topic, 1, 1, 1)
    admin = kafka.admin()
    (answer,) = admin.delete_records([TopicPartition(topic, 0, 3)]).values()
    answer.result(kafka.patience)
    found = lag(entered(kafka, topic), cut)
    assert (parts(found), found.is_urgent) == ({"partition 0": (1, 4, 3, 2, NOW - HOUR, 9 * HOUR)}, True)
    admin.delete_topics([topic])[topic].result(kafka.patience)
    kafka.create_topic(topic)
    with pytest.raises(SourceDataError, match=r"to go on from where .* it was deleted and made anew"):
        lag(entered(kafka, topic), cut)


def test_by_event_time_what_was_left_for_later_epochs_is_not_read_yet(kafka: Broker) -> None:
    topic = kafka.topic(**KEPT)
    source = entered(kafka, topic, attribute_by="event_time", allowed_lateness=2 * HOUR)
    barriers = Cutter(source)
    send(kafka, topic, 9, 7, 6)
    cut = barriers.cut(NOW - 8.5 * HOUR, now=NOW)
    assert cut.end["offsets"] == {"0": 2}
    assert parts(lag(source, cut)) == {"partition 0": (2, 3, 1, 0, NOW - 7 * HOUR, 3 * HOUR)}
    send(kafka, topic, 4)
    cut = barriers.cut(NOW - 6.5 * HOUR, now=NOW)
    assert cut.end["offsets"] == {"0": 3}
    assert parts(lag(source, cut)) == {"partition 0": (3, 4, 1, 0, NOW - 6 * HOUR, 4 * HOUR)}


def test_the_rights_of_a_source_suffice_and_that_retention_is_not_seen_is_told(kafka: Broker) -> None:
    topic = kafka.topic(**KEPT)
    send(kafka, topic, 1)
    kafka.allow(USER, AclOperation.READ, topic)
    source = Kafka(topic, format="binary").within(Limits(), kafka.user_credentials)
    found = lag(source, None)
    assert (found.behind, found.retention, found.retention_left) == (1, None, None)
    assert found.note is not None
    assert "lacks the right DescribeConfigs" in found.note
    kafka.allow(USER, AclOperation.DESCRIBE_CONFIGS, topic)
    found = lag(source, None)
    assert (found.retention_left, found.note) == (9 * HOUR, None)
