"""A driver that writes to tables which others commit to all the time, and tries again when it lost, as Spark does."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random

from airflow_barrier.coordinator.staging import Ready
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.spark.spec import ClosingRecord
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.shop import COLUMNS, Shop

_TRIES = 100


def append(tables: IcebergTables, table: str, rows: list[dict[str, int]], stamp: Stamp) -> int:
    """Rows on the attempt branch, as one snapshot; returns its id."""
    for attempt in Retrying(
        retry=retry_if_exception(_lost_the_race),
        wait=wait_random(0, 0.05),
        stop=stop_after_attempt(_TRIES),
        reraise=True,
    ):
        with attempt:
            iceberg = tables.load(table)
            arrow = pa.Table.from_pylist(rows, iceberg.schema().as_arrow())
            iceberg.append(arrow, snapshot_properties=stamp.properties(), branch=stamp.branch)
    head = tables.load(table).snapshot_by_name(stamp.branch)
    assert head is not None
    return head.snapshot_id


def write(shop: Shop, ready: Ready, rows: list[dict[str, int]]) -> ClosingRecord:
    """What :meth:`Shop.write` does, beside others."""
    staged = {}
    for table in ready.spec.bases:
        mine = [{column: row[column] for column in COLUMNS[table]} for row in rows]
        staged[table] = StagedTable(table, append(shop.deployment.tables, table, mine, ready.spec.stamp))
    return ClosingRecord(ready.attempt.attempt_id, staged)


def _lost_the_race(error: BaseException) -> bool:
    # pyiceberg gives up at once where the commit that won took the sequence number
    return isinstance(error, CommitFailedException) or "sequence number" in str(error)
