"""Two sinks in one database: one gets changes by Spark Connect, the other what was appended by spark-submit."""

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.providers.openlineage.utils.selective_enable import enable_lineage
from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sinks.postgresql import PostgreSQLSink

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "delivering",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 3, tzinfo=timezone.utc),
        catchup=True,
        max_active_runs=3,  # those that wait for the first one leave it a place when it is cleared
    ) as dag,
    BarrierGroup("delivering") as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["delivering.events"])
    barrier.deliver("delivering.events", to=PostgreSQLSink("reporting", table="events"))
    barrier.deliver(
        "delivering.events",
        to=PostgreSQLSink("reporting", table="log"),
        rows="appends",
        via="submit",
        conf=json.loads(os.environ.get("BARRIER_TEST_SUBMIT_CONF", "{}")),
    )
enable_lineage(dag)  # once it has its tasks
