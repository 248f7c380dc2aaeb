"""Rows as records of a topic: JSON, a key, and headers by which a reader finds whole barriers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE, Counts
from airflow_barrier.protocol.errors import RowRefusedError
from airflow_barrier.protocol.names import one_line
from airflow_barrier.sinks._json_values import NotJsonError, encoder, plain_values, row_of
from airflow_barrier.sinks._kafka_topics import Topic
from airflow_barrier.sinks.port import Delivery, RowBatches

if TYPE_CHECKING:
    import pyarrow as pa

#: Decimals as texts: most who read JSON make a float of a number, and lose digits.
_JSON = encoder("string")
_PREFIX = "airflow-barrier."
_OP, _NUMBER = f"{_PREFIX}op", f"{_PREFIX}n"
#: Bytes that a batch of one record has at most beside its key, value and headers.
_AROUND, _AROUND_HEADER = 200, 10
#: The partition of records that go where their key leads.
_BY_KEY = -1
Headers = list[tuple[str, "str | bytes | None"]]


@dataclass(frozen=True)
class Produced:
    """A record, as the client takes it."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int
    op: str


def records_of(
    what: str, topology: str, table: str, topic: Topic, key: Sequence[str], delivery: Delivery
) -> Iterator[Produced]:
    """One record a row, in the order of the rows. Raises RowRefusedError for one that Kafka or JSON cannot hold."""
    rows = delivery.tables[table]
    of = sum(batch.num_rows for batch in rows)
    fixed = _headers(
        topology=topology,
        table=table,
        barrier=delivery.barrier_id,
        revision=delivery.revision,
        timestamp=delivery.timestamp.isoformat(),
        of=of,
    )
    around = _AROUND + _size(fixed)
    where = f"{what}: expected topic {topic.name} to take every row of {delivery.position} of {table}"
    for n, (op, row) in enumerate(_rows(where, rows, key), 1):
        own: Headers = [(_OP, op.encode()), (_NUMBER, b"%d" % n)]
        record = Produced(
            _JSON.encode({column: row[column] for column in key}) if key else None,
            None if op == DELETE else _JSON.encode(row),
            [*fixed, *own],
            _BY_KEY if key else (n - 1) % topic.partitions,
            op,
        )
        size = around + _size(own) + len(record.key or b"") + len(record.value or b"")
        if size > topic.largest:
            raise RowRefusedError(  # safety: row-fits-topic
                f"{where}, found one of {size} bytes, in the row with {_named(key, row)}, where max.message.bytes is "
                f"{topic.largest}. Nothing of this barrier was delivered. Raise the topic's max.message.bytes, or "
                "correct the row by a revision; then clear the task"
            )
        yield record


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
        for op, values in zip(ops, zip(*columns, strict=True), strict=True):
            yield op, dict(zip(names, values, strict=True))


def _values(where: str, batch: pa.RecordBatch, name: str, key: Sequence[str]) -> list[Any]:
    try:
        return plain_values(batch.column(name))
    except NotJsonError as error:
        row = row_of(batch, error.number)
        raise RowRefusedError(
            f"{where}, found {error.found} in column {name}, which JSON cannot hold, in the row with "
            f"{_named(key, row)}. Nothing of this barrier was delivered. Correct the row by a revision; then clear the "
            "task"
        ) from None


def _headers(**said: object) -> Headers:
    return [(f"{_PREFIX}{name}", str(value).encode()) for name, value in said.items()]


def _size(headers: Headers) -> int:
    size = len(headers) * _AROUND_HEADER
    for name, value in headers:
        size += len(name) + len(value or b"")
    return size


def _named(key: Sequence[str], row: Mapping[str, Any]) -> str:
    """The row for people: its key, or as much of it as they can look at."""
    columns = key or list(row)
    return one_line(", ".join(f"{column}={row[column]!r}" for column in columns))[:500]
