"""The ledger of a KafkaSink: whose it is, who may go on with it, and what it says after kills."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from airflow_barrier.protocol.deliveries import Position, Remedy, Rows
from airflow_barrier.protocol.errors import FencedDelivererError, LedgerError, SinkUnavailableError
from airflow_barrier.sinks.kafka import client
from airflow_barrier.sinks.kafka import ledger as ledgers
from tests.sinks.behaviour import (
    AMOUNTS,
    CHANGES,
    PRICES,
    SCHEMAS,
    Batches,
    Blow,
    calls_of,
    catch_up,
    check,
    deliver_some,
    deliverer,
    delivery,
    elsewhere,
    expected,
    is_stopped,
)
from tests.sinks.kafka_topics import FILES, Topics, prepared
from tests.support.kafka import Kafka
from tests.support.waiting import patience, wait_for


@pytest.fixture
def place(kafka: Kafka) -> Topics:
    return Topics.make(kafka)


def _opened(place: Topics, remedy: Remedy | None = None) -> Position | None:
    with place.channel() as channel:
        return channel.open(deliverer(), remedy).position


@pytest.mark.kills("topics-fence-deliverers")
def test_one_who_was_overtaken_is_told_so(place: Topics) -> None:
    prepared(place, 1)
    with place.channel() as first, place.channel() as second:
        first.open(deliverer())
        second.open(deliverer())
        with pytest.raises(FencedDelivererError, match="expected to be its only deliverer"):
            first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
        second.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    check(place, CHANGES[:2], Rows.CHANGES)


def test_one_who_was_overtaken_is_told_so_before_its_client_speaks_of_it(
    place: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client ends the producer as soon as a broker refuses a record, and says why when it is polled."""
    prepared(place, 1)

    def until_refused(name: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if name != "produce":
            return ask(*arguments, **options)
        return wait_for("a record to be refused", lambda: ask(*arguments, **options))

    with place.channel() as first, place.channel() as second:
        first.open(deliverer())
        second.open(deliverer())
        monkeypatch.setattr(client, "call", until_refused)
        with pytest.raises(FencedDelivererError, match="expected to be its only deliverer"):
            first.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))


