"""A grocery chain's purchases: two root tables, four on top of them, one barrier a day.

    landing/shopping > shopping > user_item_amount > user_item_avg_price
                                > user_item_price  >
    landing/products > products > user_category_spend (and from shopping)

Edges between tasks follow from inlets and outlets. Each job is a file of its own in `shopping_jobs/`, and could as well
stand in another team's DAG with `BarrierGroup("shopping", member=True)`.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG
from shopping_jobs.landing import PRODUCTS, SHOPPING

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parent / "shopping_jobs"
#: How jobs reach Spark: `connect` or `submit`.
VIA = os.environ.get("SHOPPING_VIA", "connect")


def job(name: str) -> SparkEpochOperator:
    return SparkEpochOperator(task_id=name, application=str(JOBS / f"{name}.py"))


with (
    DAG(
        "shopping",
        schedule="@daily",
        start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
        end_date=datetime.fromisoformat(os.environ.get("SHOPPING_UNTIL", "2018-01-02T00:00:00+00:00")),
        catchup=True,
        max_active_runs=4,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=5), "via": VIA},
    ),
    BarrierGroup("shopping") as barrier,
):
    barrier.job(job("load"), inlets=[SHOPPING], outlets=["shop.shopping"])
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
        outlets=["shop.user_item_avg_price"],
    )
