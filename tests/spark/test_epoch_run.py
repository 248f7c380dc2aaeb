"""Epoch jobs over several barriers on a real server: what they read, what they must say, what they may not do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_barrier.protocol.errors import (
    ChangedOutletError,
    ConfigurationError,
    NotAppendOnlyError,
    SilentOutletError,
    StagedTableError,
    UndeclaredTableError,
)
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.spark.connect import connect_session
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch, Job
from airflow_barrier.spark.identifiers import table_name
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec
from airflow_barrier.spark.sql import SqlJob
from tests.spark.jobs.amount import amount
from tests.support.epochs import (
    AMOUNT,
    CATALOG,
    SHOPPING,
    Barriers,
    recomputed_amount,
    shop_for_a_day,
    shopping_barriers,
)
from tests.support.spark import APART, BEFORE_4, NO_DRIVER, NO_JAR


@pytest.fixture
def barriers(spark: SparkSession, tmp_path: Path) -> Barriers:
    return shopping_barriers(spark, tmp_path)


def run(session: SparkSession, barriers: Barriers, barrier: int, job: Job = amount) -> tuple[EpochSpec, ClosingRecord]:
    spec = barriers.begin(barrier, inlets=[SHOPPING], outlets=[AMOUNT])
    return spec, run_epoch(session, spec, job)


@pytest.mark.every_landing
def test_sums_of_changes_equal_full_recomputation_after_every_barrier(
    session: SparkSession, barriers: Barriers
) -> None:
    barriers.create(
        SHOPPING,
        "id BIGINT, userId BIGINT, itemId BIGINT, amount DECIMAL(18, 2)",
        {f"write.{what}.mode": "merge-on-read" for what in ("update", "delete", "merge")},
    )
    for barrier in (1, 2, 3):
        shop_for_a_day(barriers, barrier)
        barriers.publish(*run(session, barriers, barrier))
        # a group whose last purchase was taken back stays in the outlet, at nothing
        assert [row for row in barriers.rows(AMOUNT) if row[2]] == recomputed_amount(barriers)


def test_what_is_staged_bears_the_attempts_stamp_and_leaves_main_alone(
    session: SparkSession, barriers: Barriers
) -> None:
    shop_for_a_day(barriers, 1)
    spec, record = run(session, barriers, 1)
    assert record.attempt_id == spec.attempt_id
    assert record.staged == {AMOUNT: StagedTable(AMOUNT, record.staged[AMOUNT].snapshot_id)}
    assert barriers.main(AMOUNT) is None
    summary = barriers.spark.sql(
        f"SELECT summary FROM {table_name(CATALOG, AMOUNT, 'snapshots')} "
        f"WHERE snapshot_id = {record.staged[AMOUNT].snapshot_id}"
    ).collect()[0][0]
    assert spec.stamp.properties().items() <= summary.items()


def test_appends_of_an_inlet_with_updates_fail_loudly(session: SparkSession, barriers: Barriers) -> None:
    def summing_appends(epoch: Epoch) -> None:
        epoch.appends(SHOPPING).groupBy("userId", "itemId").agg(F.sum("amount").alias("totalAmount")).writeTo(
            epoch.target(AMOUNT)
        ).append()

    shop_for_a_day(barriers, 1)
    barriers.publish(*run(session, barriers, 1, summing_appends))
    assert barriers.rows(AMOUNT) == recomputed_amount(barriers)
    shop_for_a_day(barriers, 2)
    with pytest.raises(NotAppendOnlyError, match="shopping"):
        run(session, barriers, 2, summing_appends)


def test_reads_are_pinned_although_the_tables_move_on(session: SparkSession, barriers: Barriers) -> None:
    seen: dict[str, int] = {}

    def copying(epoch: Epoch) -> None:
        seen.update(
            read=epoch.read(SHOPPING).count(),
            previous=epoch.previous(SHOPPING).count(),
            appends=epoch.appends(SHOPPING).count(),
            base=epoch.previous(AMOUNT).count(),
            staged_before=epoch.read(AMOUNT).count(),
        )
        copy = epoch.read(SHOPPING).selectExpr("userId", "itemId", "amount AS totalAmount")
        copy.writeTo(epoch.target(AMOUNT)).append()
        seen.update(staged_after=epoch.read(AMOUNT).count(), base_after=epoch.previous(AMOUNT).count())

    barriers.write(1, SHOPPING, "INSERT INTO {t} VALUES (1, 1, 1, 1.00)", "INSERT INTO {t} VALUES (2, 1, 1, 1.00)")
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    barriers.write(2, SHOPPING, "INSERT INTO {t} VALUES (3, 1, 1, 1.00)", "INSERT INTO {t} VALUES (4, 1, 1, 1.00)")
    barriers.write(3, SHOPPING, "DELETE FROM {t} WHERE id < 4")
    barriers.publish(spec, run_epoch(session, spec, copying))
    assert seen == {
        "read": 2, "previous": 0, "appends": 2, "base": 0, "staged_before": 0, "staged_after": 2, "base_after": 0,
    }  # fmt: skip
    run(session, barriers, 2, copying)
    assert seen == {
        "read": 4, "previous": 2, "appends": 2, "base": 2, "staged_before": 2, "staged_after": 6, "base_after": 2,
    }  # fmt: skip


def test_the_epochs_own_time_and_seed(session: SparkSession, barriers: Barriers) -> None:
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    epoch = Epoch(session, spec)
    assert (epoch.barrier_id, epoch.timestamp, epoch.previous_timestamp, epoch.seed) == (1, spec.timestamp, None, 7)
    assert epoch.changes(SHOPPING).collect() == []
    assert "_weight" in epoch.changes(SHOPPING).columns


def test_undeclared_tables_are_named_with_the_line_to_add(session: SparkSession, barriers: Barriers) -> None:
    epoch = Epoch(session, barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT]))
    for use in (epoch.read, epoch.previous, epoch.appends, epoch.changes):
        with pytest.raises(UndeclaredTableError, match=r"job amount uses table 'shop\.products'.*inlets=\[\.\.\., "):
            use("shop.products")
    for use in (epoch.target, epoch.unchanged):
        with pytest.raises(UndeclaredTableError, match=r"declared: shop\.user_item_amount\. Add outlets=\[\.\.\., "):
            use(SHOPPING)  # type: ignore[operator]
    with pytest.raises(UndeclaredTableError, match="external source 'landing'"):
        epoch.source("landing")


def test_an_outlet_without_output_is_never_taken_as_unchanged(session: SparkSession, barriers: Barriers) -> None:
    with pytest.raises(SilentOutletError, match=r"epoch\.unchanged\('shop\.user_item_amount'\)"):
        run(session, barriers, 1, lambda epoch: None)


@pytest.mark.parametrize(
    ("catalog", "said"),
    [
        ("absent", "found none.*airflow-barrier spark-conf"),
        (NO_JAR, "Iceberg's runtime.*add org.apache.iceberg:iceberg-spark-runtime"),
        (NO_DRIVER, "JDBC driver.*add org.postgresql:postgresql to spark.jars.packages"),
        (APART, "since the deployment's catalog has this table, found none: it is another catalog"),
    ],
)
def test_a_spark_that_cannot_use_its_catalog(
    session: SparkSession, barriers: Barriers, catalog: str, said: str
) -> None:
    """The task's log says it in one sentence, and no retry is spent on it."""
    spec = replace(barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT]), catalog=catalog)
    with pytest.raises(ConfigurationError, match=rf"barrier 1 .*Spark's catalog {catalog}: .*{said}") as found:
        run_epoch(session, spec, amount)
    assert "\n" not in str(found.value)


