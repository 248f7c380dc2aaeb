"""Sensors whose connection is not there yet, and the barrier that they wait for."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sensors.barrier import BarrierSensor

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

DAY = datetime(2025, 1, 1, tzinfo=timezone.utc)

with (
    DAG("failing", schedule="@daily", start_date=DAY, end_date=DAY, catchup=True),
    BarrierGroup("failing") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["failing.events"])

with DAG("failing_reader", schedule=None):
    for name, deferrable in (("pokes", False), ("deferred", True)):
        BarrierSensor(
            task_id=name,
            topology="failing",
            barrier_id=1,
            barrier_conn_id="failing",
            deferrable=deferrable,
            poke_interval=0.5,
        )
