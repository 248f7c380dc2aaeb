"""The shopping topology, a barrier every few seconds; the same by spark-submit; and its jobs as plain operators.

All three run the job files of `dags/shopping_jobs`. The environment says where data lies and when barriers are due.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, DeltaTriggerTimetable, get_current_context, task
from shopping_jobs.landing import PRODUCTS, SHOPPING

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sources.files import Files
from benchmarks.steady import JOBS, SUBMIT_CONF, Schedule, landing

SCHEDULE = Schedule.of_environment()
FILES = Path(os.environ["BENCHMARK_JOBS"])


def fill(barrier: BarrierGroup, via: str, folder: str) -> None:
    conf = SUBMIT_CONF if via == "submit" else {}
    files = {one.name: Files(f"{folder}/{one.name}", schema=one.schema) for one in (SHOPPING, PRODUCTS)}
    for name, (file, sources, sinks) in JOBS.items():
        what = {"sql": (FILES / file).read_text()} if file.endswith(".sql") else {"application": str(FILES / file)}
        operator = SparkEpochOperator(task_id=name, via=via, conf=conf, **what)
        barrier.job(operator, sources=[files.get(source, source) for source in sources], sinks=sinks)


with (
    DAG(
        "barriers",
        schedule=DeltaTriggerTimetable(timedelta(seconds=SCHEDULE.period)),
        start_date=SCHEDULE.start,
        end_date=SCHEDULE.at(SCHEDULE.count - 1),
        catchup=True,
        max_active_runs=1,
    ),
    BarrierGroup("shopping", poll_interval=1) as barrier,
):
    fill(barrier, "connect", landing("barriers"))

with (
    DAG("submitted", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc), max_active_runs=1),
    BarrierGroup("shopping", barrier_conn_id="submitted", open_manual_runs=True, poll_interval=1) as barrier,
):
    fill(barrier, "submit", landing("submitted"))


@task
def plain(file: str) -> None:
    from benchmarks.steady import run_plain

    context: Any = get_current_context()
    run_plain(FILES / file, context["dag_run"].conf["number"])


with DAG("plain", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc), max_active_runs=1):
    tasks = {name: plain.override(task_id=name)(file) for name, (file, _, _) in JOBS.items()}
    writers = {sink: name for name, (_, _, sinks) in JOBS.items() for sink in sinks}
    for name, (_, sources, _) in JOBS.items():
        for source in sources:
            if source in writers:
                tasks[writers[source]] >> tasks[name]