def append(columns: str) -> Job:
    return lambda epoch: epoch.spark.sql(f"SELECT {columns}").writeTo(epoch.target(AMOUNT)).append()


def merge_into(column: str) -> Job:
    statement = f"MERGE INTO {{target:{AMOUNT}}} t USING (SELECT 1 AS userId) s ON t.userId = s.userId"
    return SqlJob(f"{statement} WHEN MATCHED THEN UPDATE SET {column} = 1")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (append("1L AS userId, 1L AS itemId, 1 AS totalAmount, 1 AS more"), "too many data columns"),
        (append("'x' AS userId, 1L AS itemId, 1 AS totalAmount"), "Cannot safely cast"),
        (
            merge_into("t.total"),
            "A column.* or function parameter with name `t`.`total` cannot be resolved",
        ),
    ],
    ids=["too many", "another type", "an unknown one"],
)
def test_a_job_with_other_columns_than_its_table(
    session: SparkSession, barriers: Barriers, job: Job, said: str
) -> None:
    """The task's log says it in one sentence, and no retry is spent on it."""
    with pytest.raises(ConfigurationError, match=rf"barrier 1 .*{said}.* Correct the job, or the table") as found:
        run(session, barriers, 1, job)
    assert "\n" not in str(found.value)


def test_an_unchanged_outlet_keeps_its_base(session: SparkSession, barriers: Barriers) -> None:
    shop_for_a_day(barriers, 1)
    barriers.publish(*run(session, barriers, 1))
    base = barriers.at[1][AMOUNT]
    _, record = run(session, barriers, 2, lambda epoch: epoch.unchanged(AMOUNT))
    assert record.staged == {AMOUNT: StagedTable(AMOUNT, base, unchanged=True)}


