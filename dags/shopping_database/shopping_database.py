"""A shop's database in the lake: its orders, their items, and what each customer has spent, always of one moment.

    PostgreSQL's orders and items > orders, items > customers > another PostgreSQL

An order and its items are written in one transaction of the database, and come in one epoch. Nothing is written by hand
to keep a table like the database's: `jobs/orders.sql` and `jobs/items.sql` are a line each.
"""

import os
from datetime import datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.sources.postgresql import PostgreSQL

SHOP = PostgreSQL("shop", conn_id="shop", tables=["public.orders", "public.items"])


def job(name: str) -> SparkEpochOperator:
    return SparkEpochOperator(task_id=name, sql=f"jobs/{name}.sql")


with (
    DAG(
        "shopping_database",
        schedule=timedelta(seconds=20),
        start_date=datetime.fromisoformat(os.environ.get("SHOPPING_FROM", "2026-01-01T00:00:00+00:00")),
        end_date=datetime.fromisoformat(os.environ.get("SHOPPING_UNTIL", "2026-01-01T00:05:00+00:00")),
        catchup=True,
        max_active_runs=3,
        # a database that is away for half a minute is ridden out
        default_args={"retries": 8, "retry_delay": timedelta(seconds=5)},
        template_searchpath=[str(Path(__file__).parent)],
    ) as dag,
    BarrierGroup("shopping") as barrier,
):
    barrier.job(job("orders"), inlets=[SHOP], outlets=["shop.orders"])
    barrier.job(job("items"), inlets=[SHOP], outlets=["shop.items"])
    barrier.job(job("customers"), inlets=["shop.orders", "shop.items"], outlets=["shop.customers"])
    barrier.deliver(
        {"shop.orders": "orders", "shop.items": "items", "shop.customers": "customers"},
        to=PostgreSQLSink("reporting", name="reports"),
    )
