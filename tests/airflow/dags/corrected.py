"""A topology whose history a person corrects from the page."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "corrected",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 3, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("corrected") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["corrected.events"])
    barrier.job(RowsOperator(task_id="sum"), inlets=["corrected.events"], outlets=["corrected.totals"])