def test_writing_to_an_outlet_that_was_called_unchanged_fails(session: SparkSession, barriers: Barriers) -> None:
    def both(epoch: Epoch) -> None:
        epoch.unchanged(AMOUNT)
        amount(epoch)

    with pytest.raises(ChangedOutletError, match="do one or the other"):
        run(session, barriers, 1, both)


@pytest.mark.kills("driver-starts-on-untouched-branch")
def test_an_attempt_does_not_run_on_top_of_its_own_half(session: SparkSession, barriers: Barriers) -> None:
    """A cluster manager that starts a failed driver again would write everything twice."""

    def dies_between_two_writes(epoch: Epoch) -> None:
        amount(epoch)
        raise RuntimeError("out of memory")

    for barrier in (1, 2):
        shop_for_a_day(barriers, barrier)
        spec = barriers.begin(barrier, inlets=[SHOPPING], outlets=[AMOUNT])
        with pytest.raises(RuntimeError, match="out of memory"):
            run_epoch(session, spec, dies_between_two_writes)
        with pytest.raises(StagedTableError, match="an earlier run of this attempt wrote to it"):
            run_epoch(session, spec, amount)
        barriers.publish(*run(session, barriers, barrier))
    assert [row for row in barriers.rows(AMOUNT) if row[2]] == recomputed_amount(barriers)


@pytest.mark.kills("driver-finds-its-branch")
def test_a_dropped_branch_is_an_error_that_a_new_attempt_mends(session: SparkSession, barriers: Barriers) -> None:
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    barriers.spark.sql(f"ALTER TABLE {table_name(CATALOG, AMOUNT)} DROP BRANCH {spec.branch}")
    with pytest.raises(StagedTableError, match="found none") as caught:
        run_epoch(session, spec, amount)
    assert caught.value.retryable


# --- on Sparks before 4.0, which tests/spark/test_versions.py has ------------------------------------


@BEFORE_4
def test_a_job_that_calls_what_its_spark_has_not(session: SparkSession, barriers: Barriers) -> None:
    def job(epoch: Epoch) -> None:
        epoch.read(SHOPPING).mergeInto(epoch.target(AMOUNT), F.lit(True)).whenNotMatched().insertAll().merge()

    with pytest.raises(ConfigurationError, match=r"barrier 1 .*expected Spark 4\.0 or newer, which has .*mergeInto"):
        run(session, barriers, 1, job)


@BEFORE_4
def test_no_job_reaches_it_by_spark_connect() -> None:
    with pytest.raises(ConfigurationError, match=r"pyspark of version 4\.0 or newer, found 3\.5: .*via='submit'"):
        connect_session("sc://127.0.0.1:1")
