"""Corrections as they are written down: what each kind takes, without Spark."""

from __future__ import annotations

import json

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, WireFormError
from airflow_barrier.spark.correcting import _require_same_columns
from airflow_barrier.spark.corrections import (
    CorrectBySql,
    Correction,
    ReplaceByFile,
    ReuseRows,
)

T, USERS = "shop.corrected", "shop.corrected_users"


@pytest.mark.kills("corrects-its-table")
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"DELETE FROM {{target:{T}}}; DELETE FROM {{target:{T}}}", "found more after ';'"),
        (f"DELETE FROM shop.other WHERE id IN (SELECT id FROM {{target:{T}}})", "begins with 'DELETE FROM shop.other"),
        ("DELETE FROM {target:shop.other}", "begins with 'DELETE FROM {target:shop.other}"),
        (f"DROP TABLE {{target:{T}}}", "begins with 'DROP"),
        (f"INSERT INTO x SELECT 1 /* INSERT INTO */ FROM {{target:{T}}}", "begins with 'INSERT INTO x"),
        (f"MERGE WITH SCHEMA EVOLUTION INTO {{target:{T}}} USING x ON true", "begins with 'MERGE WITH"),
        (f"FROM x INSERT INTO {{target:{T}}} SELECT * INSERT INTO y SELECT *", "begins with 'FROM x"),
        (f"INSERT INTO {{target:{T}}} SELECT * FROM {{changes:shop.other}}", r"found \{changes:shop.other\}"),
        (f"INSERT INTO {T} SELECT 1", r"expected \{target:ns.table\}"),
    ],
)
def test_a_statement_that_does_something_else_is_refused_before_it_travels(statement: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CorrectBySql(T, statement)


@pytest.mark.parametrize(
    "correction",
    [
        CorrectBySql(T, f"DELETE FROM {{target:{T}}}", {USERS: None, "shop.b": 7}),
        ReplaceByFile(T, "/x", "csv", ("a", "b"), {"delimiter": ";"}),
        ReuseRows(T, None, 8),
    ],
)
def test_corrections_are_written_down(correction: Correction) -> None:
    assert decode(Correction, json.loads(json.dumps(encode(correction)))) == correction


def test_a_kind_of_another_version() -> None:
    with pytest.raises(WireFormError, match="expected a kind of file, reuse, sql, found 'drop'"):
        decode(Correction, {"kind": "drop", "table": T})


@pytest.mark.kills("replacement-has-the-columns")
def test_rows_that_replace_an_epoch_have_the_columns_of_the_table() -> None:
    _require_same_columns(T, ["id", "price"], ["PRICE", "id"], "/x")
    for found, message in [
        (["id"], "found none named price; name each"),
        (["id", "price", "prize"], "found prize besides; name each"),
        (["id", "cost"], "found none named price and cost besides"),
        (["id", "price", "Price"], "found one of them twice"),
    ]:
        with pytest.raises(SourceDataError, match=f"expected the columns id, price in /x, {message}"):
            _require_same_columns(T, ["id", "price"], found, "/x")
