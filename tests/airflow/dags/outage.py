"""Six days to catch up with, after an outage: one driver may work off several of them."""

import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parents[1] / "jobs"
sys.path.append(str(JOBS))

from counting import total_sql  # noqa: E402

SUBMIT_CONF = json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}"))

with (
    DAG(
        "outage",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 6, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=6,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
    ),
    BarrierGroup("outage") as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="load", via="submit", application=str(JOBS / "outage.py"), conf=SUBMIT_CONF),
        outlets=["outage.events"],
        batch_barriers=6,
    )
    barrier.job(
        SparkEpochOperator(task_id="total", sql=total_sql("outage")),
        inlets=["outage.events"],
        outlets=["outage.totals"],
        batch_barriers=6,
    )
