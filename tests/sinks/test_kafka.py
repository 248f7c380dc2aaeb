"""Topics of a Kafka cluster: what any sink does, and what is Kafka's own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Position, Remedy, Rows
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    RowRefusedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sinks.kafka.records import records_of
from airflow_barrier.sinks.kafka.topics import Topic, transactional_id
from airflow_barrier.sinks.port import Channel, Delivery
from airflow_barrier.sinks.postgresql.rows import Part
from docs.examples.read_whole_barriers import whole_barriers
from tests.sinks.behaviour import (
    AMOUNTS,
    CHANGES,
    PRICES,
    SCHEMAS,
    Batches,
    Behaviour,
    Places,
    Step,
    amount,
    catch_up,
    check,
    deliverer,
    delivery,
    price,
)
from tests.sinks.kafka_topics import FILES, Topics, header_of, prepared, row_of
from tests.support.cases import cases
from tests.support.kafka import PASSWORD, USER, Kafka
from tests.support.ports import free_port
from tests.support.waiting import patience


@pytest.fixture
def place(kafka: Kafka) -> Topics:
    return Topics.make(kafka)


@pytest.mark.drawn("Kafka")
@pytest.mark.touches(*FILES)
class TestKafka(Behaviour):
    files = FILES

    @pytest.fixture
    def places(self, kafka: Kafka) -> Places:
        return lambda: Topics.make(kafka)


# --- declaring ------------------------------------------------------------------------------------


def test_the_transactional_id_is_the_same_for_ever() -> None:
    """Another format would let an older version's deliverer write beside a newer one's."""
    sink = KafkaSink("prices", key=["id"])
    declared = sink.declare("shop.prices", Rows.CHANGES, "dag")
    assert transactional_id(declared) == "airflow_barrier.prices.d3f40a78e1fc"
    others = (
        KafkaSink("prices", key=["id"], ledger="other").declare("shop.prices", Rows.CHANGES, "dag"),
        KafkaSink("dev.prices", name="prices", key=["id"]).declare("shop.prices", Rows.CHANGES, "dag"),
    )
    assert len({transactional_id(each) for each in (declared, *others)}) == 3
    prefixed = replace(sink, transactional_id_prefix="team").declare("shop.prices", Rows.CHANGES, "dag")
    assert transactional_id(prefixed) == "team.prices.d3f40a78e1fc"
    assert KafkaSink.of(prefixed).declare({"shop.prices": "prices"}, Rows.CHANGES, "dag") == prefixed


def test_what_cannot_be_is_refused_when_the_dag_is_parsed() -> None:
    two = {PRICES: "prices", AMOUNTS: "amounts"}
    with cases() as case:
        for settings, tables, rows, expected in (
            ({"topic": "prices", "key": ["id"]}, PRICES, Rows.TABLE, "found 'table'; a topic keeps what was written"),
            ({"topic": "prices"}, PRICES, Rows.CHANGES, "expected the columns that tell the rows of each topic apart"),
            ({"topic": "prices", "key": "id"}, PRICES, Rows.CHANGES, "found 'id'"),
            ({"name": "out", "key": {"prices": ["id"]}}, two, Rows.CHANGES, r"\(prices, amounts\)|\(amounts, prices\)"),
            ({"name": "out"}, PRICES, Rows.APPENDS, "expected the topic of shop.prices, found none"),
            ({"topic": "prices"}, two, Rows.APPENDS, "expected the topics in the mapping alone"),
            ({"name": "out"}, {PRICES: "a", AMOUNTS: "a"}, Rows.APPENDS, "expected a topic of its own for each table"),
            ({"topic": "airflow_barrier_ledger"}, PRICES, Rows.APPENDS, "another one for the ledger"),
            ({"topic": "a topic"}, PRICES, Rows.APPENDS, "expected the name of a topic"),
            ({}, PRICES, Rows.APPENDS, "KafkaSink: expected a name"),
            ({"topic": "prices", "transaction_timeout": 5}, PRICES, Rows.APPENDS, "expected 60 seconds or more"),
        ):
            with case(expected), pytest.raises(ConfigurationError, match=expected):
                KafkaSink(**settings).declare(tables, rows, "dag")  # type: ignore[arg-type]


# --- before a first barrier -----------------------------------------------------------------------


def test_validating_leaves_nothing_behind(kafka: Kafka, place: Topics) -> None:
    with place.channel() as channel:
        assert channel.validate(SCHEMAS) == {PRICES: ("id",), AMOUNTS: ("id",)}
    with place.channel(Rows.APPENDS) as channel:
        assert channel.validate(SCHEMAS) == {PRICES: (), AMOUNTS: ()}
    assert place.ledger not in kafka.admin().list_topics(timeout=patience()).topics
    assert [kafka.records(topic, committed=False) for topic in place.targets.values()] == [[], []]


def test_what_validating_refuses(kafka: Kafka, place: Topics) -> None:
    nanoseconds = {**SCHEMAS, AMOUNTS: SCHEMAS[AMOUNTS].append(pa.field("at", pa.timestamp("ns")))}
    plain = kafka.topic(cleanup_policy="delete", retention_ms="604800000")
    wide = kafka.topic(3, cleanup_policy="compact", retention_ms="-1")
    with cases() as case:
        for settings, schemas, expected in (
            ({}, nanoseconds, "column 'at': expected a type that JSON can hold exactly"),
            ({"key": "shop"}, SCHEMAS, "expected the columns of its key, found no shop among id, "),
            ({"ledger": plain}, SCHEMAS, "found cleanup.policy delete, retention.ms 604800000; correct that"),
            ({"ledger": wide}, SCHEMAS, "found partitions 3; correct that"),
            ({"transaction_timeout": 901}, SCHEMAS, "name a shorter transaction_timeout=..., or raise the brokers'"),
        ):
            with (
                case(expected),
                place.channel(**settings) as channel,
                pytest.raises(SinkRefusedError, match=re.escape(expected)),
            ):
                channel.validate(schemas)
    with (
        replace(place, prices="nowhere").channel() as channel,
        pytest.raises(SinkRefusedError, match="found no nowhere; create what is missing"),
    ):
        channel.validate(SCHEMAS)


def test_a_timeout_is_tried_without_fencing_who_delivers(place: Topics) -> None:
    prepared(place, 1)
    longer = place.channel(transaction_timeout=901)
    expected = "900000 ms at most, found 901 s; name a shorter transaction_timeout"
    with place.channel() as first, longer as second:
        after = first.open(deliverer()).position
        with pytest.raises(SinkRefusedError, match=expected):
            second.validate(SCHEMAS)
        first.deliver(delivery(CHANGES[1], Rows.CHANGES, after))
    check(place, CHANGES[:2], Rows.CHANGES)


def _grant(kafka: Kafka, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    pattern, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    acls = [AclBinding(kind, name, pattern, f"User:{USER}", "*", each, allow) for each in operations]
    admin = kafka.admin()
    for future in admin.create_acls(acls).values():
        future.result(patience())


@pytest.fixture
def no_rights(kafka: Kafka) -> None:
    """Take from USER the rights that tests before this one have granted."""
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = kafka.admin()
    for future in admin.delete_acls([everything]).values():
        future.result(patience())


@pytest.mark.usefixtures("no_rights")
def test_rights_that_are_missing_are_named_and_those_that_are_named_suffice(kafka: Kafka, place: Topics) -> None:
    said: list[str] = []

    def try_out() -> None:
        with place.channel(credentials=kafka.user_credentials) as channel, pytest.raises(SinkRefusedError) as refused:
            channel.validate(SCHEMAS)
        said.append(str(refused.value))

    try_out()
    needed = re.findall(r"kafka-acls.sh --add --allow-principal 'User:barrier' ([^;]*)", said[0])
    granted: list[tuple[ResourceType, str, list[AclOperation]]] = []
    for each in needed:
        operations = [
            {
                "Read": AclOperation.READ,
                "Write": AclOperation.WRITE,
                "Describe": AclOperation.DESCRIBE,
                "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
                "Create": AclOperation.CREATE,
            }[name]
            for name in re.findall(r"--operation (\w+)", each)
        ]
        kind, name = re.findall(r"--(topic|transactional-id) '?([^' ]*)", each)[0]
        granted.append((ResourceType.TOPIC if kind == "topic" else ResourceType.TRANSACTIONAL_ID, name, operations))
    assert [name for _, name, _ in granted[:3]] == [*sorted(place.targets.values()), place.ledger]
    for kind, name, operations in granted[:2]:
        _grant(kafka, kind, name, AclOperation.DESCRIBE, *operations[1:])  # to look at it, and not to write
    try_out()
    assert f"expected the rights of a deliverer on topic {granted[0][1]}, found no Write" in said[-1]
    for kind, name, operations in granted[:2]:
        _grant(kafka, kind, name, *operations)
    try_out()
    kafka.create_topic(place.ledger, cleanup_policy="compact", retention_ms="-1")
    try_out()
    _grant(kafka, *granted[2][:2], *granted[2][2])
    try_out()
    assert "Transactional Id authorization failed" in said[-1]
    assert granted[3][1] == transactional_id(place.sink().declare(place.targets, Rows.CHANGES, "dag"))
    _grant(kafka, *granted[3][:2], *granted[3][2])
    with place.channel(credentials=kafka.user_credentials) as channel:
        catch_up(channel, Rows.CHANGES, CHANGES)
    check(place, CHANGES, Rows.CHANGES)


def test_who_is_not_let_in_is_told_soon(kafka: Kafka, place: Topics, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = {**kafka.user_credentials.extra, "sasl.password": "wrong"}
    with (
        pytest.raises(SinkUnavailableError, match="to let in whom connection kafka_default names") as told,
        place.channel(credentials=Credentials("kafka_default", extra=wrong)),
    ):
        pass
    assert PASSWORD not in str(told.value)
    nowhere = Credentials("kafka_default", extra={"bootstrap.servers": f"127.0.0.1:{free_port()}"})
    with (
        pytest.raises(SinkUnavailableError, match=r"to answer, found: .* Timed out .*Connection refused"),
        place.channel(credentials=nowhere),
    ):
        pass
    assert capfd.readouterr().err == ""


# --- rows -----------------------------------------------------------------------------------------


def _appended(channel: Channel, barrier: int, prices: list[Any], after: Position | None) -> Position:
    step = Step(Position(barrier, 0), {PRICES: prices, AMOUNTS: []}, whole=True)
    channel.deliver(delivery(step, Rows.APPENDS, after))
    return step.position


@pytest.mark.kills("row-fits-topic")
def test_rows_of_a_megabyte_and_more(kafka: Kafka) -> None:
    """The client's own limit is a million bytes. A row that a topic does not take is named, and holds up no reader."""
    place = Topics.make(kafka, max_message_bytes=str(3 * 1024**2))
    large, larger = price(1, "x" * 2_900_000, 1), price(2, "x" * 3_200_000, 1)
    with place.channel() as channel:
        channel.validate(SCHEMAS)
        channel.open(deliverer())
        first = Step(Position(1, 0), {PRICES: [large, price(3, "", 1)], AMOUNTS: []}, whole=True)
        channel.deliver(delivery(first, Rows.CHANGES, None))
        second = Step(Position(2, 0), {PRICES: [("insert", larger)], AMOUNTS: [("insert", amount(1, 1))]})
        with pytest.raises(
            RowRefusedError, match=r"row with id=2, where max.message.bytes is 3145728. Nothing of this"
        ):
            channel.deliver(delivery(second, Rows.CHANGES, first.position))
    assert place.left_over() == []
    check(place, [first], Rows.CHANGES)


