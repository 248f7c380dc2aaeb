"""Jobs that complete their barrier commit it: nothing but them stands before the commit task."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "in_place",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 3, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("in_place") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["in_place.events"])
    barrier.job(RowsOperator(task_id="total"), inlets=["in_place.events"], outlets=["in_place.totals"])
