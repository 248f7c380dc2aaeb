"""What a job reads of a topic through Spark Connect: exactly the cut, of committed transactions alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AclOperation

from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.kafka import Kafka
from tests.sources.landing import OTHER_MEANINGS, Cutter, day
from tests.support.kafka import USER
from tests.support.kafka import Kafka as Broker
from tests.support.spark import session_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

pytestmark = [
    pytest.mark.drawn("topics in Spark"),
    pytest.mark.touches("sources/kafka/__init__.py", "sources/kafka/cuts.py", "sources/messages/records.py"),
]


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    with session_on(spark_server, OTHER_MEANINGS) as session:
        yield session


def entered(broker: Broker, topic: str, **settings: Any) -> Kafka:
    return Kafka(topic, **{"format": "binary", **settings}).within(Limits(), broker.credentials)


def values(session: SparkSession, source: Kafka, cut: Cut) -> list[str]:
    no_delta: Any = None
    frame = source.load(session, cut, None, day(1), "lake", no_delta, source.secrets)
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def test_each_record_is_in_one_epoch(kafka: Broker, session: SparkSession) -> None:
    topic = kafka.topic(3)
    source = entered(kafka, topic)
    barriers, found, sent = Cutter(source), [], []
    for barrier in range(4):
        batch = [f"{barrier}-{number:02}" for number in range(20 * (barrier != 2))]
        kafka.send(topic, *({"value": value.encode(), "partition": hash(value) % 3} for value in batch))
        sent += batch
        found.append(values(session, source, barriers.cut(day(barrier + 1))))
    assert found[2] == []
    assert list(chain(*found)) == sent
    cuts = [cut for _, cut in barriers.cuts]
    assert [values(session, source, cut) for cut in cuts] == found, "again, and later, it is the same"
    assert values(session, source, source.whole(cuts)) == sent


@pytest.mark.kills("committed-records-only")
def test_of_transactions_what_was_committed(kafka: Broker, session: SparkSession) -> None:
    """Also where an epoch holds aborted records alone, ends on a mark, or begins with one."""
    topic = kafka.topic()
    source = entered(kafka, topic)
    barriers = Cutter(source)
    others = kafka.producer(transactional_id=f"{topic}-others")
    others.init_transactions(kafka.patience)
    found = []
    for number, ends in enumerate(["abort", "commit", "abort abort", "commit abort", "abort commit", "open"]):
        for end in ends.split():
            others.begin_transaction()
            for part in range(50):
                others.produce(topic, f"{number}-{end}-{part:02}".encode())
            if end == "commit":
                others.commit_transaction(kafka.patience)
            elif end == "abort":
                others.flush(kafka.patience)
                others.abort_transaction(kafka.patience)
        if ends == "open":
            others.flush(kafka.patience)
        else:
            kafka.settle(topic)
        found.append(values(session, source, barriers.cut(day(number + 1))))
    committed = [f"{number}-commit-{part:02}" for number in (1, 3, 4) for part in range(50)]
    assert list(chain(*found)) == committed
    assert [len(each) for each in found] == [0, 50, 0, 50, 50, 0]


def test_records_as_large_as_the_topic_takes_them(kafka: Broker, session: SparkSession) -> None:
    topic = kafka.topic(max_message_bytes="2000000")
    large = ["a" * 1_500_000, "b" * 1_000_000, ""]
    producer = kafka.producer(message_max_bytes=2_000_000)
    for value in large:
        producer.produce(topic, value.encode())
    assert producer.flush(kafka.patience) == 0
    source = entered(kafka, topic)
    assert values(session, source, Cutter(source).cut(day(1))) == sorted(large)


def test_what_compaction_has_taken_away_is_no_gap(kafka: Broker, session: SparkSession) -> None:
    topic = kafka.topic(
        cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.001", delete_retention_ms="0"
    )
    source = entered(kafka, topic)
    barriers = Cutter(source)
    for number in range(3):
        kafka.send(topic, *({"key": b"k", "value": f"{number}-{part}".encode()} for part in range(100)))
    first = barriers.cut(day(1))
    kafka.send(topic, {"key": b"other", "value": b"newer"})
    kafka.compact(topic, left=2)
    source.check(first)
    assert values(session, source, first) == ["2-99"]
    found = values(session, source, barriers.cut(day(2)))
    assert [value for value in found if value != "."] == ["newer"]


def test_a_broker_that_restarts_between_cut_and_read(own_kafka: Broker, session: SparkSession) -> None:
    topic = own_kafka.topic(2)
    sent = [f"{number:03}" for number in range(100)]
    own_kafka.send(topic, *({"value": value.encode()} for value in sent))
    source = entered(own_kafka, topic)
    barriers = Cutter(source)
    cut = barriers.cut(day(1))
    own_kafka.kill()
    own_kafka.start()
    source.check(cut)
    assert values(session, source, cut) == sent
    assert values(session, source, barriers.cut(day(2))) == []


def test_spark_enters_as_the_connection_says(kafka: Broker, session: SparkSession) -> None:
    """With a right to read the topic, and to no group."""
    topic = kafka.topic()
    kafka.send(topic, {"value": b"seen"})
    kafka.allow(USER, AclOperation.READ, topic)
    source = Kafka(topic, format="binary").within(Limits(), kafka.user_credentials)
    assert values(session, source, Cutter(source).cut(day(1))) == ["seen"]


def test_the_columns_of_an_epoch_without_records(kafka: Broker, session: SparkSession) -> None:
    topic = kafka.topic()
    source = entered(kafka, topic, format="json", schema="a INT, b STRING", metadata=("offset", "headers"))
    cut = Cutter(source).cut(day(1))
    empty = source.load(session, cut, None, day(1), "lake", None, source.secrets)  # type: ignore[arg-type]
    kafka.send(topic, {"value": b'{"a": 1, "b": "x"}', "headers": [("h", b"1")]})
    cut = replace(cut, end={**cut.end, "offsets": {"0": 1}})
    full = source.load(session, cut, None, day(1), "lake", None, source.secrets)  # type: ignore[arg-type]
    assert [(field.name, field.dataType) for field in empty.schema] == [
        (field.name, field.dataType) for field in full.schema
    ]
    assert empty.collect() == []
    (row,) = full.collect()
    assert (row.a, row.b, row._offset) == (1, "x", 0)


def test_by_event_time_each_record_is_in_the_epoch_of_its_time(kafka: Broker, session: SparkSession) -> None:
    """But for those that come late, which are in the next one; and none is there twice, also of wrong clocks."""
    rng = random.Random(7)
    topic = kafka.topic(2)
    source = entered(kafka, topic, attribute_by="event_time", allowed_lateness=timedelta(hours=6))
    barriers, found, sent = Cutter(source), [], {}
    for barrier in range(1, 7):
        records = []
        for number in range(40):
            # up to a quarter of a day out of order, some of them of a day that is over, and some of a year to come
            time = barrier - 1 + number / 40 + rng.uniform(-0.12, 0.12)
            time = {3: max(time - 1.5, 0), 9: 400.0}.get(number, time)
            value = f"{barrier}-{number:02}"
            sent[value] = time
            at = int(day(time).timestamp() * 1000)
            records.append({"value": value.encode(), "partition": number % 2, "timestamp": at})
        kafka.send(topic, *records)
        ends = [
            {"value": b"end", "partition": each, "timestamp": int(day(barrier + 0.3).timestamp() * 1000)}
            for each in (0, 1)
        ]
        kafka.send(topic, *ends)
        cut = barriers.cut(day(barrier), now=day(20))
        source.check(cut)
        found.append([value for value in _values_at(session, source, cut, barrier) if value != "end"])
    early = {value for value, time in sent.items() if 6 < time < 300}
    assert sorted(chain(*found)) == sorted(set(sent) - early)
    for barrier, values_found in enumerate(found, 1):
        for value in values_found:
            late = int(value.partition("-")[0]) == barrier or sent[value] > 300
            assert late or barrier - 1 < sent[value] <= barrier, value
    cuts = [cut for _, cut in barriers.cuts]
    at_once = _values_at(session, source, source.whole(cuts), 6)
    assert sorted(value for value in at_once if value != "end") == sorted(chain(*found))


def _values_at(session: SparkSession, source: Kafka, cut: Cut, barrier: int) -> list[str]:
    no_delta: Any = None
    frame = source.load(session, cut, None, day(barrier), "lake", no_delta, source.secrets)
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())
