"""Corrections of one table at one barrier: each kind on real tables, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.errors import ConfigurationError, InexactChangesError, SourceDataError
from airflow_barrier.reading.correcting import correct_by_sql
from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.corrections import (
    CorrectBySql,
    Correction,
    ReplaceByFile,
    ReuseRows,
)
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec
from tests.support.defaults import give_default
from tests.support.drawing import OPERATIONS
from tests.support.epochs import CATALOG, Barriers
from tests.support.spark import SparkServer

Run = Callable[[EpochSpec], ClosingRecord]

pytestmark = [pytest.mark.drawn("corrections"), pytest.mark.touches(*OPERATIONS["correction"])]
T, USERS = "shop.corrected", "shop.corrected_users"
COLUMNS = "id BIGINT, price DECIMAL(10, 2), bought DATE, labels MAP<STRING, INT>"
DAY_1 = (
    "INSERT INTO {t} VALUES (1, 1.50, DATE '2017-01-01', NULL), (1, 1.50, DATE '2017-01-01', NULL), (2, 2, NULL, NULL)"
)
DAY_2 = "INSERT INTO {t} VALUES (3, 3, NULL, map('a', 1, 'b', NULL)), (4, 4, NULL, NULL)"
MOR = {f"write.{what}.mode": "merge-on-read" for what in ("delete", "update", "merge")}
COW = {f"write.{what}.mode": "copy-on-write" for what in ("delete", "update", "merge")}


@pytest.fixture(params=["v2", "v3"])
def barriers(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Barriers:
    """Two barriers; the table of format version 2 deletes by copying, the one of version 3 by deletion vectors."""
    return two_barriers(spark, tmp_path, request.param)


@pytest.fixture
def newest(spark: SparkSession, tmp_path: Path) -> Barriers:
    """Of format version 3 only, where nothing is deleted."""
    return two_barriers(spark, tmp_path, "v3")


def two_barriers(spark: SparkSession, folder: Path, version: str) -> Barriers:
    barriers = Barriers(spark, folder)
    properties = {"format-version": "2", **COW} if version == "v2" else {"format-version": "3", **MOR}
    barriers.create(T, COLUMNS, properties)
    barriers.write(1, T, DAY_1)
    barriers.write(2, T, DAY_2)
    return barriers


@pytest.fixture
def run(spark_server: SparkServer) -> Run:
    """An attempt, on the server; its job does not run, since the spec has corrections."""

    def never(epoch: Epoch) -> None:
        raise AssertionError("the job ran although the spec has corrections")

    return lambda spec: ConnectRun(spark_server.url, spec).run(never)


def begin(barriers: Barriers, base: int | None, *corrections: Correction, barrier: int = 2) -> EpochSpec:
    """An attempt of a revision, whose branch is at ``base``."""
    barriers.at[barrier - 1] = {**barriers.at.get(barrier - 1, {}), T: base}
    return replace(barriers.begin(barrier, outlets=[T]), corrections=corrections)


def staged(barriers: Barriers, record: ClosingRecord) -> Counter[tuple[Any, ...]]:
    snapshot = record.staged[T].snapshot_id
    rows = barriers.spark.sql(f"SELECT * FROM {CATALOG}.{T} VERSION AS OF {snapshot}").collect()
    return Counter((*row[:3], tuple(sorted(row[3].items())) if row[3] else None) for row in rows)


def row(number: int, price: str, bought: date | None = None, labels: Any = None) -> tuple[Any, ...]:
    return (number, Decimal(price).quantize(Decimal("0.01")), bought, labels)


ONE = row(1, "1.5", date(2017, 1, 1))
THREE = row(3, "3", None, (("a", 1), ("b", None)))


# --- by SQL ---------------------------------------------------------------------------------------


def test_rows_are_deleted_by_sql_with_plain_names(run: Run, barriers: Barriers) -> None:
    barriers.create(USERS, "id BIGINT")
    barriers.write(1, USERS, "INSERT INTO {t} VALUES (2)")
    pins = {T: barriers.at[2][T], USERS: barriers.main(USERS)}
    barriers.write(3, USERS, "INSERT INTO {t} VALUES (4)")  # later than the barrier that is corrected
    correction = correct_by_sql(
        f"DELETE FROM {T} WHERE corrected.id = 3 OR id IN (SELECT u.id FROM {USERS} u)", T, catalog=CATALOG, pins=pins
    )
    record = run(begin(barriers, pins[T], correction))
    assert staged(barriers, record) == Counter({ONE: 2, row(4, "4"): 1})


STATEMENTS: list[tuple[str, dict[tuple[Any, ...], int]]] = [
    ("UPDATE {t} SET price = 9 WHERE corrected.id = 2", {ONE: 2, row(2, "9"): 1}),
    (
        "MERGE INTO {t} USING (SELECT 2 AS id, 7 AS price UNION ALL SELECT 5, 5) n ON corrected.id = n.id "
        "WHEN MATCHED THEN UPDATE SET price = n.price WHEN NOT MATCHED THEN INSERT (id, price) VALUES (id, price)",
        {ONE: 2, row(2, "7"): 1, row(5, "5"): 1},
    ),
    (
        "INSERT INTO {t} SELECT id + 10, price, NULL, NULL FROM {t} WHERE id = 2",
        {ONE: 2, row(2, "2"): 1, row(12, "2"): 1},
    ),
    ("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE id = 2", {row(2, "2"): 1}),
    ("DELETE FROM {t} WHERE id = 77", {ONE: 2, row(2, "2"): 1}),
]


def test_other_statements(run: Run, barriers: Barriers) -> None:
    base = barriers.at[1][T]
    for sql, expected in STATEMENTS:
        correction = correct_by_sql(sql.format(t=T), T, catalog=CATALOG, pins={T: base})
        record = run(begin(barriers, base, correction))
        assert staged(barriers, record) == Counter(expected), sql
        assert not record.staged[T].unchanged


# --- by a file ------------------------------------------------------------------------------------


def test_a_csv_file_replaces_the_rows_of_an_epoch(spark: SparkSession, run: Run, tmp_path: Path) -> None:
    barriers = Barriers(spark, tmp_path)
    barriers.create(T, "id BIGINT, price DECIMAL(10, 2), bought DATE")
    barriers.write(1, T, "INSERT INTO {t} VALUES (1, 1.5, NULL)")
    base = barriers.at[1][T]
    file = tmp_path / "mended [1].csv"
    file.write_text("Price,bought,id\n7.25,2017-01-02,7\n,,8\n")
    options = {"header": True}
    record = run(begin(barriers, base, ReplaceByFile(T, f"file://{file}", "csv", (), options)))
    name = f"{CATALOG}.{T} VERSION AS OF {record.staged[T].snapshot_id}"
    found = {tuple(row) for row in spark.sql(f"SELECT * FROM {name}").collect()}
    assert found == {(1, Decimal("1.50"), None), (7, Decimal("7.25"), date(2017, 1, 2)), (8, None, None)}
    file.write_text("7,2017-01-02,7.251\n")
    unnamed = ReplaceByFile(T, f"file://{file}", "csv", ("id", "bought", "price"))
    with pytest.raises(SourceDataError, match=r"expected price DECIMAL\(10,2\), found a number with more digits"):
        run(begin(barriers, base, unnamed))


@pytest.mark.kills("replacement-has-files")
def test_a_file_that_spark_would_pass_over_does_not_take_an_epochs_rows_away(
    spark: SparkSession, run: Run, tmp_path: Path
) -> None:
    barriers = Barriers(spark, tmp_path)
    barriers.create(T, "id BIGINT")
    barriers.write(1, T, "INSERT INTO {t} VALUES (1)")
    hidden = tmp_path / "_mended.csv"
    hidden.write_text("7\n")
    with pytest.raises(SourceDataError, match="or only such as Spark takes for no data"):
        run(begin(barriers, barriers.at[1][T], ReplaceByFile(T, hidden.as_uri(), "csv", ("id",))))


def test_a_parquet_folder_and_json_lines(run: Run, newest: Barriers, tmp_path: Path) -> None:
    base = newest.at[1][T]
    newest.spark.sql(f"SELECT labels, id, price, bought FROM {CATALOG}.{T} WHERE id > 2").write.parquet(
        str(tmp_path / "mended")
    )
    record = run(begin(newest, base, ReplaceByFile(T, str(tmp_path / "mended"))))
    assert staged(newest, record) == Counter({ONE: 2, row(2, "2"): 1, THREE: 1, row(4, "4"): 1})
    lines = tmp_path / "mended.json"
    lines.write_text('{"id": 6, "price": 6.5}\n{"id": 6, "price": 6.5, "labels": {"x": 1}}\n')
    columns = ("bought",)  # which no line has
    record = run(begin(newest, base, ReplaceByFile(T, lines.as_uri(), "json", columns)))
    more = {row(6, "6.5"): 1, row(6, "6.5", None, (("x", 1),)): 1}
    assert staged(newest, record) == Counter({ONE: 2, row(2, "2"): 1, **more})


def test_columns_that_are_missing_or_too_many_and_files_that_are_not_there(
    run: Run, newest: Barriers, tmp_path: Path
) -> None:
    base = newest.at[1][T]
    newest.spark.sql("SELECT 1L AS id, 1 AS prize").write.parquet(str(tmp_path / "odd"))
    with pytest.raises(SourceDataError, match="found none named price, bought, labels and prize besides; name each"):
        run(begin(newest, base, ReplaceByFile(T, (tmp_path / "odd").as_uri())))
    with pytest.raises(SourceDataError, match="found no such file"):
        run(begin(newest, base, ReplaceByFile(T, (tmp_path / "none").as_uri())))
    for options, message in [
        ({"format": "orc"}, "expected format"),
        ({"format": "csv"}, "names its columns"),
        ({"columns": ("id",)}, "which names its own"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            ReplaceByFile(T, "/x", **options)  # type: ignore[arg-type]


# --- the old epoch's rows -------------------------------------------------------------------------


def test_an_epoch_that_appended_is_appended_again(run: Run, barriers: Barriers) -> None:
    old = barriers.at[1][T], barriers.at[2][T]
    corrected = run(begin(barriers, old[0], CorrectBySql(T, f"DELETE FROM {{target:{T}}} WHERE id = 1")))
    revised = corrected.staged[T].snapshot_id
    record = run(begin(barriers, revised, ReuseRows(T, *old)))
    assert staged(barriers, record) == Counter({row(2, "2"): 1, THREE: 1, row(4, "4"): 1})
    nothing = CorrectBySql(T, f"DELETE FROM {{target:{T}}}")
    emptied = run(begin(barriers, old[0], nothing)).staged[T].snapshot_id
    again = run(begin(barriers, emptied, ReuseRows(T, None, old[1])))
    assert staged(barriers, again) == Counter({ONE: 2, row(2, "2"): 1, THREE: 1, row(4, "4"): 1})


def test_of_equal_rows_as_many_are_deleted_as_went(run: Run, barriers: Barriers) -> None:
    barriers.write(
        3,
        T,
        "DELETE FROM {t} AS t WHERE id IN (1, 3)",
        "INSERT INTO {t} VALUES (1, 1.50, DATE '2017-01-01', NULL)",  # so one of two went
        "UPDATE {t} SET price = 8 WHERE id = 4",
    )
    start, end = barriers.at[2][T], barriers.at[3][T]
    more = f"INSERT INTO {{target:{T}}} SELECT * FROM {{target:{T}}} WHERE id IN (1, 3)"
    doubled = run(begin(barriers, start, CorrectBySql(T, more))).staged[T].snapshot_id
    barriers.spark.sql(f"ALTER TABLE {CATALOG}.{T} ADD COLUMN shop STRING")
    record = run(begin(barriers, doubled, ReuseRows(T, start, end)))
    expected = Counter({ONE: 3, row(2, "2"): 1, THREE: 1, row(4, "8"): 1})
    assert staged(barriers, record) == expected


@pytest.mark.kills("reused-rows-have-no-defaults")
def test_rows_of_before_a_column_that_older_rows_have_by_default(run: Run, newest: Barriers) -> None:
    """Appended again they would have NULL in it."""
    newest.spark.sql(f"ALTER TABLE {CATALOG}.{T} ADD COLUMN shop STRING")
    give_default(newest.spark, f"{CATALOG}.{T}", "shop", "main street")
    start, end = newest.at[1][T], newest.at[2][T]
    with pytest.raises(InexactChangesError, match="found that shop has a default there"):
        run(begin(newest, start, ReuseRows(T, start, end)))


def test_several_corrections_of_one_table_run_one_after_the_other(run: Run, newest: Barriers) -> None:
    start, end = newest.at[1][T], newest.at[2][T]
    correction = CorrectBySql(T, f"DELETE FROM {{target:{T}}} WHERE id < 4")
    record = run(begin(newest, start, ReuseRows(T, start, end), correction))
    assert staged(newest, record) == Counter({row(4, "4"): 1})


@pytest.mark.kills("reused-deletes-are-exact")
def test_a_row_that_went_and_is_not_there_as_it_was(run: Run, newest: Barriers) -> None:
    newest.write(3, T, "UPDATE {t} SET bought = DATE '2017-02-02' WHERE id = 4")
    start, end = newest.at[2][T], newest.at[3][T]
    priced = CorrectBySql(T, f"UPDATE {{target:{T}}} SET price = 40 WHERE id = 4")
    revised = run(begin(newest, start, priced)).staged[T].snapshot_id
    spec = begin(newest, revised)
    with pytest.raises(InexactChangesError, match=r"expected the 1 rows that went .* found 0 of them"):
        run(replace(spec, corrections=(ReuseRows(T, start, end),)))
    assert newest.spark.sql(f"SELECT * FROM {CATALOG}.{T}.`branch_{spec.branch}` WHERE price = 40").count() == 1


def test_an_epoch_that_changed_nothing(run: Run, newest: Barriers) -> None:
    base = newest.at[2][T]
    for reused in (ReuseRows(T, base, base), ReuseRows(T, None, None)):
        record = run(begin(newest, base, reused))
        assert (record.staged[T].snapshot_id, record.staged[T].unchanged) == (base, True)


# --- in a spec ------------------------------------------------------------------------------------


def test_corrections_travel_in_the_spec_and_run_instead_of_the_job(run: Run, newest: Barriers) -> None:
    spec = begin(newest, newest.at[2][T], CorrectBySql(T, f"DELETE FROM {{target:{T}}} WHERE id = 1"))
    travelled = EpochSpec.loads(spec.dumps())
    assert travelled == spec
    record = run(travelled)
    assert staged(newest, record) == Counter({row(2, "2"): 1, THREE: 1, row(4, "4"): 1})


def test_each_outlet_has_a_correction(run: Run, newest: Barriers) -> None:
    newest.create(USERS, "id BIGINT")
    spec = replace(newest.begin(2, outlets=[T, USERS]), corrections=(ReuseRows(T, 1, 2),))
    with pytest.raises(ConfigurationError, match=r"for each of its outlets \(shop.corrected, shop.corrected_users\)"):
        run(spec)
