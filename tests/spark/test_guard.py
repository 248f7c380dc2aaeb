"""The guard in a real Spark: what a job declares it may touch, all else ends the query before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from airflow_barrier.spark.unchanged import GUARD_MARK, GUARD_PROMISE
from tests.support.spark import IN_THIS_PROCESS, SINCE_4, session_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

BRANCH = "barrier_guarded_b1_r0_a1"
READS = "Add inlets=[..., 'guarded.other']"
WRITES = "Add outlets=[..., 'guarded.other']"
DDL = "cannot be staged: do it outside the job"


@pytest.fixture(scope="module")
def job(spark_server: SparkServer) -> Iterator[SparkSession]:
    """The session of a job that reads `guarded.inlet` and writes `guarded.outlet`."""
    with session_on(spark_server) as session:
        session.sql("CREATE NAMESPACE lake.guarded")
        for table in ("inlet", "outlet", "other"):
            session.sql(
                f"CREATE TABLE lake.guarded.{table} (k INT, n BIGINT) USING iceberg "
                "TBLPROPERTIES ('write.wap.enabled' = 'true')"
            )
            session.sql(f"INSERT INTO lake.guarded.{table} VALUES (1, 1)")
            session.sql(f"ALTER TABLE lake.guarded.{table} CREATE TAG old")
            if table != "other":
                session.sql(f"ALTER TABLE lake.guarded.{table} CREATE BRANCH `{BRANCH}`")
                session.sql(f"ALTER TABLE lake.guarded.{table} CREATE BRANCH another")
        for key, value in {
            "spark.wap.branch": BRANCH,
            "spark.airflow_barrier.catalog": "lake",
            "spark.airflow_barrier.reads": "guarded.outlet,guarded.inlet",
            "spark.airflow_barrier.writes": "guarded.outlet",
            "spark.airflow_barrier.branch": BRANCH,
        }.items():
            session.conf.set(key, value)
        yield session


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM lake.guarded.other", READS),
        ("SELECT * FROM lake.guarded.inlet WHERE k IN (SELECT k FROM lake.guarded.other)", READS),
        ("WITH o AS (SELECT * FROM lake.guarded.other) SELECT * FROM o", READS),
        ("CREATE TEMPORARY VIEW peek AS SELECT * FROM lake.guarded.other", READS),
        ("INSERT INTO lake.guarded.outlet SELECT * FROM lake.guarded.other", READS),
        (
            "MERGE INTO lake.guarded.outlet t USING lake.guarded.other s ON t.k = s.k WHEN NOT MATCHED THEN INSERT *",
            READS,
        ),
        ("INSERT INTO lake.guarded.other SELECT * FROM lake.guarded.inlet", WRITES),
        ("INSERT OVERWRITE lake.guarded.other SELECT * FROM lake.guarded.inlet", WRITES),
        ("INSERT INTO lake.guarded.inlet VALUES (2, 2)", "Add outlets=[..., 'guarded.inlet']"),
        (
            "MERGE INTO lake.guarded.other t USING lake.guarded.inlet s ON t.k = s.k WHEN NOT MATCHED THEN INSERT *",
            WRITES,
        ),
        ("UPDATE lake.guarded.other SET n = 2", WRITES),
        ("DELETE FROM lake.guarded.other", WRITES),
        ("DELETE FROM lake.guarded.other WHERE n = 1", WRITES),
        ("TRUNCATE TABLE lake.guarded.other", WRITES),
        ("DROP TABLE lake.guarded.outlet", DDL),
        ("ALTER TABLE lake.guarded.outlet ADD COLUMN more INT", DDL),
        ("ALTER TABLE lake.guarded.outlet CREATE BRANCH mine", DDL),
        ("CREATE OR REPLACE TABLE lake.guarded.outlet (k INT) USING iceberg", DDL),
        ("CREATE TABLE lake.guarded.scratch USING iceberg AS SELECT * FROM lake.guarded.inlet", DDL),
        ("CALL lake.system.rewrite_data_files('guarded.outlet')", "call it outside the job"),
    ],
)
def test_what_is_not_declared_is_refused(job: SparkSession, statement: str, said: str) -> None:
    with pytest.raises(PySparkException) as raised:
        job.sql(statement).collect()
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM lake.guarded.inlet.branch_main",
        "SELECT * FROM lake.guarded.inlet.branch_another",
        "SELECT * FROM lake.guarded.inlet.tag_old",
        "SELECT * FROM lake.guarded.inlet.snapshot_id_{snapshot}",
        "SELECT * FROM lake.guarded.inlet.at_timestamp_{now}",
        "SELECT * FROM lake.guarded.inlet.changes",
        "SELECT * FROM lake.guarded.inlet VERSION AS OF 'main'",
        "SELECT * FROM lake.guarded.inlet VERSION AS OF 'old'",
        "SELECT * FROM lake.guarded.inlet FOR VERSION AS OF {snapshot}",
        "SELECT * FROM lake.guarded.inlet FOR SYSTEM_VERSION AS OF 'main'",
        "SELECT * FROM lake.guarded.inlet TIMESTAMP AS OF current_timestamp()",
        pytest.param("SELECT * FROM lake.guarded.inlet WITH ('branch' = 'main')", marks=SINCE_4),
        "SELECT * FROM lake.guarded.inlet WHERE k IN (SELECT k FROM lake.guarded.inlet.branch_main)",
        "WITH o AS (SELECT * FROM lake.guarded.inlet VERSION AS OF 'main') SELECT * FROM o",
        "CREATE TEMPORARY VIEW peek AS SELECT * FROM lake.guarded.inlet.branch_main",
        "SELECT * FROM lake.guarded.outlet.branch_main",
        "INSERT INTO lake.guarded.outlet SELECT * FROM lake.guarded.inlet VERSION AS OF 'main'",
        "INSERT INTO lake.guarded.outlet.branch_main VALUES (2, 2)",
        "INSERT INTO lake.guarded.outlet.branch_another VALUES (2, 2)",
        pytest.param("INSERT INTO lake.guarded.outlet WITH ('branch' = 'main') VALUES (2, 2)", marks=SINCE_4),
        "INSERT OVERWRITE lake.guarded.outlet.branch_main SELECT * FROM lake.guarded.inlet",
        "INSERT INTO lake.guarded.outlet.branch_main REPLACE WHERE k = 1 SELECT * FROM lake.guarded.inlet",
        "UPDATE lake.guarded.outlet.branch_main SET n = 2",
        "DELETE FROM lake.guarded.outlet.branch_main",
        "DELETE FROM lake.guarded.outlet.branch_main WHERE n = 1",
        "TRUNCATE TABLE lake.guarded.outlet.branch_main",
        "MERGE INTO lake.guarded.outlet.branch_main t USING lake.guarded.inlet s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT *",
        "MERGE INTO lake.guarded.outlet t USING lake.guarded.inlet.branch_main s ON t.k = s.k "
        "WHEN NOT MATCHED THEN INSERT *",
    ],
)
def test_no_name_leads_away_from_the_attempts_branch(job: SparkSession, statement: str) -> None:
    (snapshot,) = job.sql("SELECT snapshot_id FROM lake.guarded.inlet.refs WHERE name = 'main'").collect()
    with pytest.raises(PySparkException) as raised:
        job.sql(statement.format(snapshot=snapshot.snapshot_id, now=2**42)).collect()
    assert BRANCH in str(raised.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("branch", "main"),
        ("BRANCH", "main"),
        ("versionAsOf", "main"),
        ("versionAsOf", "{snapshot}"),
        ("timestampAsOf", "2100-01-01"),
        ("start-snapshot-id", "{snapshot}"),
        ("start-timestamp", "1"),
    ],
)
def test_no_option_leads_a_reader_away_from_the_attempts_branch(job: SparkSession, option: str, value: str) -> None:
    (snapshot,) = job.sql("SELECT snapshot_id FROM lake.guarded.inlet.refs WHERE name = 'main'").collect()
    given = value.format(snapshot=snapshot.snapshot_id)
    reader = job.read.format("iceberg").option(option, given)
    for load in (reader.table, reader.load):
        with pytest.raises(PySparkException) as raised:
            load("lake.guarded.inlet").collect()
        assert BRANCH in str(raised.value)


@pytest.mark.parametrize("named", ["lake.guarded.outlet", "lake.guarded.outlet.branch_main"])
def test_no_option_leads_a_writer_away_from_the_attempts_branch(job: SparkSession, named: str) -> None:
    rows = job.table("lake.guarded.inlet")
    option = {} if "branch" in named else {"branch": "main"}
    for write in (
        lambda: rows.writeTo(named).options(**option).append(),
        lambda: rows.writeTo(named).options(**option).overwritePartitions(),
        lambda: rows.write.format("iceberg").mode("append").options(**option).save(named),
        lambda: rows.write.mode("append").options(**option).saveAsTable(named),
        lambda: rows.write.options(**option).insertInto(named),
    ):
        with pytest.raises(PySparkException) as raised:
            write()
        assert BRANCH in str(raised.value)


def test_no_stream_leads_away_from_the_attempts_branch(job: SparkSession, tmp_path: Path) -> None:
    """Of both ends Iceberg takes main, whatever the conf or the table's name says."""
    for named in ("inlet", f"inlet.branch_{BRANCH}"):
        with pytest.raises(PySparkException, match=f"{BRANCH}.* by a stream"):
            job.readStream.table(f"lake.guarded.{named}").writeStream.format("noop").start()
    counting = job.readStream.format("rate").load().selectExpr("1 AS k", "value AS n").writeStream
    writer = counting.format("iceberg").option("checkpointLocation", str(tmp_path))
    for named in ("outlet", "other", f"outlet.branch_{BRANCH}"):
        with pytest.raises(PySparkException, match=f"by a stream, .* branch, {BRANCH}"):
            writer.start(f"lake.guarded.{named}")
    with pytest.raises(PySparkException, match=f"by a stream, .* branch, {BRANCH}"):
        writer.toTable("lake.guarded.outlet")


