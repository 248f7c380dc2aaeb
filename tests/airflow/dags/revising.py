"""A topology of two DAGs whose history a person corrects."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

DAYS = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 5, tzinfo=timezone.utc),
    "catchup": True,
    "max_active_runs": 3,
}

with DAG("revising", **DAYS), BarrierGroup("revising") as barrier:
    barrier.job(RowsOperator(task_id="load"), outlets=["revising.events"])
    barrier.job(RowsOperator(task_id="total"), inlets=["revising.events"], outlets=["revising.totals"])
enable_lineage(barrier.commit)

with DAG("revising_member", **DAYS), BarrierGroup("revising", member=True) as barrier:
    barrier.job(RowsOperator(task_id="mirror"), inlets=["revising.events"], outlets=["revising.mirror"])
