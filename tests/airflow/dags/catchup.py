"""Four days to catch up with, three runs at a time."""

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "catchup",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 4, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=3,
        # Airflow may fail a deferred task as it resumes (docs/facts.md), and this test defers more than any other
        default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
    ),
    BarrierGroup("catchup") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["catchup.events"])