@pytest.mark.parametrize("changed", [{"branch": None}, {"branch": "main"}, {"branch": "another"}, {"id": "1"}])
def test_no_conf_leads_away_from_the_attempts_branch(job: SparkSession, changed: dict[str, str | None]) -> None:
    try:
        for key, value in changed.items():
            job.sql(f"SET spark.wap.{key} = {value}") if value else job.conf.unset(f"spark.wap.{key}")
        for statement in (
            "SELECT * FROM lake.guarded.inlet",
            "INSERT INTO lake.guarded.outlet VALUES (2, 2)",
            "DELETE FROM lake.guarded.outlet",
            "TRUNCATE TABLE lake.guarded.outlet",
            "MERGE INTO lake.guarded.outlet t USING (SELECT 5 k) s ON t.k = s.k WHEN MATCHED THEN DELETE",
        ):
            with pytest.raises(PySparkException) as raised:
                job.sql(statement).collect()
            assert BRANCH in str(raised.value)
    finally:
        job.conf.set("spark.wap.branch", BRANCH)
        job.conf.unset("spark.wap.id")


def test_a_table_that_no_longer_follows_the_conf_is_refused(job: SparkSession, spark: SparkSession) -> None:
    try:
        for change in ("SET TBLPROPERTIES ('{}' = 'false')", "UNSET TBLPROPERTIES ('{}')"):
            spark.sql(f"ALTER TABLE lake.guarded.outlet {change.format('write.wap.enabled')}")
            job.sql("REFRESH TABLE lake.guarded.outlet")
            for statement in (
                "SELECT * FROM {}",
                "INSERT INTO {} VALUES (2, 2)",
                "UPDATE {} SET n = 2",
                "TRUNCATE TABLE {}",
            ):
                with pytest.raises(PySparkException, match=rf"{BRANCH}.*switched off its property write.wap.enabled"):
                    job.sql(statement.format("lake.guarded.outlet")).collect()
    finally:
        spark.sql("ALTER TABLE lake.guarded.outlet SET TBLPROPERTIES ('write.wap.enabled' = 'true')")
        job.sql("REFRESH TABLE lake.guarded.outlet")


