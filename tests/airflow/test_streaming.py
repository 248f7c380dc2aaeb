"""A topic in and a topic out, by tasks: each record once, and no password where anybody could read it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from tests.support.airflow import LONG
from tests.support.counting import Counting
from tests.support.kafka import PASSWORD, USER, Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "streaming"
START = datetime(2025, 1, 1, tzinfo=timezone.utc)


def _send(kafka: Kafka, day: int, *numbers: int) -> None:
    """At noon before the barrier of that number, whose time is a midnight."""
    at = int((START + timedelta(days=day - 1.5)).timestamp() * 1000)
    kafka.send("numbers", *({"value": json.dumps({"k": 1, "n": each}).encode(), "timestamp": at} for each in numbers))


@pytest.mark.timeout(LONG)
@pytest.mark.drawn("stories of Airflow")
@pytest.mark.touches(
    "sources/kafka/__init__.py", "sources/kafka/cuts.py", "spark/spec.py", "spark/submit.py", "sinks/kafka/__init__.py"
)
def test_a_topic_in_and_a_topic_out(counting: Counting, spark: SparkSession, kafka: Kafka) -> None:
    airflow = counting.airflow
    counting.create_by(spark, "events", "copies")
    for topic in ("numbers", "totals"):
        kafka.create_topic(topic, 2)
    kafka.allow(USER, AclOperation.READ, "numbers")
    for operation in (AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS):
        kafka.allow(USER, operation, "totals")
    kafka.allow(USER, AclOperation.ALL, "airflow_barrier_ledger")
    kafka.allow(USER, AclOperation.ALL, "airflow_barrier.", ResourceType.TRANSACTIONAL_ID, prefix=True)
    _send(kafka, 1, *range(10))
    _send(kafka, 2, *range(10, 15))
    _send(kafka, 3, *range(15, 30))
    airflow.unpause("streaming")
    runs = airflow.wait_for_runs("streaming", 3)
    for table in ("events", "copies"):
        assert counting.totals(table) == [sum(range(10)), sum(range(15)), sum(range(30))]
    delivered = [json.loads(record.value()) for record in kafka.records("totals")]
    assert sorted(row["n"] for row in delivered) == list(range(30))
    for run in runs:
        for task in ("start", "load", "copy", "deliver_totals"):
            assert PASSWORD not in airflow.log("streaming", run, counting.task(task))
