"""Real tables, files that Spark deletes, and readers of all levels beside: no torn read, and no missing file."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.connect.session import SparkSession

from airflow_barrier.coordinator.expiring import expire
from airflow_barrier.coordinator.staging import Ready
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.spark.expiring import ExpiredFiles, expire_snapshots
from airflow_barrier.spark.spec import ClosingRecord
from tests.spark.beside import DUCKDB, LATEST, PYICEBERG, Habit, Readers
from tests.support.reporting import report
from tests.support.shop import AMOUNT, COLUMNS, Shop
from tests.support.waiting import wait_for

HABITS = (
    Habit(Level.REPEATABLE_READ, PYICEBERG, past=True),
    Habit(Level.READ_COMMITTED, PYICEBERG),
    Habit(Level.READ_UNCOMMITTED, PYICEBERG),
    Habit(Level.REPEATABLE_READ, DUCKDB),
)
READS, EXPIRIES, KEEP = 1000, 4, 2
#: Every so many barriers the first job is staged anew after all was PROCESSED.
_CLEARED = 4


@pytest.mark.timeout(600)
@pytest.mark.drawn("large ones")
def test_no_torn_read_and_no_missing_file(shop: Shop, spark: SparkSession) -> None:
    _trim_metadata(shop)
    others = _data_files(shop)  # of tests before, whose tables had this name
    first = 5  # the shop comes with four barriers, of other rows
    for number in range(first, first + LATEST):
        _bring(shop, number)
    begun, expiries, files = time.monotonic(), 0, Counter[str]()
    with Readers(BarrierHook().get_settings(), HABITS) as readers:
        while readers.reads < READS or expiries < EXPIRIES:
            readers.check()
            number += 1
            _bring(shop, number, readers)
            if number % 3 == 0:
                expiries += 1
                _expire(shop, spark, files)
    traces = [seen.trace for seen in readers.seen if seen.trace is not None]
    assert not traces, traces[0]
    assert len(readers.seen) == len(HABITS), "a reader does not answer"
    counted = sum((seen.counted for seen in readers.seen), Counter[str]())
    assert counted["reads"] >= READS
    assert counted["fell back"] >= 1
    assert files["data"] >= EXPIRIES, "files of data were deleted"
    assert len(_data_files(shop) - others) < number / 2
    report(
        f"readers beside expiry: {counted['reads']} answers of {len(COLUMNS)} tables read in {len(HABITS)} processes, "
        f"{len(set().union(*(seen.barriers for seen in readers.seen)))} of {number} barriers, {counted['fell back']} "
        f"fall-backs told, {counted['expired']} refused as expired; {expiries} expiries deleted {files['data']} data "
        f"files beside them; none torn, none missing, {time.monotonic() - begun:.0f} s"
    )


def _trim_metadata(shop: Shop) -> None:
    """As long-lived tables have it, so that metadata files go under readers' eyes too."""
    for table in COLUMNS:
        with shop.deployment.tables.load(table).transaction() as change:
            change.set_properties(
                {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
            )


def _bring(shop: Shop, number: int, readers: Readers | None = None) -> None:
    """One more barrier, COMMIT; some are staged anew after somebody has read them."""
    barrier = shop.open(number)
    _process_all(shop, barrier, "g0")
    if readers is not None and number % _CLEARED == 0:
        wait_for("somebody to read what is PRECOMMIT", lambda: readers.newest(Level.READ_COMMITTED) >= number)
        _process_all(shop, barrier, "g1")
    shop.commit(barrier)


def _process_all(shop: Shop, barrier: Barrier, generation: str) -> None:
    for job in ("load", "amount", "price"):
        ready = shop.begin(barrier, job, generation if job == "load" else "g0")
        shop.close(ready, _replaced(shop, ready, 100 * barrier.barrier_id + int(generation[1:])))


def _replaced(shop: Shop, ready: Ready, value: int) -> ClosingRecord:
    """The rows of every outlet become one."""
    staged = {}
    for table in ready.spec.bases:
        iceberg, stamp = shop.deployment.tables.load(table), ready.spec.stamp
        row = pa.Table.from_pylist([dict.fromkeys(COLUMNS[table], value)], iceberg.schema().as_arrow())
        iceberg.overwrite(row, snapshot_properties=stamp.properties(), branch=stamp.branch)
        head = iceberg.refresh().snapshot_by_name(stamp.branch)
        assert head is not None
        staged[table] = StagedTable(table, head.snapshot_id)
    return ClosingRecord(ready.attempt.attempt_id, staged)


def _expire(shop: Shop, spark: SparkSession, files: Counter[str]) -> None:
    def take_out(table: str, snapshot_ids: object) -> ExpiredFiles:
        gone = expire_snapshots(spark, shop.deployment.spark_catalog, table, snapshot_ids)  # type: ignore[arg-type]
        files.update(data=gone.data, manifests=gone.manifests)
        return gone

    expire(shop.deployment, "shopping", Retention(KEEP), take_out, actor="expiry")


def _data_files(shop: Shop) -> set[Path]:
    return set(Path(shop.deployment.tables.load(AMOUNT).location().removeprefix("file://")).glob("data/*.parquet"))
