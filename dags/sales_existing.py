"""Before: two jobs of a team that has never heard of barriers, on tables that others read."""

from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

JOBS = Path(__file__).parent / "existing"

dag = DAG(
    "sales_existing",
    schedule="@daily",
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=4,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
)

with dag:
    orders = SparkSubmitOperator(
        task_id="orders",
        application=str(JOBS / "orders.py"),
        application_args=["{{ ds }}"],
    )
    revenue = SparkSqlOperator(
        task_id="revenue",
        sql="existing/revenue.sql",
    )
    orders >> revenue
