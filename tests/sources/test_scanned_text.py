"""Lines that are read the quick way: each becomes what it becomes the slow way, or is refused by the same words.

The judge is the slow way, whose own judge is ``test_text_records.py``. Both read the same drawn lines.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_barrier.protocol.ddl import parse_ddl
from airflow_barrier.sources.text.csv_dialect import CsvDialect
from airflow_barrier.sources.text.json_objects import json_texts
from airflow_barrier.sources.text.records import TextRecords
from airflow_barrier.sources.text.scanner import CSV_SCANNER, JSON_SCANNER, can_scan
from airflow_barrier.sources.text.values import Values
from airflow_barrier.spark.connect import connect_session, stop_session
from tests.sources.test_text_records import DOUBLED, GERMAN, READ_JSON, REFUSED_JSON, landed, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark import SparkServer

LINES = 100_000
COLUMNS = parse_ddl("a INT, b STRING, c DECIMAL(12,2), `ä` BOOLEAN")
TEXTS = ["", "x", "2,50", "Müller €", "😀", "\uffee", "\ufffd", "\ufffe", "\uffff", "\0", 'a"b', "\\", "NaN", "1.50"]
VALUES = [None, True, False, 0, -1, 12, 2.5, 1e300, {"x": 1}, [1, "2"], *TEXTS]
PIECES = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"',
        b"'",
        b"\\",
        b"0",
        b"1",
        b"-",
        b"+",
        b".",
        b"e",
        b"E",
        b"n",
        b"t",
        b"/",
    ),
    *(
        b"#",
        b"NaN",
        b"null",
        b"true",
        b'{"a":1}',
        b'"a":1',
        b'"b":""',
        b"01",
        b"1.",
        rb"\u00e4",
        rb"\ud83d",
        rb"\uffff",
    ),
    *(rb"\"", b" ", b"\t", b"\r", b"\n", b"\x0c", b"\x7f", b"\xc2\xa0", b"\xef\xbb\xbf", b"\0", b"\x1f", b"\x80"),
    *(b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbf\xbf", b"\xf0\x9f\x98\x80"),
]


@pytest.fixture(scope="module")
def scanning(spark_server: SparkServer) -> Iterator[SparkSession]:
    session = connect_session(spark_server.url)
    assert can_scan(session)
    yield session
    stop_session(session)


@pytest.fixture(scope="module")
def parsing(spark_server: SparkServer) -> Iterator[SparkSession]:
    """A session as on a server without the jar."""
    session = connect_session(spark_server.url)
    for name in (JSON_SCANNER, CSV_SCANNER):
        session.sql(f"DROP TEMPORARY FUNCTION {name}")
    assert not can_scan(session)
    yield session
    stop_session(session)


def objects(draw: random.Random) -> Iterator[bytes]:
    """Draw objects, and lines of the tables of what is read and refused."""
    contents = [
        content.encode() if isinstance(content, str) else content for _, content, *_ in READ_JSON + REFUSED_JSON
    ]
    known = [line for content in contents for line in content.split(b"\n")]
    while True:
        names = draw.sample([*(column.name for column in COLUMNS), "d"], draw.randint(0, 5))
        record = json.dumps(
            {name: draw.choice(VALUES) for name in names if name != "d" or draw.random() < 0.1},
            ensure_ascii=draw.random() < 0.2,
            separators=draw.choice([(",", ":"), (", ", ": ")]),
        )
        yield record.encode() if draw.random() < 0.9 else draw.choice(known)


def records(draw: random.Random, dialect: CsvDialect) -> Iterator[bytes]:
    """Draw lines of CSV, most of them with as many values as there are columns."""
    while True:
        count = len(COLUMNS) if draw.random() < 0.9 else draw.randint(0, 6)
        odd = [*TEXTS, '"x"', '""', "#", "\\"]
        plain = ["", "1", "-2.5", "x", " ", " x ", "NA", "Müller €", "😀"]
        texts = [draw.choice(plain if draw.random() < 0.8 else odd) for _ in range(count)]
        yield dialect.delimiter.join(texts).encode()


def mutated(lines: Iterator[bytes], draw: random.Random, pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Half of the lines whole, the others with up to three pieces more or bytes less."""
    for each in lines:
        line = each
        for _ in range(draw.choice([0, 0, 0, 1, 2, 3])):
            start = draw.randint(0, len(line))
            line = line[:start] + draw.choice([b"", draw.choice(pieces)]) + line[start + draw.choice([0, 0, 1, 2]) :]
        yield line


