"""The topology of `dags/shopping.py` without Spark, and each step of its barriers as Airflow's tasks take it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_barrier.coordinator.committing import Committed
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.next import JobTask, next_commit, next_opening, next_step
from airflow_barrier.coordinator.opening import Opened
from airflow_barrier.coordinator.staging import Ready, close
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from tests.support.scheduling import Scheduled, run_at
from tests.support.shop import MONDAY

_R = TypeVar("_R")

JOBS = {
    "load": Job("load", "dag", outlets=("shop.shopping",)),
    "products": Job("products", "dag", outlets=("shop.products",)),
    "amount": Job("amount", "dag", inlets=("shop.shopping",), outlets=("shop.user_item_amount",)),
    "price": Job("price", "dag", inlets=("shop.shopping",), outlets=("shop.user_item_price",)),
    "category_spend": Job(
        "category_spend", "dag", inlets=("shop.shopping", "shop.products"), outlets=("shop.user_category_spend",)
    ),
    "avg_price": Job(
        "avg_price",
        "dag",
        inlets=("shop.user_item_amount", "shop.user_item_price"),
        outlets=("shop.user_item_avg_price",),
    ),
}
#: The longest way through them.
WAY = ("load", "price", "avg_price")
FRAGMENT = Fragment("shopping", "dag", tuple(JOBS.values()))


class Measure(Protocol):
    """Does the ``work`` of a step: opening, step, close or commit. ``job``: whose it is."""

    def __call__(self, step: str, work: Callable[[], _R], job: str | None = None) -> _R: ...


def create_tables(deployment: Deployment) -> None:
    deployment.tables.catalog.create_namespace("shop")
    for job in JOBS.values():
        for table in job.outlets:
            deployment.tables.catalog.create_table(
                table, Schema(NestedField(1, "n", LongType())), properties={"format-version": "2"}
            )


def take_barrier(deployment: Deployment, day: int, measure: Measure) -> None:
    """All steps of a day's barrier, from its opening to its commit."""
    run, scheduler = run_at("dag", MONDAY + timedelta(days=day)), Scheduled()
    opened: Any = measure(
        "opening", lambda: next_opening(deployment, run, FRAGMENT, scheduler, actor="test", triggered=False)
    )
    assert isinstance(opened, Opened)
    for name, job in JOBS.items():
        task = JobTask(FRAGMENT, job, f"{run.ref}/{name}", "g0", "test")
        ready: Any = measure("step", lambda task=task: next_step(deployment, run, task, scheduler), name)
        assert isinstance(ready, Ready)
        record = _stage(deployment, ready, day)
        measure("close", lambda at=ready.attempt, r=record: close(deployment, at, actor="test", record=r), name)
    committed = measure("commit", lambda: next_commit(deployment, run, "shopping", scheduler, actor="test"))
    assert isinstance(committed, Committed)


def is_on_the_way(job: str | None) -> bool:
    """Return whether a step of ``job`` (None: of the barrier) is on the longest way."""
    return job is None or job in WAY


def _stage(deployment: Deployment, ready: Ready, day: int) -> ClosingRecord:
    """Append a row to each outlet on the attempt's branch, as a driver would."""
    staged = {}
    for table in ready.spec.bases:
        iceberg = deployment.tables.load(table)
        rows = pa.Table.from_pylist([{"n": day}], iceberg.schema().as_arrow())
        iceberg.append(rows, snapshot_properties=ready.spec.stamp.properties(), branch=ready.spec.branch)
        head = iceberg.refresh().snapshot_by_name(ready.spec.branch)
        assert head is not None
        staged[table] = StagedTable(table, head.snapshot_id)
    return ClosingRecord(ready.attempt.attempt_id, staged)