def test_a_topic_that_takes_little(kafka: Kafka) -> None:
    place = Topics.make(kafka, max_message_bytes="2000")
    steps = [
        Step(
            Position(1, 0),
            {PRICES: [price(n, "x" * 800, n) for n in range(200)], AMOUNTS: [amount(1, 1)]},
            whole=True,
        )
    ]
    with place.channel() as channel:
        catch_up(channel, Rows.CHANGES, steps)
    check(place, steps, Rows.CHANGES)


def test_a_row_that_the_broker_refuses_is_named(kafka: Kafka, place: Topics) -> None:
    """What has become of the topic since it was looked at: here, that records need a key no more."""
    with place.channel(Rows.APPENDS) as channel:
        channel.open(deliverer())
        resource = ConfigResource(ResourceType.TOPIC, place.prices)
        entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
        admin = kafka.admin()
        admin.incremental_alter_configs([resource])[resource].result(patience())
        with pytest.raises(RowRefusedError, match=r"found one that it refuses: .* in the row with no key"):
            _appended(channel, 1, [price(1, "bread", 1)], None)
    assert place.left_over() == []
    assert place.contents(PRICES, Rows.APPENDS) == []


def test_what_json_cannot_hold_is_refused(place: Topics) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("weight", pa.float64())])
    rows = [{"id": 1, "weight": 1.5}, {"id": 2, "weight": float("nan")}]
    broken = pa.record_batch({"id": [1, 2], "name": pa.array([b"a", b"\xff"]).cast(pa.string(), safe=False)})
    empty = delivery(Step(Position(1, 0), {PRICES: [], AMOUNTS: []}, whole=True), Rows.CHANGES, None)
    for odd, said in (
        (Batches(schema, rows, 1), "a NaN or an infinity in column weight"),
        (Part(broken), "bytes that are no UTF-8 in column name"),
    ):
        refused: Delivery = replace(empty, tables={**empty.tables, PRICES: odd})
        with place.channel() as channel:
            channel.open(deliverer())
            with pytest.raises(RowRefusedError, match=rf"found {said}, .* row with id=2"):
                channel.deliver(refused)
    assert place.left_over() == []
    assert place.contents(PRICES, Rows.CHANGES) == []


