"""The shopping topology with events coming in and going out: purchases from a topic, averages to another one.

    topic purchases > shopping > ... as in `shopping.py` ... > user_item_avg_price > topic averages, PostgreSQL, files

The jobs are those of `shopping.py`, which know of neither. Every half minute a barrier takes what was committed to the
topic since the last one; records that are no lines go to a table of their own. Each sink gets a barrier in one
transaction of its own, and none waits for another.
"""

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG
from shopping_jobs.landing import PRODUCTS, SHOPPING

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.sources.kafka import Kafka

JOBS = Path(__file__).parents[1] / "shopping_jobs"
GARBLED = "shop.garbled_lines"
AVERAGES = "shop.user_item_avg_price"
KEY = ["userId", "itemId"]
#: Where there is no PostgreSQL, the topic and the files have to do.
HAS_DATABASE = "AIRFLOW_CONN_REPORTING" in os.environ


def job(name: str) -> SparkEpochOperator:
    return SparkEpochOperator(task_id=name, application=str(JOBS / f"{name}.py"))


with (
    DAG(
        "shopping_streams",
        schedule=timedelta(seconds=30),
        start_date=datetime.fromisoformat(os.environ.get("STREAMS_FROM", "2026-01-01T00:00:00+00:00")),
        end_date=datetime.fromisoformat(os.environ.get("STREAMS_UNTIL", "2026-01-01T00:05:00+00:00")),
        catchup=True,
        max_active_runs=3,
        # a broker or a database that is away for some seconds is ridden out
        default_args={"retries": 8, "retry_delay": timedelta(seconds=5)},
        template_searchpath=[str(JOBS.parent)],
    ) as dag,
    BarrierGroup("shopping") as barrier,
):
    barrier.job(
        job("load"),
        inlets=[Kafka("purchases", name="shopping", schema=SHOPPING.schema, dead_letters=GARBLED)],
        outlets=["shop.shopping", GARBLED],
    )
    barrier.job(job("products"), inlets=[PRODUCTS], outlets=["shop.products"])
    barrier.job(job("amount"), inlets=["shop.shopping"], outlets=["shop.user_item_amount"])
    barrier.job(
        SparkEpochOperator(task_id="price", sql="shopping_jobs/price.sql"),
        inlets=["shop.shopping"],
        outlets=["shop.user_item_price"],
    )
    barrier.job(job("category_spend"), inlets=["shop.shopping", "shop.products"], outlets=["shop.user_category_spend"])
    barrier.job(
        job("avg_price"),
        inlets=["shop.user_item_amount", "shop.user_item_price"],
        outlets=[AVERAGES],
    )
    barrier.deliver(AVERAGES, to=KafkaSink("averages", key=KEY))
    barrier.deliver(
        {AVERAGES: "averages"},
        to=FileSink(os.environ.get("STREAMS_FILES", "/data/averages"), name="files", key=KEY),
    )
    if HAS_DATABASE:
        barrier.deliver(
            {"shop.user_item_amount": "amounts", "shop.user_item_price": "prices", AVERAGES: "averages"},
            to=PostgreSQLSink("reporting", name="reports"),
        )