def kept(session: SparkSession, file: Path) -> DataFrame:
    """Each ``line`` as text, and ``place``: its bytes."""
    there = session.read.parquet(file.as_uri()).coalesce(1)
    return there.selectExpr("line AS place", "CAST(line AS STRING) AS line")


def test_json_is_what_it_is_without_the_jar(scanning: SparkSession, parsing: SparkSession, tmp_path: Path) -> None:
    seed, file = random.randrange(2**32), tmp_path / "lines.parquet"
    draw = random.Random(seed)
    lines = mutated(objects(draw), draw, PIECES)
    pq.write_table(pa.table({"line": list(islice(lines, LINES))}), file)

    def read(session: SparkSession) -> list[Any]:
        found = json_texts(kept(session, file), ["place"], COLUMNS, "one object a line").toArrow().to_pylist()
        return [(row["place"], row["wrong"], None if row["wrong"] else row["texts"]) for row in found]

    scanned, parsed = read(scanning), read(parsing)
    assert len(scanned) == LINES
    assert [both for both in zip(scanned, parsed, strict=True) if both[0] != both[1]][:5] == [], seed
    names = ", ".join(f"'{column.name}'" for column in COLUMNS)
    trusted = kept(scanning, file).where(f"{JSON_SCANNER}(line, {names}) IS NOT NULL").count()
    read_at_all = sum(wrong is None for _, wrong, _ in parsed)
    assert 0.5 * read_at_all < trusted < read_at_all < 0.9 * LINES


class Telling(Values):
    """Makes a row of what is wrong."""

    def fault(self, wrong: str) -> str:
        return f"array(array({wrong}))"


class Parsing(TextRecords):
    """Splits no line."""

    def _split(self, spark: SparkSession) -> str:
        return "CAST(NULL AS ARRAY<STRING>)"


@pytest.mark.parametrize(
    "options",
    [{}, GERMAN, {**DOUBLED, "nullValue": "x"}, {"delimiter": "|", "nullValue": "NA", "quote": "'"}, {"quote": ""}],
    ids=str,
)
def test_csv_is_what_it_is_parsed(scanning: SparkSession, parsing: SparkSession, tmp_path: Path, options: Any) -> None:
    seed, file, dialect = random.randrange(2**32), tmp_path / "lines.parquet", CsvDialect.of(options)
    draw = random.Random(seed)
    pieces = [*(each for each in PIECES if each not in (b"\r", b"\n")), dialect.delimiter.encode(), b"|", b";"]
    lines = mutated(records(draw, dialect), draw, pieces)
    pq.write_table(pa.table({"line": list(islice(lines, LINES // 5))}), file)

    def read(session: SparkSession, way: type[TextRecords]) -> tuple[list[Any], int]:
        reader = way("csv", COLUMNS, dialect, "source in", {})
        reader._values = Telling("source in", "place")
        split = kept(session, file).where(f"size({reader._split(session)}) = {len(COLUMNS)}").count()
        return reader._records(kept(session, file)).toArrow().to_pylist(), split

    expected, none = read(parsing, Parsing)
    assert none == 0
    for session in (scanning, parsing):
        found, split = read(session, TextRecords)
        assert [both for both in zip(found, expected, strict=True) if both[0] != both[1]][:5] == [], seed
        assert 0.15 * LINES / 5 < split < 0.95 * len(found)


@pytest.mark.parametrize(("schema", "content", "options", "expected"), READ_JSON)
def test_the_same_is_read_without_the_jar(
    scanning: SparkSession,
    parsing: SparkSession,
    tmp_path: Path,
    schema: str,
    content: str | bytes,
    options: Any,
    expected: Any,
) -> None:
    source = landed(tmp_path, "json", schema, content, options)
    assert load(parsing, source).collect() == load(scanning, source).collect()
    assert load(parsing, source).count() == len(expected)
