"""The way of a barrier through Airflow: which tasks it had to wait for, and where in them the time went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_barrier.protocol.records import Attempt

#: What the task runner writes as it hands over to the operator, and takes over from it.
_OURS, _OVER = "::endgroup::", "::group::Post Execute"
#: What the steps of a job write as Spark is about to be asked.
_SPARK = "Staging attempt"


@dataclass(frozen=True)
class Step:
    """One task on the way, in seconds.

    ``hop``: from the end of what it waited for until its process is started. ``runner``: Airflow's own in the task's
    process, which reads the DAG file. ``ours`` and ``spark``: the operator's, before, after and during Spark's work.
    """

    task: str
    hop: float
    runner: float
    ours: float
    spark: float


def path_of(
    tasks: Mapping[str, Mapping[str, Any]], inlets: Mapping[str, Sequence[str]], outlets: Mapping[str, Sequence[str]]
) -> list[str]:
    """The chain of tasks that each waited for the one before it, from the start task to the job that ended last."""
    writers = {table: job for job, tables in outlets.items() for table in tables}

    def ended(job: str) -> datetime:
        return time_of(tasks[job]["end_date"])

    chain = [max(inlets, key=ended)]
    while before := [writers[table] for table in inlets[chain[0]] if table in writers]:
        chain.insert(0, max(before, key=ended))
    return ["start", *chain]


def steps_of(
    path: Sequence[str],
    tasks: Mapping[str, Mapping[str, Any]],
    logs: Path,
    timestamp: datetime,
    committed: datetime,
    attempts: Mapping[str, Attempt],
) -> list[Step]:
    """Where the time from ``timestamp`` to ``committed`` went, task by task; the numbers add up to it."""
    steps = []
    before = timestamp
    for name in path:
        start, end = time_of(tasks[name]["start_date"]), time_of(tasks[name]["end_date"])
        if name == path[-1]:
            end = committed
        marks = _marks(logs / f"task_id={tasks[name]['task_id']}" / f"attempt={tasks[name]['try_number']}.log")
        spark = 0.0
        if name in attempts and (closed := attempts[name].closed_at) is not None:
            spark = (closed - marks[_SPARK]).total_seconds()
        ours = (min(marks[_OVER], end) - marks[_OURS]).total_seconds() - spark
        whole = (end - start).total_seconds()
        steps.append(Step(name, (start - before).total_seconds(), whole - ours - spark, ours, spark))
        before = end
    return steps


def _marks(log: Path) -> dict[str, datetime]:
    """The first time that each of our marks stands in a task's log."""
    found: dict[str, datetime] = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        for mark in (_OURS, _OVER, _SPARK):
            if entry["event"].startswith(mark):
                found.setdefault(mark, time_of(entry["timestamp"]))
    return found


def time_of(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
