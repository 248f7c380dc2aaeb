"""What becomes of each kind of record in a text file: the rows that it says, or an error that names file and line.

Spark's own readers let most of what is refused here pass: they drop commas, round, cut off, replace, or leave out.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.sources import source_of
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.spark_errors import file_without_line, source_error
from tests.sources.landing import OTHER_MEANINGS, Cutter, day, land
from tests.support.spark import session_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark import SparkServer

TEXTS = "a STRING, b STRING"
MONEY = "a INT, b DECIMAL(12,2)"
EXACT = "a DECIMAL(38,18)"
NESTED = "a STRUCT<n: INT, d: ARRAY<DECIMAL(4,2)>, m: MAP<STRING, DATE>>, b DOUBLE"
GERMAN = {"delimiter": ";", "decimal_separator": ","}
DOUBLED = {"escape": '"'}
UTC = timezone.utc
SEPARATOR = "expected b DECIMAL(12,2), found a number with another decimal separator than "
DIGITS = "found a number with more digits than that"
QUOTE = "found a quote (\") that is not closed in its line, or not escaped as the source's option escape says"
OBJECT = "expected one object a line, with only ['a', 'b'], each once, found "

Case = tuple[str, str | bytes, dict[str, Any], Any]

READ_CSV: list[Case] = [
    (MONEY, "1;2,50\n2;1,5\n3;-1000\n", GERMAN, [(1, Decimal("2.50")), (2, Decimal("1.50")), (3, Decimal("-1000.00"))]),
    ("a DOUBLE", "1,5\n-2e3\n", GERMAN, [(1.5,), (-2000.0,)]),
    (EXACT, "0.123456789012345678000\n-5.\n+.5\n", {}, [("0.123456789012345678",), ("-5.0",), ("0.5",)]),
    (EXACT, "1e3\n1500E-3\n1E-18\n", {}, [("1000",), ("1.5",), ("1E-18",)]),
    (EXACT, "00000000000000000000000000000000000000000001.5\n", {}, [("1.5",)]),
    (TEXTS, 'bob,"x"\nann,"Main St 1\nBerlin"\n', {"multiline": True}, [("bob", "x"), ("ann", "Main St 1\nBerlin")]),
    (TEXTS, 'a,"x\\"y"\nC:\\,b\nb,"C:\\\\"\n', {}, [("a", 'x"y'), ("C:\\", "b"), ("b", "C:\\")]),
    (TEXTS, 'a,x"y\n5" disk," z" \n', {}, [("a", 'x"y'), ('5" disk', " z")]),
    (TEXTS, 'a,"x""y"\n"",""""\n', DOUBLED, [("a", 'x"y'), (None, '"')]),
    (TEXTS, "x,\"y\n'z,',a\n", {"quote": "'"}, [("x", '"y'), ("z,", "a")]),
    (TEXTS, 'x,"y\n', {"quote": ""}, [("x", '"y')]),
    (TEXTS, "x\ty\n", {"delimiter": "\\t"}, [("x", "y")]),
    (TEXTS, b"\xef\xbb\xbfa,b\nx,y\n", {"header": "true"}, [("x", "y")]),
    (TEXTS, '"a","b"\r\nx,y\rz,\n', {"header": True, **DOUBLED}, [("x", "y"), ("z", None)]),
    (TEXTS, "a,b\n", {"header": "false"}, [("a", "b")]),
    (TEXTS, 'NA,"NA"\n\n \nMüller,€\u2028\n', {"nullValue": "NA"}, [(None, None), ("Müller", "€\u2028")]),
    ("a BOOLEAN, b DATE", "TRUE,2017-01-31\n,\n", {}, [(True, date(2017, 1, 31)), (None, None)]),
    ("a FLOAT, b DOUBLE", "1.5,Infinity\n-Inf,1E300\n", {}, [(1.5, float("inf")), (float("-inf"), 1e300)]),
    ("a TIMESTAMP", "2017-01-01\n2017-01-01 10:00\n", {}, [(day(0),), (datetime(2017, 1, 1, 10, tzinfo=UTC),)]),
    ("a TIMESTAMP", "2017-01-01T10:00:00.123456000+0100\n", {}, [(datetime(2017, 1, 1, 9, 0, 0, 123456, UTC),)]),
    ("a TIMESTAMP_NTZ", "2017-01-01 10:00:00.5\n", {}, [(datetime(2017, 1, 1, 10, 0, 0, 500000),)]),  # noqa: DTZ001
    ("a BINARY, b TINYINT", "xy,-128\n", {}, [(b"xy", -128)]),
]

