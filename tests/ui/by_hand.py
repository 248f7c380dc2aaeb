"""Barriers that a test opens and works for, in no DAG's run."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa

from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.spark.spec import ClosingRecord
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


def staged(counting: Counting, ready: Ready, table: str, worth: int) -> None:
    """One row."""
    iceberg, stamp = counting.deployment.tables.load(table), ready.spec.stamp
    rows = pa.Table.from_pylist([{"k": 1, "n": worth}], iceberg.schema().as_arrow())
    iceberg.append(rows, snapshot_properties=stamp.properties(), branch=stamp.branch)
    head = iceberg.refresh().snapshot_by_name(stamp.branch)
    assert head is not None
    number = ready.attempt.attempt_id
    record = ClosingRecord(number, {table: StagedTable(table, head.snapshot_id)})
    close(counting.deployment, ready.attempt, record=record, actor="test")
