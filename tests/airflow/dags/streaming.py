"""From a topic into two tables, by Spark Connect and by spark-submit, and from one of them into a topic."""

import json
import os
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sources.kafka import Kafka

JOB = str(Path(__file__).parents[1] / "jobs" / "streaming.py")
SUBMIT_CONF = json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}"))
NUMBERS = Kafka("numbers", schema="k INT, n BIGINT", attribute_by="timestamp")

with (
    DAG(
        "streaming",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 3, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("streaming") as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="load", application=JOB, job="load"), inlets=[NUMBERS], outlets=["streaming.events"]
    )
    barrier.job(
        SparkEpochOperator(task_id="copy", application=JOB, via="submit", conf=SUBMIT_CONF),
        inlets=[NUMBERS],
        outlets=["streaming.copies"],
    )
    barrier.deliver("streaming.events", to=KafkaSink("totals", key=["k", "n"]))
