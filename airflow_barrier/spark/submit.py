"""Handing work to spark-submit: what the worker passes on, and what the driver does with it."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import SpecError
from airflow_barrier.spark._submitted import hadoop, read_file, read_told, submitted, write_file
from airflow_barrier.spark.batch import BATCH_PATIENCE, Following, following_uri, run_epochs
from airflow_barrier.spark.correcting import Correcting
from airflow_barrier.spark.epoch import Job
from airflow_barrier.spark.spec import SPEC_DIGEST, SPEC_KEY, SPEC_URI, ClosingRecord, EpochSpec
from airflow_barrier.spark.sql import SqlJob
from airflow_barrier.spark.unchanged import leave_the_branch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: The application that runs an SQL job (:attr:`EpochSpec.sql`), for operators that want the path of a file.
SQL_APPLICATION = str(Path(__file__).parent / "applications" / "sql_job.py")
#: Seconds between two looks for the next epoch.
_POLL = 0.5


def submit_conf(spec_uri: str, digest: str, key: str | None = None) -> dict[str, str]:
    """The Spark conf by which an epoch job's driver finds its spec; ``key``: by which it reads the spec's secrets."""
    return {SPEC_URI: spec_uri, SPEC_DIGEST: digest, **({SPEC_KEY: key} if key else {})}


def run_submitted(job: Job | None = None) -> None:
    """The driver's side: read the spec that the conf names, run ``job`` (None: the spec's SQL), leave the record.

    A spec with corrections has these run instead, whatever ``job`` is.

    Ends the process with exit code 1 and one readable last line if anything fails; then there is no closing record,
    and nothing that was staged counts.
    """
    with submitted("The epoch") as spark:
        spec = read_spec(spark)
        _open_record(spark, spec.closing_uri)
        leave_the_branch(spark)
        run_epochs(spark, spec, job or _sql_of(spec), partial(_hand_over, spark))


def _sql_of(spec: EpochSpec) -> Job:
    if spec.corrections:
        return Correcting(spec)
    if spec.sql is None:
        raise SpecError(  # safety: spec-has-sql
            f"epoch spec of job {spec.job}: expected an SQL statement, found none; give the job sql=..., or its own "
            "application file instead of the SQL application"
        )
    return SqlJob(spec.sql)


def read_spec(spark: SparkSession) -> EpochSpec:
    """The epoch spec that the session's conf names. Raises SpecError."""
    uri, digest = spark.conf.get(SPEC_URI, None), spark.conf.get(SPEC_DIGEST, None)
    if not uri or not digest:
        raise SpecError(  # safety: spec-is-named
            f"expected Spark conf {SPEC_URI} and {SPEC_DIGEST}, found {uri!r} and {digest!r}; run this file through "
            "barrier.job(...), which sets them, or call the job with airflow_barrier.spark.testing in a test"
        )
    return EpochSpec.loads(read_told(spark, uri, "epoch spec"), digest, spark.conf.get(SPEC_KEY, None))


def _hand_over(spark: SparkSession, spec: EpochSpec, record: ClosingRecord) -> EpochSpec | None:
    """Leave the record; in a batch wait for what the task that leads says next."""
    _write_new(spark, spec.closing_uri, record.dumps(spec.nonce))
    patience = spark.conf.get(BATCH_PATIENCE, None)
    if patience is None:
        return None
    following = _wait_for(spark, spec, float(patience))
    if following.spec_uri is None or following.digest is None:
        return None
    # what enters its sources the driver was told with its first epoch
    found = replace(
        EpochSpec.loads(read_told(spark, following.spec_uri, "epoch spec"), following.digest), secrets=spec.secrets
    )
    _open_record(spark, found.closing_uri)
    return found


def _wait_for(spark: SparkSession, spec: EpochSpec, patience: float) -> Following:
    uri = following_uri(spec.closing_uri)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        text = read_file(spark, uri)
        if text is not None:
            path, files = hadoop(spark, uri)
            files.delete(path, False)  # the commit of this barrier, which tidies up, may come before we look
            return Following.loads(text, spec.nonce, f"attempt {spec.attempt_id} of job {spec.job}, file {uri}")
        time.sleep(_POLL)
    log.warning("Waited %.0f s in vain for %s: the task that leads this driver has gone", patience, uri)
    return Following()


def _open_record(spark: SparkSession, uri: str) -> None:
    """Say that this driver means to leave a closing record, before it writes anything: without one it died half-way.

    Where nothing was opened, the job is one that knows nothing of closing records.
    """
    partial, files = hadoop(spark, f"{uri}.partial")
    try:
        files.create(partial, False).close()
    except Exception as error:
        if not files.exists(partial):
            raise
        raise SpecError(  # safety: opened-once
            f"expected to be the first driver of this attempt, found that another one has opened {partial}: it was "
            "started twice, and may still run; a retry of the task begins a new attempt"
        ) from error


def _write_new(spark: SparkSession, uri: str, text: str) -> None:
    """Write the record whole or not at all, and only once."""
    if not write_file(spark, uri, text):
        raise SpecError(  # safety: closed-once
            f"expected to write the closing record {uri}, found one there: another driver ran the same attempt; a "
            "retry begins a new attempt"
        )
