"""A topology of two DAGs that run when the test triggers them: the member's runs are missed."""

import sys
from pathlib import Path

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator

with DAG("behind", schedule=None, max_active_runs=4), BarrierGroup("behind") as barrier:
    barrier.job(RowsOperator(task_id="load"), outlets=["behind.events"])

with DAG("behind_later", schedule=None), BarrierGroup("behind", member=True) as barrier:
    barrier.job(RowsOperator(task_id="mirror"), inlets=["behind.events"], outlets=["behind.mirror"])
