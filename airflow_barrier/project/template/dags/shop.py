"""Two jobs and one barrier a run: how much was bought of each item, and what was paid for it.

Who divides one table by the other needs both as of the same moment. That is what the barrier is for: readers have all
of its tables or none.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.compact import CompactTablesOperator
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sources.files import Files
from airflow_barrier.tables import Table

DAGS = Path(__file__).parent

# Each file that lands here is in one barrier exactly. Write it elsewhere and move it in.
PURCHASES = Files(
    str(DAGS.parent / "data" / "purchases"),
    format="json",
    schema="itemId BIGINT, amount BIGINT, price DECIMAL(12, 2)",
)
# Tables are made by the first barrier.
AMOUNT = Table("shop.amount", "itemId BIGINT, amount BIGINT")
PRICE = Table("shop.price", "itemId BIGINT, price DECIMAL(18, 2)")

with (
    # Runs begin when somebody triggers them. By the clock: schedule="@hourly", and a start_date.
    DAG("shop", schedule=None, default_args={"retries": 2, "retry_delay": timedelta(seconds=5)}) as dag,
    BarrierGroup("shop") as barrier,  # start >> jobs >> commit
):
    amount = SparkEpochOperator(task_id="amount", application=str(DAGS / "jobs" / "amount.py"))
    barrier.job(amount, inlets=[PURCHASES], outlets=[AMOUNT])

    price = SparkEpochOperator(task_id="price", sql="jobs/price.sql")
    barrier.job(price, inlets=[PURCHASES], outlets=[PRICE])

# Afterwards, when readers have the barrier: tables in so many small files that reading takes longer are rewritten.
barrier >> CompactTablesOperator(task_id="compact", topology="shop", dag=dag)
