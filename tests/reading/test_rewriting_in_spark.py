"""Rewritten queries on a real Spark, and the same snapshots in DuckDB and pyiceberg."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_barrier.reading.duckdb_views import duckdb_connection
from airflow_barrier.reading.one_table import iceberg_table
from airflow_barrier.reading.rewriting import Pin, Place, Rewritten, View, rewrite
from airflow_barrier.tables.iceberg import IcebergTables
from tests.reading.answers import answer
from tests.support.spark import session_on

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

SPACE = "rewritten"
HERE = Place("lake", SPACE)
VIEW = "SELECT a.id, sum(b.price) AS price FROM a JOIN lake.rewritten.b AS b USING (id) GROUP BY a.id -- per id"


class Shop:
    """Two tables that were changed after the snapshots in ``pins``, and one that had none then."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.pins: dict[str, Pin] = {}
        for table in ("a", "b", "later"):
            spark.sql(f"CREATE TABLE lake.{SPACE}.{table} (id INT, price INT, st STRUCT<x: INT>) USING iceberg")
            if table == "later":
                self.pins[f"{SPACE}.{table}"] = Pin(None)
            else:
                self.insert(table, 1, 2, 3)
                self.pins[f"{SPACE}.{table}"] = Pin(self.snapshot(table))

    def insert(self, table: str, *ids: int) -> None:
        values = ", ".join(f"({each}, {each * 10}, named_struct('x', {each}))" for each in ids)
        self.spark.sql(f"INSERT INTO lake.{SPACE}.{table} VALUES {values}")

    def snapshot(self, table: str) -> int:
        ref = f"SELECT snapshot_id FROM lake.{SPACE}.{table}.refs WHERE name = 'main'"
        return int(self.spark.sql(ref).collect()[0][0])

    def rewritten(self, sql: str) -> Rewritten:
        views = {("lake", SPACE, "v"): View(VIEW, HERE), ("lake", SPACE, "named"): View(VIEW, HERE, ("i", "p"))}
        return rewrite(sql, "spark", self.pins, catalog="lake", place=HERE, views=views.get)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(sql).collect()]

    def plan(self, sql: str) -> str:
        """The physical plan, without the numbers that tell columns and subqueries of one plan apart."""
        text = str(self.spark.sql(f"EXPLAIN {sql}").collect()[0][0])
        return re.sub(r"#\d+L?|plan_id=\d+", "#", text)


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    """One of its own: it stands in a namespace."""
    with session_on(spark_server) as session:
        session.sql(f"CREATE NAMESPACE lake.{SPACE}")
        session.sql(f"USE lake.{SPACE}")
        yield session


PLANNED = (
    f"SELECT a.id, b.price FROM a JOIN {SPACE}.b ON a.id = b.id WHERE a.price > 10",
    "SELECT sum(price) FROM lake.rewritten.a GROUP BY id",
)


@pytest.fixture(scope="module")
def plain_plans() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def shop(session: SparkSession, plain_plans: dict[str, str]) -> Shop:
    shop = Shop(session)
    plain_plans.update({sql: shop.plan(sql) for sql in PLANNED})
    for table in ("a", "b", "later"):
        shop.insert(table, 2, 4)
    return shop


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT sum(price) FROM a", [(60,)]),
        ("SELECT a.id, rewritten.a.price, lake.rewritten.a.st.x FROM lake.rewritten.a WHERE a.id = 2", [(2, 20, 2)]),
        ("SELECT count(*) FROM `lake`.`rewritten`.`a` t JOIN rewritten.b USING (id)", [(3,)]),
        ("SELECT max(id) FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.id = rewritten.a.id + 1)", [(2,)]),
        ("SELECT count(*) FROM later", [(0,)]),
        ("SELECT lake.rewritten.later.id, later.price FROM rewritten.later", []),
        ("SELECT count(t.id) FROM later TABLESAMPLE (50 PERCENT) AS t FULL JOIN a ON t.id = a.id", [(0,)]),
        ("WITH a AS (SELECT 7 AS id) SELECT a.id, b.id FROM a, b WHERE b.id = 3", [(7, 3)]),
        ("WITH a AS (SELECT * FROM a WHERE id < 3) SELECT sum(a.id) FROM a", [(3,)]),
        ("SELECT v.price, rewritten.v.id FROM lake.rewritten.v WHERE v.id = 2", [(20, 2)]),
        ("SELECT p, t.i FROM named AS t WHERE t.i = 3", [(30, 3)]),
        ("SELECT count(*) FROM v TABLESAMPLE (100 PERCENT)", [(3,)]),
        ("SELECT /*+ BROADCAST(t) */ count(*) FROM a t, b -- all\n;", [(9,)]),
        ("SELECT id FROM a EXCEPT (SELECT id FROM b WHERE id > 1)", [(1,)]),
        ("SELECT * FROM (SELECT id, price FROM a) PIVOT (sum(price) FOR id IN (1, 4))", [(10, None)]),
        ("FROM a |> WHERE id > 1 |> AGGREGATE sum(id)", [(5,)]),
        ("SELECT count(*) FROM lake.rewritten.a.snapshots", [(2,)]),
    ],
)
def test_unchanged_sql_reads_the_snapshots(shop: Shop, sql: str, expected: list[tuple[Any, ...]]) -> None:
    assert shop.rows(shop.rewritten(sql).sql) == expected


