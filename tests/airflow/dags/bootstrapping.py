"""A schedule that is running, and the DAG of a job that is to have a history. The last day comes as a test says."""

import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

FIRST, DEPLOYED, LAST = (datetime(2025, 1, day, tzinfo=timezone.utc) for day in (1, 3, 4))
DAYS = {"schedule": "@daily", "end_date": LAST, "catchup": True, "max_active_runs": 3}


def has_come(day: str) -> bool:
    return day < f"{LAST:%Y-%m-%d}" or (Path(os.environ["BARRIER_TEST_FOLDER"]) / "bootstrapping-last-day").exists()


with DAG("bootstrapping", start_date=FIRST, **DAYS):
    come = PythonSensor(task_id="come", python_callable=has_come, op_args=["{{ ds }}"], poke_interval=0.5)
    with BarrierGroup("bootstrapping") as barrier:
        barrier.job(RowsOperator(task_id="load"), outlets=["bootstrapping.events"])
    come >> barrier

with (
    DAG("bootstrapping_late", start_date=DEPLOYED, **DAYS),
    BarrierGroup("bootstrapping", member=True) as barrier,
):
    barrier.job(
        RowsOperator(task_id="total"),
        inlets=["bootstrapping.events"],
        outlets=["bootstrapping.totals"],
        start_from="history",
    )
