"""Rows as records of a topic: JSON, a key, and a header by which a reader finds whole barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_barrier.protocol.deliveries import DELETE
from airflow_barrier.protocol.errors import RowRefusedError
from airflow_barrier.sinks.json_rows import JSON, beginnings, named, rows_of
from airflow_barrier.sinks.kafka.topics import Topic
from airflow_barrier.sinks.port import Delivery

_HEADER = "airflow-barrier"
#: Bytes that a batch of one record has at most beside its key, its value and what its header says.
_AROUND = 210 + len(_HEADER)
#: The partition of records that go where their key leads.
_BY_KEY = -1
Headers = list[tuple[str, "str | bytes | None"]]
#: A record, as the client takes it: its value, key, partition and headers.
Produced = tuple["bytes | None", "bytes | None", int, Headers]


def records_of(
    what: str, topology: str, table: str, topic: Topic, key: Sequence[str], delivery: Delivery
) -> Iterator[tuple[str, Produced]]:
    """Each row's record after what became of the row. Raises RowRefusedError for one that Kafka or JSON cannot hold."""
    rows = delivery.tables[table]
    said_first = beginnings(topology, table, table, delivery)
    largest = topic.largest
    where = f"{what}: expected topic {topic.name} to take every row of {delivery.position} of {table}"
    for n, (op, row) in enumerate(rows_of(where, rows, key), 1):
        said = b"%b%d}" % (said_first[op], n)
        encoded_key = JSON.encode({column: row[column] for column in key}) if key else None
        value = None if op == DELETE else JSON.encode(row)
        size = _AROUND + len(said) + len(encoded_key or b"") + len(value or b"")
        if size > largest:
            raise RowRefusedError(  # safety: row-fits-topic
                f"{where}, found one of {size} bytes, in the row with {named(key, row)}, where max.message.bytes is "
                f"{largest}. Nothing of this barrier was delivered. Raise the topic's max.message.bytes, or "
                "correct the row by a revision; then clear the task"
            )
        partition = _BY_KEY if key else (n - 1) % topic.partitions
        yield op, (value, encoded_key, partition, [(_HEADER, said)])
