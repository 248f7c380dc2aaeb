"""The guard in a real Spark: what a job declares it may touch, all else ends the query before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from airflow_barrier.spark.unchanged import GUARD_MARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

BRANCH = "barrier_guarded_b1_r0_a1"
READS = "Add sources=[..., 'guarded.other']"
WRITES = "Add sinks=[..., 'guarded.other']"
DDL = "cannot be staged: do it outside the job"


@pytest.fixture(scope="module")
def job(spark_server: SparkServer) -> Iterator[SparkSession]:
    """The session of a job that reads `guarded.source` and writes `guarded.sink`."""
    from airflow_barrier.spark.connect import connect_session, stop_session

    session = connect_session(spark_server.url)
    session.sql("CREATE NAMESPACE lake.guarded")
    for table in ("source", "sink", "other"):
        session.sql(
            f"CREATE TABLE lake.guarded.{table} (k INT, n BIGINT) USING iceberg "
            "TBLPROPERTIES ('write.wap.enabled' = 'true')"
        )
        session.sql(f"INSERT INTO lake.guarded.{table} VALUES (1, 1)")
        if table != "other":
            session.sql(f"ALTER TABLE lake.guarded.{table} CREATE BRANCH `{BRANCH}`")
    for key, value in {
        "spark.wap.branch": BRANCH,
        "spark.airflow_barrier.catalog": "lake",
        "spark.airflow_barrier.reads": "guarded.sink,guarded.source",
        "spark.airflow_barrier.writes": "guarded.sink",
    }.items():
        session.conf.set(key, value)
    yield session
    stop_session(session)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM lake.guarded.other", READS),
        ("SELECT * FROM lake.guarded.source WHERE k IN (SELECT k FROM lake.guarded.other)", READS),
        ("WITH o AS (SELECT * FROM lake.guarded.other) SELECT * FROM o", READS),
        ("CREATE TEMPORARY VIEW peek AS SELECT * FROM lake.guarded.other", READS),
        ("INSERT INTO lake.guarded.sink SELECT * FROM lake.guarded.other", READS),
        (
            "MERGE INTO lake.guarded.sink t USING lake.guarded.other s ON t.k = s.k WHEN NOT MATCHED THEN INSERT *",
            READS,
        ),
        ("INSERT INTO lake.guarded.other SELECT * FROM lake.guarded.source", WRITES),
        ("INSERT OVERWRITE lake.guarded.other SELECT * FROM lake.guarded.source", WRITES),
        ("INSERT INTO lake.guarded.source VALUES (2, 2)", "Add sinks=[..., 'guarded.source']"),
        (
            "MERGE INTO lake.guarded.other t USING lake.guarded.source s ON t.k = s.k WHEN NOT MATCHED THEN INSERT *",
            WRITES,
        ),
        ("UPDATE lake.guarded.other SET n = 2", WRITES),
        ("DELETE FROM lake.guarded.other", WRITES),
        ("DELETE FROM lake.guarded.other WHERE n = 1", WRITES),
        ("TRUNCATE TABLE lake.guarded.other", WRITES),
        ("DROP TABLE lake.guarded.sink", DDL),
        ("ALTER TABLE lake.guarded.sink ADD COLUMN more INT", DDL),
        ("ALTER TABLE lake.guarded.sink CREATE BRANCH mine", DDL),
        ("CREATE OR REPLACE TABLE lake.guarded.sink (k INT) USING iceberg", DDL),
        ("CREATE TABLE lake.guarded.scratch USING iceberg AS SELECT * FROM lake.guarded.source", DDL),
        ("CALL lake.system.rewrite_data_files('guarded.sink')", "call it outside the job"),
    ],
)
def test_what_is_not_declared_is_refused(job: SparkSession, statement: str, said: str) -> None:
    with pytest.raises(PySparkException) as raised:
        job.sql(statement).collect()
    assert said in str(raised.value)


@pytest.mark.parametrize("table", ["lake.guarded.sink", "guarded.sink", "sink"])
def test_ddl_of_icebergs_own_is_refused_however_the_table_is_named(job: SparkSession, table: str) -> None:
    job.sql("USE lake.guarded")
    for change in ("CREATE BRANCH mine", "ADD PARTITION FIELD k", "WRITE ORDERED BY k"):
        with pytest.raises(PySparkException) as raised:
            job.sql(f"ALTER TABLE {table} {change}").collect()
        assert DDL in str(raised.value)
    job.sql("USE spark_catalog.default")


def test_what_is_declared_goes_to_the_branch_and_bears_the_mark(job: SparkSession, spark: SparkSession) -> None:
    job.sql("CREATE TABLE IF NOT EXISTS lake.guarded.sink (k INT, n BIGINT) USING iceberg")
    job.sql("INSERT INTO lake.guarded.sink SELECT k, n + 1 FROM lake.guarded.source")
    job.table("lake.guarded.source").writeTo("lake.guarded.sink").overwritePartitions()
    job.sql("UPDATE lake.guarded.sink SET n = 7 WHERE k = 1")
    assert [row.n for row in job.table("lake.guarded.sink").collect()] == [7]
    assert job.table("lake.guarded.sink.snapshots").count() == 4
    assert [row.n for row in spark.table("lake.guarded.sink").collect()] == [1]
    marks = spark.sql("SELECT summary FROM lake.guarded.sink.snapshots ORDER BY committed_at").collect()
    assert [GUARD_MARK in row.summary for row in marks] == [False, True, True, True]


def test_an_external_table_is_read_at_a_snapshot_only(job: SparkSession, spark: SparkSession) -> None:
    (snapshot,) = spark.sql("SELECT snapshot_id FROM lake.guarded.other.snapshots").collect()
    job.conf.set("spark.airflow_barrier.pinned", "guarded.other")
    try:
        pinned = job.read.option("versionAsOf", snapshot.snapshot_id).table("lake.guarded.other")
        assert pinned.count() == 1
        with pytest.raises(PySparkException, match="read it by current_epoch"):
            job.table("lake.guarded.other").collect()
    finally:
        job.conf.unset("spark.airflow_barrier.pinned")


def test_sessions_that_are_no_jobs_are_left_alone(spark: SparkSession) -> None:
    assert spark.sql("SELECT * FROM lake.guarded.other").count() == 1
