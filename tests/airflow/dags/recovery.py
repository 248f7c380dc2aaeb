"""Two jobs behind one; a test makes one of them fail. Another DAG waits for what they do."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sensors.barrier import BarrierSensor

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

DAYS = {
    "schedule": "@daily",
    "start_date": datetime(2025, 1, 1, tzinfo=timezone.utc),
    "end_date": datetime(2025, 1, 4, tzinfo=timezone.utc),
    "catchup": True,
    "max_active_runs": 4,
}


with DAG("recovery", **DAYS), BarrierGroup("recovery") as barrier:
    barrier.job(RowsOperator(task_id="load"), outlets=["recovery.events"])
    barrier.job(RowsOperator(task_id="mirror"), inlets=["recovery.events"], outlets=["recovery.mirror"])
    barrier.job(RowsOperator(task_id="total"), inlets=["recovery.events"], outlets=["recovery.totals"])

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
