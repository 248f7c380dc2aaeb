"""Rows as records of a topic: JSON, a key, and a header by which a reader finds whole barriers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE, Counts
from airflow_barrier.protocol.errors import RowRefusedError
from airflow_barrier.protocol.names import one_line
from airflow_barrier.sinks.json_values import NotJsonError, encoder, plain_values, row_of
from airflow_barrier.sinks.kafka.topics import Topic
from airflow_barrier.sinks.port import Delivery, RowBatches

if TYPE_CHECKING:
    import pyarrow as pa

#: Decimals as texts: most who read JSON make a float of a number, and lose digits.
_JSON = encoder("string")
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
    beginnings = _beginnings(topology, table, delivery)
    largest = topic.largest
    where = f"{what}: expected topic {topic.name} to take every row of {delivery.position} of {table}"
    for n, (op, row) in enumerate(_rows(where, rows, key), 1):
        said = b"%b%d}" % (beginnings[op], n)
        encoded_key = _JSON.encode({column: row[column] for column in key}) if key else None
        value = None if op == DELETE else _JSON.encode(row)
        size = _AROUND + len(said) + len(encoded_key or b"") + len(value or b"")
        if size > largest:
            raise RowRefusedError(  # safety: row-fits-topic
                f"{where}, found one of {size} bytes, in the row with {_named(key, row)}, where max.message.bytes is "
                f"{largest}. Nothing of this barrier was delivered. Raise the topic's max.message.bytes, or "
                "correct the row by a revision; then clear the task"
            )
        partition = _BY_KEY if key else (n - 1) % topic.partitions
        yield op, (value, encoded_key, partition, [(_HEADER, said)])


def counted(ops: Mapping[str, int]) -> Counts:
    return Counts(ops.get(INSERT, 0), ops.get(UPDATE, 0), ops.get(DELETE, 0))


def key_of_rows(options: Mapping[str, Any], target: str) -> Sequence[str]:
    """The columns of the records' key; none: records have none."""
    found: Mapping[str, Sequence[str]] = options["keys"]
    return found.get(target, ())


def _rows(where: str, rows: RowBatches, key: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for batch in rows:
        ops = batch.column(CHANGE).to_pylist() if CHANGE in batch.schema.names else [INSERT] * batch.num_rows
        names = [name for name in batch.schema.names if name != CHANGE]
        columns = [_values(where, batch, name, key) for name in names]
        yield from zip(ops, map(dict, map(zip, repeat(names), zip(*columns, strict=True))), strict=True)


def _values(where: str, batch: pa.RecordBatch, name: str, key: Sequence[str]) -> list[Any]:
    try:
        return plain_values(_without_decimals(batch.column(name)))
    except NotJsonError as error:
        row = row_of(batch, error.number)
        raise RowRefusedError(
            f"{where}, found {error.found} in column {name}, which JSON cannot hold, in the row with "
            f"{_named(key, row)}. Nothing of this barrier was delivered. Correct the row by a revision; then clear the "
            "task"
        ) from None


def _without_decimals(column: pa.Array) -> pa.Array:
    """Arrow makes the texts that the encoder would make of Python's decimals, and sooner than these."""
    import pyarrow as pa

    return column.cast(pa.string()) if pa.types.is_decimal(column.type) else column


def _beginnings(topology: str, table: str, delivery: Delivery) -> dict[str, bytes]:
    """Return the beginning of the header for each kind of change: all but the row's number, which ends it."""
    said = {
        "topology": topology,
        "table": table,
        "barrier": delivery.barrier_id,
        "revision": delivery.revision,
        "timestamp": delivery.timestamp.isoformat(),
        "of": sum(batch.num_rows for batch in delivery.tables[table]),
    }
    return {op: _JSON.encode({**said, "op": op})[:-1] + b',"n":' for op in (INSERT, UPDATE, DELETE)}


def _named(key: Sequence[str], row: Mapping[str, Any]) -> str:
    """The row for people: its key, or as much of it as they can look at."""
    columns = key or list(row)
    return one_line(", ".join(f"{column}={row[column]!r}" for column in columns))[:500]
