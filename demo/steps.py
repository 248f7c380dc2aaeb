"""The steps of a barrier without Airflow: what its tasks do, one after the other, on a Spark Connect server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import Barrier, RunRef
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.epoch import Job

_ACTOR = "steps"


def open_at(deployment: Deployment, fragment: Fragment, timestamp: datetime) -> Barrier:
    """Open the barrier at ``timestamp`` (UTC), cutting every source."""
    opened = open_barrier(
        deployment,
        fragment,
        timestamp,
        timestamp_from="caller",
        run=RunRef(fragment.owner, timestamp.isoformat(), "manual"),
        actor=_ACTOR,
    )
    if not isinstance(opened, Opened):
        raise RuntimeError(f"the barrier at {timestamp} cannot be opened: {opened.reason}")
    return opened.barrier


def process(deployment: Deployment, spark_url: str, barrier: Barrier, name: str, job: Job) -> Barrier:
    """Run one job for ``barrier`` and report it PROCESSED. Its inputs have to be there."""
    asking = Asking(f"{barrier.barrier_id}/{name}", "first", _ACTOR, server="spark")
    ready = begin(deployment, barrier, name, asking)
    if not isinstance(ready, Ready):
        raise RuntimeError(f"job {name} cannot run at {barrier}: {ready}")
    run = ConnectRun(spark_url, ready.spec, ready.heads, ready.attempt.session)
    record = run.run(job)
    with run.handing_over() as idle:
        return close(deployment, ready.attempt, actor=_ACTOR, record=record, idle=idle)


def commit(deployment: Deployment, barrier: Barrier) -> Barrier:
    """Publish ``barrier``; everything has to be PROCESSED."""
    committed = commit_barrier(deployment, barrier.topology, barrier.barrier_id, actor=_ACTOR)
    if not isinstance(committed, Committed):
        raise RuntimeError(committed.reason)
    return committed.barrier


def run_barrier(
    deployment: Deployment, spark_url: str, fragment: Fragment, timestamp: datetime, jobs: Mapping[str, Job]
) -> Barrier:
    """One whole barrier; ``jobs`` are the fragment's, writers before readers."""
    barrier = open_at(deployment, fragment, timestamp)
    for name, job in jobs.items():
        process(deployment, spark_url, barrier, name, job)
    return commit(deployment, barrier)
