"""A file a day from the tills, two tables made of it, and a sink whose declaration changes as a test says."""

import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.standard.sensors.python import PythonSensor
from airflow.sdk import DAG

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.sources.files import Files

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

FOLDER = Path(os.environ.get("BARRIER_TEST_FOLDER", "/nowhere"))
LANDING = FOLDER / "tills"
SALES = Files(str(LANDING), format="csv", schema="k INT, n BIGINT", attribute_by="path", path_date="date=%Y-%m-%d")
NARROW = {"tills.sales": "sales"}
WIDE = {"tills.sales": "sold", "tills.totals": "totals"}


def has_landed(day: str) -> bool:
    return (LANDING / f"date={day}").exists()


with DAG(
    "tills",
    schedule="@daily",
    start_date=datetime(2025, 1, 2, tzinfo=timezone.utc),
    end_date=datetime(2025, 1, 5, tzinfo=timezone.utc),
    catchup=True,
    max_active_runs=4,  # days that wait for their file leave a place for one that is cleared
):
    landed = PythonSensor(
        task_id="landed",
        python_callable=has_landed,
        op_args=["{{ macros.ds_add(ds, -1) }}"],
        poke_interval=0.5,
    )
    with BarrierGroup("tills") as barrier:
        barrier.job(
            SparkEpochOperator(task_id="load", sql="INSERT INTO {target:tills.sales} SELECT k, n FROM {source:tills}"),
            inlets=[SALES],
            outlets=["tills.sales"],
        )
        barrier.job(RowsOperator(task_id="total"), inlets=["tills.sales"], outlets=["tills.totals"])
        barrier.deliver(
            WIDE if (FOLDER / "tills-wide").exists() else NARROW,
            to=PostgreSQLSink("reporting", name="shop"),
        )
    landed >> barrier
