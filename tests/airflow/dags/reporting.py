"""What reads a barrier in the DAG that writes it: queries on Spark, and an operator that knows nothing of barriers.
And the upkeep of the tables, which a DAG of its own would see to at night.
"""

from datetime import datetime, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_barrier.operators.compact import CompactTablesOperator
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.expire import ExpireSnapshotsOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.query import ConsistentQueryOperator

THIS_BARRIER = "{{ ti.xcom_pull(task_ids='reporting.commit') }}"

with DAG(
    "reporting",
    schedule="@daily",
    start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    end_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
    catchup=True,
):
    with BarrierGroup("reporting") as barrier:
        barrier.job(
            SparkEpochOperator(task_id="load", sql="INSERT INTO {target:reporting.events} VALUES (1, 25), (2, 50)"),
            outlets=["reporting.events"],
        )
        barrier.check("no negative counts", sql="SELECT * FROM in_airflow.reporting.events WHERE n < 0")
    ask = ConsistentQueryOperator(
        task_id="ask",
        topology="reporting",
        sql="SELECT k, n, CAST(n AS DECIMAL(9, 2)) AS price FROM in_airflow.reporting.events ORDER BY k",
        at=THIS_BARRIER,
    )
    keep = ConsistentQueryOperator(
        task_id="keep",
        topology="reporting",
        sql="SELECT {{ ti.xcom_pull(task_ids='ask', key='barrier_id') }} AS b, sum(n) AS n "
        "FROM in_airflow.reporting.events",
        into="in_airflow.reporting_results.daily",
        at=THIS_BARRIER,
    )
    show = BashOperator(
        task_id="show",
        bash_command="echo tag={{ macros.barrier.tag('reporting', hold=3600) }} "
        "id={{ macros.barrier.snapshots('reporting', hold=3600)['reporting.events'] }}",
    )
    compact = CompactTablesOperator(
        task_id="compact", topology="reporting", tables=["reporting.events"], options={"rewrite-all": "true"}
    )
    expire = ExpireSnapshotsOperator(task_id="expire", topology="reporting", keep=1)
    barrier >> ask >> [keep, show] >> compact >> expire
