"""A topology that somebody looks at in Airflow's UI while its second barrier is held up."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "paged",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 2, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("paged") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["paged.events"])
    barrier.job(RowsOperator(task_id="sum"), inlets=["paged.events"], outlets=["paged.totals"])
