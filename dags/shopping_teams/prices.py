"""A team that reads the tills' table and another team's; its two jobs follow each other by an edge."""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "shopping_jobs"

with (
    DAG(
        "shopping_prices",
        schedule="@daily",
        start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
        end_date=datetime.fromisoformat(os.environ.get("SHOPPING_UNTIL", "2018-01-02T00:00:00+00:00")),
        catchup=True,
        max_active_runs=4,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
        template_searchpath=[str(Path(__file__).parents[1])],
    ) as dag,
    BarrierGroup("shopping", member=True) as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="price", sql="shopping_jobs/price.sql"),
        inlets=["shop.shopping"],
        outlets=["shop.user_item_price"],
    )
    barrier.job(
        SparkEpochOperator(task_id="avg_price", application=str(JOBS / "avg_price.py")),
        inlets=["shop.user_item_amount", "shop.user_item_price"],
        outlets=["shop.user_item_avg_price"],
    )
