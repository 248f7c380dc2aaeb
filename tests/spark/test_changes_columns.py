"""`changes` across schema and partition evolution, and for every type that it takes."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.errors import InexactChangesError
from airflow_barrier.spark._rows import _names_tell
from tests.support.drawing import OPERATIONS
from tests.support.history import MOR, REWRITE_ALL, History, modes, names, read_files
from tests.support.spark import SINCE_4

pytestmark = [pytest.mark.drawn("histories"), pytest.mark.touches(*OPERATIONS["changes"])]


@SINCE_4  # that widen
def test_columns_added_renamed_widened_and_dropped(spark: SparkSession) -> None:
    table = History(spark, "columns", "id INT, a INT, d DECIMAL(9, 2), x STRING", format_version="2", **modes(MOR))
    first = table.do("INSERT INTO {t} VALUES (1, 10, 1.50, 'x1'), (2, 20, 2.50, 'x2'), (3, 30, 3.50, 'x3')")
    table.do("ALTER TABLE {t} ADD COLUMN late STRING", "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT")
    table.do("ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(18, 2)")
    second = table.do("UPDATE {t} SET late = 'now' WHERE id = 2", "INSERT INTO {t} VALUES (4, 40, 4.5, 'x4', NULL)")
    table.check(first, second)

    # Now `a` is what was called `x`, and what was called `a` is `b`: only field ids can tell.
    table.do("ALTER TABLE {t} RENAME COLUMN a TO b", "ALTER TABLE {t} RENAME COLUMN x TO a")
    third = table.do("DELETE FROM {t} WHERE id = 3")
    [gone] = table.check(second, third, renamed={"a": "b", "x": "a"}).collect()
    assert (gone.id, gone.b, gone.d, gone.a, gone.late) == (3, 30, Decimal("3.50"), "x3", None)

    # A column of the same name is another one.
    table.do("ALTER TABLE {t} DROP COLUMN late", "ALTER TABLE {t} ADD COLUMN late STRING")
    fourth = table.do("DELETE FROM {t} WHERE id = 2")
    [gone] = table.check(third, fourth, renamed={"late": "dropped"}).collect()
    assert gone.late is None


def test_names_that_other_columns_had(spark: SparkSession) -> None:
    """Spark matches by field id and still looks at names: whatever it asks for must be no name in any file."""
    columns = "c1 INT, c0 STRING, c2 STRUCT<a: INT, b: STRING, c: ARRAY<STRUCT<x: INT, y: STRING>>>"
    table = History(spark, "columns", columns, **modes(MOR))
    nested = "named_struct('a', {0}, 'b', 'b{0}', 'c', array(named_struct('x', {0}, 'y', 'y{0}')))"
    start = table.do(
        "INSERT INTO {t} " + " UNION ALL ".join(f"SELECT {i}, 's{i}', " + nested.format(i) for i in (1, 2))
    )
    swaps = [("c1", "c9"), ("c0", "c1"), ("c9", "c0"), ("c2.a", "z"), ("c2.b", "a"), ("c2.z", "b")]
    swaps += [("c2.c.element.x", "z"), ("c2.c.element.y", "x"), ("c2.c.element.z", "y")]
    table.do(*(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO {new}" for old, new in swaps))
    end = table.do("DELETE FROM {t} WHERE c0 = 1")
    [gone] = table.changes(start, end).collect()
    assert gone.asDict(recursive=True) == {
        "c0": 1,
        "c1": "s1",
        "c2": {"b": 1, "a": "b1", "c": [{"y": 1, "x": "y1"}]},
        "_change_type": "delete",
        "_weight": -1,
    }


def test_the_columns_are_those_of_the_end(spark: SparkSession) -> None:
    table = History(spark, "columns", "id INT", format_version="2")
    start, end = table.do("INSERT INTO {t} VALUES (1)"), table.do("INSERT INTO {t} VALUES (2)")
    table.do("ALTER TABLE {t} ADD COLUMN later INT", "INSERT INTO {t} VALUES (3, 3)")
    assert table.check(start, end).columns == ["id", "_change_type", "_weight"]


ALL_TYPES = """
    `order id` BIGINT, `a.b``c` STRING, `größe` DOUBLE, f FLOAT, yes BOOLEAN, small DECIMAL(5, 2), big DECIMAL(38, 10),
    day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY, tags ARRAY<STRING>, counts MAP<STRING, INT>,
    nested STRUCT<`in ner`: INT, list: ARRAY<STRUCT<x: INT, m: MAP<STRING, DECIMAL(9, 2)>>>>"""
FULL = """
    SELECT {id}L, 'text', 1.5D, CAST(2.5 AS FLOAT), true, 1.25BD, 12345678901234567890.0123456789BD,
    DATE'{day}', TIMESTAMP'{day} 01:02:03.456789', TIMESTAMP_NTZ'{day} 01:02:03.456789', X'00FF',
    array('a', NULL), map('k', 1, 'l', NULL), named_struct('in ner', 1, 'list', array(named_struct('x', {id}, 'm',
    map('p', 1.5BD)), NULL))"""
EMPTY = "SELECT {id}L" + ", NULL" * 13


@pytest.mark.parametrize("version", ["2", "3"])
def test_types_and_names(spark: SparkSession, version: str) -> None:
    table = History(spark, "columns", ALL_TYPES, format_version=version, **modes(MOR))
    start = table.do(
        "INSERT INTO {t} "
        + " UNION ALL ".join(
            [
                FULL.format(id=1, day="2026-03-29"),
                FULL.format(id=2, day="0900-03-01"),  # before the Gregorian calendar
                EMPTY.format(id=3),
                FULL.format(id=4, day="2026-01-01")
                .replace("1.5D", "double('NaN')")
                .replace("12345678901234567890.", "-1."),
            ]
        )
    )
    middle = table.do("DELETE FROM {t} WHERE `order id` IN (2, 3)")
    end = table.do("UPDATE {t} SET nested.`in ner` = 7, counts = map('l', NULL, 'k', 1) WHERE `a.b``c` = 'text'")
    table.check(start, middle)
    rows = {(row["order id"], row["_weight"]): row for row in table.check(middle, end).collect()}
    assert set(rows) == {(1, -1), (1, 1), (4, -1), (4, 1)}
    assert math.isnan(rows[4, 1]["größe"])
    new, old = rows[1, 1], rows[1, -1]
    assert (new.nested["in ner"], old.nested["in ner"]) == (7, 1)
    assert new.big == Decimal("12345678901234567890.0123456789")
    assert (new.day, new.local) == (date(2026, 3, 29), datetime(2026, 3, 29, 1, 2, 3, 456789))  # noqa: DTZ001
    assert new.nested.list[0].m == {"p": Decimal("1.50")}


def test_an_untouched_map_in_another_order_is_the_same_map(spark: SparkSession) -> None:
    table = History(spark, "columns", "id INT, m MAP<STRING, INT>", format_version="2")
    start = table.do("INSERT INTO {t} VALUES (1, map('a', 1, 'b', 2))")
    end = table.do("INSERT OVERWRITE {t} SELECT 1, map('b', 2, 'a', 1)")
    assert table.check(start, end).count() == 0


def test_names_tell_files_apart_unless_two_are_equal_or_spark_would_encode_one() -> None:
    assert _names_tell(["s3://b/x/00000-1-5f2a-00001.parquet", "s3://b/x y/00000-2-5f2a-00001.parquet"])
    for other in (
        "s3://b/y/a.parquet",
        "s3://b/x/b c.parquet",
        "s3://b/x/+.parquet",
        "s3://b/x/é.parquet",
        "s3://b/x/",
    ):
        assert not _names_tell(["s3://b/x/a.parquet", other])


@pytest.mark.parametrize("by", ["names", "paths"])
def test_odd_partition_values_and_partition_evolution(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    if by == "paths":
        monkeypatch.setattr("airflow_barrier.spark._rows._names_tell", lambda paths: False)
    clause = "PARTITIONED BY (kind)"
    table = History(spark, "columns", "id INT, kind STRING, day DATE", clause, format_version="2", **modes(MOR))
    odd = ["a*b {c}[d]/e %2F+é", "plus+space and%20", "", "_hidden", ".dot", "?&=#;:"]
    values = ", ".join(f"({i * 10 + j}, '{kind}', DATE'2026-01-01')" for i, kind in enumerate(odd) for j in range(3))
    start = table.do(f"INSERT INTO {{t}} VALUES {values}, (100, NULL, NULL), (101, NULL, NULL)")
    middle = table.do("DELETE FROM {t} WHERE id % 10 = 1")
    assert table.check(start, middle).count() == len(odd) + 1
    table.do("ALTER TABLE {t} ADD PARTITION FIELD month(day)", "ALTER TABLE {t} DROP PARTITION FIELD kind")
    table.do("INSERT INTO {t} VALUES (200, 'new', DATE'2026-02-01')", "UPDATE {t} SET kind = 'u' WHERE id = 2")
    table.check(start, table.heads[-1])
    table.call("rewrite_data_files", REWRITE_ALL)
    end = table.do("DELETE FROM {t} WHERE id IN (0, 10, 100)")
    table.check(middle, end)
    table.check(end, middle)


def test_a_pattern_in_a_path_matches_nothing_else(spark: SparkSession) -> None:
    table = History(spark, "columns", "id INT, kind STRING", "PARTITIONED BY (kind)", format_version="2")
    start = table.do("INSERT INTO {t} VALUES (1, 'ab'), (2, 'axb')")
    end = table.do("INSERT INTO {t} VALUES (3, 'a*b')")
    frame = table.check(start, end)
    assert read_files(frame) == names(table.files(end) - table.files(start))


@pytest.mark.kills("reserved-columns")
def test_reserved_column_names_are_refused(spark: SparkSession) -> None:
    table = History(spark, "columns", "id INT, _weight INT")
    head = table.do("INSERT INTO {t} VALUES (1, 1)")
    with pytest.raises(InexactChangesError, match="no column of the name _weight"):
        table.changes(None, head)
