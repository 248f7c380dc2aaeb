"""What becomes of each kind of record in a topic: a row, or a letter with a reason, and never both or neither."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.sources.messages.records import RecordFormat, broken, decoded
from airflow_barrier.sources.spark_errors import file_without_line, source_error
from tests.sources.landing import OTHER_MEANINGS
from tests.sources.test_text_records import NESTED, READ_JSON, REFUSED_JSON, comparable
from tests.support.kafka import Kafka
from tests.support.spark import session_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark import SparkServer

pytestmark = [
    pytest.mark.drawn("topics in Spark"),
    pytest.mark.touches("sources/messages/records.py", "sources/text/json_objects.py", "sources/text/values.py"),
]

AB = "a BIGINT, b STRING"
WHAT = "source purchases"
OBJECT = "expected one JSON object, with only ['a', 'b'], each once, found "
ELSE = f"{OBJECT}something else"
NAME = f"{OBJECT}another name, or one twice"
NONE = "expected a value, found none (add metadata=('key',) to get these)"
UTC = timezone.utc
NOON = datetime(2017, 1, 31, 12, tzinfo=UTC)

#: The value of a record, and its row or what is said of it.
JSON: list[tuple[bytes | None, tuple[Any, ...] | str]] = [
    (b'{"a":1,"b":"x"}', (1, "x")),
    (b'\n{\t"b" : "two\\nlines",\r\n  "a" : -0\n}\n', (0, "two\nlines")),
    (b'{"a":"7","b":{"c":[1.50]}}', (7, '{"c":[1.50]}')),
    (b"{}", (None, None)),
    (b'{"a":null}', (None, None)),
    (b'{"b":"\\u0000"}', (None, "\0")),
    (
        '{"b":"M\u00fcller \U0001f600 in topic x, partition 1, offset 2"}'.encode(),
        (None, "Müller 😀 in topic x, partition 1, offset 2"),
    ),
    (b'{"b":"' + b"x" * 999_000 + b'"}', (None, "x" * 999_000)),
    (b'{"a":9223372036854775807}', (2**63 - 1, None)),
    (None, NONE),
    (b"", ELSE),
    (b" \n", ELSE),
    (b"null", ELSE),
    (b"1", ELSE),
    (b'"{}"', ELSE),
    (b"[]", ELSE),
    (b'[{"a":1}]', ELSE),
    (b'{"a":1}{"a":2}', ELSE),
    (b'{"a":1},{"a":2}', ELSE),
    (b'{"a":1},{"a":2}]', ELSE),
    (b'{"a":1}]', ELSE),
    (b'{"a":1}\n{"a":2}', ELSE),
    (b'{"a":1} // one', ELSE),
    (b"{'a':1}", ELSE),
    (b"{a:1}", ELSE),
    (b'{"a":01}', ELSE),
    (b'{"b":"two\nlines"}', ELSE),
    (b'{"b":"\\x"}', ELSE),
    (b'\xef\xbb\xbf{"a":1}', ELSE),
    (b'\0\0\0\0\x07{"a":1}', f"{OBJECT}a NUL character"),
    (b'{"b":"\0"}', f"{OBJECT}a NUL character"),
    (b'{"b":"\xff"}', f"{OBJECT}bytes that are no UTF-8"),
    (b'{"b":"\xed\xa0\x80"}', f"{OBJECT}bytes that are no UTF-8"),
    ('{"a":1}'.encode("utf-16"), f"{OBJECT}bytes that are no UTF-8"),
    (b'{"b":"\\ud83d"}', f"{OBJECT}half a character"),
    (b'{"b":"\xef\xbf\xbf"}', f"{OBJECT}half a character"),
    (b'{"a":1,"a":1}', NAME),
    (b'{"a":1,"c":2}', NAME),
    (b'{"A":1}', NAME),
    (b'{"a":9223372036854775808}', "expected a BIGINT, found another form, or more than it holds"),
    (b'{"a":1' + b"0" * 400 + b"}", "expected a BIGINT, found another form, or more than it holds"),
    (b'{"a":1.5}', "expected a BIGINT, found another form, or more than it holds"),
    (b'{"a":true}', "expected a BIGINT, found another form, or more than it holds"),
    (b'{"a":[1]}', "expected a BIGINT, found another form, or more than it holds"),
]

AVRO_SCHEMA = {
    "type": "record",
    "name": "purchase",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "on", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "kind",
            "type": {"type": "enum", "name": "kind", "symbols": ["NEW", "USED", "OLD"]},
        },
        {"name": "either", "type": ["null", "int", "string"], "doc": "${spark.master} it's \\ a union"},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {
            "name": "by",
            "type": {
                "type": "map",
                "values": {"type": "record", "name": "who", "fields": [{"name": "n", "type": "string"}]},
            },
        },
    ],
}
AVRO_ROW = (5, "Müller", Decimal("-0.01"), NOON, date(2017, 1, 31), "USED", (None, "x"), ["y", None], {"me": ("z",)})


def long(number: int) -> bytes:
    """As Avro writes it."""
    rest, written = (number << 1) ^ (number >> 63), b""
    while rest > 0x7F:
        written += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return written + bytes([rest])


def text(content: str | bytes) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return long(len(content)) + content


def purchase(**changed: bytes) -> bytes:
    """A record of AVRO_SCHEMA, AVRO_ROW unless ``changed``."""
    fields = {
        "id": long(5),
        "name": long(1) + text("Müller"),
        "price": text(b"\xff"),
        "at": long(1) + long(int(NOON.timestamp()) * 10**6),
        "on": long((NOON.date() - date(1970, 1, 1)).days),
        "kind": long(1),
        "either": long(2) + text("x"),
        "tags": long(2) + long(1) + text("y") + long(0) + long(0),
        "by": long(1) + text("me") + text("z") + long(0),
    }
    return b"".join((fields | changed).values())


NO_RECORD = "expected a record of the Avro schema, found bytes that are none"
NO_ID_KNOWN = (
    f"{NO_RECORD}; if they begin with a schema's id, as Confluent's serializers put it there, give the source a "
    "registry or writer_schemas"
)
NO_UTF8 = "expected a record of the Avro schema, found text that is no UTF-8"
MORE = "expected a record of the Avro schema, found more bytes after it"
AVRO: list[tuple[bytes | None, tuple[Any, ...] | str]] = [
    (purchase(), AVRO_ROW),
    (
        purchase(name=long(0), at=long(0), either=long(0)),
        (5, None, *AVRO_ROW[2:3], None, *AVRO_ROW[4:6], None, *AVRO_ROW[7:]),
    ),
    (purchase(either=long(1) + long(-7)), (*AVRO_ROW[:6], (-7, None), *AVRO_ROW[7:])),
    # two blocks, the first with its size in bytes
    (
        purchase(tags=long(-1) + long(2) + long(1) + text("") + long(1) + long(0) + long(0)),
        (*AVRO_ROW[:7], ["", None], *AVRO_ROW[8:]),
    ),
    (purchase(tags=long(0), by=long(0)), (*AVRO_ROW[:7], [], {})),
    (None, NONE),
    (b"", NO_RECORD),
    (b"\0", NO_ID_KNOWN),
    (b'{"id": 5}', NO_RECORD),
    (b"\0\0\0\0\x07" + purchase(), NO_ID_KNOWN),
    (purchase()[:-1], NO_RECORD),
    (purchase()[:1], NO_RECORD),
    (purchase(kind=long(3)), NO_RECORD),
    (purchase(kind=long(-1)), NO_RECORD),
    (purchase(name=long(2)), NO_RECORD),
    (purchase(name=long(1) + long(-3)), NO_RECORD),
    (purchase(name=long(1) + long(2**62)), NO_RECORD),
    (purchase(id=b"\xff" * 11), NO_RECORD),
    (purchase(price=text(b"\x0f\xff\xff")), NO_RECORD),
    (purchase() + b"\0", MORE),
    (purchase() + purchase(), MORE),
    (purchase() + bytes(100), MORE),
    (purchase(name=long(1) + text(b"M\xfcller")), NO_UTF8),
    (purchase(either=long(2) + text(b"\xff")), NO_UTF8),
    (purchase(tags=long(2) + long(0) + long(1) + text(b"\xc3") + long(0)), NO_UTF8),
    (purchase(by=long(1) + text(b"\xff") + text("z") + long(0)), NO_UTF8),
    (purchase(by=long(1) + text("me") + text(b"\xff") + long(0)), NO_UTF8),
]


SIMPLE = {"format": "avro", "avro_schema": '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}'}


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    with session_on(spark_server, OTHER_MEANINGS) as session:
        yield session


def read(session: SparkSession, kafka: Kafka, topic: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": kafka.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "includeHeaders": "true",
    }
    return session.read.format("kafka").options(**options).load()


def json_of(schema: str = AB, *metadata: str) -> RecordFormat:
    return RecordFormat("json", schema, metadata=metadata)


def avro_of(schema: Any, *metadata: str) -> RecordFormat:
    return RecordFormat("avro", avro_schema=json.dumps(schema), metadata=metadata)


AVRO_FORMAT = avro_of(AVRO_SCHEMA, "offset")


def plain(value: Any) -> Any:
    """Rows as tuples, bytes as such, moments in UTC."""
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value)) if type(value) is list else tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return comparable(value)


def outcome(frame: DataFrame, form: RecordFormat, *columns: str) -> dict[int, Any]:
    """What became of each record by its offset: its row, or what is said of it. A record that is in both fails."""
    rows_of = decoded(frame, form, WHAT, skip_broken=True).select(*(columns or form.names))
    rows = {row["_offset"]: plain(tuple(row)[:-1]) for row in rows_of.collect()}
    said = broken(frame, form, WHAT).select("offset", "reason").collect()
    reasons = {offset: reason.removeprefix(f"{WHAT}: ") for offset, reason in said}
    assert len(said) == len(reasons)
    assert not rows.keys() & reasons.keys()
    return rows | reasons


def numbered(found: dict[int, Any]) -> list[Any]:
    """All outcomes in order, none missing."""
    assert sorted(found) == [*range(len(found))]
    return [found[offset] for offset in sorted(found)]


def test_json_is_an_object_or_a_letter(session: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(topic, *({"value": value} for value, _ in JSON))
    found = numbered(outcome(read(session, kafka, topic), json_of(AB, "offset")))
    assert found == [expected for _, expected in JSON]


def test_avro_is_one_record_or_a_letter(session: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(topic, *({"value": value} for value, _ in AVRO))
    frame = read(session, kafka, topic)
    assert numbered(outcome(frame, AVRO_FORMAT)) == [expected for _, expected in AVRO]
    assert decoded(frame, AVRO_FORMAT, WHAT).schema.simpleString() == (
        "struct<id:bigint,name:string,price:decimal(4,2),at:timestamp,on:date,kind:string,"
        "either:struct<member0:int,member1:string>,tags:array<string>,by:map<string,struct<n:string>>,_offset:bigint>"
    )


def test_json_in_a_topic_is_read_as_json_in_a_file(session: SparkSession, kafka: Kafka) -> None:
    """By the cases of files: their lines are records here."""
    topic, cases = kafka.topic(), []
    schemas = {NESTED, "a STRING"}
    for schema, content, _, expected in READ_JSON:
        lines = [line for line in content.encode().split(b"\n") if line.strip()] if isinstance(content, str) else []
        cases += [(schema, line, row) for line, row in zip(lines, expected if lines else [], strict=True)]
    for schema, content, _, said in REFUSED_JSON:
        line = (content.encode() if isinstance(content, str) else content).rstrip(b"\n").split(b"\n")[-1]
        cases.append((schema, line, said.removeprefix("line 2: source in: ").replace("object a line", "JSON object")))
    cases = [case for case in cases if case[0] in schemas]
    kafka.send(topic, *({"key": schema, "value": value} for schema, value, _ in cases))
    frame, found = read(session, kafka, topic), {}
    for schema in schemas:
        found |= outcome(frame.where(f"CAST(key AS STRING) = '{schema}'"), json_of(schema, "offset"))
    for (schema, value, expected), is_now in zip(cases, numbered(found), strict=True):
        if isinstance(expected, str):
            assert expected in is_now, (schema, value)
        else:
            assert is_now == expected, (schema, value)


def test_the_other_types_of_json(session: SparkSession, kafka: Kafka) -> None:
    columns = {
        "t": ("TINYINT", "-128", -128),
        "s": ("SMALLINT", "32767", 32767),
        "f": ("FLOAT", "1.5", 1.5),
        "at": ("TIMESTAMP", '"2017-01-31T13:00:00+01:00"', NOON),
        "local": ("TIMESTAMP_NTZ", '"2017-01-31 12:00"', datetime(2017, 1, 31, 12)),  # noqa: DTZ001
        "m": (
            "MAP<INT, ARRAY<STRUCT<`b c`: BOOLEAN>>>",
            '{"1":[{"b c":true},null,{}],"2":null}',
            {1: [(True,), None, (None,)], 2: None},
        ),
        "aa": ("ARRAY<ARRAY<BINARY>>", '[["eHk="],[],null]', [[b"xy"], [], None]),
        "in": ("STRUCT<m: MAP<STRING, DECIMAL(4,2)>>", '{"m":{"":1.5}}', ({"": Decimal("1.50")},)),
    }
    schema = ", ".join(f"{name} {kind}" for name, (kind, _, _) in columns.items())
    wrong = {
        "m": [
            ('{"1":[{"b c":1}]}', "expected value of m[].b c BOOLEAN, found neither true nor false"),
            (
                '{"1":[{"d":true}]}',
                "expected in value of m[] only ['b c'], each once, found another name, or one twice",
            ),
            ('{"1.0":[]}', "expected key of m INT, found another form, or more than it holds"),
            ('{"1":[],"01":[]}', "expected m with each key once, found one twice"),
        ],
        "aa": [('[["eHk="],["?"]]', "expected aa[][] BINARY, found text that is not base64")],
        "in": [
            (
                '{"m":{"x":null,"y":1.505}}',
                "expected value of in.m DECIMAL(4,2), found a number with more digits than that",
            )
        ],
    }
    lines = ["{" + ", ".join(f'"{name}": {value}' for name, (_, value, _) in columns.items()) + "}", "{}"]
    lines += [f'{{"{name}": {value}}}' for name, cases in wrong.items() for value, _ in cases]
    topic = kafka.topic()
    kafka.send(topic, *({"value": line} for line in lines))
    rows = [tuple(value for _, _, value in columns.values()), (None,) * len(columns)]
    found = numbered(outcome(read(session, kafka, topic), json_of(schema, "offset")))
    found[0] = tuple(
        value if name != "local" else columns["local"][2] for name, value in zip(columns, found[0], strict=True)
    )
    assert found == [*rows, *(said for cases in wrong.values() for _, said in cases)]


def test_of_bytes_that_chance_has_changed_each_is_in_one_of_both(session: SparkSession, kafka: Kafka) -> None:
    """What is read as JSON is what Python reads, too."""
    chance = random.Random(20261126)
    whole = [value for value, row in JSON if isinstance(row, tuple) and value is not None and len(value) < 100]
    values = [changed(chance.choice(whole), chance, b'{}[]",:\\ab019.-e \n\xc3') for _ in range(1500)]
    topic = kafka.topic()
    kafka.send(topic, *({"value": value} for value in values))
    found = numbered(outcome(read(session, kafka, topic), json_of(AB, "offset")))
    assert len(found) == len(values)
    rows = [(value, row) for value, row in zip(values, found, strict=True) if isinstance(row, tuple)]
    assert 100 < len(rows) < 1400
    for value, (number, _) in rows:
        known: Any = json.loads(value, object_pairs_hook=list)
        assert {name for name, _ in known} <= {"a", "b"}
        assert len(dict(known)) == len(known)
        there = dict(known).get("a")
        assert number == (there if there is None else int(there)), value


def test_of_avro_that_chance_has_changed_each_is_in_one_of_both(session: SparkSession, kafka: Kafka) -> None:
    chance = random.Random(20261126)
    values = [changed(purchase(), chance, bytes(range(0, 128, 3)) + b"\xc3") for _ in range(1500)]
    topic = kafka.topic()
    kafka.send(topic, *({"value": value} for value in values))
    found = numbered(outcome(read(session, kafka, topic), AVRO_FORMAT, "id", "_offset"))
    assert len(found) == len(values)
    assert {NO_RECORD, MORE, NO_UTF8} <= {said for said in found if isinstance(said, str)}


def changed(value: bytes, chance: random.Random, others: bytes) -> bytes:
    at, until = sorted(chance.choices(range(len(value) + 1), k=2))
    kind = chance.randrange(4)
    if kind == 0:
        return value[:at] + value[until:]
    if kind == 1:
        return value[:until] + value[at:]
    return value[:at] + bytes(chance.choices(others, k=kind - 1)) + value[at + kind - 1 :]


@pytest.mark.parametrize(
    ("form", "value"),
    [
        (json_of(), b'{"a": "hunter2"}'),
        (json_of(), None),
        (json_of("a STRUCT<n: INT>"), b'{"a": {"n": "hunter2"}}'),
        (AVRO_FORMAT, b"hunter2"),
        (AVRO_FORMAT, purchase() + b"hunter2"),
    ],
)
def test_a_record_that_does_not_decode_fails_whatever_the_query_uses(
    session: SparkSession, kafka: Kafka, form: RecordFormat, value: bytes | None
) -> None:
    topic = kafka.topic(2)
    good = purchase() if form.format == "avro" else b"{}"
    kafka.send(topic, *({"value": each, "partition": 1} for each in (good, good, value, good)))
    rows = decoded(read(session, kafka, topic), form, WHAT)
    for query in (rows, rows.groupBy().count()):
        with pytest.raises(Exception, match="unfit record") as raised:
            query.collect()
        error = source_error(raised.value, [])
        assert isinstance(error, SourceDataError)
        assert str(error).startswith(f"topic {topic}, partition 1, offset 2: {WHAT}: expected ")
        assert "format='binary'" in str(error)
        assert "abort the barrier" in str(error)
        assert "hunter2" not in str(raised.value)
        assert file_without_line(raised.value) is None, "no file to look for a line in"


def test_metadata_come_as_columns(session: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic(2, **{"retention.ms": "-1"})  # the broker deletes what is that old
    headers = [("h", b"1"), ("h", None), ("", b"\xff")]
    kafka.send(
        topic,
        {"value": '{"a":1}', "key": b"\xff\0", "partition": 1, "timestamp": 1485864000123, "headers": headers},
        {"value": b"{}", "partition": 1, "timestamp": 1485864000123},
        {"value": None, "key": b"gone", "partition": 1, "timestamp": 1485864000123},
    )
    frame = read(session, kafka, topic)
    at = NOON.replace(microsecond=123000)
    form = json_of(AB, "timestamp", "key", "headers", "partition", "offset")
    rows = [plain(tuple(row)) for row in decoded(frame, form, WHAT).orderBy("_offset").collect()]
    assert rows == [
        (1, None, at, b"\xff\0", headers, 1, 0),
        (None, None, at, None, None, 1, 1),
        (None, None, at, b"gone", None, 1, 2),
    ]
    assert decoded(frame, form, WHAT).schema.simpleString() == (
        "struct<a:bigint,b:string,_timestamp:timestamp,_key:binary,"
        "_headers:array<struct<key:string,value:binary>>,_partition:int,_offset:bigint>"
    )
    letter = broken(frame, json_of(), WHAT)
    assert letter.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers", "reason"]
    assert [plain(tuple(row)) for row in letter.collect()] == [
        (topic, 1, 2, at, b"gone", None, None, f"{WHAT}: {NONE}")
    ]


def test_a_record_of_avro_without_a_value_is_a_row_where_its_key_is_one(session: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(
        topic, {"value": None, "key": b"gone"}, {"value": purchase(), "key": b"here"}, {"value": b"", "key": b"e"}
    )
    form = avro_of(AVRO_SCHEMA, "key")
    frame = read(session, kafka, topic)
    rows = {
        bytes(row["_key"]): (row["id"], row["either"]) for row in decoded(frame, form, WHAT, skip_broken=True).collect()
    }
    assert rows == {b"gone": (None, None), b"here": (5, (None, "x"))}
    assert [bytes(row["key"]) for row in broken(frame, form, WHAT).collect()] == [b"e"]


def test_a_record_of_nulls_is_a_record(session: SparkSession, kafka: Kafka) -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "a", "type": ["null", "long"]}, {"name": "n", "type": "null"}],
    }
    topic = kafka.topic()
    kafka.send(topic, {"value": long(0)}, {"value": b""}, {"value": long(0) * 2})
    assert numbered(outcome(read(session, kafka, topic), avro_of(schema, "offset"))) == [(None, None), NO_RECORD, MORE]


def test_avro_that_begins_with_the_id_of_its_schema(session: SparkSession, kafka: Kafka) -> None:
    def schema(*fields: dict[str, Any], name: str = "r") -> str:
        return json.dumps({"type": "record", "name": name, "namespace": name, "fields": fields})

    def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
        return {"name": name, "type": kind, **more}

    nullable = ["null", "string"]
    form = RecordFormat(
        "avro",
        avro_schema=schema(field("id", "long"), field("b", nullable, default=None), field("c", "int", default=9)),
        metadata=("offset",),
        # the narrower type and other fields; another order, name and one that is left out; what does not resolve
        writer_schemas={
            7: schema(field("id", "int")),
            2**32 - 1: schema(
                field("gone", "string"), field("c", "int"), field("b", nullable), field("id", "long"), name="s"
            ),
            8: schema(field("b", nullable)),
        },
    )
    no_id = "expected a record of the Avro schema, found bytes that begin with no schema's id"
    broken = f"{NO_RECORD} by their writer's schema, or a schema that does not become this one"
    unknown = (
        "expected a record of the Avro schema, found the id of a schema that is neither in writer_schemas nor in the "
        "registry, "
    )
    cases: list[tuple[bytes | None, Any]] = [
        (b"\0\0\0\0\x07" + long(-5), (-5, None, 9)),
        (b"\0\xff\xff\xff\xff" + text("x") + long(1) + long(1) + text("y") + long(2**40), (2**40, "y", 1)),
        (b"\0\0\0\0\x08" + long(0), broken),
        (b"\0\0\0\0\x07", broken),
        (b"\0\0\0\0\x07" + long(1) + b"\0", MORE),
        (b"\0\xff\xff\xff\xff" + text("x") + long(1) + long(1) + text(b"\xff") + long(1), NO_UTF8),
        (b"\0\0\0\0\x09" + long(1), f"{unknown}9"),
        (b"\0\xff\xff\xff\xfe" + long(1), f"{unknown}4294967294"),
        (b"\x01\0\0\0\x07" + long(1), no_id),
        (b"\0\0\0\x07", no_id),
        (b"", no_id),
        (None, NONE),
    ]
    topic = kafka.topic()
    kafka.send(topic, *({"value": value} for value, _ in cases))
    frame = read(session, kafka, topic)
    assert numbered(outcome(frame, form)) == [expected for _, expected in cases]
    stored = json.loads(
        json.dumps(
            {
                "format": "avro",
                "avro_schema": form.avro_schema,
                "metadata": form.metadata,
                "writer_schemas": dict(form.writer_schemas),
            }
        )
    )
    assert RecordFormat(**stored) == form


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def money(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
CENTS = b"\x04\x00\xfa"  # 250
WRITTEN = datetime(2026, 1, 1, 12)  # noqa: DTZ001
NOON_MILLIS, NOON_MICROS = long(1_767_268_800_000), long(1_767_268_800_000_000)


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        (money(10, 2), money(10, 2), CENTS, Decimal("2.50")),
        (money(10, 2), money(12, 3), CENTS, Decimal("2.500")),
        (["null", money(10, 2)], ["null", money(11, 3)], long(1) + CENTS, Decimal("2.500")),
        (money(10, 2), ["null", money(11, 3)], CENTS, Decimal("2.500")),
        (
            {"type": "array", "items": money(10, 2)},
            {"type": "array", "items": money(12, 3)},
            long(1) + CENTS + long(0),
            [Decimal("2.500")],
        ),
        (
            {"type": "map", "values": ["null", MILLIS]},
            {"type": "map", "values": ["null", MICROS]},
            long(1) + text("k") + long(1) + NOON_MILLIS + long(0),
            {"k": WRITTEN},
        ),
        (MILLIS, MICROS, NOON_MILLIS, WRITTEN),
        (MICROS, MILLIS, NOON_MICROS, WRITTEN),
        (logical("string", "uuid"), "string", text("x"), "x"),
        (money(10, 2), money(10, 3), CENTS, "a is decimal(10,2), and decimal(10,3) here"),
        (money(10, 3), money(12, 2), CENTS, "a is decimal(10,3), and decimal(12,2) here"),
        (money(10, 2), "bytes", CENTS, "a is decimal(10,2), and of no logical type here"),
        ("long", MILLIS, NOON_MILLIS, "a is of no logical type, and timestamp-millis here"),
        ("int", logical("int", "date"), long(1), "a is of no logical type, and date here"),
        (logical("int", "time-millis"), logical("long", "time-micros"), long(1), "time-millis, and time-micros here"),
        (
            logical("long", "local-timestamp-millis"),
            MILLIS,
            NOON_MILLIS,
            "local-timestamp-millis, and timestamp-millis",
        ),
        (logical("long", "timestamp-nanos"), MICROS, NOON_MICROS, "timestamp-nanos, and timestamp-micros here"),
    ],
)
def test_logical_types_of_writers(
    session: SparkSession, kafka: Kafka, writer: Any, reader: Any, value: bytes, expected: Any
) -> None:
    def schema(kind: Any) -> str:
        return json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]})

    form = RecordFormat("avro", avro_schema=schema(reader), writer_schemas={1: schema(writer), 2: schema(reader)})
    topic = kafka.topic()
    kafka.send(topic, {"value": b"\0\0\0\0\x01" + value})
    frame = read(session, kafka, topic)
    alone = decoded(frame, RecordFormat("avro", avro_schema=schema(reader)), WHAT)
    assert decoded(frame, form, WHAT).schema.simpleString() == alone.schema.simpleString()
    (letter,) = [row.reason for row in broken(frame, form, WHAT).collect()] or [None]
    if isinstance(expected, str) and letter is not None:
        assert "expected a record of the Avro schema, found a schema of another meaning, by which " in letter
        assert expected in letter
    else:
        assert letter is None
        (row,) = decoded(frame, form, WHAT).collect()
        assert plain(row.a) == plain(expected)


def test_binary_is_what_is_there(session: SparkSession, kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.send(topic, {"value": b"\xff\0", "key": b"k"}, {"value": None}, {"value": b"", "key": b""})
    frame, form = read(session, kafka, topic), RecordFormat("binary", metadata=("offset",))
    rows = [plain(tuple(row)) for row in decoded(frame, form, WHAT).orderBy("_offset").collect()]
    assert rows == [(b"k", b"\xff\0", 0), (None, None, 1), (b"", b"", 2)]
    empty = broken(frame, form, WHAT)
    assert empty.columns[-1] == "reason"
    assert empty.count() == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "csv"}, "expected format to be one of"),
        ({"format": "json"}, "schema and format='json' belong together"),
        ({"format": "binary", "schema": "a INT"}, "schema and format='json' belong together"),
        ({"format": "avro"}, "avro_schema and format='avro' belong together"),
        ({"format": "json", "schema": "a INT", "avro_schema": "{}"}, "avro_schema and format='avro' belong together"),
        ({"format": "json", "schema": "a INT, b MONEY"}, "expected a Spark type, found 'MONEY'"),
        ({"format": "avro", "avro_schema": "{"}, "expected avro_schema to be JSON, found "),
        ({"format": "avro", "avro_schema": '"long"'}, "expected avro_schema to be a record with fields"),
        ({"format": "avro", "avro_schema": '{"type": "record", "name": "a", "fields": []}'}, "a record with fields"),
        ({"format": "json", "schema": "a INT", "metadata": ("topic",)}, "expected metadata to be some of"),
        ({"format": "json", "schema": "a INT", "metadata": ("key", "key")}, "each once, found"),
        ({"format": "json", "schema": "a INT", "metadata": "key"}, "expected metadata to be some of"),
        ({"format": "json", "schema": "a INT, _KEY INT", "metadata": ("key",)}, "column _key is there twice"),
        ({"format": "json", "schema": "a INT", "writer_schemas": {1: "{}"}}, "writer_schemas are for format='avro'"),
        ({**SIMPLE, "writer_schemas": {"x": "{}"}}, "expected ids of schemas in writer_schemas, such as 7, found 'x'"),
        ({**SIMPLE, "writer_schemas": {7: "{}"}}, r"expected writer_schemas\[7\] to be a record with fields"),
        ({"format": "binary", "metadata": ("key",)}, "the key is a column already"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RecordFormat(**settings)
