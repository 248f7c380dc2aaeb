"""Runs for each barrier that `shop.shopping` has reached."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.processed import processed_asset

JOBS = Path(__file__).parents[1] / "shopping_jobs"

with (
    DAG(
        "shopping_assets_amounts",
        schedule=PartitionedAssetTimetable(assets=processed_asset("shopping", "shop.shopping")),
        start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
        catchup=False,
        max_active_runs=4,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    ) as dag,
    BarrierGroup("shopping", member=True, announce_processed=True) as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="amount", application=str(JOBS / "amount.py")),
        inlets=["shop.shopping"],
        outlets=["shop.user_item_amount"],
    )
