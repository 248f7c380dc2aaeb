"""Two jobs behind one; a test makes one of them fail. Another DAG waits for what they do."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sensors.barrier import BarrierSensor

JOBS = Path(__file__).parents[1] / "jobs"
sys.path.append(str(JOBS))

from counting import total_sql  # noqa: E402

DAYS = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 4, tzinfo=timezone.utc),
    "catchup": True,
    "max_active_runs": 4,
}


def job(name: str) -> SparkEpochOperator:
    return SparkEpochOperator(task_id=name, application=str(JOBS / "recovery.py"), job=name)


with DAG("recovery", **DAYS), BarrierGroup("recovery", poll_interval=0.5) as barrier:
    barrier.job(job("load"), sinks=["recovery.events"])
    barrier.job(job("mirror"), sources=["recovery.events"], sinks=["recovery.mirror"])
    barrier.job(
        SparkEpochOperator(task_id="total", sql=total_sql("recovery")),
        sources=["recovery.events"],
        sinks=["recovery.totals"],
    )

with DAG("recovery_reader", **{**DAYS, "start_date": DAYS["end_date"]}):
    BarrierSensor(
        task_id="mirrored",
        topology="recovery",
        tables=["recovery.mirror"],
        target="PROCESSED",
        deferrable=True,
        poke_interval=0.5,
    )
    committed = BarrierSensor(task_id="committed", topology="recovery", deferrable=True, poke_interval=0.5)
    # asks from a worker, about a barrier that it names
    committed >> BarrierSensor(
        task_id="precommitted", topology="recovery", target="PRECOMMIT", barrier_id="1", deferrable=False
    )
