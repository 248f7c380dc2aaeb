"""What Spark takes of a table for a delivery: every kind of value, one row of each key that changed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.deliveries import CHANGE, Rows
from airflow_barrier.protocol.errors import NotAppendOnlyError, RowRefusedError
from airflow_barrier.spark.delivering import Extract, write_extract
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.history import CATALOG, COLUMNS, COW, MERGE, MOR, REWRITE_ALL, History, insert, modes
from tests.support.spark import SparkServer

TYPES = (
    "id BIGINT, b BOOLEAN, i INT, d DECIMAL(10, 2), f FLOAT, g DOUBLE, s STRING, `odd ``name` STRING, y BINARY, "
    "dt DATE, ts TIMESTAMP, tn TIMESTAMP_NTZ, n STRUCT<l: ARRAY<DECIMAL(5, 2)>, m: MAP<STRING, STRUCT<x: INT>>>, "
    "m MAP<INT, TIMESTAMP>"
)
VALUES = (
    "(1, true, 2, 3.50, float('nan'), double('-infinity'), 'a\\n\"b', '', X'00ff', DATE '0001-01-01', "
    "TIMESTAMP '9999-12-31 23:59:59.999999Z', TIMESTAMP_NTZ '1500-01-01 00:00:00.000001', "
    "struct(array(1.50, null), map('a', struct(1), 'b', null)), map(7, TIMESTAMP '2026-01-01 00:00:00Z', 8, null)), "
    "(2, null, null, null, null, null, null, null, null, null, null, null, null, null)"
)


def extracted(table: History, folder: Path, start: int | None, end: int | None, **what: Any) -> pa.Table:
    name = table.name.replace("`", "").removeprefix(f"{CATALOG}.")
    extract = Extract(name, start, end, **{"rows": Rows.CHANGES, "whole": False, "key": ("id",), **what})
    files = write_extract(table.spark, CATALOG, extract, (folder / "extract").as_uri())
    assert files
    return pa.concat_tables(pq.read_table(uri.removeprefix("file://")) for uri in files)


def apply(rows: list[dict[str, Any]], delta: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a sink makes of changes; each finds what it has to find."""
    state = {row["id"]: row for row in rows}
    for change in delta:
        kind = change.pop(CHANGE)
        assert (change["id"] in state) == (kind != "insert")
        if kind == "delete":
            assert {value for name, value in change.items() if name != "id"} == {None}
            del state[change["id"]]
        else:
            assert state.get(change["id"]) != change
            state[change["id"]] = change
    return state


@pytest.mark.parametrize("mode", [COW, MOR])
@pytest.mark.parametrize("version", ["2", "3"])
def test_changes_turn_one_state_into_the_other(spark: SparkSession, tmp_path: Path, mode: str, version: str) -> None:
    table = History(spark, "delivering", COLUMNS, format_version=version, **modes(mode))
    first = table.do(insert(0, 12))
    second = table.do(MERGE, "UPDATE {t} SET s = 'x' WHERE id = 3", insert(20, 22))
    third = table.call("rewrite_data_files", REWRITE_ALL)
    fourth = table.do("DELETE FROM {t} WHERE id < 3")
    for start, end in ((None, first), (first, second), (second, third), (first, fourth), (fourth, first)):
        delta = extracted(table, tmp_path, start, end).to_pylist()
        assert len({row["id"] for row in delta}) == len(delta)
        before = [] if start is None else table.rows(start)
        assert apply(before, delta) == {row["id"]: row for row in table.rows(end)}
    assert extracted(table, tmp_path, second, third).num_rows == 0


def test_every_type_comes_as_the_table_says(spark: SparkSession, spark_server: SparkServer, tmp_path: Path) -> None:
    table = History(spark, "delivering", TYPES)
    end = table.do(f"INSERT INTO {{t}} VALUES {VALUES}")
    whole = extracted(table, tmp_path, None, end, whole=True)
    name = table.name.replace("`", "").removeprefix(f"{CATALOG}.")
    with IcebergTables.connect(f"sqlite:///{spark_server.catalog_db}", spark_server.warehouse.as_uri()) as tables:
        schema = tables.schema_at(name, end)
        assert [(field.name, plain(field.type)) for field in schema] == [
            (field.name, plain(field.type)) for field in whole.schema
        ]
        iceberg = tables.load(name).scan(snapshot_id=end).to_arrow().sort_by("id")
    assert repr(whole.sort_by("id").to_pylist()) == repr(iceberg.to_pylist())
    changed = extracted(table, tmp_path, None, end)
    assert repr(changed.drop_columns([CHANGE]).sort_by("id").to_pylist()) == repr(iceberg.to_pylist())


def plain(kind: pa.DataType) -> str:
    """Without what the parts of lists and maps are called."""
    return re.sub(r"large_| \('\w+'\)", "", str(kind)).replace("element: ", "item: ")


@pytest.mark.kills("whole-tables-have-their-key")
def test_two_rows_of_one_key_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    table = History(spark, "delivering", COLUMNS)
    first = table.do("INSERT INTO {t} VALUES (1, 1, 'a'), (2, 2, 'b')")
    second = table.do("INSERT INTO {t} VALUES (7, 1, 'a'), (7, 2, 'b')")
    for whole in (False, True):
        with pytest.raises(RowRefusedError, match=r'one row of each key \(id\), found two of \{"id":7\}; nothing'):
            extracted(table, tmp_path, first, second, whole=whole)
    assert extracted(table, tmp_path, None, second, whole=True, only_key=True).num_rows == 4
    assert extracted(table, tmp_path, None, second, whole=True, key=()).num_rows == 4


def test_appends_are_the_rows_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    table = History(spark, "delivering", COLUMNS)
    first = table.do(insert(0, 3))
    second = table.do(insert(3, 5))
    appended = extracted(table, tmp_path, first, second, rows=Rows.APPENDS, key=())
    assert sorted(appended.column("id").to_pylist()) == [3, 4]
    assert CHANGE not in appended.column_names
    third = table.do("DELETE FROM {t} WHERE id = 3")
    with pytest.raises(NotAppendOnlyError):
        extracted(table, tmp_path, second, third, rows=Rows.APPENDS, key=())
