"""Random histories: whatever a sink was through, its targets come to what the tables hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from airflow_barrier.metaservice.deliveries import Deliveries
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import StoreUnavailableError
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.kafka import KafkaSink
from airflow_barrier.sinks.port import Sink
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from tests.delivering.feed import AMOUNT, KEY, PRICE, Feed, Reporting, State
from tests.sinks.behaviour import applied
from tests.sinks.kafka_topics import header_of
from tests.support.kafka import Kafka

STEPS, SEEDS = 25, 6


@dataclass
class Outside:
    """A sink, what each table is called there, and what a reader makes of a target."""

    sink: Sink
    targets: dict[str, str]
    credentials: Credentials | None
    read: Callable[[str], State]
    rename: Callable[[str, str], None] | None = None


def in_postgresql(reporting: Reporting) -> Outside:
    def rename(target: str, name: str) -> None:
        reporting.run(f"ALTER TABLE {target} RENAME TO {name}")

    sink, targets = PostgreSQLSink("reporting", name="out"), {AMOUNT: "amount", PRICE: "price"}
    return Outside(sink, targets, reporting.credentials(), reporting.rows, rename)


def in_files(folder: Path) -> Outside:
    def read(target: str) -> State:
        found = (sorted(barrier.glob("*.jsonl")) for barrier in sorted((folder / target).glob("b*")))
        lines = ([json.loads(line) for file in files for line in file.read_text().splitlines()] for files in found)
        return state((row.pop("_change"), row) for rows in lines for row in rows)

    sink = FileSink(str(folder), name="out", key=KEY, format="jsonl")
    return Outside(sink, {AMOUNT: "amount", PRICE: "price"}, None, read)


def in_kafka(kafka: Kafka) -> Outside:
    def read(topic: str) -> State:
        records = [
            (header_of(record)["op"], json.loads(record.value() or record.key() or b""))
            for record in kafka.records(topic)
        ]
        return state(records)

    sink = KafkaSink(name="out", key=KEY, ledger=f"ledger-{uuid4().hex}")
    return Outside(sink, {AMOUNT: kafka.topic(), PRICE: kafka.topic()}, kafka.credentials, read)


def state(changes: Any) -> State:
    """An AssertionError tells of a change that does not fit, as if one before it were missing or doubled."""
    keyed = [[(change, {**row, "id": (row["userId"], row["itemId"])}) for change, row in changes]]
    return {row["id"]: row["value"] for row in applied(keyed)}


@dataclass
class History:
    """What happens to a sink, step by step, as a seed has it."""

    feed: Feed
    outside: Outside
    random: Random
    monkeypatch: pytest.MonkeyPatch

    def play(self) -> None:
        self.feed.commit(self.some())
        steps = (self.commit, self.deliver, self.deliver, self.deliver, self.die, self.revise, self.release, self.pause)
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.feed.commit(self.some())
        self.deliver()
        self.feed.commit(self.some())
        self.deliver([AMOUNT, PRICE])

    def some(self) -> State:
        keys = [(user, item) for user in (1, 2) for item in (1, 2, 3)]
        return {key: self.random.randrange(100) for key in keys if self.random.random() < 0.6}

    def commit(self) -> None:
        self.feed.commit(self.some())

    def deliver(self, tables: list[str] | None = None) -> None:
        """With a table more or fewer than the last time, or a target that has another name since."""
        tables = tables or self.random.choice([[AMOUNT], [PRICE], [AMOUNT, PRICE], [AMOUNT, PRICE]])
        outside = self.outside
        if outside.rename is not None and self.random.random() < 0.2:
            table = self.random.choice(tables)
            name = f"t_{uuid4().hex[:8]}"
            outside.rename(outside.targets[table], name)
            outside.targets[table] = name
        targets = {table: outside.targets[table] for table in tables}
        done = self.feed.deliver(
            outside.sink, targets, outside.credentials, collapse=self.random.random() < 0.3, request_key="task#1"
        )
        if [receipt for receipt in done if not receipt.told]:
            newest = self.feed.deployment.meta.deliveries.get("shopping", "out").position
            assert newest is not None
            for table, target in targets.items():
                assert outside.read(target) == self.feed.states[newest.barrier_id], (table, str(newest))

    def die(self) -> None:
        """After the sink's commit, and before the MetaService knows."""

        def dies(*_: object, **__: object) -> None:
            raise StoreUnavailableError("it died")

        with self.monkeypatch.context() as patched:
            patched.setattr(Deliveries, "delivered", dies)
            with suppress(StoreUnavailableError):
                self.deliver()

    def revise(self) -> None:
        newest = len(self.feed.states)
        first = self.random.randrange(max(newest - 2, 1), newest + 1)
        self.feed.revise({barrier: self.some() for barrier in range(first, newest + 1)})

    def release(self) -> None:
        deliveries = self.feed.deployment.meta.deliveries
        for sink in deliveries.of("shopping"):
            deliveries.release("shopping", sink.name, "test", "left out")

    def pause(self) -> None:
        deliveries = self.feed.deployment.meta.deliveries
        for sink in deliveries.of("shopping"):
            deliveries.pause("shopping", sink.name, "test", "moves")
            deliveries.resume("shopping", sink.name, "test", "again")


@pytest.mark.drawn("histories of sinks")
@pytest.mark.touches("sinks/ledger.py", "coordinator/delivering.py")
@pytest.mark.parametrize("where", ["postgresql", "files", "kafka"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_targets_come_to_what_the_tables_hold(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feed: Feed, where: str, seed: int
) -> None:
    outsides: Mapping[str, Callable[[], Outside]] = {
        "postgresql": lambda: in_postgresql(request.getfixturevalue("reporting")),
        "files": lambda: in_files(tmp_path / "out"),
        "kafka": lambda: in_kafka(request.getfixturevalue("kafka")),
    }
    History(feed, outsides[where](), Random(seed), monkeypatch).play()
