"""A stream of Pravega: what any sink does, and what is Pravega's own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Position, Remedy, Rows
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    FencedDelivererError,
    LedgerError,
    RowRefusedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_barrier.sinks.ledger import LedgerRecord, TargetRecord
from airflow_barrier.sinks.pravega import PravegaSink
from airflow_barrier.sinks.pravega import channel as channels
from airflow_barrier.sinks.pravega import ledger as ledgers
from airflow_barrier.sinks.pravega.client import Client
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
    check,
    deliverer,
    delivery,
    price,
)
from tests.sinks.pravega_streams import FILES, Streams, prepared
from tests.support.cases import cases
from tests.support.pravega import SCOPE, Pravega


@pytest.fixture
def place(pravega: Pravega) -> Streams:
    return Streams.make(pravega)


@pytest.mark.drawn("Pravega")
@pytest.mark.touches(*FILES)
class TestPravega(Behaviour):
    files = FILES

    @pytest.fixture
    def places(self, pravega: Pravega) -> Places:
        return lambda: Streams.make(pravega)


def _opened(place: Streams, remedy: Remedy | None = None) -> Position | None:
    with place.channel() as channel:
        return channel.open(deliverer(), remedy).position


@contextmanager
def before_the_next(request: str, happens: Callable[[], Any]) -> Iterator[None]:
    """Have something happen once, before the next such request of any deliverer in this process."""
    original = Client.change
    waiting = [happens]

    def change(client: Client, asked: str, *arguments: Any) -> Any:
        if asked == request and waiting:
            waiting.pop()()
        return original(client, asked, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "change", change)
        yield
    assert not waiting, f"expected {request}, found none"


# --- declaring ------------------------------------------------------------------------------------


def test_a_declaration_is_the_sink_again() -> None:
    sink = PravegaSink("changes", scope="shop", key=["id"])
    declared = sink.declare("shop.prices", Rows.CHANGES, "dag")
    assert declared.targets == {"shop.prices": "shop.prices"}
    assert PravegaSink.of(declared).declare({"shop.prices": "shop.prices"}, Rows.CHANGES, "dag") == declared
    assert sink.dataset("shop.prices", Credentials("pravega_default", "pravega")) == (
        "pravega://pravega:9090",
        "shop/changes",
    )
    appends = PravegaSink("changes", scope="shop").declare("shop.prices", Rows.APPENDS, "dag")
    assert "events of a stream do not change" in (sink.corrections_fault(appends) or "")
    assert sink.corrections_fault(declared) is None


def test_what_cannot_be_is_refused_when_the_dag_is_parsed() -> None:
    two = {PRICES: "prices", AMOUNTS: "amounts"}
    with cases() as case:
        for settings, tables, rows, expected in (
            ({"key": ["id"]}, PRICES, Rows.TABLE, "found 'table'; a stream keeps what was written"),
            ({}, PRICES, Rows.CHANGES, "expected the columns that tell the rows of each table apart"),
            ({"key": "id"}, PRICES, Rows.CHANGES, "found 'id'"),
            ({"key": {"prices": ["id"]}}, two, Rows.CHANGES, r"\(prices, amounts\)|\(amounts, prices\)"),
            ({}, {PRICES: "a", AMOUNTS: "a"}, Rows.APPENDS, "expected a label of its own for each table"),
            ({}, {PRICES: ""}, Rows.APPENDS, "expected a label of its own for each table"),
            ({"ledger": "changes"}, PRICES, Rows.APPENDS, "expected another stream for the ledger"),
            ({"stream": "a_b"}, PRICES, Rows.APPENDS, "stream: expected letters, digits"),
            ({"scope": "a/b"}, PRICES, Rows.APPENDS, "scope: expected letters, digits"),
            ({"name": "a\n"}, PRICES, Rows.APPENDS, "PravegaSink: expected a name"),
        ):
            given = {"stream": "changes", "scope": "shop", **settings}
            with case(expected), pytest.raises(ConfigurationError, match=expected):
                PravegaSink(**given).declare(tables, rows, "dag")  # type: ignore[arg-type]


# --- before a first barrier -----------------------------------------------------------------------


def test_validating_leaves_nothing_behind(pravega: Pravega, place: Streams) -> None:
    before = pravega.ask("streams")
    with place.channel() as channel:
        assert channel.validate(SCHEMAS) == {PRICES: ("id",), AMOUNTS: ("id",)}
    with place.channel(Rows.APPENDS) as channel:
        assert channel.validate(SCHEMAS) == {PRICES: (), AMOUNTS: ()}
    assert pravega.ask("streams") == before
    assert place.events() == []


def test_what_validating_refuses(pravega: Pravega, place: Streams) -> None:
    nanoseconds = {**SCHEMAS, AMOUNTS: SCHEMAS[AMOUNTS].append(pa.field("at", pa.timestamp("ns")))}
    wide, expiring, scaled, sealed = pravega.stream(2), f"x-{place.stream}", pravega.stream(), pravega.stream()
    pravega.ask("make_expiring", expiring)
    pravega.ask("scale", scaled, [0], [(0.0, 1.0)])
    pravega.ask("seal", sealed)
    with cases() as case:
        for settings, schemas, expected in (
            ({}, nanoseconds, "column 'at': expected a type that JSON can hold exactly"),
            ({"key": "shop"}, SCHEMAS, "expected the columns of its key, found no shop among id, "),
            ({"ledger": wide}, SCHEMAS, "found segments [0, 1] after [0, 1]; name another stream for the ledger"),
            ({"ledger": scaled}, SCHEMAS, "found segments [4294967297] after [0]; name another"),
            ({"ledger": expiring}, SCHEMAS, "found a policy by which events expire; name another"),
            ({"stream": "nowhere"}, SCHEMAS, "expected the stream nowhere in scope shop at 127.0.0.1"),
            ({"scope": "nowhere"}, SCHEMAS, "in scope nowhere at 127.0.0.1"),
            ({"stream": sealed}, SCHEMAS, "found that it is sealed; name another one"),
        ):
            with (
                case(expected),
                place.channel(**settings) as channel,
                pytest.raises(SinkRefusedError, match=re.escape(expected)),
            ):
                channel.validate(schemas)


# --- one deliverer --------------------------------------------------------------------------------


@pytest.mark.kills("stream-fences-deliverers", "begun-by-the-newest")
def test_one_who_was_overtaken_is_told_so(place: Streams) -> None:
    prepared(place, 1)
    with place.channel() as first, place.channel() as second:
        first.open(deliverer())
        second.open(deliverer())
        with pytest.raises(FencedDelivererError, match="expected to be its only deliverer"):
            first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        with pytest.raises(SinkUnavailableError, match="an earlier call whose outcome is not known"):
            first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        second.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    check(place, CHANGES[:2], Rows.CHANGES)


@pytest.mark.kills("stream-fences-deliverers", "older-transaction-ends")
def test_one_who_is_overtaken_at_its_commit_commits_nothing(place: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry stands in the ledger, and its transaction is open until the next one opens the sink."""
    monkeypatch.setattr(channels, "PATIENCE", 5)
    prepared(place, 1)
    with place.channel() as first, place.channel() as second:
        first.open(deliverer())

        def overtake() -> None:
            assert second.look(deliverer()).position == CHANGES[0].position
            assert second.open(deliverer()).position == CHANGES[0].position

        with (
            before_the_next("commit_transaction", overtake),
            pytest.raises(FencedDelivererError, match="expected to be its only deliverer"),
        ):
            first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        second.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    check(place, CHANGES[:2], Rows.CHANGES)


