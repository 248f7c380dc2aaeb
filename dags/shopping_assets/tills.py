"""The root jobs: their DAG runs by the clock, opens and commits, and says of each table when a barrier has it.

The same jobs and tables as in `shopping.py`, spread by assets: every other DAG runs once for each barrier, as soon as
its inlets are there, with the barrier as its partition. Nothing waits for anything. Run either these or that one.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG
from shopping_jobs.landing import PRODUCTS, SHOPPING

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "shopping_jobs"

with (
    DAG(
        "shopping_by_assets",
        schedule="@daily",
        start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
        end_date=datetime.fromisoformat(os.environ.get("SHOPPING_UNTIL", "2018-01-02T00:00:00+00:00")),
        catchup=True,
        max_active_runs=1,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    ) as dag,
    BarrierGroup("shopping", announce_processed=True) as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="load", application=str(JOBS / "load.py")),
        inlets=[SHOPPING],
        outlets=["shop.shopping"],
    )
    barrier.job(
        SparkEpochOperator(task_id="products", application=str(JOBS / "products.py")),
        inlets=[PRODUCTS],
        outlets=["shop.products"],
    )
