"""Changes, appends and states at a snapshot as sources of SQL, `MERGE INTO` above all; over Spark Connect."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_barrier.spark.changes import appends, changes
from airflow_barrier.spark.views import view_of
from tests.support.history import MOR, History, insert, modes
from tests.support.spark import SINCE_4


@pytest.fixture
def tables(spark: SparkSession) -> tuple[History, History]:
    """A source with an append and a merge-on-read update and a delete; a target of sums."""
    source = History(spark, "in_sql", "id BIGINT, v INT, s STRING", format_version="2", **modes(MOR))
    source.do(insert(0, 6))
    source.do(insert(6, 8))
    source.do("UPDATE {t} SET v = v + 10 WHERE id IN (1, 4)", "DELETE FROM {t} WHERE id = 5")
    target = History(spark, "in_sql", "s STRING, total BIGINT", format_version="2")
    target.do(f"INSERT INTO {{t}} SELECT s, sum(v) FROM {source.name} VERSION AS OF {source.heads[0]} GROUP BY s")
    return source, target


def totals(table: History, name: str, snapshot: int) -> dict[str, int]:
    rows = table.spark.sql(f"SELECT s, sum({name}) AS n FROM {table.name} VERSION AS OF {snapshot} GROUP BY s")
    return {row.s: row.n for row in rows.collect()}


MERGE_SUMS = """
    MERGE INTO {target} t USING (SELECT s, sum(v * _weight) AS d FROM {delta} GROUP BY s) d ON t.s = d.s
    WHEN MATCHED THEN UPDATE SET total = t.total + d.d WHEN NOT MATCHED THEN INSERT (s, total) VALUES (d.s, d.d)"""


def plain_view(frame: DataFrame) -> str:
    frame.createOrReplaceTempView("delta")
    return "delta"


def view_of_sql_jobs(frame: DataFrame) -> str:
    return view_of(frame, "delta of a job")


@pytest.mark.parametrize("named", [plain_view, view_of_sql_jobs])
def test_merge_into_with_a_view_of_changes(
    spark: SparkSession, tables: tuple[History, History], named: Callable[[DataFrame], str]
) -> None:
    source, target = tables
    view = named(changes(spark, source.name, source.heads[0], source.heads[-1]))
    target.do(MERGE_SUMS.format(target="{t}", delta=view))
    assert totals(target, "total", target.main()) == totals(source, "v", source.heads[-1])


def test_merge_into_with_a_frame_of_changes_as_an_argument(
    spark: SparkSession, tables: tuple[History, History]
) -> None:
    source, target = tables
    delta = changes(spark, source.name, source.heads[0], source.heads[-1])
    spark.sql(MERGE_SUMS.format(target=target.name, delta="{delta}"), delta=delta)
    assert totals(target, "total", target.main()) == totals(source, "v", source.heads[-1])


def test_merge_into_with_appends_and_states_in_subqueries(spark: SparkSession, tables: tuple[History, History]) -> None:
    source, target = tables
    first, second, last = source.heads
    appends(spark, source.name, first, second).createOrReplaceTempView("appended")
    spark.sql(f"SELECT * FROM {source.name} VERSION AS OF {last}").createOrReplaceTempView("state")
    changes(spark, source.name, None, first).createOrReplaceTempView("everything")
    target.do(
        """
        MERGE INTO {t} t USING (
            SELECT a.s, sum(a.v) AS d FROM appended a
            WHERE a.id IN (SELECT id FROM state) AND NOT EXISTS (SELECT 1 FROM everything e WHERE e.id = a.id)
            GROUP BY a.s) d ON t.s = d.s
        WHEN MATCHED THEN UPDATE SET total = t.total + d.d
        WHEN NOT MATCHED THEN INSERT (s, total) VALUES (d.s, d.d)"""
    )
    assert totals(target, "total", target.main()) == totals(source, "v", second)


@SINCE_4
def test_data_frame_merge_into(spark: SparkSession, tables: tuple[History, History]) -> None:
    source, target = tables
    delta = changes(spark, source.name, source.heads[0], source.heads[-1])
    sums = delta.groupBy("s").agg(F.sum(F.expr("v * _weight")).alias("d"))
    (
        sums.alias("d")
        .mergeInto(target.name, F.expr(f"{target.name}.s = d.s"))
        .whenMatched()
        .update({"total": F.expr(f"{target.name}.total + d.d")})
        .whenNotMatched()
        .insert({"s": F.col("d.s"), "total": F.col("d.d")})
        .merge()
    )
    assert totals(target, "total", target.main()) == totals(source, "v", source.heads[-1])


def test_an_update_is_the_old_row_and_the_new(spark: SparkSession, tables: tuple[History, History]) -> None:
    source, _ = tables
    frame = changes(spark, source.name.replace("`", ""), source.heads[1], source.heads[-1])
    rows = sorted((row.id, row.v, row._change_type) for row in frame.collect())
    assert rows == [(1, 1, "delete"), (1, 11, "insert"), (4, 4, "delete"), (4, 14, "insert"), (5, 0, "delete")]
