"""A topology of two DAGs: one opens and commits, the other joins its barriers."""

from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = str(Path(__file__).parents[1] / "jobs" / "joined.py")
DAYS = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 2, tzinfo=timezone.utc),
    "catchup": True,
}

with DAG("joined", **DAYS, max_active_runs=1), BarrierGroup("joined", poll_interval=0.5) as barrier:
    barrier.job(SparkEpochOperator(task_id="load", application=JOBS, job="load"), sinks=["joined.events"])

with DAG("joined_later", **DAYS), BarrierGroup("joined", member=True, poll_interval=0.5) as barrier:
    barrier.job(
        SparkEpochOperator(task_id="mirror", application=JOBS, job="mirror"),
        sources=["joined.events"],
        sinks=["joined.mirror"],
    )
