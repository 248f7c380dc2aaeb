"""A topology of two DAGs: one opens and commits, the other joins its barriers. Their tables are made as they run."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.tables import Table

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

EVENTS, MIRROR = (Table(f"joined.{table}", "k INT, n BIGINT") for table in ("events", "mirror"))
DAYS = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 2, tzinfo=timezone.utc),
    "catchup": True,
}

with DAG("joined", **DAYS, max_active_runs=1), BarrierGroup("joined") as barrier:
    barrier.job(RowsOperator(task_id="load"), outlets=[EVENTS])

with DAG("joined_later", **DAYS), BarrierGroup("joined", member=True) as barrier:
    barrier.job(RowsOperator(task_id="mirror"), inlets=[EVENTS], outlets=[MIRROR])
