"""A real deployment, and hands that write to attempt branches like a Spark driver would.

Real Iceberg tables through pyiceberg: what the coordinator does is the same with Spark, only slower to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from tests.support.runs import run_of

MONDAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
SHOPPING = "shop.shopping"
AMOUNT = "shop.user_item_amount"
PRICE = "shop.user_item_price"
COLUMNS = {
    SHOPPING: ("amount", "price"),
    AMOUNT: ("amount",),
    PRICE: ("price",),
}
JOBS = (
    Job("load", "shopping_dag", outlets=(SHOPPING,)),
    Job("amount", "shopping_dag", inlets=(SHOPPING,), outlets=(AMOUNT,)),
    Job("price", "shopping_dag", inlets=(SHOPPING,), outlets=(PRICE,)),
)
FRAGMENT = Fragment("shopping", "shopping_dag", JOBS)


@dataclass
class Shop:
    """The seeds' shopping topology over one deployment, and the steps of a barrier in one word each."""

    deployment: Deployment

    def open(self, day: int, fragment: Fragment = FRAGMENT) -> Barrier:
        timestamp = MONDAY + timedelta(days=day)
        opened = open_barrier(
            self.deployment,
            fragment,
            timestamp,
            timestamp_from="test",
            run=run_of(f"shopping_dag/day-{day}"),
            actor="test",
        )
        assert isinstance(opened, Opened), opened
        return opened.barrier

    def begin(self, barrier: Barrier, job: str, generation: str = "g0", server: str | None = None) -> Ready:
        asking = Asking(f"shopping_dag/{barrier.barrier_id}/{job}", generation, "test", server=server)
        ready = begin(self.deployment, barrier, job, asking)
        assert isinstance(ready, Ready), ready
        return ready

    def write(self, ready: Ready, rows: list[dict[str, int]]) -> ClosingRecord:
        """Append ``rows`` to every outlet on the attempt branch, as a driver would, and say what was staged."""
        staged = {}
        for table in ready.spec.bases:
            iceberg = self.deployment.tables.load(table)
            arrow = pa.Table.from_pylist(
                [{c: row[c] for c in COLUMNS[table]} for row in rows], iceberg.schema().as_arrow()
            )
            iceberg.append(arrow, snapshot_properties=ready.spec.stamp.properties(), branch=ready.spec.branch)
            head = iceberg.refresh().snapshot_by_name(ready.spec.branch)
            assert head is not None
            staged[table] = StagedTable(table, head.snapshot_id)
        return ClosingRecord(ready.attempt.attempt_id, staged)

    def process(self, barrier: Barrier, job: str, rows: list[dict[str, int]], generation: str = "g0") -> Barrier:
        ready = self.begin(barrier, job, generation)
        return self.close(ready, self.write(ready, rows))

    def close(self, ready: Ready, record: ClosingRecord) -> Barrier:
        return close(self.deployment, ready.attempt, record=record, actor="test")

    def process_all(self, barrier: Barrier, rows: list[dict[str, int]]) -> Barrier:
        for job in ("load", "amount", "price"):
            barrier = self.process(barrier, job, rows)
        return barrier

    def commit(self, barrier: Barrier) -> Committed:
        committed = commit_barrier(self.deployment, "shopping", barrier.barrier_id, actor="test")
        assert isinstance(committed, Committed), committed
        return committed

    def total(self, table: str, snapshot_id: int | None) -> int:
        """The sum of the table's last column at a snapshot."""
        if snapshot_id is None:
            return 0
        rows = self.deployment.tables.load(table).scan(snapshot_id=snapshot_id).to_arrow()
        return sum(rows.column(COLUMNS[table][-1]).to_pylist())

    def main_totals(self) -> dict[str, int]:
        return {
            table: self.total(table, snapshot)
            for table, snapshot in self.deployment.tables.mains(list(COLUMNS)).items()
        }


def make_shop(settings: Settings, format_version: str = "2") -> Shop:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    deployment = Deployment.connect(settings)
    deployment.tables.catalog.create_namespace_if_not_exists("shop")
    for table, columns in COLUMNS.items():
        fields = [NestedField(i, column, LongType()) for i, column in enumerate(columns, start=1)]
        deployment.tables.catalog.create_table_if_not_exists(
            table, Schema(*fields), properties={"format-version": format_version}
        )
    return Shop(deployment)
