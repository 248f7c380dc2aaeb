"""Hostile names of tables, columns, sources and files in Spark: SQL, readers, Iceberg's branches and tags."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.identifiers import quoted, table_name
from airflow_barrier.spark.sql import SqlJob
from tests.sources.landing import land
from tests.support.runs import run_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.spark.job import Job as Work
    from tests.support.spark import SparkServer

TOPOLOGY = "select-" + "t" * 93
#: Each is a namespace, a table and a column, except for the longest, which is no namespace.
NAMES = (
    'o\'brien "x"',
    "back`tick` back\\slash",
    "café",
    "שלום 🧺",
    'x"; DROP TABLE `lake`.`shop`.`t` --',
    "a*[b]c 100% /e",
    "branch_main",
    "snapshots",
    "x" * 200,
)
KEY = "the `key`; 'x'"
FILES = ("o'brien", "back`tick", 'q"; DROP --', "new\nline", "שלום", "a{b}[c]*?#", "100%", "back\\slash")


def table_of(name: str) -> str:
    return f"hostile.{name}" if len(name) == 200 else f"{name}.{name}"


#: What an SQL job makes of the files, and what another makes of two of the tables.
LOADED, SUMMED = "hostile.loa`ded", "hostile.summed '"


@pytest.fixture
def deployment(spark_server: SparkServer) -> Iterator[Deployment]:
    url = f"sqlite:///{spark_server.catalog_db}"
    deployment = Deployment.connect(Settings(url, url, spark_server.warehouse.as_uri()))
    yield deployment
    deployment.close()


def write_all(epoch: Epoch) -> None:
    for name in NAMES:
        epoch.spark.range(3).selectExpr(f"id AS {quoted(KEY)}", f"id + 1 AS {quoted(name)}").writeTo(
            epoch.target(table_of(name))
        ).append()


def copy_changes(epoch: Epoch) -> None:
    """Each table's changes go into the same table of another namespace; two are joined by a hostile column."""
    for name in NAMES[:-1]:
        rows = epoch.changes(table_of(name)).select(quoted(KEY), quoted(name))
        rows.writeTo(epoch.target(f"copies.{name}")).append()
    joined = epoch.delta_join(table_of(NAMES[0]), table_of(NAMES[1]), on=KEY)
    joined.select(quoted(KEY), quoted(NAMES[1])).writeTo(epoch.target(f"copies.{NAMES[-1]}")).append()


@pytest.mark.timeout(600)
def test_a_barrier_over_hostile_names(
    deployment: Deployment, spark: SparkSession, spark_server: SparkServer, tmp_path: Path
) -> None:
    landing = tmp_path / "in [x] 100%"
    for name in FILES:
        land(landing / f"{name}.json", '{"a b`c": 1}\n')
    source = Files(str(landing), name="in'; DROP TABLE x --", format="json", schema="`a b``c` BIGINT")
    for name in NAMES:
        for table in (table_of(name), f"copies.{name}"):
            value = NAMES[1] if table == f"copies.{NAMES[-1]}" else name
            create(spark, table, f"{quoted(KEY)} BIGINT, {quoted(value)} BIGINT")
    create(spark, LOADED, "`a b``c` BIGINT")
    create(spark, SUMMED, "n BIGINT")

    first, third, dropping = (table_of(NAMES[number]) for number in (0, 2, 4))
    work: dict[Job, Work | str] = {
        Job("write; --", "dag", outlets=tuple(map(table_of, NAMES))): write_all,
        Job(
            "copy'", "dag", inlets=tuple(map(table_of, NAMES)), outlets=tuple(f"copies.{name}" for name in NAMES)
        ): copy_changes,
        Job("load`", "dag", outlets=(LOADED,), externals=(source.declare(),)): (
            f"INSERT INTO {{target:{LOADED}}} SELECT * FROM {{source:{source.name}}}"
        ),
        Job("sum", "dag", inlets=(first, third, dropping), outlets=(SUMMED,)): f"""
            MERGE INTO {{target:{SUMMED}}} t USING (
                SELECT sum(_weight) AS n FROM {{changes:{third}}} c JOIN {{appends:{dropping}}} a USING ({quoted(KEY)})
                JOIN {{read:{first}}} r USING ({quoted(KEY)})
                WHERE {quoted(KEY)} NOT IN (SELECT {quoted(KEY)} FROM {{previous:{first}}})
            ) s ON t.n = s.n WHEN NOT MATCHED THEN INSERT (n) VALUES (s.n)
        """,
    }
    opened = open_barrier(
        deployment,
        Fragment(TOPOLOGY, "dag", tuple(work)),
        datetime(2026, 1, 1, tzinfo=timezone.utc),
        timestamp_from="test",
        run=run_of("run"),
        actor="test",
        now=datetime.now(timezone.utc) + timedelta(days=1),
    )
    assert isinstance(opened, Opened)
    for job, what in work.items():
        sql = what if isinstance(what, str) else None
        ready = begin(
            deployment, opened.barrier, job.name, Asking(request_key="k", generation="1/0", actor="test", sql=sql)
        )
        assert isinstance(ready, Ready)
        record = ConnectRun(spark_server.url, ready.spec).run(SqlJob(what) if isinstance(what, str) else what)
        close(deployment, ready.attempt, record=record, actor="test")
    committed = commit_barrier(deployment, TOPOLOGY, opened.barrier.barrier_id, actor="test")
    assert isinstance(committed, Committed)

    tag = committed.barrier.tag
    for name in NAMES:
        assert rows(spark, table_of(name), tag) == [(0, 1), (1, 2), (2, 3)]
        assert rows(spark, f"copies.{name}", tag) == [(0, 1), (1, 2), (2, 3)]
    assert rows(spark, LOADED, tag) == [(1,)] * len(FILES)
    assert rows(spark, SUMMED, tag) == [(3,)]


def create(spark: SparkSession, table: str, columns: str) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted('lake', table.rpartition('.')[0])}")
    spark.sql(
        f"CREATE TABLE {table_name('lake', table)} ({columns}) USING iceberg TBLPROPERTIES ('format-version'='3')"
    )


def rows(spark: SparkSession, table: str, ref: str) -> list[tuple[int, ...]]:
    found = spark.sql(f"SELECT * FROM {table_name('lake', table)} VERSION AS OF '{ref}'").collect()
    return sorted(tuple(row) for row in found)