READ_JSON: list[Case] = [
    ("a BIGINT, b STRING", '{"a":1}\n \n{"b":"\\ud83d\\ude00","a":null}\n', {}, [(1, None), (None, "😀")]),
    ("a BIGINT, b STRING", b'\xef\xbb\xbf{"a":9223372036854775807,"b":1.10}\r\n', {}, [(2**63 - 1, "1.10")]),
    (
        EXACT,
        '{"a":0.123456789012345678}\n{"a":"1.5"}\n{"a":1E2}\n',
        {},
        [("0.123456789012345678",), ("1.5",), ("100",)],
    ),
    ("a STRING", '{"a":{"x":[1.10,"1.10 \\"2\\""]}}\n', {}, [('{"x":[1.10,"1.10 \\"2\\""]}',)]),
    ("a STRING", '{"a":"\\\\ud83d"}\n{"a":"say \\"1.50\\" 2.50"}\n', {}, [("\\ud83d",), ('say "1.50" 2.50',)]),
    (
        NESTED,
        '{"a":{"n":1,"d":[1.50,null,"2"],"m":{"x":"2017-01-01","y":null}},"b":1e5}\n{"a":{}}\n{"a":null}\n',
        {},
        [
            ((1, [Decimal("1.50"), None, Decimal("2.00")], {"x": date(2017, 1, 1), "y": None}), 1e5),
            ((None, None, None), None),
            (None, None),
        ],
    ),
    ("a BINARY, b BOOLEAN", '{"a":"eHk=","b":true}\n', {}, [(b"xy", True)]),
]

REFUSED_CSV: list[Case] = [
    (MONEY, "1;2.50\n2;1,5\n", {"delimiter": ";"}, f"line 2: source in: {SEPARATOR}'.'"),
    (MONEY, "a;b\n1;2,50\n\n2;1.5\n", {"header": True, **GERMAN}, f"line 4: source in: {SEPARATOR}','"),
    (MONEY, '1,"1,000.00"\n', {}, f"line 1: source in: {SEPARATOR}'.'"),
    (MONEY, "1;1.000,00\n", GERMAN, f"line 1: source in: {SEPARATOR}','"),
    (MONEY, "1,1.105\n", {}, DIGITS),
    (MONEY, "1,12345678901.00\n", {}, DIGITS),
    (EXACT, "0.1\n0.1234567890123456789\n", {}, f"line 2: source in: expected a DECIMAL(38,18), {DIGITS}"),
    (EXACT, "1E-19\n", {}, DIGITS),
    (EXACT, "1e20\n", {}, DIGITS),
    (EXACT, "cheap\n", {}, "expected a DECIMAL(38,18), found text that is no number"),
    (EXACT, "१\n", {}, "no number"),
    (EXACT, "1.5\u0085\n", {}, "found a number with another decimal separator"),
    (TEXTS, 'bob,"x"\nann,"Main St 1\nBerlin, Germany"\n', {}, f"line 2: source in: expected 2 values a line, {QUOTE}"),
    (TEXTS, 'x,y\na,"x\\"\n', {}, f"line 2: source in: expected 2 values a line, {QUOTE}"),
    (TEXTS, 'x,y\na,"x""y"\n', {}, QUOTE),
    (TEXTS, 'x,y\na,"x"y\n', {}, QUOTE),
    (TEXTS, 'x,y\na,"\n', DOUBLED, QUOTE),
    (TEXTS, "x,y\na\n", {}, "line 2: source in: expected 2 values a line, found another number of them"),
    (TEXTS, 'x,"y"\na,"b",c\n', {}, "found another number of them"),
    (TEXTS, b"x,y\nM\xfcller,1\n", {}, "line 2: source in: expected 2 values a line, found bytes that are no UTF-8"),
    (TEXTS, b"a,b\nM\xfcller,1\n", {"header": True}, "line 2: source in: expected 2 values a line, found bytes that"),
    (TEXTS, "x,y\n\0a,1\n", {}, "found a NUL character"),
    (TEXTS, "x,y\na,b\uffffc,d\n", {}, "line 2: source in: expected 2 values a line, found the character U+FFFF"),
    ("a BOOLEAN", "1\n", {}, "expected a BOOLEAN, found neither true nor false"),
    ("a DATE", "2017-01-31T10:00:00\n", {}, "expected a DATE, found another form than 2017-01-31, or no such day"),
    ("a DATE", "2017-02-30\n", {}, "no such day"),
    (
        "a TIMESTAMP",
        "10:00\n",
        {},
        "expected a TIMESTAMP_LTZ, found another form than 2017-01-31T10:00:00.123456+01:00",
    ),
    ("a TIMESTAMP", "2017-01-01T10:00:00.1234567Z\n", {}, "another form"),
    ("a TIMESTAMP", "1483228800\n", {}, "another form"),
    ("a TIMESTAMP_NTZ", "2017-01-01T10:00:00Z\n", {}, "without a zone"),
    ("a FLOAT", "1e39\n", {}, "expected a FLOAT, found another form, or more than it holds"),
    ("a DOUBLE", "1d\n", {}, "another form, or more than it holds"),
    ("a TINYINT", "128\n", {}, "another form, or more than it holds"),
    ("a BIGINT", "1.0\n", {}, "another form, or more than it holds"),
]

