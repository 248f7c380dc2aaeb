"""A topology of two DAGs: one opens and commits, the other joins its barriers."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

DAYS = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 2, tzinfo=timezone.utc),
    "catchup": True,
}

with DAG("joined", **DAYS, max_active_runs=1), BarrierGroup("joined") as barrier:
    barrier.job(RowsOperator(task_id="load"), outlets=["joined.events"])

with DAG("joined_later", **DAYS), BarrierGroup("joined", member=True) as barrier:
    barrier.job(RowsOperator(task_id="mirror"), inlets=["joined.events"], outlets=["joined.mirror"])
