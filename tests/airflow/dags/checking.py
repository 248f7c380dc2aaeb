"""A barrier that is looked at before it is committed."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "checking",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 2, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=3,
    ),
    BarrierGroup("checking") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["checking.events"])
    barrier.check("no negative counts", sql="SELECT * FROM in_airflow.checking.events WHERE n < 0")
