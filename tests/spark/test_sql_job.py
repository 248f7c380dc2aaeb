"""SQL jobs: the same numbers as the epoch job, and no statement that would do something else than it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.errors import ConfigurationError, UndeclaredTableError
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.sql import SqlJob
from tests.support.epochs import (
    AMOUNT,
    SHOPPING,
    Barriers,
    recomputed_amount,
    shop_for_a_day,
    shopping_barriers,
)

AMOUNT_SQL = """
-- what a user spent on an item; {not:a placeholder} in a comment; and this ; is no end
MERGE INTO {target:shop.user_item_amount} t
USING (
    SELECT userId, itemId, sum(amount * _weight) AS d FROM {changes:shop.shopping} GROUP BY userId, itemId
) d
ON t.userId = d.userId AND t.itemId = d.itemId
WHEN MATCHED THEN UPDATE SET totalAmount = t.totalAmount + d.d
WHEN NOT MATCHED THEN INSERT (userId, itemId, totalAmount) VALUES (d.userId, d.itemId, d.d);
"""


@pytest.fixture
def barriers(spark: SparkSession, tmp_path: Path) -> Barriers:
    return shopping_barriers(spark, tmp_path)


def test_a_merge_of_changes_equals_full_recomputation_after_every_barrier(
    session: SparkSession, barriers: Barriers
) -> None:
    for barrier in (1, 2, 3):
        shop_for_a_day(barriers, barrier)
        spec = barriers.begin(barrier, inlets=[SHOPPING], outlets=[AMOUNT], sql=AMOUNT_SQL)
        barriers.publish(spec, run_epoch(session, spec, SqlJob(AMOUNT_SQL)))
        assert [row for row in barriers.rows(AMOUNT) if row[2]] == recomputed_amount(barriers)


def test_every_relation_and_value_in_one_insert(session: SparkSession, barriers: Barriers) -> None:
    shop_for_a_day(barriers, 1)
    barriers.write(2, SHOPPING, "INSERT INTO {t} VALUES (9, 9, 9, 9.00)")
    job = SqlJob(
        """INSERT INTO {target:shop.user_item_amount}
           SELECT (SELECT count(*) FROM {read:shop.shopping}), (SELECT count(*) FROM { previous : shop.shopping }),
                  (SELECT sum(amount) FROM {appends:shop.shopping}) + (SELECT count(*) FROM {previous:shop.shopping})
           WHERE {timestamp} = TIMESTAMP '2026-01-03 00:00:00Z' AND {previous_timestamp} < {timestamp} AND {seed} = 7
             AND '{}' <> '{"a": 1}' AND 'it\\'s; {one}' IS NOT NULL"""
    )
    spec = barriers.begin(2, inlets=[SHOPPING], outlets=[AMOUNT])
    barriers.publish(spec, run_epoch(session, spec, job))
    assert [tuple(map(int, row)) for row in barriers.rows(AMOUNT)] == [(5, 4, 13)]


def test_names_are_quoted_and_undeclared_tables_named(session: SparkSession, barriers: Barriers) -> None:
    epoch = Epoch(session, barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT]))
    rendered = SqlJob("INSERT INTO {target:shop.user_item_amount} SELECT {previous_timestamp}").render(epoch)
    target = epoch.target(AMOUNT)
    assert target.startswith("`lake`.`shop`.`user_item_amount`.`branch_barrier_shopping_b1_r0_a")
    assert rendered == f"INSERT INTO {target} SELECT CAST(NULL AS TIMESTAMP_LTZ)"
    with pytest.raises(UndeclaredTableError, match=r"shop\.products"):
        SqlJob("INSERT INTO {target:shop.user_item_amount} SELECT * FROM {read:shop.products}").render(epoch)
    with pytest.raises(UndeclaredTableError, match=r"shop\.shopping` x"):
        SqlJob("INSERT INTO {target:shop.shopping` x} SELECT 1").render(epoch)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("INSERT INTO {target:a.b} SELECT 1; DELETE FROM {target:a.b}", "found more after ';'"),
        ("INSERT INTO {target:a.b} SELECT * FROM {raed:a.c}", r"found \{raed:a\.c\}"),
        ("INSERT INTO {target:a.b} SELECT {now}", r"expected one of \{target:ns\.table\}.*found \{now\}"),
        ("INSERT INTO {target:a.b} SELECT * FROM {read}", r"expected a name in \{read\}"),
        ("INSERT INTO {target:} SELECT 1", "expected a name"),
        ("INSERT INTO {target:a.b} SELECT {timestamp:a.b}", "without a name"),
        ("INSERT INTO {target:a.b} SELECT '{timestamp}'", "leave the quotes away"),
        ("INSERT INTO `{target:a.b}` SELECT 1", "leave the quotes away"),
        ("INSERT INTO lake.a.b SELECT * FROM {read:a.c}", r"expected \{target:ns\.table\}"),
        ("", r"expected \{target:ns\.table\}"),
    ],
)
def test_a_statement_that_cannot_be_used_is_refused_before_anything_runs(statement: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SqlJob(statement)
