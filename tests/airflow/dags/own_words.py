"""DAGs whose tasks say themselves, in Airflow's words, what they read and write: only the group is new to them."""

import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.sdk import DAG, Asset, task

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

CONF = json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}"))
EVENTS, COPY = Asset("barrier://own_words/own_words.events"), Asset("barrier://own_words/own_words.copy")
DAYS = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 2, tzinfo=timezone.utc),
    "catchup": True,
    "default_args": {"retries": 2, "retry_delay": timedelta(seconds=1)},
}


def by_spark(task_id: str, sql: str, **words: object) -> SparkSqlOperator:
    return SparkSqlOperator(task_id=task_id, sql=sql, conf=CONF, master="local[1]", **words)


def doubled(number: int) -> int:
    return 2 * number


@task.barrier(inlets=["own_words.events"], outlets=["own_words.totals"])
def total(epoch, times: int):
    from counting import obey
    from pyspark.sql.functions import expr, lit, udf

    obey("own_words", "total", epoch.barrier_id)
    twice = udf(doubled, "BIGINT")  # which runs in a worker of Spark's, without this file
    events = epoch.read("own_words.events").groupBy("k").agg(expr(f"sum(n) * {times} AS n"))
    events.withColumn("n", twice("n")).writeTo(epoch.target("own_words.totals")).overwrite(lit(True))


@task.barrier_sql
def mirror(table: str):
    return f"INSERT INTO {{target:own_words.mirror}} SELECT k, n FROM {{appends:{table}}}"


with DAG("own_words", **DAYS, max_active_runs=1), BarrierGroup("own_words") as barrier:
    by_spark(
        "load",
        "INSERT INTO in_airflow.own_words.events VALUES (1, {{ 10 ** (data_interval_start.day - 1) }})",
        outlets=[EVENTS],
    )
    total(3)
    mirror("own_words.events")

with DAG("own_words_later", **DAYS), BarrierGroup("own_words", member=True):
    by_spark(
        "copy",
        "INSERT OVERWRITE in_airflow.own_words.copy SELECT * FROM in_airflow.own_words.events",
        inlets=[EVENTS],
        outlets=[COPY],
    )
