"""Barriers that a test opens and works for, in no DAG's run."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, Ready, begin
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment
from tests.support.counting import Counting
from tests.support.runs import run_of


def opened(counting: Counting, owner: str, day: int) -> Barrier:
    """With the jobs that ``owner`` has in the topology."""
    topology = counting.deployment.meta.topologies.get(counting.name)
    found = open_barrier(
        counting.deployment,
        Fragment(counting.name, owner, tuple(job for job in topology.jobs if job.owner == owner)),
        datetime(2025, 1, day, tzinfo=timezone.utc),
        timestamp_from="test",
        run=run_of(f"{owner}/by_hand_{day}"),
        actor="test",
    )
    assert isinstance(found, Opened)
    return found.barrier


def begun(counting: Counting, barrier: Barrier, job: str, run: str = "by hand") -> Ready:
    """``run``: its DAG, a slash and its id."""
    ready = begin(
        counting.deployment, barrier, job, Asking(request_key=f"{run}/{job}/-1", generation="g0", actor="test")
    )
    assert isinstance(ready, Ready)
    return ready
