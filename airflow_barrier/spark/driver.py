"""Running a job for its epoch in a Spark session, and finding out what it staged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ChangedSinkError, SilentSinkError, SourceDataError, StagedTableError
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.sources.spark_errors import source_error
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.identifiers import table_name
from airflow_barrier.spark.job import Job
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def run_epoch(spark: SparkSession, spec: EpochSpec, job: Job) -> ClosingRecord:
    """Run ``job`` and return what it staged in every sink. Nothing counts before that record is handed over.

    The session has to be the attempt's own: its time zone becomes UTC, and all it writes bears the attempt's stamp.
    Raises SilentSinkError, ChangedSinkError (the job's fault), StagedTableError (the branch is not as it was
    prepared: an earlier run of this attempt wrote to it, or it was dropped), and whatever the job raises.
    """
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for key, value in spec.stamp.properties().items():
        spark.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)
    prepared = _heads(spark, spec)
    _check_untouched(spec, prepared)  # safety: driver-starts-on-untouched-branch
    epoch = Epoch(spark, spec)
    log.info("job %s starts at barrier %s of %s", spec.job, spec.barrier_id, spec.topology)
    with _input_named(spec):
        job(epoch)
    staged = _staged(spec, prepared, _heads(spark, spec), epoch.declared_unchanged)
    for table in staged.values():
        log.info("%s: %s", table.table, "unchanged" if table.unchanged else f"staged {table.snapshot_id}")
    return ClosingRecord(spec.attempt_id, staged)


@contextmanager
def _input_named(spec: EpochSpec) -> Iterator[None]:
    """Files are read by the job's own actions, so only here can Spark's error become one that says what to do."""
    try:
        yield
    except Exception as error:
        unreadable = source_error(error)
        if unreadable is None:
            raise
        raise SourceDataError(f"{_attempt(spec)}: {unreadable}") from error


@dataclass(frozen=True)
class _Head:
    snapshot_id: int
    parent_id: int | None


def _heads(spark: SparkSession, spec: EpochSpec) -> dict[str, _Head]:
    """The head of the attempt branch on every sink: one query, since each costs a round trip."""
    sinks = sorted(spec.bases)
    query = " UNION ALL ".join(
        f"SELECT {number} AS sink, r.snapshot_id, s.parent_id FROM {table_name(spec.catalog, sink, 'refs')} r "
        f"JOIN {table_name(spec.catalog, sink, 'snapshots')} s ON r.snapshot_id = s.snapshot_id "
        "WHERE r.name = :branch AND r.type = 'BRANCH'"
        for number, sink in enumerate(sinks)
    )
    rows = spark.sql(query, args={"branch": spec.branch}).collect()
    heads = {sinks[row.sink]: _Head(row.snapshot_id, row.parent_id) for row in rows}
    for sink in sinks:
        if sink not in heads:
            raise StagedTableError(  # safety: driver-finds-its-branch
                f"{_attempt(spec)}: expected branch {spec.branch} on table {sink}, found none; the attempt was "
                "superseded or its branch dropped: a retry begins a new attempt"
            )
    return heads


def _check_untouched(spec: EpochSpec, heads: dict[str, _Head]) -> None:
    """A cluster manager may start a driver a second time; on top of the first one's half it would write twice."""
    for sink, base in spec.bases.items():
        head = heads[sink]
        fresh = head.parent_id is None if base is None else head.snapshot_id == base
        if not fresh:
            raise StagedTableError(  # safety: driver-starts-on-untouched-branch
                f"{_attempt(spec)}: expected branch {spec.branch} of {sink} at its base {base}, found snapshot "
                f"{head.snapshot_id}: an earlier run of this attempt wrote to it; a retry begins a new attempt"
            )


def _staged(
    spec: EpochSpec, before: dict[str, _Head], after: dict[str, _Head], unchanged: frozenset[str]
) -> dict[str, StagedTable]:
    staged = {}
    for sink, base in spec.bases.items():
        head = after[sink].snapshot_id
        written = head != before[sink].snapshot_id
        if written and sink in unchanged:
            raise ChangedSinkError(  # safety: changed-sink
                f"{_attempt(spec)}: expected {sink} untouched, since the job called epoch.unchanged({sink!r}), found "
                f"snapshot {head} on its branch; do one or the other"
            )
        if not written and sink not in unchanged:
            raise SilentSinkError(  # safety: driver-silent-sink
                f"{_attempt(spec)}: expected output in {sink}, found none; write to epoch.target({sink!r}), or call "
                f"epoch.unchanged({sink!r}) if the epoch adds nothing"
            )
        staged[sink] = StagedTable(sink, head if written else base, unchanged=not written)
    return staged


def _attempt(spec: EpochSpec) -> str:
    return f"attempt {spec.attempt_id} of job {spec.job} at barrier {spec.barrier_id} of {spec.topology}"
