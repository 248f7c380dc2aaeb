"""Records that do not decode, from their topic to the table of the same epoch that takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.protocol.errors import ConfigurationError, SilentOutletError, SourceDataError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.kafka import Kafka
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch
from tests.support.kafka import Kafka as Broker
from tests.support.shop import JOBS, SHOPPING, Shop
from tests.support.spark import APART, session_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

LETTERS = "shop.letters"
DDL = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, reason STRING"
)
pytestmark = [
    pytest.mark.drawn("topics in Spark"),
    pytest.mark.touches(
        "sources/kafka/__init__.py", "sources/messages/records.py", "spark/driver.py", "spark/epoch.py"
    ),
]


@pytest.fixture
def session(shop: Shop, spark_server: SparkServer) -> Iterator[SparkSession]:
    table = f"{APART}.{LETTERS}"
    with session_on(spark_server) as session:
        session.sql(f"DROP TABLE IF EXISTS {table}")
        session.sql(f"CREATE TABLE {table} ({DDL}) USING iceberg")
        yield session
        session.sql(f"DROP TABLE {table}")


def load(epoch: Epoch) -> None:
    epoch.source("purchases").writeTo(epoch.target(SHOPPING)).append()


def of(source: Kafka) -> Fragment:
    job = Job("load", "shopping_dag", outlets=(SHOPPING, LETTERS), externals=(source.declare(),))
    return Fragment("shopping", "shopping_dag", (job, *JOBS[1:]))


def purchases(topic: str, **settings: Any) -> Kafka:
    return Kafka(topic, name="purchases", schema="amount BIGINT, price BIGINT", **settings)


def written(shop: Shop, session: SparkSession, barrier: Barrier, generation: str = "g0", job: Any = load) -> set[str]:
    """Runs the job; returns its outlets that it changed."""
    ready = shop.begin(barrier, "load", generation)
    record = run_epoch(session, ready.spec, job)
    shop.close(ready, record)
    return {table for table, staged in record.staged.items() if not staged.unchanged}


def published(shop: Shop, barrier: Barrier) -> None:
    for job in ("amount", "price"):
        shop.process(barrier, job, [{"amount": 1, "price": 1}])
    shop.commit(barrier)


def test_the_rows_and_the_letters_of_an_epoch_are_published_together(
    shop: Shop, session: SparkSession, kafka: Broker
) -> None:
    shop = Shop(replace(shop.deployment, credentials=lambda *_: kafka.credentials))
    topic = kafka.topic()
    source = purchases(topic, dead_letters=LETTERS)
    kafka.send(
        topic,
        {"value": b'{"amount": 1, "price": 20}'},
        {"value": b'{"amount": "many"}', "key": b"k", "headers": [("from", b"till 7")]},
        {"value": None},
    )
    first = shop.open(5, of(source))
    kafka.send(topic, {"value": b'{"amount": 2, "price": 40}'})
    second = shop.open(6, of(source))

    ready = shop.begin(first, "load")
    run_epoch(session, ready.spec, load)  # an attempt whose task dies before it closes: nothing of it counts
    assert written(shop, session, first, "g1") == {SHOPPING, LETTERS}
    published(shop, first)
    assert written(shop, session, second) == {SHOPPING}, "an epoch without letters"
    published(shop, second)

    assert shop.main_totals()[SHOPPING] == 4 + 20 + 40
    found = shop.deployment.tables.load(LETTERS).scan().to_arrow().sort_by("offset").to_pylist()
    assert [(each["topic"], each["partition"], each["offset"]) for each in found] == [(topic, 0, 1), (topic, 0, 2)]
    assert found[0]["key"] == b"k"
    assert found[0]["value"] == b'{"amount": "many"}'
    assert found[0]["headers"] == [{"key": "from", "value": b"till 7"}]
    assert "expected amount BIGINT" in found[0]["reason"], "in words, without the value"
    assert found[1]["value"] is None


def test_without_a_table_a_record_fails_its_attempt_and_a_silent_outlet_is_no_letter(
    shop: Shop, session: SparkSession, kafka: Broker
) -> None:
    shop = Shop(replace(shop.deployment, credentials=lambda *_: kafka.credentials))
    topic = kafka.topic()
    kafka.send(topic, {"value": b"no JSON"})
    barrier = shop.open(5, of(purchases(topic)))
    with pytest.raises(SourceDataError, match=f"topic {topic}, partition 0, offset 0"):
        run_epoch(session, shop.begin(barrier, "load").spec, load)

    def write_none(epoch: Epoch) -> None:
        with pytest.raises(ConfigurationError, match="expected source purchases to have a table of dead letters"):
            epoch.dead_letters("purchases")
        epoch.unchanged(SHOPPING)

    with pytest.raises(SilentOutletError, match=f"expected output in {LETTERS}"):
        run_epoch(session, shop.begin(barrier, "load", "g1").spec, write_none)
