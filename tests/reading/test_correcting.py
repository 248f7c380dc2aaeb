"""Statements that correct a table, as somebody writes them: where the tables are named, placeholders are put."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.errors import ConfigurationError, SqlSyntaxError, UnpinnableError
from airflow_barrier.reading.correcting import correct_by_sql
from airflow_barrier.reading.rewriting import Place

T = "shop.shopping"
PINS = {T: 5, "shop.users": 7, "shop.empty": None}


@pytest.mark.parametrize(
    ("sql", "expected", "reads"),
    [
        (
            "DELETE FROM shop.shopping WHERE store_id = 367; -- one store",
            "DELETE FROM {target:shop.shopping} AS `shopping` WHERE store_id = 367; -- one store",
            {},
        ),
        (
            "delete from lake.`shop`.Shopping where shop.shopping.a = shopping.b",
            "delete from {target:shop.shopping} AS `Shopping` where shopping.a = shopping.b",
            {},
        ),
        (
            "UPDATE shopping s SET price = price * 2 WHERE s.note = 'shop.shopping'",
            "UPDATE {target:shop.shopping} s SET price = price * 2 WHERE s.note = 'shop.shopping'",
            {},
        ),
        (
            "INSERT INTO TABLE shop.shopping (a, b) SELECT a, users.b FROM shop.users, shop.empty, other.fixes",
            "INSERT INTO TABLE {target:shop.shopping} (a, b) SELECT a, users.b FROM {read:shop.users} AS `users`, "
            "{read:shop.empty} AS `empty`, other.fixes",
            {"shop.users": 7, "shop.empty": None},
        ),
        (
            "INSERT OVERWRITE shop.shopping SELECT * FROM shop.shopping WHERE a > 0",
            "INSERT OVERWRITE {target:shop.shopping} SELECT * FROM {target:shop.shopping} AS `shopping` WHERE a > 0",
            {},
        ),
        (
            "MERGE INTO shop.shopping t USING (WITH users AS (SELECT 1 AS a) SELECT * FROM users) u ON t.a = u.a\n"
            "WHEN MATCHED THEN UPDATE SET t.b = 1 WHEN NOT MATCHED THEN INSERT (a) VALUES (u.a)",
            "MERGE INTO {target:shop.shopping} t USING (WITH users AS (SELECT 1 AS a) SELECT * FROM users) u "
            "ON t.a = u.a\nWHEN MATCHED THEN UPDATE SET t.b = 1 WHEN NOT MATCHED THEN INSERT (a) VALUES (u.a)",
            {},
        ),
        (
            "DELETE FROM shop.shopping WHERE a IN (SELECT a FROM shop.users.snapshots)",
            "DELETE FROM {target:shop.shopping} AS `shopping` WHERE a IN (SELECT a FROM shop.users.snapshots)",
            {},
        ),
    ],
)
def test_names_become_placeholders(sql: str, expected: str, reads: dict[str, int | None]) -> None:
    correction = correct_by_sql(sql, T, catalog="lake", pins=PINS)
    assert (correction.table, correction.statement, correction.reads) == (T, expected, reads)


def test_names_lead_from_where_the_session_stands() -> None:
    place = Place("lake", "shop", temporary=frozenset({"users"}))
    correction = correct_by_sql(
        "DELETE FROM shopping WHERE a IN (SELECT a FROM users) AND b IN (SELECT b FROM empty)",
        T,
        catalog="lake",
        pins=PINS,
        place=place,
    )
    assert "FROM users)" in correction.statement
    assert correction.reads == {"shop.empty": None}


@pytest.mark.kills("corrects-its-table")
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM shop.users",
        "DELETE FROM shop.shopping.branch_x",
        "DELETE FROM spark_catalog.shop.shopping",
        "MERGE INTO shop.users USING shop.shopping s ON true WHEN MATCHED THEN DELETE",
        "INSERT INTO shop.users SELECT * FROM shop.shopping",
        "DELETE FROM users",
    ],
)
def test_a_statement_about_another_table(sql: str) -> None:
    with pytest.raises(ConfigurationError, match=r"one that changes \w+"):
        correct_by_sql(sql, T, catalog="lake", pins=PINS)


@pytest.mark.kills("correction-reads-pinned")
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM shop.shopping; DELETE FROM shop.shopping", "expected one statement, found 2"),
        ("", "expected one statement, found 0"),
        ("DROP TABLE shop.shopping", "found DROP"),
        ("ALTER TABLE shop.shopping ADD COLUMN x INT", "found ALTER"),
        ("TRUNCATE TABLE shop.shopping", "found TRUNCATE"),
        ("CREATE TABLE shop.shopping AS SELECT 1", "found CREATE"),
        ("SELECT * FROM shop.shopping", "found SELECT"),
        ("CALL lake.system.rollback_to_snapshot('shop.shopping', 1)", "found COMMAND"),
        ("WITH x AS (SELECT 1 AS a) DELETE FROM shop.shopping", "begins with 'WITH x"),
        ("FROM shop.users INSERT INTO shop.shopping SELECT * INSERT INTO shop.users SELECT *", "found MULTI"),
        ("DELETE FROM shop.shopping WHERE a IN (SELECT a FROM users)", "found users; write shop.users"),
        ("DELETE FROM shop.shopping WHERE a IN (SELECT a FROM shop.users.branch_x)", "write shop.users"),
    ],
)
def test_what_is_no_correction(sql: str, message: str) -> None:
    with pytest.raises((ConfigurationError, SqlSyntaxError), match=message):
        correct_by_sql(sql, T, catalog="lake", pins=PINS)


def test_what_cannot_be_pinned() -> None:
    for read in ("shop.users VERSION AS OF 3", "IDENTIFIER('shop.users')"):
        with pytest.raises(UnpinnableError):
            correct_by_sql(f"DELETE FROM shop.shopping WHERE a IN (SELECT a FROM {read})", T, catalog="lake", pins=PINS)


def test_text_that_nobody_can_read() -> None:
    with pytest.raises(SqlSyntaxError, match=r"CorrectBySql\('shop.shopping', ...\)"):
        correct_by_sql("DELETE FROM shop.shopping WHERE ((", T, catalog="lake", pins=PINS)
