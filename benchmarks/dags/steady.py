"""The shopping topology, a barrier every few seconds, and the same by spark-submit.

Both run the job files of `dags/shopping_jobs`. The environment says where data lies and when barriers are due.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG, DeltaTriggerTimetable
from shopping_jobs.landing import PRODUCTS, SHOPPING

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sources.files import Files
from benchmarks.steady import JOBS, OPTIONS, SUBMIT_CONF, Schedule, landing

SCHEDULE = Schedule.of_environment()
FILES = Path(os.environ["BENCHMARK_JOBS"])


def fill(barrier: BarrierGroup, via: str, folder: str) -> None:
    conf = SUBMIT_CONF if via == "submit" else {}
    files = {one.name: Files(f"{folder}/{one.name}", schema=one.schema) for one in (SHOPPING, PRODUCTS)}
    for name, (file, inlets, outlets) in JOBS.items():
        what = {"sql": (FILES / file).read_text()} if file.endswith(".sql") else {"application": str(FILES / file)}
        operator = SparkEpochOperator(task_id=name, via=via, conf=conf, **what)
        barrier.job(operator, inlets=[files.get(inlet, inlet) for inlet in inlets], outlets=outlets)


with (
    DAG(
        "barriers",
        schedule=DeltaTriggerTimetable(timedelta(seconds=SCHEDULE.period)),
        start_date=SCHEDULE.start,
        end_date=SCHEDULE.at(SCHEDULE.count - 1),
        catchup=True,
        **OPTIONS,
    ),
    BarrierGroup("shopping") as barrier,
):
    fill(barrier, "connect", landing("barriers"))

with (
    DAG("submitted", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc), **OPTIONS),
    BarrierGroup("shopping", barrier_conn_id="submitted") as barrier,
):
    fill(barrier, "submit", landing("submitted"))