@pytest.mark.parametrize("sql", PLANNED)
def test_a_pinned_read_has_the_plan_of_the_plain_read_of_its_snapshot(
    shop: Shop, plain_plans: dict[str, str], sql: str
) -> None:
    pinned = shop.plan(shop.rewritten(sql).sql)
    assert pinned == plain_plans[sql]
    assert "BatchScan" in pinned


def test_an_empty_table_is_not_scanned(shop: Shop) -> None:
    assert "BatchScan" not in shop.plan(shop.rewritten("SELECT * FROM later WHERE id > 1").sql)


def test_a_temporary_view_that_nobody_told_of_is_not_taken_for_the_table(shop: Shop) -> None:
    shop.spark.sql("CREATE TEMPORARY VIEW a AS SELECT 0 AS id")
    try:
        with pytest.raises(AnalysisException, match="TIME_TRAVEL"):
            shop.rows(shop.rewritten("SELECT * FROM a").sql)
    finally:
        shop.spark.sql("DROP VIEW a")


@pytest.mark.parametrize("version", [2, 3])
def test_other_engines_read_the_same_rows(session: SparkSession, spark_server: SparkServer, version: int) -> None:
    """Merge on read: position deletes, deletion vectors; columns renamed, dropped, made anew and wider; partitions."""
    name = f"{SPACE}.engines{version}"
    table = f"lake.{name}"
    how = "".join(f", 'write.{command}.mode'='merge-on-read'" for command in ("delete", "update", "merge"))
    session.sql(
        f"CREATE TABLE {table} (id BIGINT, name STRING, price DECIMAL(10, 2), at TIMESTAMP, st STRUCT<x: INT>, "
        f"f FLOAT) USING iceberg PARTITIONED BY (bucket(2, id)) TBLPROPERTIES ('format-version'='{version}'{how})"
    )
    row = "id, 'n', id * 1.5, TIMESTAMP'2026-01-05 00:00:00Z', named_struct('x', 1), 0.5"
    for statement in (
        f"INSERT INTO {table} SELECT {row} FROM range(100)",
        f"DELETE FROM {table} WHERE id % 7 = 0",
        f"UPDATE {table} SET name = 'u' WHERE id % 11 = 0",
        f"ALTER TABLE {table} RENAME COLUMN name TO label",
        f"ALTER TABLE {table} ALTER COLUMN f TYPE DOUBLE",
        f"ALTER TABLE {table} DROP COLUMN st",
        f"ALTER TABLE {table} ADD COLUMN st STRING",
        f"ALTER TABLE {table} REPLACE PARTITION FIELD bucket(2, id) WITH truncate(10, id)",
        f"INSERT INTO {table} SELECT id, 'z', NULL, NULL, 2.5, 'text' FROM range(200, 220)",
        f"DELETE FROM {table} WHERE id BETWEEN 205 AND 210",
    ):
        session.sql(statement)
    snapshots = [
        row[0] for row in session.sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at").collect()
    ]
    assert len(snapshots) == 5
    database = f"sqlite:///{spark_server.catalog_db}"
    with IcebergTables.connect(database, str(spark_server.warehouse)) as tables:
        for snapshot in snapshots:
            expected = session.sql(f"SELECT * FROM {table} VERSION AS OF {snapshot} ORDER BY id").toArrow()
            assert expected.num_rows > 0
            pinned = answer({name: snapshot})
            with duckdb_connection(tables, pinned, "lake") as connection:
                duck = connection.execute(f"FROM {table} ORDER BY id").to_arrow_table()
            arrow = iceberg_table(tables, pinned, name).scan().to_arrow().sort_by("id")
            for found in (duck, arrow):
                assert found.column_names == expected.column_names
                assert found.to_pylist() == expected.to_pylist()
