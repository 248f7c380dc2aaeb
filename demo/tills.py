"""The tills: a producer that sends purchases to a topic in transactions, in the order in which they were made.

    python -m demo.tills BROKER UNTIL      # UNTIL: ISO time, by which the last one is sent

A part of its transactions it aborts on purpose, with wrong quantities in them, which nobody may ever count. Into some
it puts a line whose quantity is no number. What it committed, and at which offsets, becomes a line of JSON in
`sent.jsonl`: what has to be in the tables.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from demo.places import Places

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import KafkaError, Message, Producer

TOPIC = "purchases"
PARTITIONS = 2
#: lines in a transaction
_PARCEL = 60
#: each so-many-th transaction is aborted, and sent right afterwards
_ABORTED = 4
#: what is wrong in those: a purchase of so many
_WRONG = 1_000_000
#: each so-many-th transaction has one line more, whose quantity is this
_GARBLED, _NO_NUMBER = 7, "a dozen"
_TIMES = ("transaction_timestamp", "sent_at")


@dataclass(frozen=True)
class Sent:
    """What became of a transaction: whether it was committed, and its records' partitions, offsets and lines."""

    committed: bool
    records: Sequence[tuple[int, int, dict[str, Any]]]

    @property
    def text(self) -> str:
        records = [[partition, offset, to_json(line)] for partition, offset, line in self.records]
        return json.dumps({"committed": self.committed, "records": records})

    @classmethod
    def of(cls, text: str) -> Sent:
        said = json.loads(text)
        return cls(said["committed"], [(*place, from_json(line)) for *place, line in said["records"]])


def to_json(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line as it is sent: times in ISO 8601, money as text."""
    return {
        name: value.isoformat() if name in _TIMES else str(value) if isinstance(value, Decimal) else value
        for name, value in line.items()
    }


def from_json(line: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromisoformat(line[name]) for name in _TIMES}
    return {**line, **times, "sales_value": Decimal(line["sales_value"])}


def sent_file(places: Places) -> Path:
    return places.run / "sent.jsonl"


def sent(places: Places) -> list[Sent]:
    return [Sent.of(text) for text in sent_file(places).read_text().splitlines()]


def lines_before(sent: Iterable[Sent], ends: Mapping[str, int]) -> list[dict[str, Any]]:
    """The lines that were committed before these offsets (by partition)."""
    return [line for *_, line in _committed_before(sent, ends) if line["quantity"] != _NO_NUMBER]


def garbled_before(sent: Iterable[Sent], ends: Mapping[str, int]) -> set[tuple[int, int]]:
    """Partition and offset of each record before them that was committed and is no line."""
    return {
        (partition, offset)
        for partition, offset, line in _committed_before(sent, ends)
        if line["quantity"] == _NO_NUMBER
    }


def _committed_before(sent: Iterable[Sent], ends: Mapping[str, int]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for transaction in sent:
        if transaction.committed:
            yield from (record for record in transaction.records if record[1] < ends[str(record[0])])


def parcels(landing: Path) -> list[list[dict[str, Any]]]:
    """What landed, in the order in which it was sent, a transaction's lines each."""
    import pyarrow.parquet as pq

    files = sorted((landing / "shopping").rglob("*.parquet"))
    lines = [line for file in files for line in pq.read_table(file, partitioning=None).to_pylist()]
    lines.sort(key=lambda line: (line["sent_at"], line["basket_id"], line["product_id"]))
    return [lines[first : first + _PARCEL] for first in range(0, len(lines), _PARCEL)]


class Tills:
    """One transactional producer, which sends a transaction again as long as the broker says that it has none of it."""

    def __init__(self, broker: str) -> None:
        from confluent_kafka import Producer

        self._producer: Producer = Producer(
            {
                "bootstrap.servers": broker,
                "transactional.id": "tills",
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._retried(self._producer.init_transactions)

    def send(self, lines: Sequence[Mapping[str, Any]], *, abort: bool = False) -> Iterator[Sent]:
        """What became of each try; the last one was committed, or aborted as it was asked for."""
        from confluent_kafka import KafkaException

        while True:
            taken: list[tuple[int, int, dict[str, Any]]] = []
            self._producer.begin_transaction()
            try:
                self._produce(lines, taken)
                if not abort:
                    self._retried(self._producer.commit_transaction)
                    yield Sent(True, taken)
                    return
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
            self._retried(self._producer.abort_transaction)
            yield Sent(False, taken)
            if abort:
                return

    def _produce(self, lines: Sequence[Mapping[str, Any]], taken: list[tuple[int, int, dict[str, Any]]]) -> None:
        """Until the broker has all lines, so that what is aborted then is in the topic's log."""
        from confluent_kafka import KafkaException

        refused: list[KafkaError] = []
        for line in lines:

            def told(error: KafkaError | None, message: Message, line: Mapping[str, Any] = line) -> None:
                if error is not None:
                    refused.append(error)
                else:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    taken.append((partition, offset, dict(line)))

            key = str(line["basket_id"]).encode()
            self._producer.produce(TOPIC, json.dumps(to_json(line)).encode(), key, on_delivery=told)
        while self._producer.flush(1):
            pass
        if refused:
            raise KafkaException(refused[0])

    @staticmethod
    def _retried(step: Any) -> None:
        """Broker away: the same step again says what became of it."""
        from confluent_kafka import KafkaException

        while True:
            try:
                return step()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                time.sleep(0.2)


def main(broker: str, until: datetime) -> None:
    places = Places()
    waiting, tills = parcels(places.landing), Tills(broker)
    began, seconds = time.monotonic(), (until - datetime.now(timezone.utc)).total_seconds()
    with sent_file(places).open("a", buffering=1) as file:
        for number, lines in enumerate(waiting):
            time.sleep(max(0.0, began + seconds * number / len(waiting) - time.monotonic()))
            tries: list[Sent] = []
            if number % _ABORTED == _ABORTED - 1:
                tries += tills.send([{**line, "quantity": _WRONG} for line in lines], abort=True)
            garbled = [{**lines[0], "quantity": _NO_NUMBER}] if number % _GARBLED == 0 else []
            tries += tills.send([*lines, *garbled])
            file.writelines(f"{each.text}\n" for each in tries)


if __name__ == "__main__":
    main(sys.argv[1], datetime.fromisoformat(sys.argv[2]))