@pytest.mark.kills("one-opens-a-stream")
def test_of_two_who_open_at_once_one_can_deliver(place: Streams) -> None:
    prepared(place, 1)
    with place.channel() as first, place.channel() as second:
        with (
            before_the_next("append", lambda: second.open(deliverer())),
            pytest.raises(FencedDelivererError, match="expected to be its only deliverer"),
        ):
            first.open(deliverer())
        second.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    check(place, CHANGES[:2], Rows.CHANGES)


def test_a_commit_that_nobody_has_written_down_is_found(place: Streams) -> None:
    prepared(place, 1)
    with place.channel() as first, place.channel() as second:
        first.open(deliverer())

        def die_before_the_next_entry() -> None:
            lost.enter_context(before_the_next("append", first.__exit__))

        with (
            ExitStack() as lost,
            before_the_next("commit_transaction", die_before_the_next_entry),
            pytest.raises(SinkUnavailableError),
        ):
            first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        assert second.look(deliverer()).position == CHANGES[1].position
        assert [entry["kind"] for entry in place.entries()] == ["settled", "begun"]
        assert second.open(deliverer()).position == CHANGES[1].position
        assert [entry["kind"] for entry in place.entries()] == ["settled"]
    check(place, CHANGES[:2], Rows.CHANGES)


def test_a_transaction_that_the_server_has_ended_is_told_as_that(place: Streams) -> None:
    prepared(place, 1)
    with place.channel() as channel:
        channel.open(deliverer())

        def end() -> None:
            number = int(place.entries()[-1]["transaction"], 16)
            with Client("a test", place.credentials) as other:
                other.ask("abort_transaction", SCOPE, place.stream, number)

        with (
            before_the_next("commit_transaction", end),
            pytest.raises(SinkUnavailableError, match=r"has not committed the transaction .* \(state 5\): that it has"),
        ):
            channel.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    prepared(place, 2)
    check(place, CHANGES[:2], Rows.CHANGES)


