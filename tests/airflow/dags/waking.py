"""Runs that are woken by a task of another run, and what their tasks see then."""

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, get_current_context, task

from airflow_barrier.operators._waking import run_state, wake
from airflow_barrier.protocol.errors import BarrierError

START = datetime(2025, 1, 1, tzinfo=timezone.utc)


def note(**more: object) -> None:
    context = get_current_context()
    run = context["dag_run"]
    seen = {
        "run": [run.dag_id, run.run_id],
        "type": run.run_type.value,
        "clear_number": run.clear_number,
        "conf": run.conf,
        "end": f"{run.data_interval_end:%Y-%m-%d}",
    }
    with (Path(os.environ["BARRIER_TEST_FOLDER"]) / "waking.jsonl").open("a") as notes:
        notes.write(json.dumps({**seen, **more}) + "\n")


@task
def see() -> None:
    note()


@task
def wake_others() -> None:
    context = get_current_context()
    asked = (context["dag_run"].conf or {}).get("wake")
    if not asked:
        return
    said = []
    for dag_id, run_id in asked:
        state, error = run_state(context["ti"], dag_id, run_id), ""
        try:
            wake(dag_id, run_id)
        except BarrierError as refused:
            error = f"{type(refused).__name__}: {refused}"
        said.append([state, error])
    note(said=said)


def daily(dag_id: str, days: int, **options: object) -> DAG:
    end = START + timedelta(days=days - 1)
    return DAG(dag_id, schedule="@daily", start_date=START, end_date=end, catchup=True, max_active_runs=1, **options)


with daily("waking", 2):
    see() >> wake_others()

with daily("woken", 1):
    see()

with daily("waking_forbidden", 1, allowed_run_types=["scheduled"]):
    EmptyOperator(task_id="nothing")
