"""A gate before the commit, so that a test can look at barriers that are PRECOMMIT."""

import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator


def is_open(day: str) -> bool:
    return (Path(os.environ["BARRIER_TEST_FOLDER"]) / f"gate-{day}").exists()


with DAG(
    "mending",
    schedule="@daily",
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    end_date=datetime(2025, 1, 3, tzinfo=timezone.utc),
    catchup=True,
    max_active_runs=1,
):
    gate = PythonSensor(task_id="gate", python_callable=is_open, op_args=["{{ ds }}"], poke_interval=0.5)
    with BarrierGroup("mending") as barrier:
        barrier.job(RowsOperator(task_id="load"), outlets=["mending.events"])
        total = barrier.job(RowsOperator(task_id="total"), inlets=["mending.events"], outlets=["mending.totals"])
    total >> gate >> barrier.commit
