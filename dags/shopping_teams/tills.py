"""The tills' team: its DAG opens and commits the topology's barriers, and knows of no other team.

The same jobs and tables as in `shopping.py`, in DAGs that meet only through the barrier: no edges and no sensors
between them. Run either these or that one. Each DAG could stand in a repository of its own.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG
from shopping_jobs.landing import SHOPPING

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "shopping_jobs"

with (
    DAG(
        "shopping_tills",
        schedule="@daily",
        start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
        end_date=datetime.fromisoformat(os.environ.get("SHOPPING_UNTIL", "2018-01-02T00:00:00+00:00")),
        catchup=True,
        max_active_runs=1,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
    ) as dag,
    BarrierGroup("shopping") as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="load", application=str(JOBS / "load.py")),
        inlets=[SHOPPING],
        outlets=["shop.shopping"],
    )
