"""As Kafka's own transaction system test has it: many integers go in and out, while all that handles them is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from tests.delivering import streaming
from tests.delivering.streaming import TABLE, TOPOLOGY, Crew, Hand, Topics, hands
from tests.sinks.kafka_topics import header_of
from tests.support.kafka import Kafka, Reader
from tests.support.reporting import report
from tests.support.waiting import patience, wait_for

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

_INTEGERS, _PARCEL = 100_000, 750
#: What a failed run has printed, to kill at the same steps again.
_SEED = "BARRIER_TEST_SEED"
JOB, DELIVERER, BROKER = "job", "deliverer", "broker"
HARD, CLEAN = signal.SIGKILL, signal.SIGTERM
#: At which steps of the job or of the deliverer each is killed; the broker, while they are there.
_STEPS = {
    JOB: (streaming.OPENED, streaming.BEGUN, streaming.READING, streaming.WRITTEN, streaming.CLOSED),
    DELIVERER: (streaming.PRODUCE, streaming.COMMIT, streaming.COMMITTED),
    BROKER: (streaming.READING, streaming.PRODUCE, streaming.COMMIT),
}


@dataclass(frozen=True)
class Strike:
    """The victim gets the signal when the job or the deliverer has come to ``step``, ``after`` so many of them."""

    victim: str
    signum: int
    step: str
    after: int


def strikes(random: Random) -> list[Strike]:
    """Each victim at each step, in both ways."""
    found = []
    for victim, steps in _STEPS.items():
        for signum, step in product((HARD, CLEAN), steps):
            after = random.randrange(_PARCEL) if step == streaming.PRODUCE else 0
            found.append(Strike(victim, signum, step, after))
    random.shuffle(found)
    return found


@pytest.fixture
def stream(integers_settings: Settings, spark_server: SparkServer, own_kafka: Kafka) -> Topics:
    source, target = own_kafka.topic(4), own_kafka.topic(3)
    return Topics(integers_settings, spark_server.url, own_kafka.address, source, target, "ledger")


@pytest.mark.drawn("large ones")
@pytest.mark.timeout(900)
def test_integers_in_and_out(stream: Topics, own_kafka: Kafka) -> None:
    seed = int(os.environ.get(_SEED) or int.from_bytes(os.urandom(4), "big"))
    print(f"{_SEED}={seed}")
    began, plan = time.monotonic(), strikes(Random(seed))
    with hands() as found, looking(stream) as looked:
        run = Run(stream, own_kafka, found)
        run.begin(_INTEGERS // _PARCEL // (len(plan) + 1), streaming.produce, _INTEGERS, _PARCEL, seed)
        for strike in plan:
            print(f"{time.monotonic() - began:.1f} s: {strike}")
            run.strike(strike)
        print(f"{time.monotonic() - began:.1f} s: the rest")
        run.finish(_INTEGERS, lambda: own_kafka.settle(stream.source))
    looked.check(own_kafka)
    deployment = stream.connect()
    sent = run.producer.counted
    barriers = check(stream, own_kafka, deployment)
    deployment.close()
    killed = Counter(f"{'hard' if each.signum == HARD else 'clean'} of the {each.victim}" for each in plan)
    kills = ", ".join(f"{count} {what}" for what, count in sorted(killed.items()))
    report(
        f"integers: {_INTEGERS:,} in {sent['committed']} transactions, {sent['aborted']} aborted, and out "
        f"by {barriers} barriers in {time.monotonic() - began:.0f} s; kills: {kills}; 0 lost, 0 twice, each key in "
        f"order, no barrier torn, one record of each in the ledger (seed {seed})"
    )


class Run(Crew):
    """Whose broker is struck, too."""

    def __init__(self, stream: Topics, broker: Kafka, found: list[Hand]) -> None:
        super().__init__(stream, found)
        self._broker = broker

    def strike(self, strike: Strike) -> None:
        by_job = strike.victim == JOB or strike.step == streaming.READING
        hand = self.job if by_job else self.deliverer
        hand.hold(strike.step, strike.after)
        self.feed()
        hand.wait("held")
        if strike.victim == BROKER:
            self._strike_broker(strike, hand)
            return
        if strike.step == streaming.READING:
            hand.go_on()  # what Spark has begun goes on without its job
        self.replace(hand, strike.signum)

    def _strike_broker(self, strike: Strike, hand: Hand) -> None:
        if strike.signum == HARD and strike.step == streaming.READING:
            hand.go_on()
            self._broker.kill()
        else:  # who stops takes longer than an epoch takes to be read
            (self._broker.kill if strike.signum == HARD else self._broker.stop)()
            hand.go_on()
        self._broker.start()
        hand.wait("barrier" if hand is self.job else "delivered")


# --- who looks on ---------------------------------------------------------------------------------


@dataclass
class Looked:
    """What a plain consumer has read of the target, from before the first record until after the last one."""

    stream: Topics
    messages: list[Message] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def run(self, stop: Event) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.stream.broker,
                "group.id": "looking",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        try:
            partitions = consumer.list_topics(self.stream.target, patience()).topics[self.stream.target].partitions
            consumer.assign([TopicPartition(self.stream.target, each, OFFSET_BEGINNING) for each in partitions])
            while not stop.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self.messages.append(message)
                elif not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"):
                    self.faults.append(str(error))
        finally:
            consumer.close()

    def check(self, broker: Kafka) -> None:
        """It has seen just what is there in the end."""
        assert self.faults == []
        assert _places(self.messages) == _places(broker.records(self.stream.target))


def _places(messages: Sequence[Message]) -> list[tuple[int | None, int | None, bytes | None]]:
    """In each partition in the order in which they came."""
    found = [(each.partition(), each.offset(), each.value()) for each in messages]
    return sorted(found, key=lambda place: place[0] or 0)


@contextmanager
def looking(stream: Topics) -> Iterator[Looked]:
    looked, stop = Looked(stream), Event()
    thread = Thread(target=looked.run, args=(stop,))
    thread.start()
    try:
        yield looked
        end = len(Reader(stream.broker).records(stream.target))
        wait_for("the reader to come to the end", lambda: len(looked.messages) >= end)
    finally:
        stop.set()
        thread.join(patience())


# --- what has to hold -----------------------------------------------------------------------------


def check(stream: Topics, broker: Kafka, deployment: Deployment) -> int:
    """Everything, by what readers of committed records find in the end; returns how many barriers there were."""
    came, went = broker.records(stream.source), broker.records(stream.target)
    every = list(range(_INTEGERS))
    assert sorted(map(_integer, came)) == every, "what was sent"
    assert _differences(Counter(map(_integer, went)), every) == {}, "lost, or there several times"
    aborted = len(broker.records(stream.source, committed=False)) - len(came)
    assert aborted >= _PARCEL, "some integers were aborted"

    # each key in order, and each barrier just what its cut says, whole
    assert _by_key(went) == _by_key(came)
    last = streaming.newest(deployment)
    assert last is not None
    barriers = list(range(1, last.barrier_id + 1))
    expected: dict[int, set[int]] = {}
    for barrier in barriers:
        end = deployment.meta.cuts.of(TOPOLOGY, barrier)["integers"].end
        spans = {int(each): range(end["begin"][each], end["offsets"][each]) for each in end["offsets"]}
        expected[barrier] = {_integer(each) for each in came if each.offset() in spans[each.partition() or 0]}
    found: dict[int, set[int]] = defaultdict(set)
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for message in went:
        said = header_of(message)
        assert (said["topology"], said["table"], said["revision"], said["op"]) == (TOPOLOGY, TABLE, 0, "insert")
        found[said["barrier"]].add(_integer(message))
        parts[said["barrier"]].append((said["n"], said["of"]))
    assert found == {barrier: integers for barrier, integers in expected.items() if integers}
    for barrier, told in parts.items():
        assert sorted(told) == [(n, len(told)) for n in range(1, len(told) + 1)], f"barrier {barrier} is torn"
    for partition in {message.partition() for message in went}:
        in_turn = [header_of(message)["barrier"] for message in went if message.partition() == partition]
        assert in_turn == sorted(in_turn)

    records = [json.loads(record.value() or b"") for record in broker.records(stream.ledger)]
    assert [each["barrier"] for each in records] == [None, *barriers], "one record of each barrier"
    history = deployment.meta.deliveries.history(TOPOLOGY, streaming.SINK, limit=len(barriers) + 1)
    assert sorted(each.barrier_id for each in history) == barriers
    rows = deployment.tables.load(TABLE).scan().to_arrow()["n"].to_pylist()
    assert sorted(rows) == every
    return len(barriers)


def _integer(message: Message) -> int:
    return int(json.loads(message.value() or b"")["n"])


def _differences(found: Counter[int], every: Sequence[int]) -> dict[int, int]:
    """Integers that are not there just once, and how often they are; some of them."""
    wrong = [n for n in {*found, *every} if found[n] != 1]
    return {n: found[n] for n in sorted(wrong)[:20]}


def _by_key(messages: Sequence[Message]) -> dict[int, list[int]]:
    """In each partition, and so of each key, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        found[_integer(message) % streaming.KEYS].append(_integer(message))
    return found