REFUSED_JSON: list[Case] = [
    ("a INT, b INT", '{"a":1}\n{"a":2}{"a":3}\n', {}, f"line 2: source in: {OBJECT}something else"),
    ("a INT, b INT", '{"a":1}\n{"a":2},{"a":3}\n', {}, f"line 2: source in: {OBJECT}something else"),
    ("a INT, b INT", '{"a":1}\n{"a":2},{"a":3}]\n', {}, f"line 2: source in: {OBJECT}something else"),
    ("a INT, b INT", '{"a":1}\n{"a":2} x\n', {}, OBJECT),
    ("a INT, b INT", '{"a":1}\n{"a":2},"b":3\n', {}, OBJECT),
    ("a INT, b INT", '{"a":1}\n{"a":2}]\n', {}, OBJECT),
    ("a INT, b INT", '{"a":1}\n[{"a":2}]\n', {}, OBJECT),
    ("a INT, b INT", '{"a":1}\nnull\n', {}, OBJECT),
    ("a INT, b INT", "{\"a\":1}\n{'a':2}\n", {}, OBJECT),
    ("a INT, b INT", '{"a":1}\n{"a":01}\n', {}, OBJECT),
    ("a INT, b INT", '{"a":1}\n{"a":\n', {}, OBJECT),
    ("a INT, b INT", '{"a":1}\n{"a":2,"c":3}\n', {}, f"{OBJECT}another name, or one twice"),
    ("a INT, b INT", '{"a":1}\n{"a":2,"a":3}\n', {}, f"{OBJECT}another name, or one twice"),
    ("a INT, b STRING", '{"a":1}\n{"b":"\\ud83d"}\n', {}, f"line 2: source in: {OBJECT}half a character"),
    ("a INT, b STRING", '{"a":1}\n{"b":"\\ude00"}\n', {}, "half a character"),
    ("a INT, b STRING", '{"a":1}\n{"b":"\\uFFFF1"}\n', {}, "half a character"),
    ("a INT, b STRING", b'{"a":1}\n{"b":"M\xfc"}\n', {}, f"{OBJECT}bytes that are no UTF-8"),
    ("a INT, b INT", '{"a":"one"}\n', {}, "expected a INT, found another form"),
    (EXACT, '{"a":0.1234567890123456789}\n', {}, DIGITS),
    (MONEY, '{"b":"2,50"}\n', {}, SEPARATOR),
    (NESTED, '{"a":{"n":1,"x":2}}\n', {}, "expected in a only ['n', 'd', 'm'], each once, found another name"),
    (NESTED, '{"a":{"d":[1.505]}}\n', {}, f"expected a.d[] DECIMAL(4,2), {DIGITS}"),
    (NESTED, '{"a":{"d":{"n":1}}}\n', {}, "expected a.d ARRAY, found another JSON value"),
    (NESTED, '{"a":{"m":{"x":"2017-02-30"}}}\n', {}, "expected value of a.m DATE, found another form"),
    (NESTED, '{"a":{"m":{"x":null,"x":null}}}\n', {}, "expected a.m with each key once, found one twice"),
    (NESTED, '{"b":1e400}\n', {}, "expected b DOUBLE, found another form, or more than it holds"),
]


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    with session_on(spark_server, OTHER_MEANINGS) as session:
        yield session


def cases(csv: list[Case], json: list[Case]) -> list[Any]:
    return [("csv", *case) for case in csv] + [("json", *case) for case in json]


def landed(tmp_path: Path, form: Any, schema: str, content: str | bytes, options: dict[str, Any]) -> Files:
    land(tmp_path / f"in, 1.{form}", content)
    return Files(str(tmp_path), name="in", format=form, schema=schema, options=options)


