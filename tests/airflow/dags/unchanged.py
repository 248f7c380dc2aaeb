"""Operators that people have, around code that knows nothing of barriers: what goes well, and what is refused."""

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, task

from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.systems.spark_versions import runs_before

LOAD = Path(__file__).parents[1] / "jobs" / "unchanged_load.py"
CONF = json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}"))

IN_PROCESS = {"conn_id": "spark_default", "config_kwargs": CONF}
#: Jobs do not reach older Sparks by Spark Connect.
SERVER = IN_PROCESS if runs_before("4.0") else {"conn_id": "spark_connect_default"}


def spark_sql(task_id: str, sql: str) -> SparkSqlOperator:
    return SparkSqlOperator(task_id=task_id, sql=sql, conf=CONF, master="local[1]")


def on_connect(name: str, *statements: str):
    @task.pyspark(task_id=name, **SERVER)
    def run(spark):
        for statement in statements:
            spark.sql(statement).collect()

    return run()


@task.pyspark(**IN_PROCESS)
def copy(spark):
    frame = spark.table("in_airflow.unchanged.events")
    frame.writeTo("in_airflow.unchanged.copy").overwritePartitions()


with (
    DAG(
        "unchanged",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 2, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=1,
        default_args={"retries": 2, "retry_delay": timedelta(seconds=1)},
    ),
    BarrierGroup("unchanged") as barrier,
):
    barrier.job(
        SparkSubmitOperator(task_id="load", application=str(LOAD), application_args=["{{ ds }}"], conf=CONF),
        outlets=["unchanged.events"],
    )
    barrier.job(
        spark_sql(
            "total",
            "INSERT OVERWRITE in_airflow.unchanged.totals SELECT k, sum(n) FROM in_airflow.unchanged.events GROUP BY k",
        ),
        inlets=["unchanged.events"],
        outlets=["unchanged.totals"],
    )
    barrier.job(
        on_connect(
            "mirror",
            "MERGE INTO in_airflow.unchanged.mirror t USING in_airflow.unchanged.events s ON t.n = s.n "
            "WHEN NOT MATCHED THEN INSERT *",
        ),
        inlets=["unchanged.events"],
        outlets=["unchanged.mirror"],
    )
    barrier.job(copy(), inlets=["unchanged.events"], outlets=["unchanged.copy"])

with (
    DAG("refused", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc)),
    BarrierGroup("refused") as refused,
):
    refused.job(
        spark_sql("peeks", "INSERT INTO in_airflow.refused.peeked SELECT * FROM in_airflow.refused.secret"),
        outlets=["refused.peeked"],
    )
    refused.job(
        on_connect(
            "strays",
            "INSERT INTO in_airflow.refused.strayed VALUES (1, 1)",
            "INSERT INTO in_airflow.refused.secret VALUES (1, 1)",
        ),
        outlets=["refused.strayed"],
    )
    refused.job(on_connect("flat", "INSERT INTO in_airflow.refused.flat VALUES (1, 1)"), outlets=["refused.flat"])
    refused.job(on_connect("silent", "SELECT 1"), outlets=["refused.silent"])
