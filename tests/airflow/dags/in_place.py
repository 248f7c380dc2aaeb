"""Jobs that complete their barrier commit it: nothing but them stands before the commit task."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "jobs"
sys.path.append(str(JOBS))

from counting import total_sql  # noqa: E402

with (
    DAG(
        "in_place",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 3, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("in_place", poll_interval=0.5) as barrier,
):
    barrier.job(SparkEpochOperator(task_id="load", application=str(JOBS / "in_place.py")), sinks=["in_place.events"])
    barrier.job(
        SparkEpochOperator(task_id="total", sql=total_sql("in_place")),
        sources=["in_place.events"],
        sinks=["in_place.totals"],
    )