def test_what_stands_at_the_attempts_branch_by_another_name_is_read(job: SparkSession) -> None:
    named = f"lake.guarded.inlet.branch_{BRANCH}"
    assert job.sql(f"SELECT * FROM {named}").count() == 1
    assert job.read.option("branch", BRANCH).table("lake.guarded.inlet").count() == 1
    for part in ("snapshots", "HISTORY", "files", "refs", "partitions", "metadata_log_entries"):
        assert job.sql(f"SELECT * FROM lake.guarded.inlet.{part}").count() > 0


@pytest.mark.parametrize("table", ["lake.guarded.outlet", "guarded.outlet", "outlet"])
def test_ddl_of_icebergs_own_is_refused_however_the_table_is_named(job: SparkSession, table: str) -> None:
    job.sql("USE lake.guarded")
    for change in ("CREATE BRANCH mine", "ADD PARTITION FIELD k", "WRITE ORDERED BY k"):
        with pytest.raises(PySparkException) as raised:
            job.sql(f"ALTER TABLE {table} {change}").collect()
        assert DDL in str(raised.value)
    job.sql("USE spark_catalog.default")


@SINCE_4
@pytest.mark.parametrize("table", ["lake.guarded.outlet", "guarded.outlet", f"lake.guarded.outlet.branch_{BRANCH}"])
def test_no_merge_adds_columns(job: SparkSession, spark: SparkSession, table: str) -> None:
    job.sql("USE lake")
    rows = job.table("lake.guarded.inlet").selectExpr("k", "n", "'x' AS note")
    rows.createOrReplaceTempView("wider")
    on = "t.k = s.k WHEN NOT MATCHED THEN INSERT *"
    for merge in (
        lambda: job.sql(f"MERGE WITH SCHEMA EVOLUTION INTO {table} t USING wider s ON {on}").collect(),
        lambda: (
            rows.mergeInto(table, rows.k == 1).whenNotMatched().insertAll().withSchemaEvolution().merge()  # type: ignore[func-returns-value]
        ),
    ):
        with pytest.raises(PySparkException) as raised:
            merge()
        assert DDL in str(raised.value)
    assert spark.table("lake.guarded.outlet").columns == ["k", "n"]
    job.sql("USE spark_catalog.default")


