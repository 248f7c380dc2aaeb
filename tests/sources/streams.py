"""Streams of Pravega that are read, and what their cuts have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pyarrow import parquet

from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.pravega import Pravega
from tests.support.pravega import SCOPE
from tests.support.pravega import Pravega as Server

Event = tuple[str, bytes]


def source_of(server: Server, stream: str, **settings: Any) -> Pravega:
    settings = {"schema": "n BIGINT", **settings}
    return Pravega(stream, SCOPE, "pravega", "events", **settings).within(Limits(), server.credentials)


def numbered(numbers: Iterable[int], keys: int = 7) -> list[Event]:
    """Events with these numbers, of so many routing keys, which are in the events, too."""
    return [(f"key-{n % keys}", f"{n % keys}:{n}".encode()) for n in numbers]


def taken(cut: Cut) -> list[tuple[int, str, int]]:
    """The events of a cut: the event's number among all of the source, its routing key and its own number."""
    found = []
    for file in cut.end["files"]:
        table = parquet.read_table(file["uri"])
        assert table.num_rows == file["rows"]
        for row in table.to_pylist():
            key, _, number = row["value"].decode().partition(":")
            found.append((row["seq"], key, int(number)))
    return sorted(found)


def numbers_of(cuts: Iterable[Cut]) -> list[int]:
    """The numbers of all events of the cuts, once it is seen that those of each key are in order, and none is there
    twice, and that the cuts number them one after the other.
    """
    events = [event for cut in cuts for event in taken(cut)]
    assert [seq for seq, _, _ in events] == list(range(1, len(events) + 1))
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for _, key, number in events:
        by_key[key].append(number)
    for key, numbers in by_key.items():
        assert numbers == sorted(set(numbers)), f"key {key}"
    return sorted(number for _, _, number in events)
