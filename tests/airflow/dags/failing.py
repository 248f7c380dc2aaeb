"""Sensors whose connection is not there yet, and the barrier that they wait for."""

from datetime import datetime, timezone

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sensors.barrier import BarrierSensor

DAY = datetime(2025, 1, 1, tzinfo=timezone.utc)

with (
    DAG("failing", schedule="@daily", start_date=DAY, end_date=DAY, catchup=True),
    BarrierGroup("failing", poll_interval=0.5) as barrier,
):
    barrier.job(
        SparkEpochOperator(task_id="load", sql="INSERT INTO {target:failing.events} VALUES (1, 1)"),
        sinks=["failing.events"],
    )

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
