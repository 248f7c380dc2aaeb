"""What a job reads of a stream through Spark Connect."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources import source_of as adapter_of
from airflow_barrier.sources.pravega import Pravega
from airflow_barrier.sources.spark_errors import source_error
from tests.sources.databases import Beside
from tests.sources.landing import OTHER_MEANINGS, Cutter, day
from tests.sources.streams import source_of
from tests.sources.test_kafka_records import long, text
from tests.support.pravega import Pravega as Server
from tests.support.spark import session_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark import SparkServer

pytestmark = [
    pytest.mark.drawn("topics in Spark"),
    pytest.mark.touches("sources/pravega/__init__.py", "sources/messages/records.py"),
]
AVRO = {
    "type": "record",
    "name": "sale",
    "fields": [{"name": "n", "type": "long"}, {"name": "who", "type": "string"}],
}


@pytest.fixture
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    with session_on(spark_server, OTHER_MEANINGS) as session:
        yield session


def cut_of(server: Server, warehouse: Path, values: list[bytes], **settings: Any) -> tuple[Pravega, Cut]:
    """A stream of one segment that has these events."""
    source = source_of(server, server.stream(), metadata=("seq",), **settings)
    server.write(source.stream, [("k", value) for value in values])
    return source, Cutter(source, Beside(warehouse)).cut(day(1))


def rows(session: SparkSession, source: Pravega, cut: Cut) -> list[tuple[Any, ...]]:
    no_delta: Any = None
    return in_order(source.load(session, cut, None, day(1), "lake", no_delta, {}), "_seq")


def in_order(frame: DataFrame, column: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.orderBy(column).collect()]


def test_events_of_each_format_with_their_numbers(pravega: Server, session: SparkSession, tmp_path: Path) -> None:
    source, cut = cut_of(pravega, tmp_path / "json", [b'{"n": 7}', b'{"n": null}', b"{}"])
    assert rows(session, source, cut) == [(7, 1), (None, 2), (None, 3)]
    source, cut = cut_of(pravega, tmp_path / "binary", [b"a", b"\xff"], format="binary", schema="")
    assert rows(session, source, cut) == [(b"a", 1), (b"\xff", 2)]
    source, cut = cut_of(
        *(pravega, tmp_path / "avro", [long(7) + text("you"), long(8) + text("me")]),
        format="avro",
        schema="",
        avro_schema=json.dumps(AVRO),
    )
    assert rows(session, source, cut) == [(7, "you", 1), (8, "me", 2)]
    source, cut = cut_of(
        *(pravega, tmp_path / "written", [b"\0" + struct.pack(">I", 9) + long(7) + text("you")]),
        format="avro",
        schema="",
        avro_schema=json.dumps(AVRO),
        writer_schemas={9: json.dumps(AVRO)},
    )
    without = source_of(pravega, source.stream, format="avro", schema="", avro_schema=json.dumps(AVRO))
    no_delta: Any = None
    assert without.load(session, cut, None, day(1), "lake", no_delta, {}).columns == ["n", "who"]
    told = adapter_of(decode(ExternalSource, json.loads(json.dumps(encode(source.for_driver())))))
    assert isinstance(told, Pravega)
    assert rows(session, told, cut) == [(7, "you", 1)]


def test_an_event_that_does_not_decode_is_named_or_left_out(
    pravega: Server, session: SparkSession, tmp_path: Path
) -> None:
    source, cut = cut_of(pravega, tmp_path, [b'{"n": 1}', b'{"n": "secret"}', b'{"n": 3}'])
    with pytest.raises(Exception, match="expected") as caught:
        rows(session, source, cut)
    error = source_error(caught.value, [])
    assert str(error).startswith(f"stream {source.stream}, event 2: source events: expected n BIGINT")
    assert "secret" not in str(error)
    lenient = source_of(pravega, source.stream, metadata=["seq"], dead_letters="shop.broken")
    assert rows(session, lenient, cut) == [(1, 1), (3, 3)]
    (letter,) = lenient.letters(session, cut, day(1), {}).collect()
    assert letter.asDict() == {
        "topic": source.stream,
        "partition": 0,
        "offset": 2,
        "timestamp": None,
        "key": None,
        "headers": None,
        "value": b'{"n": "secret"}',
        "reason": letter.reason,
    }
    assert "secret" not in letter.reason
