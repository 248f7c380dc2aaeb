"""The catalogue's team: a root table of its own, from files of its own."""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG
from shopping_jobs.landing import PRODUCTS

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "shopping_jobs"

with (
    DAG(
        "shopping_catalogue",
        schedule="@daily",
        start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
        end_date=datetime.fromisoformat(os.environ.get("SHOPPING_UNTIL", "2018-01-02T00:00:00+00:00")),
        catchup=True,
        max_active_runs=4,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    ) as dag,
    BarrierGroup("shopping", member=True) as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="products", application=str(JOBS / "products.py")),
        inlets=[PRODUCTS],
        outlets=["shop.products"],
    )