def load(session: SparkSession, source: Files) -> DataFrame:
    source.check(Cutter(source).cut(day(1)))
    return unchecked(session, source)


def unchecked(session: SparkSession, source: Files) -> DataFrame:
    return source.load(session, Cutter(source).cut(day(1)), None, day(1), "lake", None, {})  # type: ignore[arg-type]


def comparable(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(comparable, value))
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize(("form", "schema", "content", "options", "expected"), cases(READ_CSV, READ_JSON))
def test_what_is_read(
    session: SparkSession, tmp_path: Path, form: str, schema: str, content: str | bytes, options: Any, expected: Any
) -> None:
    source = landed(tmp_path, form, schema, content, options)
    assert source_of(source.declare()) == source
    frame = load(session, source)
    if schema == "a TIMESTAMP":
        frame = frame.selectExpr("unix_micros(a)")
        expected = [((at - day(0)).total_seconds() * 1e6 + day(0).timestamp() * 1e6,) for (at,) in expected]
    if schema == EXACT:
        expected = [(Decimal(text),) for (text,) in expected]
    assert [comparable(tuple(row)) for row in frame.collect()] == expected


@pytest.mark.parametrize(("form", "schema", "content", "options", "said"), cases(REFUSED_CSV, REFUSED_JSON))
def test_what_is_refused(
    session: SparkSession, tmp_path: Path, form: str, schema: str, content: str | bytes, options: Any, said: str
) -> None:
    source = landed(tmp_path, form, schema, content, options)
    with pytest.raises(Exception, match="unfit record") as raised:
        source.read_in_order(session, f"file:{tmp_path}/in, 1.{form}")
    error = source_error(raised.value, [])
    assert isinstance(error, SourceDataError)
    assert said in str(error)
    assert f"in, 1.{form}, line " in str(error)
    assert "1.5" not in str(error), "nothing of the record"


@pytest.mark.parametrize(
    ("form", "content", "options"),
    [
        ("csv", 'x,y\n"z,1\n', {}),
        ("csv", "a,b\nz\n", {"header": True}),
        ("json", '{"a": "x"}{"a": "y"}\n', {}),
    ],
)
def test_a_job_that_uses_no_column_meets_a_malformed_line_all_the_same(
    session: SparkSession, tmp_path: Path, form: str, content: str, options: Any
) -> None:
    source = landed(tmp_path, form, TEXTS, content, options)
    with pytest.raises(Exception, match="unfit record") as raised:
        unchecked(session, source).groupBy().count().collect()
    assert file_without_line(raised.value) == ("source in", f"file:{tmp_path}/in, 1.{form}")


def test_a_quote_that_is_never_closed_is_found_before_spark_starts(tmp_path: Path) -> None:
    source = landed(tmp_path, "csv", TEXTS, 'bob,"x"\nann,"Main St 1\nBerlin, Germany\neve,y\n', {"multiline": True})
    with pytest.raises(SourceDataError, match=r'expected quotes that are closed and escaped, found one \("\)'):
        source.check(Cutter(source).cut(day(1)))


def test_of_values_of_several_lines_spark_names_the_file(session: SparkSession, tmp_path: Path) -> None:
    source = landed(tmp_path, "csv", TEXTS, b'x,"M\xfc\nller"\n', {"multiline": True})
    with pytest.raises(Exception, match="unfit record") as raised:
        unchecked(session, source).collect()
    assert "expected UTF-8, found bytes that are not" in str(source_error(raised.value, []))


def test_a_long_line_of_many_escapes_needs_no_deep_stack(session: SparkSession, tmp_path: Path) -> None:
    text = '\\"' * 500_000
    source = landed(tmp_path, "json", "a STRING, b DOUBLE", f'{{"a": "{text}", "b": 1.5}}\n', {})
    assert load(session, source).selectExpr("length(a)", "b").collect() == [(500_000, 1.5)]
    quoted = landed(tmp_path / "csv", "csv", TEXTS, f'"{text}",x\n', {})
    assert load(session, quoted).selectExpr("length(a)", "b").collect() == [(500_000, "x")]


def test_a_compressed_file_with_a_header(session: SparkSession, tmp_path: Path) -> None:
    content = gzip.compress(b'\xef\xbb\xbfa,b\n1,"2.50"\n')
    land(tmp_path / "a.csv.gz", content)
    source = Files(str(tmp_path), name="in", format="csv", schema=MONEY, options={"header": True})
    assert [tuple(row) for row in load(session, source).collect()] == [(1, Decimal("2.50"))]
