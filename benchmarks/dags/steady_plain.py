"""The jobs of `steady.py` as plain tasks with the same edges. A file of its own, which imports nothing of ours."""

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from benchmarks.steady import JOBS, OPTIONS

FILES = Path(os.environ["BENCHMARK_JOBS"])


@task
def plain(file: str) -> None:
    from benchmarks.steady import run_plain

    context: Any = get_current_context()
    run_plain(FILES / file, context["dag_run"].conf["number"])


with DAG("plain", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc), **OPTIONS):
    tasks = {name: plain.override(task_id=name)(file) for name, (file, _, _) in JOBS.items()}
    writers = {outlet: name for name, (_, _, outlets) in JOBS.items() for outlet in outlets}
    for name, (_, inlets, _) in JOBS.items():
        for inlet in inlets:
            if inlet in writers:
                tasks[writers[inlet]] >> tasks[name]
