"""Jobs without Spark, for stories in which it does not matter how rows come about.

They add what the jobs of `counting.py` add, by pyiceberg in the task's own process, and obey the same files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator
from counting import obey

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.operators._binding import SparkWork
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.staging import Ready
    from airflow_barrier.protocol.names import Stamp
    from airflow_barrier.tables.iceberg import IcebergTables

#: How often a writer tries again that others overtook: on one table they stage and publish all the time.
_TRIES = 100


class RowsOperator(BaseOperator):
    """Adds one row to each outlet: at barrier n a root job's is worth 10 to the power of n less one, and any other
    job's as much as came to its inlets.
    """

    def epoch_work(self, context: Context) -> SparkWork:
        return SparkWork(run=_write, stop=lambda: None)


def _write(ready: Ready) -> ClosingRecord:
    spec = ready.spec
    namespace = next(iter(spec.bases)).partition(".")[0]  # also in a rehearsal, whose topology has a name of its own
    obey(namespace, spec.job, spec.barrier_id)
    tables = BarrierHook("barrier_default").get_deployment().tables
    worth = _came(tables, spec) if spec.inputs else _loaded(spec)
    staged = {outlet: StagedTable(outlet, _append(tables, outlet, worth, spec.stamp)) for outlet in spec.bases}
    return ClosingRecord(spec.attempt_id, staged)


def _loaded(spec: EpochSpec) -> int:
    """With another factor once a person has corrected the day."""
    name = f"corrected-{spec.topology}-{spec.barrier_id}"
    corrected = Path(os.environ["BARRIER_TEST_FOLDER"]) / name
    factor = int(corrected.read_text()) if corrected.exists() else 1
    return factor * 10 ** (spec.barrier_id - 1)


def _came(tables: IcebergTables, spec: EpochSpec) -> int:
    return sum(
        _total(tables, table, snapshot) - _total(tables, table, spec.previous[table])
        for table, snapshot in spec.inputs.items()
    )


def _total(tables: IcebergTables, table: str, snapshot: int | None) -> int:
    if snapshot is None:
        return 0
    return sum(tables.load(table).scan(snapshot_id=snapshot).to_arrow().column("n").to_pylist())


def _append(tables: IcebergTables, table: str, worth: int, stamp: Stamp) -> int:
    """One row on the attempt branch, as one snapshot; returns its id."""
    import pyarrow as pa
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random

    for attempt in Retrying(
        retry=retry_if_exception(_lost_the_race),
        wait=wait_random(0, 0.05),
        stop=stop_after_attempt(_TRIES),
        reraise=True,
    ):
        with attempt:
            iceberg = tables.load(table)
            rows = pa.Table.from_pylist([{"k": 1, "n": worth}], iceberg.schema().as_arrow())
            iceberg.append(rows, snapshot_properties=stamp.properties(), branch=stamp.branch)
    head = tables.load(table).snapshot_by_name(stamp.branch)
    assert head is not None
    return head.snapshot_id


def _lost_the_race(error: BaseException) -> bool:
    from pyiceberg.exceptions import CommitFailedException

    # pyiceberg gives up at once where the commit that won took the sequence number
    return isinstance(error, CommitFailedException) or "sequence number" in str(error)
