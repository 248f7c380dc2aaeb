"""Three of the topology's tables in a database outside the lake, for people who join them there.

Another team's DAG: nothing in `shopping.py` knows of it. Each barrier that is committed starts a run, which delivers
all three tables in one transaction. So who joins them in the database never sees two barriers.
"""

import os
from datetime import datetime, timedelta, timezone

from airflow import __version__
from airflow.sdk import DAG

from airflow_barrier.operators.commit import table_asset
from airflow_barrier.operators.deliver import DeliverOperator
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.postgresql import PostgreSQLSink

AVERAGES = table_asset("shopping", "shop.user_item_avg_price")
if __version__.startswith(("3.1.", "3.2.")):  # whose events name no barrier
    SCHEDULE = [AVERAGES]
else:
    from airflow.sdk import PartitionedAssetTimetable

    SCHEDULE = PartitionedAssetTimetable(assets=AVERAGES)

TABLES = {
    "shop.user_item_amount": "amounts",
    "shop.user_item_price": "prices",
    "shop.user_item_avg_price": "averages",
}
#: Where there is no PostgreSQL, files in this folder will do.
FOLDER = os.environ.get("SHOPPING_REPORTS")

with DAG(
    "shopping_reporting",
    schedule=SCHEDULE,
    start_date=datetime(2017, 1, 2, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=5)},
) as dag:
    DeliverOperator(
        task_id="deliver",
        topology="shopping",
        tables=TABLES,
        via=os.environ.get("SHOPPING_VIA", "connect"),
        to=(
            FileSink(FOLDER, name="reports", key=["userId", "itemId"])
            if FOLDER
            else PostgreSQLSink("reporting", name="reports")
        ),
    )
