"""Jobs whose code knows nothing of barriers: what their tables need, and what their attempt branches have to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import SilentOutletError, StagedTableError, UnguardedError, WapDisabledError
from airflow_barrier.protocol.records import Attempt, StagedTable
from airflow_barrier.spark.spec import ClosingRecord
from airflow_barrier.spark.unchanged import GUARD_MARK, GUARD_PROMISE
from airflow_barrier.systems.spark_versions import OLDEST, is_too_old

_WAP_ENABLED = "write.wap.enabled"


def require_wap(deployment: Deployment, attempt: Attempt) -> None:
    """Every table of the attempt can be sent to its branch by conf; on others that conf is silently ignored.

    Raises WapDisabledError.
    """
    enabled = deployment.tables.wap_enabled(sorted({*attempt.inputs, *attempt.bases}))
    lacking = [table for table, on in enabled.items() if not on]
    if lacking:
        catalog = deployment.spark_catalog
        lines = " ".join(f"ALTER TABLE {catalog}.{t} SET TBLPROPERTIES ('{_WAP_ENABLED}'='true');" for t in lacking)
        raise WapDisabledError(  # safety: wap-is-enabled
            f"{attempt}: expected {_WAP_ENABLED}=true on every inlet and outlet, found it missing on "
            f"{', '.join(lacking)}: without it Spark would read and write main. Switch it on, which changes nothing "
            f"for anybody else: airflow-barrier topology adopt does so, or {lines}"
        )


def staged_without_record(deployment: Deployment, attempt: Attempt) -> ClosingRecord:
    """Return the closing record of an unchanged job from the tables alone: its operator said that the job succeeded.

    Raises ForeignWriteError, SilentOutletError, StagedTableError, UnguardedError.
    """
    seen = deployment.tables.seen({*attempt.inputs, *attempt.bases})
    for table in sorted({*attempt.inputs, *attempt.bases}):  # before one is called silent that it wrote to on `main`
        seen.require_main_without(table, attempt.stamp)  # safety: unchanged-job-leaves-main-alone
    staged: dict[str, StagedTable] = {}
    for table, base in attempt.bases.items():
        summaries = seen.staged_summaries(table, attempt.stamp, base)
        for summary in summaries:  # before the stamp is looked for, which an old Spark leaves off
            _check_engine(attempt, table, summary)
        head = seen.staged(table, attempt.stamp, base)
        if head is None:
            raise SilentOutletError(  # safety: unchanged-job-wrote
                f"{attempt}: expected output in {table}, found none on branch {attempt.branch}. No output may as well "
                "be a job that wrote elsewhere, so it is not taken as 'nothing changed'. Let the job write in every "
                f"run (an empty append will do: INSERT INTO {deployment.spark_catalog}.{table} SELECT * FROM "
                f"{deployment.spark_catalog}.{table} LIMIT 0), or make it an epoch job, which can call epoch.unchanged"
            )
        _check_drivers(attempt, table, summaries)
        staged[table] = StagedTable(table, head)
    return ClosingRecord(attempt.attempt_id, staged)


def _check_engine(attempt: Attempt, table: str, summary: Mapping[str, str]) -> None:
    version = summary.get("engine-version", "")
    if summary.get("engine-name") == "spark" and is_too_old(version):
        raise UnguardedError(  # safety: spark-is-new-enough
            f"{attempt}: expected Spark {OLDEST} or newer, found that Spark {version} wrote {table}: the "
            "guard does not run in it; run the job on a newer Spark"
        )


def _check_drivers(attempt: Attempt, table: str, summaries: Sequence[Mapping[str, str]]) -> None:
    """One driver wrote the table, and the guard was in it."""
    drivers = {summary["spark.app.id"] for summary in summaries if "spark.app.id" in summary}
    if len(drivers) > 1:
        raise StagedTableError(  # safety: one-driver
            f"{attempt}: expected one Spark application to have written {table}, found {', '.join(sorted(drivers))}: "
            "the job was started twice for one attempt, and may have written twice. Switch off restarts of the driver "
            "(Airflow's retries begin a new attempt, restarts by the cluster do not); the next try starts afresh"
        )
    for summary in summaries:
        if summary.get(GUARD_MARK) != GUARD_PROMISE:
            found = "one of another version" if GUARD_MARK in summary else "no sign of it"
            raise UnguardedError(  # safety: guard-was-there
                f"{attempt}: expected this version's guard in the Spark driver that wrote {table}, found {found}: "
                "whether the job touched tables that it does not declare, or left its branch, is unknown. Put "
                "airflow-barrier-guard.jar (python -m airflow_barrier.spark.guard prints where it lies) among the "
                "driver's jars, or on the class path of the cluster or server: see docs/unchanged-jobs.md"
            )