def test_a_transaction_that_takes_too_long_is_told_as_that(place: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_barrier.sinks.kafka._SHORTEST", 10)
    monkeypatch.setattr(client, "STEP", 10)
    prepared(place, 1)

    class Late(Batches):
        def __iter__(self) -> Iterator[pa.RecordBatch]:
            assert place.left_over() == []
            yield from super().__iter__()

    slow = delivery(CHANGES[3], Rows.CHANGES, CHANGES[0].position)
    last = max(slow.tables)
    late = Late(**vars(slow.tables[last]))
    with place.channel(transaction_timeout=10) as channel:
        channel.open(deliverer())
        with pytest.raises(SinkUnavailableError, match=r"the transaction_timeout of 10 s, found that it took 1. s"):
            channel.deliver(replace(slow, tables={**slow.tables, last: late}))
    with place.channel() as channel:
        catch_up(channel, Rows.CHANGES, CHANGES[:2])
    check(place, CHANGES[:2], Rows.CHANGES)


def test_one_that_wakes_after_its_successors_commit_is_fenced(kafka: Kafka) -> None:
    """It was stopped before its own, when all its records were in the topics: they are never committed."""
    commit = calls_of(prepared(Topics.make(kafka), 1), Rows.CHANGES, CHANGES[:2]).index("before commit_transaction")
    place = prepared(Topics.make(kafka), 1)
    with elsewhere(place, Rows.CHANGES, CHANGES[:2], Blow(signal.SIGSTOP, commit)) as (process, pipe):
        assert pipe.poll(patience()), "the other process does not come to its commit"
        assert pipe.recv() == "before commit_transaction"
        wait_for("the other process to stop", lambda: is_stopped(process.pid))
        with place.channel() as channel:
            catch_up(channel, Rows.CHANGES, CHANGES[:2])
        os.kill(process.pid, signal.SIGCONT)
        assert pipe.poll(patience()), "the other process does not answer"
        said, _ = pipe.recv()
    assert said.startswith("retry: FencedDelivererError: sink out: expected to be its only deliverer"), said
    check(place, CHANGES[:2], Rows.CHANGES)
    assert place.left_over() == []
    written, stands = (
        [json.loads(record.value() or b"")["barrier"] for record in kafka.records(place.ledger, committed=committed)]
        for committed in (False, True)
    )
    assert (written, stands) == ([None, 3, 4, 4], [None, 3, 4])


def test_a_ledger_with_records_of_others_is_told(kafka: Kafka, place: Topics) -> None:
    prepared(place)
    kafka.send(place.ledger, {"key": b"what?", "value": b"something"})
    with pytest.raises(
        LedgerError, match=r"expected records of sinks only in the ledger .* found another one at offset"
    ):
        _opened(place)


def test_a_topic_is_fed_by_one_sink(kafka: Kafka, place: Topics) -> None:
    prepared(place)
    elsewhere = replace(place, amounts=kafka.topic(2))
    said = r"found that sink out of shopping delivers to .* has another name since, call it out, and it goes on"
    with elsewhere.channel(name="other") as channel, pytest.raises(LedgerError, match=said):
        channel.open(deliverer(sink="other"), Remedy.ADOPT)
    with elsewhere.channel() as channel:
        assert channel.open(deliverer()).position == CHANGES[1].position


@pytest.mark.kills("earlier-declaration-is-fenced")
def test_a_deliverer_of_an_earlier_declaration_is_fenced(place: Topics) -> None:
    """With one topic more the sink has another transactional id."""
    deliver_some(place, CHANGES[:1], [AMOUNTS])
    with place.channel(tables=[AMOUNTS]) as zombie, place.channel() as newest:
        zombie.open(deliverer())
        after = newest.open(deliverer()).position
        step = delivery(CHANGES[1], Rows.CHANGES, after)
        prices = Batches(SCHEMAS[PRICES], expected(CHANGES[:2], Rows.CHANGES, PRICES))
        newest.deliver(replace(step, tables={**step.tables, PRICES: prices}, whole=[PRICES]))
        with pytest.raises(FencedDelivererError):
            zombie.deliver(replace(step, tables={AMOUNTS: step.tables[AMOUNTS]}))
    prepared(place, 4)
    check(place, CHANGES, Rows.CHANGES)
    assert place.left_over() == []


def test_a_topic_that_was_made_anew_is_told(kafka: Kafka, place: Topics) -> None:
    prepared(place)
    with place.channel() as channel:
        channel.open(deliverer())
        _make_anew(kafka, place.prices)
        for _ in range(2):
            with pytest.raises(LedgerError, match=f"expected topic {place.prices} to be the one .* made anew or"):
                channel.deliver(delivery(CHANGES[2], Rows.CHANGES, CHANGES[1].position))
    with pytest.raises(LedgerError, match="made anew or changed since"):
        _opened(place)
    assert _opened(place, Remedy.ADOPT) == CHANGES[1].position


def _make_anew(kafka: Kafka, topic: str) -> None:
    admin = kafka.admin()
    admin.delete_topics([topic])[topic].result(patience())
    wait_for("the topic to be gone", lambda: topic not in admin.list_topics(timeout=patience()).topics)
    kafka.create_topic(topic, 2)
    wait_for("the topic to be there", lambda: topic in admin.list_topics(timeout=patience()).topics)


def test_partitions_that_are_added_are_told(kafka: Kafka, place: Topics) -> None:
    expected = rf"expected topic {place.amounts} to be the one .* up to b4\.r0, found .* \(partitions 5 instead of 2\)"
    prepared(place)
    with place.channel() as channel:
        channel.open(deliverer())
        admin = kafka.admin()
        admin.create_partitions([NewPartitions(place.amounts, 5)])[place.amounts].result(patience())
        wait_for(
            "the partitions to be there",
            lambda: len(admin.list_topics(timeout=patience()).topics[place.amounts].partitions) == 5,
        )
        with pytest.raises(LedgerError, match=expected):
            channel.deliver(delivery(CHANGES[2], Rows.CHANGES, CHANGES[1].position))
    with pytest.raises(LedgerError, match=expected):
        _opened(place)
    assert _opened(place, Remedy.ADOPT) == CHANGES[1].position


def _foreign_transaction(place: Topics, topic: str) -> Producer:
    """One that stays open."""
    producer = Producer({"bootstrap.servers": place.address, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(patience())
    producer.begin_transaction()
    producer.produce(topic, b"?", b"?")
    assert producer.flush(patience()) == 0
    return producer


@pytest.mark.kills("read-to-the-high-watermark")
def test_an_open_transaction_of_others_does_not_hide_our_newest_record(
    place: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "PATIENCE", 2)
    prepared(place, 1)
    foreign = _foreign_transaction(place, place.ledger)
    with place.channel() as channel:
        with pytest.raises(SinkUnavailableError, match=r"offset (\d+) of \d+ of its partition 0, where a transaction"):
            channel.open(deliverer())
        foreign.abort_transaction(patience())
        assert channel.open(deliverer()).position == CHANGES[0].position
        foreign.begin_transaction()
        foreign.produce(place.ledger, b"?", b"?")
        assert foreign.flush(patience()) == 0
        channel.deliver(delivery(CHANGES[1], Rows.CHANGES, CHANGES[0].position))
    with pytest.raises(SinkUnavailableError, match="where a transaction is open"):
        _opened(place)  # not the barrier before
    foreign.abort_transaction(patience())
    assert _opened(place) == CHANGES[1].position


def test_many_records_of_a_ledger_are_told(
    kafka: Kafka, place: Topics, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledgers, "_MANY", 3)
    prepared(place, 3)
    assert _opened(place) == CHANGES[2].position
    assert f"expected that the ledger {place.ledger} keeps few records" in caplog.text


@pytest.mark.kills("after-what-was-delivered")
def test_what_does_not_follow_is_refused(place: Topics) -> None:
    prepared(place)
    with place.channel() as channel:
        channel.open(deliverer())
        for step, after in ((CHANGES[2], CHANGES[0]), (CHANGES[1], CHANGES[1])):
            with pytest.raises(LedgerError, match=r"expected a barrier after b4\.r0, which is what the ledger says"):
                channel.deliver(delivery(step, Rows.CHANGES, after.position))
        channel.deliver(delivery(CHANGES[2], Rows.CHANGES, CHANGES[1].position))
    check(place, CHANGES[:3], Rows.CHANGES)


@pytest.mark.drawn("Kafka")
@pytest.mark.touches(*FILES)
def test_a_broker_that_is_killed(own_kafka: Kafka) -> None:
    place = prepared(Topics.make(own_kafka), 1)
    channel = place.channel()
    with channel:
        after = channel.open(deliverer()).position
        own_kafka.kill()
        with pytest.raises(SinkUnavailableError, match="whether this was delivered the ledger says to the next try"):
            channel.deliver(delivery(CHANGES[1], Rows.CHANGES, after))
    own_kafka.start()
    prepared(place, 2)  # between deliveries

    def kill(name: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if name == "commit_transaction":
            own_kafka.kill()
        return ask(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch, place.channel() as channel:
        after = channel.open(deliverer()).position
        patch.setattr(client, "call", kill)
        with pytest.raises(SinkUnavailableError):
            channel.deliver(delivery(CHANGES[2], Rows.CHANGES, after))
        patch.undo()
        own_kafka.start()
        with pytest.raises(SinkUnavailableError, match="an earlier call whose outcome is not known"):
            channel.deliver(delivery(CHANGES[2], Rows.CHANGES, after))
    prepared(place, 4)
    check(place, CHANGES, Rows.CHANGES)
    assert place.left_over() == []