@pytest.mark.parametrize("key", ["mergeSchema", "merge-schema"])
def test_no_write_adds_columns_to_a_table_that_accepts_any_schema(
    job: SparkSession, spark: SparkSession, key: str
) -> None:
    accepts = "TBLPROPERTIES ('write.spark.accept-any-schema' = 'true')"
    rows = job.table("lake.guarded.inlet").selectExpr("k", "n", "'x' AS note")
    spark.sql(f"ALTER TABLE lake.guarded.outlet SET {accepts}")
    job.sql("REFRESH TABLE lake.guarded.outlet")
    try:
        writes = [
            lambda: rows.writeTo("lake.guarded.outlet").option(key, "true").append(),
            lambda: rows.write.format("iceberg").mode("append").option(key, "true").save("lake.guarded.outlet"),
            lambda: rows.write.option(key, "true").mode("append").saveAsTable("lake.guarded.outlet"),
        ]
        if not IN_THIS_PROCESS:
            insert = f"INSERT INTO lake.guarded.outlet WITH ('{key}' = 'true') SELECT 2, 2, 'x'"
            writes.append(lambda: job.sql(insert).collect())
        for write in writes:
            with pytest.raises(PySparkException) as raised:
                write()
            assert DDL in str(raised.value)
        job.conf.set("spark.sql.iceberg.merge-schema", "true")
        with pytest.raises(PySparkException, match=DDL):
            rows.writeTo("lake.guarded.outlet").append()
        assert spark.table("lake.guarded.outlet").columns == ["k", "n"]
    finally:
        job.conf.unset("spark.sql.iceberg.merge-schema")
        spark.sql("ALTER TABLE lake.guarded.outlet UNSET TBLPROPERTIES ('write.spark.accept-any-schema')")
        job.sql("REFRESH TABLE lake.guarded.outlet")


def test_what_is_declared_goes_to_the_branch_and_bears_the_mark(job: SparkSession, spark: SparkSession) -> None:
    job.sql("CREATE TABLE IF NOT EXISTS lake.guarded.outlet (k INT, n BIGINT) USING iceberg")
    job.sql("INSERT INTO lake.guarded.outlet SELECT k, n + 1 FROM lake.guarded.inlet")
    job.table("lake.guarded.inlet").writeTo("lake.guarded.outlet").overwritePartitions()
    job.sql("UPDATE lake.guarded.outlet SET n = 7 WHERE k = 1")
    assert [row.n for row in job.table("lake.guarded.outlet").collect()] == [7]
    job.sql("DELETE FROM lake.guarded.outlet")  # of whole files
    assert job.table("lake.guarded.outlet.snapshots").count() == 5
    assert [row.n for row in spark.table("lake.guarded.outlet").collect()] == [1]
    spark.sql("INSERT INTO lake.guarded.outlet VALUES (9, 9)")  # by another session, in the same thread for some Sparks
    marks = spark.sql("SELECT summary FROM lake.guarded.outlet.snapshots ORDER BY committed_at").collect()
    assert [row.summary.get(GUARD_MARK) for row in marks] == [None, *[GUARD_PROMISE] * 4, None]


def test_procedures_that_look_are_called(job: SparkSession) -> None:
    assert job.sql("CALL lake.system.ancestors_of('guarded.inlet')").count() == 1


def test_an_external_table_is_read_at_a_snapshot_only(job: SparkSession, spark: SparkSession) -> None:
    (snapshot,) = spark.sql("SELECT snapshot_id FROM lake.guarded.other.snapshots").collect()
    # before 4.1 Spark reads no snapshot of a table that has it
    spark.sql("ALTER TABLE lake.guarded.other UNSET TBLPROPERTIES ('write.wap.enabled')")
    job.conf.set("spark.airflow_barrier.pinned", "guarded.other")
    try:
        assert job.sql(f"SELECT * FROM lake.guarded.other VERSION AS OF {snapshot.snapshot_id}").count() == 1
        by_option = job.read.option("versionAsOf", snapshot.snapshot_id)
        if IN_THIS_PROCESS:  # which ignores the option, and would read what is there now
            with pytest.raises(PySparkException, match="read it by current_epoch"):
                by_option.table("lake.guarded.other").collect()
        else:
            assert by_option.table("lake.guarded.other").count() == 1
        with pytest.raises(PySparkException, match="read it by current_epoch"):
            job.table("lake.guarded.other").collect()
    finally:
        job.conf.unset("spark.airflow_barrier.pinned")


def test_sessions_that_are_no_jobs_are_left_alone(spark: SparkSession) -> None:
    assert spark.sql("SELECT * FROM lake.guarded.other").count() == 1