def test_what_a_record_says(kafka: Kafka) -> None:
    place = Topics.make(kafka, 1)
    prepared(place)
    inserted, *_, deleted, _ = kafka.records(place.prices)
    assert inserted.key() == b'{"id":1}'
    assert inserted.value() == b'{"id":1,"name":"bread","price":"2.50","at":"2017-01-01T01:00:00.000001Z"}'
    assert header_of(inserted) == {
        "topology": "shopping",
        "table": "shop.prices",
        "barrier": 3,
        "revision": 0,
        "timestamp": "2017-01-03T00:00:00+00:00",
        "op": "insert",
        "n": 1,
        "of": 4,
    }
    assert (deleted.key(), deleted.value()) == (b'{"id":3}', None)
    assert header_of(deleted)["op"] == "delete"


def test_decimals_are_the_texts_that_python_has_for_them() -> None:
    """Arrow writes them, since it is quicker."""
    topic = Topic("prices", "", 1, None, {"max.message.bytes": "1000"})
    for scale in range(39):
        values = [Decimal(number).scaleb(-scale) for number in (0, 1, -1, 120, 10**28 - 1)]
        table = Part(pa.record_batch({"price": pa.array([*values, None], pa.decimal128(38, scale))}))
        step = delivery(Step(Position(1, 0), {PRICES: [], AMOUNTS: []}, whole=True), Rows.APPENDS, None)
        records = records_of("sink out", "shop", PRICES, topic, [], replace(step, tables={PRICES: table}))
        found = [json.loads(value or b"")["price"] for _, (value, *_) in records]
        assert found == [*map(str, values), None]


