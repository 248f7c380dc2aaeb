"""What a job reads of landed files through Spark Connect: exactly the cut, exactly as declared."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.spark_errors import source_error
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch
from tests.sources.landing import OTHER_MEANINGS, Cutter, day, land, land_parquet
from tests.support.epochs import AMOUNT, shopping_barriers
from tests.support.spark import session_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark import SparkServer

SCHEMA = "userId BIGINT, price DECIMAL(10,2), at TIMESTAMP"


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    """A session with everything set that could change what a file says."""
    with session_on(spark_server, OTHER_MEANINGS) as session:
        yield session


def no_delta(*_: Any) -> DataFrame:
    raise AssertionError("files have no snapshots")


def load(session: SparkSession, source: Files, cut: Cut, after: datetime | None, until: datetime) -> DataFrame:
    return source.load(session, cut, after, until, "lake", no_delta, {})


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.selectExpr("userId", "price", "unix_micros(at)").collect())


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


EXPECTED = [(1, Decimal("1.10"), micros(day(0.25))), (2, None, None), (3, Decimal("-0.05"), micros(day(0.5)))]


def test_parquet(session: SparkSession, tmp_path: Path) -> None:
    source = Files(str(tmp_path), schema=SCHEMA)
    columns = {
        "at": pa.array([day(0.25), None, day(0.5)], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.10"), None, Decimal("-0.05")], pa.decimal128(8, 2)),
        "userId": pa.array([1, 2, 3], pa.int32()),
    }
    land_parquet(tmp_path / "price=9/we ird %20 [1]{x}*?#.parquet", columns)
    cut = Cutter(source).cut(day(1))
    source.check(cut)
    assert rows(load(session, source, cut, None, day(1))) == EXPECTED


@pytest.mark.parametrize("int96", [False, True])
def test_times_of_long_ago(session: SparkSession, tmp_path: Path, int96: bool) -> None:
    long_ago = datetime(1500, 1, 1, tzinfo=timezone.utc)
    columns = {"at": pa.array([long_ago], pa.timestamp("us", "UTC")), "days": pa.array([[long_ago.date()]])}
    land_parquet(tmp_path / "a.parquet", columns, use_deprecated_int96_timestamps=int96)
    source = Files(str(tmp_path), schema="at TIMESTAMP, days ARRAY<DATE>")
    frame = load(session, source, Cutter(source).cut(day(1)), None, day(1))
    assert frame.schema.simpleString() == "struct<at:timestamp,days:array<date>>"
    (row,) = frame.selectExpr("unix_micros(at) AS at", "days").collect()
    assert (row.at, row.days) == (micros(long_ago), [long_ago.date()])


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_csv(session: SparkSession, tmp_path: Path, suffix: str) -> None:
    source = Files(str(tmp_path), format="csv", schema=SCHEMA, options={"header": True, "delimiter": ";"})
    text = 'userId;price;at\n1;"1.10";2017-01-01 06:00:00\n2;;\n3;-0.05;2017-01-01T07:00:00-05:00\n'
    land(tmp_path / f"a.csv{suffix}", gzip.compress(text.encode()) if suffix else text)
    cut = Cutter(source).cut(day(1))
    source.check(cut)
    assert rows(load(session, source, cut, None, day(1))) == EXPECTED


def test_json_lines(session: SparkSession, tmp_path: Path) -> None:
    source = Files(f"file://{tmp_path}/", format="json", schema=SCHEMA)
    text = '{"userId": 1, "price": 1.10, "at": "2017-01-01 06:00:00"}\n{"userId": 2}\n'
    land(tmp_path / "a.json", text + '{"price": -0.05, "at": "2017-01-01T12:00:00Z", "userId": 3}\n')
    cut = Cutter(source).cut(day(1))
    source.check(cut)
    assert rows(load(session, source, cut, None, day(1))) == EXPECTED


def test_an_empty_epoch_is_an_empty_frame_with_the_declared_columns(session: SparkSession, tmp_path: Path) -> None:
    source = Files(
        str(tmp_path),
        schema="userId BIGINT NOT NULL, tags ARRAY<STRING>, deep STRUCT<a: INT, `b c`: MAP<STRING, DATE>>",
    )
    cut = Cutter(source).cut(day(1))
    frame = load(session, source, cut, None, day(1))
    assert frame.count() == 0
    assert frame.schema.simpleString() == (
        "struct<userId:bigint,tags:array<string>,deep:struct<a:int,b c:map<string,date>>>"
    )


@pytest.mark.parametrize("column", ["TIMESTAMP", "TIMESTAMP_NTZ"])
@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_by_event_time_each_record_is_read_once(session: SparkSession, tmp_path: Path, form: Any, column: str) -> None:
    source = Files(
        str(tmp_path),
        format=form,
        schema=f"id BIGINT, `at ``noon``` {column}",
        attribute_by="event_time",
        event_time="at `noon`",
        idle_timeout=timedelta(0),
    )
    arrow = pa.timestamp("us", "UTC") if column == "TIMESTAMP" else pa.timestamp("us")
    second = timedelta(microseconds=1)
    # early, in time, on the edge, just after it, late, and without a time
    arrivals = [
        {1: day(2.5), 2: day(0.5), 3: day(1), 4: day(1) + second, 5: None},
        {6: day(0.1), 7: day(1), 8: day(9)},
        {},
    ]
    barriers, read = Cutter(source), {}
    after = None
    for number, times in enumerate(arrivals, start=1):
        if times and form == "parquet":
            land_parquet(
                tmp_path / f"{number}.parquet",
                {
                    "id": pa.array(list(times), pa.int64()),
                    "at `noon`": pa.array([at and at.replace(tzinfo=None) for at in times.values()]).cast(arrow),
                },
            )
        elif times:
            texts = {i: at.strftime("%Y-%m-%d %H:%M:%S.%f") if at else "" for i, at in times.items()}
            lines = [
                f"{i},{at}"
                if form == "csv"
                else f'{{"id": {i}, "at `noon`": {chr(34) + at + chr(34) if at else "null"}}}'
                for i, at in texts.items()
            ]
            land(tmp_path / f"{number}.{form}", "\n".join(lines) + "\n")
        cut = barriers.cut(day(number), now=day(99))
        source.check(cut)
        frame = load(session, source, cut, after, day(number))
        read[number] = sorted(row.id for row in frame.collect())
        after = day(number)
    assert read == {1: [2, 3, 5], 2: [4, 6, 7], 3: [1]}
    assert [cut.end["late"] for _, cut in barriers.cuts] == [0, 2, 0]
    held = barriers.cut(day(10), now=day(99))
    assert [row.id for row in load(session, source, held, day(3), day(10)).collect()] == [8]


def test_a_file_that_vanished_under_spark_is_named_and_not_passed_over(session: SparkSession, tmp_path: Path) -> None:
    source = Files(str(tmp_path), format="csv", schema=SCHEMA)
    gone = land(tmp_path / "gone.csv", "1,1.10,\n")
    cut = Cutter(source).cut(day(1))
    frame = load(session, source, cut, None, day(1))
    gone.unlink()
    with pytest.raises(Exception, match=r"gone\.csv"):
        frame.collect()


def test_a_column_of_another_type_that_the_check_did_not_see_fails_in_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    source = Files(str(tmp_path), schema="userId INT")
    land_parquet(tmp_path / "a.parquet", {"userId": pa.array([1], pa.int64())})
    cut = Cutter(source).cut(day(1))
    with pytest.raises(Exception, match="FAILED_READ_FILE") as raised:
        load(session, source, cut, None, day(1)).collect()
    assert "Expected Spark type int, actual Parquet type INT64" in str(source_error(raised.value, [str(tmp_path)]))


def test_the_job_that_met_a_malformed_record_fails_naming_the_file(
    spark: SparkSession, spark_server: SparkServer, tmp_path: Path
) -> None:
    barriers = shopping_barriers(spark, tmp_path)
    source = Files(str(tmp_path / "in"), format="csv", schema="userId BIGINT, itemId BIGINT, totalAmount DECIMAL(38,2)")
    bad = land(tmp_path / "in" / "bad.csv", "1,2,3.00\n1,2,dear\n")
    cut = Cutter(source).cut(day(1))
    spec = replace(barriers.begin(1, inlets=[], outlets=[AMOUNT]), externals={"in": source.declare()}, cuts={"in": cut})

    def job(epoch: Epoch) -> None:
        epoch.source("in").writeTo(epoch.target(AMOUNT)).append()

    session = connect_session(spark_server.url)
    try:
        with pytest.raises(
            SourceDataError, match=rf"^attempt .* at barrier 1 of .*: file:{bad}, line 2: .* clear the task"
        ):
            run_epoch(session, spec, job)
    finally:
        stop_session(session)


def test_of_a_message_that_quotes_the_file_only_its_kind_is_said() -> None:
    said = (
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a%20b.csv.  SQLSTATE: KD001\n"
        "Caused by: java.time.DateTimeException: Text 'hunter2' could not be parsed\n\tat x.y.Z(Z.java:1)"
    )
    error = source_error(ValueError(said), ["/in/a b.csv"])
    assert "/in/a b.csv: expected records as declared, found: FAILED_READ_FILE.NO_HINT, DateTimeException." in str(
        error
    )
    assert "hunter2" not in str(error)


def test_errors_about_something_else_are_left_alone() -> None:
    assert source_error(ValueError("no such table"), ["/in"]) is None


@pytest.mark.kills("own-files-are-no-sources")
def test_of_files_that_no_source_reads_nothing_is_said() -> None:
    said = ValueError(
        "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/t/a.parquet.  SQLSTATE"
    )
    assert source_error(said, ["/in/t"]) is not None
    assert source_error(said, ["s3://in/t", "/in/a.parquet", "file:///in/other"]) is None
    assert source_error(said, []) is None
