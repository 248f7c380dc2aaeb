"""Runs for each barrier that both of its inlets, of two other DAGs, have reached."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.processed import processed_asset

JOBS = Path(__file__).parents[1] / "shopping_jobs"

with (
    DAG(
        "shopping_assets_averages",
        schedule=PartitionedAssetTimetable(
            assets=processed_asset("shopping", "shop.user_item_amount")
            & processed_asset("shopping", "shop.user_item_price")
        ),
        start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
        catchup=False,
        max_active_runs=4,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    ) as dag,
    BarrierGroup("shopping", member=True, announce_processed=True) as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="avg_price", application=str(JOBS / "avg_price.py")),
        inlets=["shop.user_item_amount", "shop.user_item_price"],
        outlets=["shop.user_item_avg_price"],
    )
