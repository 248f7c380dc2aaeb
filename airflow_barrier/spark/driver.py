"""Running a job for its epoch in a Spark session, and finding out what it staged."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import (
    ChangedOutletError,
    ConfigurationError,
    InexactChangesError,
    SilentOutletError,
    SourceDataError,
    StagedTableError,
)
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.sources import source_of
from airflow_barrier.sources.port import DeadLetters, FileBacked
from airflow_barrier.sources.spark_errors import file_without_line, source_error
from airflow_barrier.sources.spark_packages import package_error
from airflow_barrier.sources.text.scanner import can_scan
from airflow_barrier.spark._conf import conf_of, set_conf
from airflow_barrier.spark._rows import BY_FIELD_ID, without_field_ids
from airflow_barrier.spark.catalog_errors import catalog_error, columns_error
from airflow_barrier.spark.correcting import Correcting
from airflow_barrier.spark.corrections import ReplaceByFile
from airflow_barrier.spark.epoch import Epoch, Job
from airflow_barrier.spark.identifiers import table_name
from airflow_barrier.spark.profile import conf_for
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec, Heads
from airflow_barrier.systems.spark_versions import GUARD_CLASS, installed_spark, runs_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def run_epoch(spark: SparkSession, spec: EpochSpec, job: Job) -> ClosingRecord:
    """:func:`prepare_session`, and :func:`stage` in it. Raises what these raise."""
    prepare_session(spark, spec)
    return stage(spark, spec, job)


def prepare_session(spark: SparkSession, spec: EpochSpec) -> None:
    """Give the session the conf of the attempt, and have it see the tables as they are now: its catalog may have cached
    them in an earlier epoch.

    The session has to be the attempt's own: its time zone becomes UTC, and all it writes bears the attempt's stamp.
    A Spark Connect server on which the session is gone says so at the first request.
    Raises ConfigurationError and CatalogUnavailableError (Spark cannot use its catalog).
    """
    _check_guard(spark, spec)
    found = conf_of(spark)
    stamp = spec.stamp.properties().items()
    properties = {f"spark.sql.iceberg.snapshot-property.{key}": value for key, value in stamp}
    set_conf(spark, {"spark.sql.session.timeZone": "UTC", **BY_FIELD_ID, **properties, **conf_for(spark, spec, found)})
    if found.get(f"spark.sql.catalog.{spec.catalog}.cache-enabled", "true").lower() == "false":
        return
    with _catalog_named(spec):
        for table in sorted({*spec.inputs, *spec.bases}):
            spark.sql(f"REFRESH TABLE {table_name(spec.catalog, table)}")


def _check_guard(spark: SparkSession, spec: EpochSpec) -> None:
    if runs_before("4.0") and not can_scan(spark):
        raise ConfigurationError(
            f"{_attempt(spec)}: expected the guard among the jars of Spark {installed_spark().number}, found none: "
            "what the job writes would not say whose it is. Put airflow-barrier-guard.jar (python -m "
            "airflow_barrier.spark.guard prints where it lies) among the driver's jars, and the class "
            f"{GUARD_CLASS} into spark.sql.extensions"
        )


def stage(spark: SparkSession, spec: EpochSpec, job: Job, heads: Heads | None = None) -> ClosingRecord:
    """Run ``job`` and return what it staged in every outlet. Nothing counts before that record is handed over.

    A spec with corrections has these run instead. ``heads``, of a driver that can ask the catalog: there it is asked
    where the branches are, and Spark only whether it sees them: its catalog has to be the one in which they were made.

    Raises SilentOutletError, ChangedOutletError (the job's fault), StagedTableError (the branch is not as it was
    prepared: an earlier run of this attempt wrote to it, or it was dropped), ConfigurationError and
    CatalogUnavailableError (Spark cannot use its catalog), and whatever the job raises.
    """
    with _catalog_named(spec):
        prepared = _seen_by_both(spark, spec, heads) if heads else _heads(spark, spec)
    _check_untouched(spec, prepared, _roots(spark, spec, prepared))  # safety: driver-starts-on-untouched-branch
    epoch = Epoch(spark, spec)
    log.info("job %s starts at barrier %s of %s", spec.job, spec.barrier_id, spec.topology)
    letters: set[str] = set()
    with _input_named(spark, spec):
        if spec.corrections:
            Correcting(spec)(epoch)
        else:
            job(epoch)
            letters = _put_letters(epoch, spec)
    after = _complete(spec, heads(sorted(spec.bases), spec.branch)) if heads else _heads(spark, spec)
    without_letters = {table for table in letters if after[table] == prepared[table]}
    staged = _staged(spec, prepared, after, epoch.declared_unchanged | without_letters)
    for table in staged.values():
        log.info("%s: %s", table.table, "unchanged" if table.unchanged else f"staged {table.snapshot_id}")
    return ClosingRecord(spec.attempt_id, staged)


def _put_letters(epoch: Epoch, spec: EpochSpec) -> set[str]:
    """Append the records that do not decode to the tables of dead letters which this job has among its outlets.

    Returns these tables.
    """
    tables = set()
    for name, declared in spec.externals.items():
        source = source_of(declared)
        if isinstance(source, DeadLetters) and source.dead_letters is not None and source.dead_letters in spec.bases:
            letters = epoch.dead_letters(name).persist()  # so that they are read once
            count = letters.count()
            if count:
                letters.writeTo(epoch.target(source.dead_letters)).append()
                log.warning("source %s: %d records do not decode, and are in %s", name, count, source.dead_letters)
            letters.unpersist()
            tables.add(source.dead_letters)
    return tables


@contextmanager
def _catalog_named(spec: EpochSpec) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        unusable = catalog_error(error, spec.catalog)
        if unusable is None:
            raise
        raise type(unusable)(f"{_attempt(spec)}: {unusable}") from error


@contextmanager
def _input_named(spark: SparkSession, spec: EpochSpec) -> Iterator[None]:
    """Files are read, and tables written, by the job's own actions, so only here can Spark's error become one that says
    what to do.

    About a table's own files that is never to mend one or to move it away.
    """
    try:
        yield
    except Exception as error:
        unreadable = source_error(error, _source_files(spec))
        if unreadable is not None:
            raise SourceDataError(f"{_attempt(spec)}: {_with_line(spark, spec, error) or unreadable}") from error
        inexact = without_field_ids(error)
        if inexact is not None:
            raise InexactChangesError(f"{_attempt(spec)}: {inexact}") from error
        if runs_before("4.0") and isinstance(error, AttributeError) and "mergeInto" in str(error):
            raise ConfigurationError(
                f"{_attempt(spec)}: expected Spark 4.0 or newer, which has DataFrame.mergeInto, found an older one; "
                "write the MERGE in SQL, as an SQL job or by spark.sql(...) on a temporary view of the frame"
            ) from error
        unfit = package_error(error) or columns_error(error, ", ".join(sorted(spec.bases)))
        if unfit is not None:
            raise ConfigurationError(f"{_attempt(spec)}: {unfit}") from error
        raise


def _source_files(spec: EpochSpec) -> list[str]:
    """URLs of the files that the epoch reads of its external sources, and of what its corrections read instead."""
    urls = [correction.uri for correction in spec.corrections if isinstance(correction, ReplaceByFile)]
    for name, declared in spec.externals.items():
        source = source_of(declared)
        if isinstance(source, FileBacked):
            urls += source.urls(spec.cuts[name])
    return urls


def _with_line(spark: SparkSession, spec: EpochSpec, error: Exception) -> SourceDataError | None:
    """The error with the line of the text file, for which that is read again: tasks that share a file know no lines."""
    what, url = file_without_line(error) or ("", "")
    for name, declared in spec.externals.items():
        source = source_of(declared)
        if isinstance(source, FileBacked) and what == f"source {name}":
            log.info("looking for the line in %s", url)
            try:
                source.read_in_order(spark, url)
            except Exception as again:
                return source_error(again, [url])
    return None


def _seen_by_both(spark: SparkSession, spec: EpochSpec, heads: Heads) -> dict[str, int]:
    """The head of the attempt branch on every outlet, by the catalog. Spark plans a query of these branches, which says
    that it sees them, and runs none.
    """
    found = _complete(spec, heads(sorted(spec.bases), spec.branch))
    branches = [table_name(spec.catalog, outlet, f"branch_{spec.branch}") for outlet in found]
    spark.sql(" UNION ALL ".join(f"SELECT 1 FROM {branch}" for branch in branches))
    return found


def _heads(spark: SparkSession, spec: EpochSpec) -> dict[str, int]:
    """The head of the attempt branch on every outlet: one query, since each costs a round trip, and no join in it."""
    outlets = sorted(spec.bases)
    query = " UNION ALL ".join(
        f"SELECT {number} AS outlet, snapshot_id FROM {table_name(spec.catalog, outlet, 'refs')} "
        "WHERE name = :branch AND type = 'BRANCH'"
        for number, outlet in enumerate(outlets)
    )
    rows = spark.sql(query, args={"branch": spec.branch}).collect()
    return _complete(spec, {outlets[row.outlet]: row.snapshot_id for row in rows})


def _complete(spec: EpochSpec, heads: Mapping[str, int]) -> dict[str, int]:
    """``heads``, which are those of all outlets."""
    for outlet in sorted(spec.bases):
        if outlet not in heads:
            raise StagedTableError(  # safety: driver-finds-its-branch
                f"{_attempt(spec)}: expected branch {spec.branch} on table {outlet}, found none; the attempt was "
                "superseded or its branch dropped: a retry begins a new attempt"
            )
    return dict(heads)


def _roots(spark: SparkSession, spec: EpochSpec, heads: dict[str, int]) -> frozenset[str]:
    """Outlets without a snapshot of their own yet whose branch is as it was prepared: with an empty first snapshot."""
    empty = sorted(outlet for outlet, base in spec.bases.items() if base is None)
    if not empty:
        return frozenset()
    query = " UNION ALL ".join(
        f"SELECT {number} AS outlet FROM {table_name(spec.catalog, outlet, 'snapshots')} "
        f"WHERE snapshot_id = {heads[outlet]:d} AND parent_id IS NULL"
        for number, outlet in enumerate(empty)
    )
    return frozenset(empty[row.outlet] for row in spark.sql(query).collect())


def _check_untouched(spec: EpochSpec, heads: dict[str, int], roots: frozenset[str]) -> None:
    """A cluster manager may start a driver a second time; on top of the first one's half it would write twice."""
    for outlet, base in spec.bases.items():
        fresh = outlet in roots if base is None else heads[outlet] == base
        if not fresh:
            raise StagedTableError(  # safety: driver-starts-on-untouched-branch
                f"{_attempt(spec)}: expected branch {spec.branch} of {outlet} at its base {base}, found snapshot "
                f"{heads[outlet]}: an earlier run of this attempt wrote to it; a retry begins a new attempt"
            )


def _staged(
    spec: EpochSpec, before: dict[str, int], after: dict[str, int], unchanged: frozenset[str]
) -> dict[str, StagedTable]:
    staged = {}
    for outlet, base in spec.bases.items():
        head = after[outlet]
        written = head != before[outlet]
        if written and outlet in unchanged:
            raise ChangedOutletError(  # safety: changed-outlet
                f"{_attempt(spec)}: expected {outlet} untouched, since the job called epoch.unchanged({outlet!r}), "
                f"found snapshot {head} on its branch; do one or the other"
            )
        if not written and outlet not in unchanged:
            raise SilentOutletError(  # safety: driver-silent-outlet
                f"{_attempt(spec)}: expected output in {outlet}, found none; write to epoch.target({outlet!r}), or "
                f"call epoch.unchanged({outlet!r}) if the epoch adds nothing"
            )
        staged[outlet] = StagedTable(outlet, head if written else base, unchanged=not written)
    return staged


def _attempt(spec: EpochSpec) -> str:
    return f"attempt {spec.attempt_id} of job {spec.job} at barrier {spec.barrier_id} of {spec.topology}"
