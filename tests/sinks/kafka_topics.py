"""Where tables are delivered to in Kafka in tests, and what readers find there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import uuid4

from confluent_kafka import IsolationLevel, Message, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.sinks.kafka import KafkaSink, client
from airflow_barrier.sinks.port import Channel
from tests.sinks.behaviour import AMOUNTS, CHANGES, PRICES, TABLES, applied, catch_up
from tests.support.kafka import Kafka, Reader
from tests.support.waiting import patience, wait_for

#: What the sink is made of.
FILES = tuple(f"sinks/kafka/{name}.py" for name in ("channel", "client", "ledger", "records", "topics"))
_VALUES: dict[str, Callable[[Any], Any]] = {"price": Decimal, "at": datetime.fromisoformat}


@dataclass(frozen=True)
class Topics:
    """Two topics, and a ledger that is not there at first."""

    rows: ClassVar = (Rows.CHANGES, Rows.APPENDS)

    address: str
    prices: str
    amounts: str
    ledger: str

    @classmethod
    def make(cls, broker: Kafka, partitions: int = 2, **config: str) -> Topics:
        prices, amounts = (broker.topic(partitions, **config) for _ in range(2))
        return cls(broker.address, prices, amounts, f"ledger-{uuid4().hex}")

    @property
    def credentials(self) -> Credentials:
        return Credentials("kafka_default", extra={"bootstrap.servers": self.address})

    @property
    def targets(self) -> dict[str, str]:
        return {PRICES: self.prices, AMOUNTS: self.amounts}

    def sink(self, rows: Rows = Rows.CHANGES, key: str = "id", **settings: Any) -> KafkaSink:
        keys = [key] if rows is Rows.CHANGES else ()
        return KafkaSink(**{"name": "out", "key": keys, "ledger": self.ledger, **settings})

    def channel(
        self,
        rows: Rows = Rows.CHANGES,
        tables: Sequence[str] = TABLES,
        key: str = "id",
        credentials: Credentials | None = None,
        **settings: Any,
    ) -> Channel:
        sink, targets = self.sink(rows, key, **settings), {table: self.targets[table] for table in tables}
        return sink.connect(sink.declare(targets, rows, "dag"), credentials or self.credentials)

    def contents(self, table: str, rows: Rows) -> list[dict[str, Any]]:
        barriers: dict[tuple[int, int], list[Message]] = {}
        for message in Reader(self.address).records(self.targets[table]):
            said = header_of(message)
            barriers.setdefault((said["barrier"], said["revision"]), []).append(message)
        in_order = [sorted(barriers[at], key=lambda message: header_of(message)["n"]) for at in sorted(barriers)]
        for messages in in_order:
            told = [(header_of(message)["n"], header_of(message)["of"]) for message in messages]
            assert told == [(n, len(messages)) for n in range(1, len(messages) + 1)]
        if rows is Rows.APPENDS:
            return [row_of(message) for messages in in_order for message in messages]
        return applied([(header_of(message)["op"], row_of(message)) for message in messages] for messages in in_order)

    def left_over(self) -> list[str]:
        """Nothing, once no transaction is open: an ended one's marks come a moment after its producer has been told."""
        wait_for(f"the transactions of {self.prices} and {self.amounts} to end", lambda: not self._open())
        return []

    def _open(self) -> list[str]:
        """Partitions in which a transaction is open."""
        admin = Reader(self.address).admin()
        partitions = [TopicPartition(topic, n) for topic in self.targets.values() for n in range(2)]
        ends = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            asked = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()), isolation_level=isolation)
            ends.append({(each.topic, each.partition): asked[each].result(patience()).offset for each in partitions})
        return [str(place) for place, end in ends[0].items() if end != ends[1][place]]

    def forge(self, entry: str, value: object) -> None:
        newest = Reader(self.address).records(self.ledger)[-1]
        said = {**json.loads(newest.value() or b""), entry: value}
        producer = Producer({"bootstrap.servers": self.address})
        producer.produce(self.ledger, json.dumps(said), newest.key())
        assert producer.flush(patience()) == 0, "the broker takes no records"

    def watch(self, tell: Callable[[str], None]) -> None:
        original = client.call

        def call(name: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            tell(f"before {name}")
            return original(name, ask, *arguments, **options)

        client.call = call


def prepared(place: Topics, steps: int = 2) -> Topics:
    """The place, when so many of the suite's changes were delivered there."""
    with place.channel() as channel:
        catch_up(channel, Rows.CHANGES, CHANGES[:steps])
    return place


def header_of(message: Message) -> dict[str, Any]:
    """What the record's one header says."""
    ((name, value),) = message.headers() or []
    assert name == "airflow-barrier"
    assert value is not None
    said: dict[str, Any] = json.loads(value)
    return said


def row_of(message: Message) -> dict[str, Any]:
    value = message.value()
    row: dict[str, Any] = json.loads(value if value is not None else message.key() or b"")
    return {name: _VALUES.get(name, lambda same: same)(found) for name, found in row.items()}
