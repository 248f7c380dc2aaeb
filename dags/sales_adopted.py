"""After: the same two jobs, their files untouched, as one barrier a day. Compare with `sales_existing.py`."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

JOBS = Path(__file__).parent / "existing"

dag = DAG(
    "sales_adopted",
    schedule="@daily",
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
)

with dag, BarrierGroup("sales") as barrier:
    orders = SparkSubmitOperator(
        task_id="orders",
        application=str(JOBS / "orders.py"),
        application_args=["{{ ds }}"],
    )
    revenue = SparkSqlOperator(
        task_id="revenue",
        sql="existing/revenue.sql",
    )
    barrier.job(orders, outlets=["sales.orders"])
    barrier.job(revenue, inlets=["sales.orders"], outlets=["sales.revenue"], start_from="latest")