def test_records_go_where_javas_do_and_those_without_key_in_turn(kafka: Kafka) -> None:
    place = Topics.make(kafka, 5)
    rows = [price(n, "x", n) for n in range(40)]
    with place.channel() as channel:
        catch_up(channel, Rows.CHANGES, [Step(Position(1, 0), {PRICES: rows, AMOUNTS: []}, whole=True)])
    for message in kafka.records(place.prices):
        assert message.partition() == (_murmur2(message.key() or b"") & 0x7FFFFFFF) % 5
    place = Topics.make(kafka, 5)
    with place.channel(Rows.APPENDS) as channel:
        channel.open(deliverer())
        _appended(channel, 1, rows, None)
    for message in kafka.records(place.prices):
        assert message.partition() == (header_of(message)["n"] - 1) % 5


def _murmur2(data: bytes) -> int:
    """As org.apache.kafka.common.utils.Utils has it."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * m & mask
        h = (h * m & mask) ^ ((k ^ k >> 24) * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def test_a_reader_finds_whole_barriers_and_each_key_in_order(kafka: Kafka) -> None:
    """By the example in the docs, beside deliveries of fifty barriers."""
    place = Topics.make(kafka, 4)
    read: list[list[tuple[int, int, int]]] = []

    def reading() -> None:
        for messages in whole_barriers(place.address, place.prices, f"g-{place.prices}"):
            said = [header_of(message) for message in messages]
            assert [(each["n"], each["of"]) for each in said] == [(n + 1, len(said)) for n in range(len(said))]
            read.append(
                [(row_of(m)["id"], h["barrier"], m.partition() or 0) for m, h in zip(messages, said, strict=True)]
            )
            if sum(map(len, read)) == 50 * 20:
                return

    reader = Thread(target=reading, daemon=True)  # it ends with the last barrier, if that comes
    reader.start()
    with place.channel() as channel:
        channel.validate(SCHEMAS)
        after = channel.open(deliverer()).position
        for barrier in range(1, 51):
            op = "insert" if barrier == 1 else "update"
            rows = [(op, price(n, f"b{barrier}", barrier)) for n in range(20)]
            step = Step(Position(barrier, 0), {PRICES: rows, AMOUNTS: []})
            channel.deliver(delivery(step, Rows.CHANGES, after))
            after = step.position
    reader.join(patience())
    assert sum(map(len, read)) == 50 * 20
    for number in range(20):
        of_key = [(barrier, partition) for messages in read for id_, barrier, partition in messages if id_ == number]
        assert [barrier for barrier, _ in of_key] == list(range(1, 51))
        assert len({partition for _, partition in of_key}) == 1


def test_redelivering_is_refused(place: Topics) -> None:
    with prepared(place).channel() as channel:
        after = channel.open(deliverer(), remedy=Remedy.ADOPT).position
        again = replace(delivery(CHANGES[2], Rows.CHANGES, after), former={})
        with pytest.raises(SinkRefusedError, match="declare a sink of another name for new topics"):
            channel.deliver(again)


def test_two_tables_of_one_barrier_are_seen_together_or_not_at_all(place: Topics) -> None:
    """A row that is refused in the second table takes those of the first with it."""
    prepared(place, 1)
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("weight", pa.float64())])
    with place.channel() as channel:
        after = channel.open(deliverer()).position
        step = delivery(Step(Position(4, 0), {PRICES: [], AMOUNTS: []}, whole=True), Rows.CHANGES, after)
        half = {
            AMOUNTS: Batches(SCHEMAS[AMOUNTS], [amount(7, 7)]),
            PRICES: Batches(schema, [{"id": 1, "weight": -1e400}]),
        }
        with pytest.raises(RowRefusedError):
            channel.deliver(replace(step, tables=half))
    check(place, CHANGES[:1], Rows.CHANGES)
