"""A DAG that a person tries by `airflow dags test`, which is `dag.test()`, while its first day is at work."""

import sys
from datetime import datetime, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sinks.postgresql import PostgreSQLSink

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with (
    DAG(
        "by_hand",
        schedule="@daily",
        # a day of the schedule, and hours for a person
        start_date=datetime(2024, 12, 31, 12, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 1, 18, tzinfo=timezone.utc),
        catchup=True,
    ),
    BarrierGroup("by_hand", open_manual_runs=True) as barrier,
):
    barrier.job(RowsOperator(task_id="load"), outlets=["by_hand.events"])
    barrier.job(RowsOperator(task_id="total"), inlets=["by_hand.events"], outlets=["by_hand.totals"])
    barrier.deliver("by_hand.totals", to=PostgreSQLSink("reporting", table="by_hand"))
