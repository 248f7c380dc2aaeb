"""The topic of averages as a plain consumer has it, that reads what is committed and knows the records' header."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from demo.oracle import compare
from demo.reports import Delivered

if TYPE_CHECKING:
    from confluent_kafka import Message

    from demo.reports import Expected

#: Of one partition, so that a barrier's records stand together, and become readable together.
TOPIC = "averages"
#: Seconds until a read gives up: the broker is away.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Followed:
    """What a reader had when it came to the topic's end. ``pending``: records of a barrier that was not whole."""

    barriers: int
    pending: int

    @property
    def empty(self) -> bool:
        return not self.barriers

    @property
    def torn(self) -> bool:
        return self.pending > 0


@dataclass
class Applied:
    """The rows at each barrier, by its number; ``faults`` says which records are missing or there twice."""

    rows: dict[tuple[Any, Any], tuple[Any, ...]] = field(default_factory=dict)
    at: dict[int, Counter[tuple[Any, ...]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _pending: list[Message] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return len(self._pending)

    def add(self, message: Message) -> None:
        """Apply a barrier once all of its records are there: its header's `n` and `of` tell."""
        said = _header(message)
        barrier, n, of = said["barrier"], said["n"], said["of"]
        before = _header(self._pending[-1])["barrier"] if self._pending else barrier
        if n != self.pending + 1 or before != barrier or barrier in self.at:
            self.faults.append(f"record {n} of {of} of barrier {barrier} after {self.pending} of {before}")
        self._pending.append(message)
        if n == of:
            for each in self._pending:
                self._apply(each)
            self._pending.clear()
            self.at[barrier] = Counter(self.rows.values())

    def _apply(self, message: Message) -> None:
        key = json.loads(message.key() or b"{}")
        pair = key["userId"], key["itemId"]
        value = message.value()
        if value is None:
            self.rows.pop(pair, None)
        else:
            average = json.loads(value)["avgPrice"]
            self.rows[pair] = (*pair, None if average is None else Decimal(average))


class Follower:
    """Reads the topic from its beginning on, and goes on from where it was. ``read`` is one look."""

    def __init__(self, broker: str) -> None:
        self.applied = Applied()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._next = OFFSET_BEGINNING

    def read(self) -> Followed | None:
        """Up to what is the topic's end by now; None: the broker did not say in time."""
        deadline = time.monotonic() + _PATIENCE
        self._consumer.assign([TopicPartition(TOPIC, 0, self._next)])  # or the end would be told only once
        while time.monotonic() < deadline:
            message = self._consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.applied.add(message)
                offset = message.offset()
                assert offset is not None
                self._next = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                return Followed(len(self.applied.at), self.applied.pending)
        return None

    def close(self) -> None:
        self._consumer.close()


def check_topic(broker: str, expected: Expected) -> Delivered:
    """Compare the averages by the topic, read anew, with what they must be at each of these barriers."""
    follower = Follower(broker)
    try:
        end = follower.read()
    finally:
        follower.close()
    applied = follower.applied
    differences = [*applied.faults]
    if end is None or end.torn:
        differences.append(f"the topic ends with {applied.pending} records of a barrier that is not whole")
    rows = 0
    found: Counter[tuple[Any, ...]] = Counter()
    for barrier, tables in expected:
        found = applied.at.get(barrier.barrier_id, found)  # a barrier that changed nothing has no records
        rows += found.total()
        if difference := compare(TOPIC, tables["user_item_avg_price"], found):
            differences.append(f"topic up to {barrier}: {difference}")
    return Delivered(f"topic {TOPIC}", rows, tuple(differences))


def _header(message: Message) -> dict[str, Any]:
    """What the sink says of the record."""
    headers: dict[str, Any] = dict(message.headers() or [])
    said: dict[str, Any] = json.loads(headers["airflow-barrier"])
    return said