@pytest.mark.kills("outcome-is-known")
def test_a_transaction_that_nobody_knows_any_more(pravega: Pravega) -> None:
    """Pravega has forgotten it. A person looks into the stream."""
    for remedy, position in ((Remedy.ADOPT, CHANGES[1].position), (Remedy.REDELIVER, CHANGES[0].position)):
        place = prepared(Streams.make(pravega), 1)
        newest = place.entries()[-1]
        targets = {label: {**each, "position": [4, 0]} for label, each in newest["targets"].items()}
        begun = {**newest, "kind": "begun", "transaction": "7" * 20, "targets": targets}
        pravega.write(place.ledger, [("", json.dumps(begun).encode())])
        said = r"whether b4\.r0 was delivered, .*barrier\": 4 and \"revision\": 0: airflow-barrier sink adopt shopping"
        with place.channel() as channel:
            for ask in (channel.look, channel.open):
                with pytest.raises(LedgerError, match=said):
                    ask(deliverer())
        assert len(place.entries()) == 2, "it has superseded nobody"
        assert _opened(place, remedy) == position
        assert _opened(place) == position


# --- the ledger -----------------------------------------------------------------------------------


def test_a_ledger_stays_short(place: Streams) -> None:
    for steps in (1, 2, 4, 4):
        prepared(place, steps)
        (entry,) = place.entries()
        assert (entry["kind"], entry["barrier"]) == ("settled", CHANGES[steps - 1].position.barrier_id)


def test_an_older_deliverer_may_still_say_that_its_own_was_committed() -> None:
    """And nothing else: what the newest one has settled stands."""
    who = deliverer()

    def told(*entries: tuple[str, int, str, int, int | None]) -> tuple[str, str | None, bool]:
        values = []
        for number, (kind, epoch, opener, barrier, transaction) in enumerate(entries):
            target = TargetRecord({"table": PRICES}, {}, Position(barrier, 0))
            record = LedgerRecord(who.topology, who.sink, who.incarnation, "here", {"prices": target})
            values.append((number, ledgers.Entry(kind, epoch, opener, record, transaction).encoded(who, {})))
        found = ledgers.read("sink out", "ledger", values)
        return found.opener, None if found.record is None else str(found.record.position), found.begun is not None

    one = (("settled", 1, "a", 3, None), ("begun", 1, "a", 4, 9), ("opened", 2, "b", 3, None))
    assert told(*one) == ("b", "b3.r0", True)
    assert told(*one, ("settled", 1, "a", 4, 9)) == ("b", "b4.r0", False)
    assert told(*one, ("settled", 2, "b", 3, None), ("settled", 1, "a", 4, 9)) == ("b", "b3.r0", False)
    assert told(*one, ("begun", 1, "a", 5, 10), ("opened", 2, "c", 3, None)) == ("b", "b3.r0", True)


@pytest.mark.kills("ledger-of-one-sink")
def test_a_ledger_is_one_sinks(pravega: Pravega, place: Streams) -> None:
    prepared(place)
    other = place.sink(name="other", stream=pravega.stream())
    with (
        other.connect(other.declare({PRICES: "bread"}, Rows.CHANGES, "dag"), place.credentials) as channel,
        pytest.raises(LedgerError, match=r"expected a ledger of its own, found that of sink out of shopping in"),
    ):
        channel.open(deliverer(sink="other"))
    assert _opened(place) == CHANGES[1].position


def test_a_stream_is_fed_by_one_sink(place: Streams) -> None:
    """Whatever it calls the tables."""
    prepared(place)
    other = place.sink(name="other")
    said = r"found that sink out of shopping delivers to .* has another name since, call it out, and it goes on"
    with (
        other.connect(other.declare({PRICES: "bread"}, Rows.CHANGES, "dag"), place.credentials) as channel,
        pytest.raises(LedgerError, match=said),
    ):
        channel.open(deliverer(sink="other"), Remedy.ADOPT)


def test_a_ledger_with_events_of_others_is_told(pravega: Pravega, place: Streams) -> None:
    prepared(place)
    pravega.write(place.ledger, [("", b"something")])
    with pytest.raises(LedgerError, match=r"expected entries of a sink only in the ledger .* another one at offset"):
        _opened(place)


