"""Text that the guard's jar scans: each line becomes what it becomes without the jar, or is refused by the same words.

The judge is the way without the jar, whose own judge is ``test_text_records.py``. Both read the same drawn lines.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_barrier.protocol.ddl import parse_ddl
from airflow_barrier.sources.text.json_objects import SCANNER, can_scan, json_texts
from airflow_barrier.spark.connect import connect_session, stop_session
from tests.sources.test_text_records import READ_JSON, REFUSED_JSON, landed, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    session.sql(f"DROP TEMPORARY FUNCTION {SCANNER}")
    assert not can_scan(session)
    yield session
    stop_session(session)


def drawn(lines: Sequence[bytes], draw: random.Random) -> Iterator[bytes]:
    """Half of them whole, the others with up to three bytes or pieces of others in them."""
    while True:
        names = draw.sample([*(column.name for column in COLUMNS), "d"], draw.randint(0, 5))
        record = json.dumps(
            {name: draw.choice(VALUES) for name in names if name != "d" or draw.random() < 0.1},
            ensure_ascii=draw.random() < 0.2,
            separators=draw.choice([(",", ":"), (", ", ": ")]),
        )
        line = record.encode() if draw.random() < 0.9 else draw.choice(lines)
        for _ in range(draw.choice([0, 0, 0, 1, 2, 3])):
            start = draw.randint(0, len(line))
            line = line[:start] + draw.choice([b"", draw.choice(PIECES)]) + line[start + draw.choice([0, 0, 1, 2]) :]
        yield line


def test_json_is_what_it_is_without_the_jar(scanning: SparkSession, parsing: SparkSession, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    known = [content.encode() if isinstance(content, str) else content for _, content, *_ in READ_JSON + REFUSED_JSON]
    lines = drawn([line for content in known for line in content.split(b"\n")], random.Random(seed))
    pq.write_table(pa.table({"line": [next(lines) for _ in range(LINES)]}), tmp_path / "lines.parquet")

    def read(session: SparkSession) -> list[Any]:
        there = session.read.parquet((tmp_path / "lines.parquet").as_uri()).coalesce(1)
        texts = there.selectExpr("line AS carried", "CAST(line AS STRING) AS line")
        found = json_texts(texts, ["carried"], COLUMNS, "one object a line").toArrow().to_pylist()
        return [(row["carried"], row["wrong"], None if row["wrong"] else row["texts"]) for row in found]

    scanned, parsed = read(scanning), read(parsing)
    assert len(scanned) == LINES
    assert [both for both in zip(scanned, parsed, strict=True) if both[0] != both[1]][:5] == [], seed
    names = ", ".join(f"'{column.name}'" for column in COLUMNS)
    there = scanning.read.parquet((tmp_path / "lines.parquet").as_uri())
    trusted = there.where(f"{SCANNER}(CAST(line AS STRING), {names}) IS NOT NULL").count()
    read_at_all = sum(wrong is None for _, wrong, _ in parsed)
    assert 0.5 * read_at_all < trusted < read_at_all < 0.9 * LINES


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
