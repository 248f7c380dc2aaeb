"""A DAG of one run at a time, and one by which a person corrects its history."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.revise import ReviseOperator

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "narrow",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 3, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("narrow") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["narrow.events"])

with DAG("narrow_mend", schedule=None):
    ReviseOperator(task_id="mend", topology="narrow", first=2, last=2, reason="again")
