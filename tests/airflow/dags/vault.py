"""A deployment whose passwords must not be seen: Spark work of both kinds, and connections that do not work."""

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from airflow.sdk import DAG, BaseHook, BaseOperator

from airflow_barrier.operators._binding import SparkWork
from airflow_barrier.operators.commit import AbortBarrierOperator
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sensors.barrier import BarrierSensor

JOBS = Path(__file__).parents[1] / "jobs"
SUBMIT_CONF = json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}"))
START = datetime(2025, 1, 1, tzinfo=timezone.utc)

with (
    DAG("vault", schedule=None, start_date=START),
    BarrierGroup("vault", barrier_conn_id="vault") as barrier,
):
    barrier.job(
        SparkEpochOperator(
            task_id="load",
            via="submit",
            spark_conn_id="vault_submit",
            application=str(JOBS / "vault.py"),
            conf={**SUBMIT_CONF, "spark.ui.enabled": "true"},
        ),
        outlets=["vault.events"],
    )
    barrier.job(
        SparkEpochOperator(
            task_id="total",
            spark_conn_id="vault_connect",
            sql="INSERT INTO {target:vault.totals} SELECT k, sum(n * _weight) FROM {changes:vault.events} GROUP BY k",
        ),
        inlets=["vault.events"],
        outlets=["vault.totals"],
    )


class Telling(BaseOperator):
    """A job whose error quotes what it has fetched."""

    def epoch_work(self, context: object) -> SparkWork:
        return SparkWork(run=_tell, stop=lambda: None)


def _tell(ready: object) -> NoReturn:
    password = BaseHook.get_connection("vault_submit").password
    raise RuntimeError(f"jdbc:postgresql://db/dwh?user=dwh&password={password}: no entry for dwh and {password}")


with (
    DAG("vault_tells", schedule=None, start_date=START),
    BarrierGroup("vault_tells", barrier_conn_id="vault") as tells,
):
    tells.job(Telling(task_id="tell"), outlets=["vault.told"])

with DAG("vault_errors", schedule=None, start_date=START):
    BarrierSensor(
        task_id="wrong_password", topology="vault", barrier_conn_id="vault_wrong_password", barrier_id=1, patience=0
    )
    BarrierSensor(task_id="wrong_host", topology="vault", barrier_conn_id="vault_wrong_host", barrier_id=1, patience=0)
    AbortBarrierOperator(task_id="wrong_database", topology="vault", barrier_conn_id="vault_wrong_database")
