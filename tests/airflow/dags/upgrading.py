"""A barrier that is given up when a job fails, and a worker that a deploy has not reached yet."""

import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_barrier.operators.group import BarrierGroup

sys.path.append(str(Path(__file__).parents[1] / "jobs"))

from rows import RowsOperator


def lag_behind(context: Any) -> None:
    """Let the task's process be of the version before, if the test says so."""
    import os

    from airflow_barrier.metaservice import versions

    if (Path(os.environ["BARRIER_TEST_FOLDER"]) / "hold-upgrading-deploy-1").exists():
        versions.VERSIONS = ("0000",)
        versions.EXPECTED = "0000"


with (
    DAG(
        "upgrading",
        schedule="@daily",
        start_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 1, tzinfo=timezone.utc),
        catchup=True,
    ),
    BarrierGroup("upgrading", on_failure="abort") as barrier,
):
    barrier.job(RowsOperator(task_id="load", pre_execute=lag_behind), outlets=["upgrading.events"])
    barrier.job(RowsOperator(task_id="copy"), inlets=["upgrading.events"], outlets=["upgrading.mirror"])
