"""Tasks whose worker dies: one while its driver works, one in the middle of publishing."""

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "jobs"
SUBMIT_CONF = json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}"))
OPTIONS = {
    "schedule": None,
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "default_args": {"retries": 1, "retry_delay": timedelta(seconds=1)},
}


def group(name: str) -> BarrierGroup:
    return BarrierGroup(name, barrier_conn_id="crashes")


with DAG("crashes", **OPTIONS), group("crashes") as barrier:
    barrier.job(
        SparkSubmitOperator(task_id="load", application=str(JOBS / "crashes.py"), conf=SUBMIT_CONF),
        outlets=["crashes.events", "crashes.mirror"],
    )

with DAG("crashing_commit", **OPTIONS), group("crashing_commit") as barrier:
    load = barrier.job(
        SparkEpochOperator(task_id="load", application=str(JOBS / "crashing_commit.py")),
        outlets=["crashing_commit.events", "crashing_commit.mirror"],
    )
    # keeps the commit in its task, so that a test can kill that
    load >> EmptyOperator(task_id="check") >> barrier.commit
