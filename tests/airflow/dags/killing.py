"""The same endless work, handed to Spark in both ways, and one task of `SparkSubmitOperator` that ends well."""

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "jobs"
sys.path.append(str(JOBS))

from counting import total_sql  # noqa: E402

SUBMIT_CONF = json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}"))
DAY = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "catchup": True,
}


def submit(task_id: str, file: str) -> SparkSubmitOperator:
    application = str(JOBS / file)
    return SparkSubmitOperator(task_id=task_id, application=application, conf=SUBMIT_CONF, name="{{ task.task_id }}")


with DAG("killing", **DAY), BarrierGroup("killing") as barrier:
    barrier.job(
        SparkEpochOperator(task_id="on_connect", application=str(JOBS / "endless_on_connect.py")),
        outlets=["killing.connected"],
    )
    barrier.job(submit("by_submit", "endless_by_submit.py"), outlets=["killing.submitted"])

with DAG("submitted", schedule=None), BarrierGroup("submitted") as barrier:
    barrier.job(submit("load", "submitted.py"), outlets=["submitted.events"])
    barrier.job(
        SparkEpochOperator(task_id="total", via="submit", sql=total_sql("submitted"), conf=SUBMIT_CONF),
        inlets=["submitted.events"],
        outlets=["submitted.totals"],
    )
