"""Files that are not as declared are refused before Spark starts: by name, with what was expected and found."""

from __future__ import annotations

import gzip
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_barrier.protocol.ddl import ddl_of, parse_ddl
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.files import Files
from tests.sources.landing import Cutter, day, land, land_parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "userId BIGINT, price DECIMAL(10,2)"
PRICES = pa.array([Decimal("1.10")], pa.decimal128(10, 2))


def refusal(source: Files) -> str:
    with pytest.raises(SourceDataError) as refused:
        source.check(Cutter(source).cut(day(1)))
    return str(refused.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"userId": [1], "price": pa.array([1.1])}, "column price: expected DECIMAL(10,2), found double"),
        ({"userId": ["1"], "price": PRICES}, "column userId: expected BIGINT, found string"),
        ({"userId": [1]}, "expected column price, found none of that name"),
        ({"userid": [1], "price": PRICES}, "expected column userId, found none of that name; found column userid"),
        ({"userId": [1], "price": PRICES, "vip": [True]}, "found column vip, which is not declared"),
        ({"userId": [1], "price": PRICES.cast(pa.decimal128(10, 3))}, "found decimal128(10, 3)"),
    ],
)
def test_a_parquet_file_of_another_schema(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    good = {"userId": pa.array([1], pa.int32()), "price": PRICES.cast(pa.decimal128(5, 2))}
    land_parquet(tmp_path / "good.parquet", good)
    bad = land_parquet(tmp_path / "bad.parquet", columns)
    said = refusal(Files(str(tmp_path), schema=SCHEMA))
    assert f"file://{bad}: " in said
    assert message in said
    assert "good.parquet" not in said
    assert "clear the task" in said


@pytest.mark.parametrize(
    ("form", "name", "content", "message"),
    [
        ("csv", "a.csv", "price,userId\n", "expected header ['userId', 'price'], found ['price', 'userId']"),
        ("csv", "a.csv", "userId\n", "expected header ['userId', 'price'], found ['userId']"),
        ("csv", "a.csv", "userId,price,vip\n", "expected header ['userId', 'price'], found ['userId', 'price', '?']"),
        ("csv", "a.csv", b"\xff\xfe\x00", "expected a readable csv file, found UnicodeDecodeError"),
        ("csv", "a.csv.gz", "userId,price\n", "expected a readable csv file, found BadGzipFile"),
        (
            "csv",
            "a.csv.gz",
            gzip.compress(b"userId,price\n", mtime=0)[:-12],
            "expected a readable csv file, found EOFError",
        ),
        (
            "json",
            "a.json",
            '{"userId": 1, "vip": true}\n',
            "expected only ['userId', 'price'], found 1 of other names in line 1",
        ),
        ("json", "a.json", "[1, 2]\n", "expected an object on every line, found list"),
        ("json", "a.json", "\n", "expected an object on every line, found no line"),
        ("json", "a.json", "{\n", "expected a readable json file, found JSONDecodeError"),
        ("parquet", "a.parquet", "PAR1 no more PAR1", "expected a readable parquet file, found ArrowInvalid"),
        ("parquet", "a.parquet", "", "expected data, found a file of 0 bytes"),
        ("csv", "12:00.csv", "userId,price\n", "expected a file name that Hadoop can read, found one with ':'"),
    ],
)
def test_a_damaged_or_different_file(tmp_path: Path, form: Any, name: str, content: str | bytes, message: str) -> None:
    options = {"options": {"header": True}} if form == "csv" else {}
    bad = land(tmp_path / name, content)
    said = refusal(Files(str(tmp_path), format=form, schema=SCHEMA, **options))
    assert f"file://{bad}: {message}" in said


@pytest.mark.parametrize(
    ("first", "options"),
    [
        (b"\xef\xbb\xbfuserId,price\n", {"header": True}),
        (b"userId\tprice\n", {"header": "TRUE", "delimiter": "\\t"}),
        (b'"userId","price"\n', {"header": True, "escape": '"'}),
        (b"userId,price\n", {"header": True, "quote": ""}),
        (b"C:\\,price\n", {}),
        (b'"one, quoted",price\n', {}),
        (b"\xef\xbb\xbfuserId,price\n1,2\n", {"header": "false"}),
    ],
)
def test_first_lines_that_spark_reads(tmp_path: Path, first: bytes, options: dict[str, Any]) -> None:
    land(tmp_path / "a.csv", first)
    source = Files(str(tmp_path), format="csv", schema=SCHEMA, options=options)
    source.check(Cutter(source).cut(day(1)))


def test_many_bad_files_are_named_up_to_five(tmp_path: Path) -> None:
    for number in range(8):
        land(tmp_path / f"{number}.csv", "1\n")
    said = refusal(Files(str(tmp_path), format="csv", schema=SCHEMA))
    assert said.count("expected 2 values a line, found 1 in the first") == 5
    assert "; and 3 more." in said


def test_what_the_check_lets_pass_spark_reads_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Narrower types than declared, and every way to write a time that Spark knows."""
    noon = day(0.5).replace(tzinfo=None)
    columns: dict[str, tuple[str, pa.Array, str]] = {
        "small": ("BIGINT", pa.array([7], pa.int8()), "7"),
        "unsigned": ("INT", pa.array([255], pa.uint8()), "255"),
        "single": ("DOUBLE", pa.array([1.5], pa.float32()), "1.5"),
        "money": ("DECIMAL(20,2)", pa.array([Decimal("1.10")], pa.decimal128(5, 2)), "1.10"),
        "large": ("STRING", pa.array(["a"], pa.large_string()), "a"),
        "coded": ("STRING", pa.array(["a"]).dictionary_encode(), "a"),
        "fixed": ("BINARY", pa.array([b"a"], pa.binary(1)), "a"),
        "date": ("DATE", pa.array([day(0).date()]), "2017-01-01"),
        "micros": ("TIMESTAMP", pa.array([noon], pa.timestamp("us", "UTC")), str(noon)),
        "millis": ("TIMESTAMP", pa.array([noon], pa.timestamp("ms", "UTC")), str(noon)),
        "unzoned": ("TIMESTAMP", pa.array([noon], pa.timestamp("us")), str(noon)),
        "local": ("TIMESTAMP_NTZ", pa.array([noon], pa.timestamp("us")), str(noon)),
        "list": ("ARRAY<BIGINT>", pa.array([[1]], pa.list_(pa.int32())), "[1]"),
        "map": ("MAP<STRING, INT>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), "{a -> 1}"),
        "deep": ("STRUCT<`a b`: INT>", pa.array([{"a b": 1}], pa.struct([("a b", pa.int32())])), "{1}"),
    }
    source = Files(str(tmp_path), schema=", ".join(f"{name} {ddl}" for name, (ddl, _, _) in columns.items()))
    land_parquet(tmp_path / "a.parquet", {name: values for name, (_, values, _) in columns.items()})
    cut = Cutter(source).cut(day(1))
    source.check(cut)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        frame = source.load(spark, cut, None, day(1), "lake", None, {})  # type: ignore[arg-type]
        row = frame.selectExpr(*(f"CAST({name} AS STRING) AS {name}" for name in columns)).first()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert row is not None
    assert row.asDict() == {name: text for name, (_, _, text) in columns.items()}


@pytest.mark.parametrize("written", [("a INT", pa.array([1])), ("a TIMESTAMP_LTZ", pa.array([1], pa.timestamp("ns")))])
def test_what_spark_would_refuse_the_check_refuses_first(tmp_path: Path, written: tuple[str, pa.Array]) -> None:
    ddl, values = written
    land_parquet(tmp_path / "a.parquet", {"a": values})
    assert f"column a: expected {ddl.split()[1]}, found " in refusal(Files(str(tmp_path), schema=ddl))


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("a", "expected a type, found the end after 'a'"),
        ("a INT b INT", "expected ',' or the end, found 'b' after 'a INT'"),
        ("a DECIMAL(x)", "expected a number, found 'x'"),
        ("a ARRAY<INT", "expected '>', found the end"),
        ("a MAP<INT>", "expected ',', found '>'"),
        ("a INT; b INT", "found '; b INT'"),
        ("a INT, A STRING", "column a is there twice"),
        ("a VARCHAR(3)", "expected a Spark type, found 'VARCHAR'"),
        (", a INT", "expected a column name, found ','"),
        ("a INT NOT", "expected NULL after NOT"),
    ],
)
def test_a_schema_that_is_not_spark_ddl(ddl: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_ddl(ddl)
    assert message in str(refused.value)


def test_a_schema_is_written_as_spark_reads_it() -> None:
    ddl = (
        "a: long, `b``c` struct<x: array<dec>, `y z` map<string,timestamp_ltz>> NOT NULL COMMENT 'it, is', d numeric(3)"
    )
    assert ddl_of(parse_ddl(ddl)) == (
        "`a` BIGINT, `b``c` STRUCT<`x`: ARRAY<DECIMAL(10,0)>, `y z`: MAP<STRING, TIMESTAMP_LTZ>>, `d` DECIMAL(3,0)"
    )


# --- limits ---------------------------------------------------------------------------------------


def test_a_line_is_as_long_as_the_connection_allows(tmp_path: Path) -> None:
    land(tmp_path / "a.json", '{"userId": 1, "price": 2}\n')
    source = Files(str(tmp_path), schema=SCHEMA, format="json")
    said = refusal(source.within(Limits(max_line_characters=10)))
    assert "expected lines of 10 characters at most, found that line 1 is longer" in said
    assert "raise the connection's extra max_line_characters" in said
    wider = source.within(Limits(max_line_characters=100))
    wider.check(Cutter(wider).cut(day(1)))
    assert (wider, wider.declare()) == (source, source.declare()), "a limit is no part of what is declared"


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_compressed_file_unpacks_to_as_much_as_the_connection_allows(tmp_path: Path, form: str) -> None:
    line = '{"id": 1, "at": "2017-01-01"}\n' if form == "json" else "1,2017-01-01\n"
    land(tmp_path / f"a.{form}.gz", gzip.compress(line.encode() * 1000))
    source = Files(
        str(tmp_path),
        schema="id BIGINT, at TIMESTAMP",
        format=form,  # type: ignore[arg-type]
        attribute_by="event_time",
        event_time="at",
        idle_timeout=timedelta(0),
    )

    def cut(source: Files) -> Cut:
        return Cutter(source).cut(day(1), now=day(99))

    narrow = source.within(Limits(max_unpacked_bytes=1000))
    with pytest.raises(
        SourceDataError, match=r"unpacks to 1,000 bytes at most.*the connection's extra max_unpacked_by"
    ):
        narrow.check(cut(narrow))
    source.check(cut(source))


def test_a_folder_that_is_full_says_how_to_begin(tmp_path: Path) -> None:
    for number in range(3):
        land(tmp_path / f"{number}.json", '{"userId": 1, "price": 2}\n')
    source = Files(str(tmp_path), schema=SCHEMA, format="json").within(Limits(max_epoch_files=2))
    with pytest.raises(SourceDataError, match=r"start_from in barrier\.job.*docs/adopting\.md.*extra max_epoch_files"):
        Cutter(source).cut(day(1))
    raised = source.within(Limits(max_epoch_files=3))
    barriers = Cutter(raised)
    assert len(barriers.cut(day(1)).items) == 3
    for number in range(3, 7):
        land(tmp_path / f"{number}.json", '{"userId": 1, "price": 2}\n', day(1.5))
    with pytest.raises(SourceDataError, match=r"found 4.*max_epoch_files") as said:
        barriers.cut(day(2))
    assert "start_from" not in str(said.value), "it has begun"


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_epoch_files": 0}, "max_epoch_files: expected 1 or more, found 0"),
        ({"max_unpacked_bytes": -1}, "max_unpacked_bytes: expected 1 or more, found -1"),
        ({"max_line_characters": 2**31}, "max_line_characters: expected 2,147,483,647 at most, found 2,147,483,648"),
    ],
)
def test_limits_that_are_none(limits: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Limits(**limits)
