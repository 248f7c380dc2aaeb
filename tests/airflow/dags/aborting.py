"""A barrier that nobody waits for once a job has failed."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "aborting",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 2, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("aborting", on_failure="abort") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["aborting.events"])
