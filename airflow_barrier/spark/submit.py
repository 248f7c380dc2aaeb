"""Handing work to spark-submit: what the worker passes on, and what the driver does with it."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import SpecError
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.job import Job
from airflow_barrier.spark.spec import SPEC_DIGEST, SPEC_URI, EpochSpec
from airflow_barrier.spark.sql import SqlJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The application that runs an SQL job (:attr:`EpochSpec.sql`), for operators that want the path of a file.
SQL_APPLICATION = str(Path(__file__).parent / "applications" / "sql_job.py")


def submit_conf(spec_uri: str, digest: str) -> dict[str, str]:
    """What any operator that can pass Spark conf has to add for a job to take part in a barrier."""
    return {SPEC_URI: spec_uri, SPEC_DIGEST: digest}


def run_submitted(job: Job | None = None) -> None:
    """The driver's side: read the spec that the conf names, run ``job`` (None: the spec's SQL), leave the record.

    Ends the process with exit code 1 and one readable last line if anything fails; then there is no closing record,
    and nothing that was staged counts.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    try:
        spec = _read_spec(spark)
        record = run_epoch(spark, spec, job or _sql_of(spec))
        _write_new(spark, spec.closing_uri, record.dumps())
    except Exception as error:
        traceback.print_exc()
        # Spark's messages go on for pages: what happened is in the first line
        sys.exit(f"The epoch failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    finally:
        spark.stop()


def _sql_of(spec: EpochSpec) -> SqlJob:
    if spec.sql is None:
        raise SpecError(  # safety: spec-has-sql
            f"epoch spec of job {spec.job}: expected an SQL statement, found none; give the job sql=..., or its own "
            "application file instead of the SQL application"
        )
    return SqlJob(spec.sql)


def _read_spec(spark: SparkSession) -> EpochSpec:
    uri, digest = spark.conf.get(SPEC_URI, None), spark.conf.get(SPEC_DIGEST, None)
    if not uri or not digest:
        raise SpecError(  # safety: spec-is-named
            f"expected Spark conf {SPEC_URI} and {SPEC_DIGEST}, found {uri!r} and {digest!r}; run this file through "
            "barrier.job(...), which sets them, or call the job with airflow_barrier.spark.testing in a test"
        )
    path, files = _hadoop(spark, uri)
    if not files.exists(path):
        raise SpecError(  # safety: spec-is-there
            f"expected the epoch spec at {uri}, found nothing; can the Spark driver read the warehouse under this URI?"
        )
    stream = files.open(path)
    try:
        text = spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")  # type: ignore[union-attr]
    finally:
        stream.close()
    return EpochSpec.loads(text, digest)


def _write_new(spark: SparkSession, uri: str, text: str) -> None:
    """Write a file whole or not at all, and only once."""
    path, files = _hadoop(spark, uri)
    partial, _ = _hadoop(spark, f"{uri}.partial")
    stream = files.create(partial, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
    if files.exists(path) or not files.rename(partial, path):
        raise SpecError(  # safety: closed-once
            f"expected to write the closing record {uri}, found one there: another driver ran the same attempt; a "
            "retry begins a new attempt"
        )


def _hadoop(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """A Hadoop path and its file system: whatever storage Spark can write tables to."""
    path = spark._jvm.org.apache.hadoop.fs.Path(uri)  # type: ignore[union-attr]
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())