def test_a_stream_that_was_made_anew_is_told(pravega: Pravega, place: Streams) -> None:
    prepared(place)
    said = r"expected table amounts to be the one .* made anew or .*\(first_segments \[2, 3\] instead of \[0, 1\]\)"
    with place.channel() as channel:
        channel.open(deliverer())
        pravega.ask("drop", place.stream)
        pravega.ask("make", place.stream, 2)
        for _ in range(2):
            with pytest.raises(LedgerError, match=said):
                channel.deliver(delivery(CHANGES[2], Rows.CHANGES, CHANGES[1].position))
    with pytest.raises(LedgerError, match=said):
        _opened(place)
    assert _opened(place, Remedy.ADOPT) == CHANGES[1].position


@pytest.mark.kills("after-what-was-delivered")
def test_what_does_not_follow_is_refused(place: Streams) -> None:
    prepared(place)
    with place.channel() as channel:
        channel.open(deliverer())
        for step, after in ((CHANGES[2], CHANGES[0]), (CHANGES[1], CHANGES[1])):
            with pytest.raises(LedgerError, match=r"expected a barrier after b4\.r0, which is what the ledger says"):
                channel.deliver(delivery(step, Rows.CHANGES, after.position))
        channel.deliver(delivery(CHANGES[2], Rows.CHANGES, CHANGES[1].position))
    check(place, CHANGES[:3], Rows.CHANGES)


# --- rows -----------------------------------------------------------------------------------------


def test_what_an_event_says(pravega: Pravega) -> None:
    place = prepared(Streams.make(pravega, 1))
    inserted, deleted = (
        next(event for event in place.events() if (event["op"], event["table"]) == (op, "prices"))
        for op in ("insert", "delete")
    )
    assert deleted == {
        "topology": "shopping",
        "table": "prices",
        "barrier": 4,
        "revision": 0,
        "timestamp": "2017-01-04T00:00:00+00:00",
        "of": 4,
        "op": "delete",
        "n": 3,
        "row": {"id": 3},
    }
    assert inserted["row"] == {"id": 1, "name": "bread", "price": "2.50", "at": "2017-01-01T01:00:00.000001Z"}


def test_events_of_a_key_keep_their_order_when_the_stream_is_scaled(pravega: Pravega, place: Streams) -> None:
    prepared(place, 1)
    with place.channel() as channel:
        channel.open(deliverer())
        pravega.ask("scale", place.stream, [0], [(0.0, 0.25), (0.25, 0.5)])
        channel.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    one, *_ = (number for number in pravega.tail(place.stream) if number == 1)
    pravega.ask("scale", place.stream, [one], [(0.5, 0.75), (0.75, 1.0)])
    prepared(place, 4)
    check(place, CHANGES, Rows.CHANGES)
    read: dict[tuple[str, int], list[int]] = {}
    for event in place.events():
        read.setdefault((event["table"], event["row"]["id"]), []).append(event["barrier"])
    assert all(barriers == sorted(barriers) for barriers in read.values())


@pytest.mark.kills("row-fits-event")
def test_rows_of_megabytes(place: Streams) -> None:
    """One that Pravega does not take is named, and nothing of its barrier is delivered."""
    with place.channel() as channel:
        channel.open(deliverer())
        large = [price(number, "x" * 900_000, 1) for number in range(3)]
        first = Step(Position(1, 0), {PRICES: large, AMOUNTS: []}, whole=True)
        channel.deliver(delivery(first, Rows.CHANGES, None))
        changes = [("insert", price(7, "x" * 8_400_000, 1))]
        second = Step(Position(2, 0), {PRICES: changes, AMOUNTS: [("insert", amount(1, 1))]})
        with pytest.raises(RowRefusedError, match=r"row with id=7, where an event has at most 8388608. Nothing of"):
            channel.deliver(delivery(second, Rows.CHANGES, first.position))
        third = Step(Position(3, 0), {PRICES: [("delete", {"id": 1})], AMOUNTS: []})
        channel.deliver(delivery(third, Rows.CHANGES, first.position))
    check(place, [first, third], Rows.CHANGES)


def test_two_tables_of_one_barrier_are_seen_together_or_not_at_all(place: Streams) -> None:
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
        with pytest.raises(RowRefusedError, match=r"a NaN or an infinity in column weight, .* row with id=1"):
            channel.deliver(replace(step, tables=half))
    check(place, CHANGES[:1], Rows.CHANGES)


def test_redelivering_is_refused(place: Streams) -> None:
    with prepared(place).channel() as channel:
        after = channel.open(deliverer(), remedy=Remedy.ADOPT).position
        again = replace(delivery(CHANGES[2], Rows.CHANGES, after), former={})
        with pytest.raises(SinkRefusedError, match="declare a sink of another name for a new stream"):
            channel.deliver(again)
