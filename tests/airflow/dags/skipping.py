"""A day on which a job is skipped, or the whole group is, under both values of ``on_failure``."""

import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.standard.operators.python import ShortCircuitOperator
from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator


def gate(name: str) -> ShortCircuitOperator:
    """Lets pass once a person has put a file there."""
    opened = Path(os.environ.get("BARRIER_TEST_FOLDER", ""), f"open-{name}")
    return ShortCircuitOperator(
        task_id="gate", python_callable=opened.exists, ignore_downstream_trigger_rules=False, default_args={}
    )


for name, on_failure in (("skipping", "block"), ("skipping_abort", "abort"), ("skipping_all", "block")):
    with DAG(
        name,
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        catchup=True,
    ):
        with BarrierGroup(name, on_failure=on_failure) as barrier:
            load = barrier.job(RowsOperator(task_id="load"), outlets=[f"{name}.events"])
            extra = barrier.job(RowsOperator(task_id="extra"), outlets=[f"{name}.extra"])
        gate(name) >> (barrier.start if name == "skipping_all" else extra)
