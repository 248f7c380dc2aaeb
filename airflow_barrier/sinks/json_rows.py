"""Rows of a barrier as JSON in logs, whose readers find whole barriers by what each message says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE, Counts
from airflow_barrier.protocol.errors import RowRefusedError, SinkRefusedError
from airflow_barrier.protocol.names import one_line
from airflow_barrier.sinks.json_values import NotJsonError, encoder, json_fault, plain_values, row_of
from airflow_barrier.sinks.port import Delivery, RowBatches

if TYPE_CHECKING:
    import pyarrow as pa

#: Decimals as texts: most who read JSON make a float of a number, and lose digits.
JSON = encoder("string")


def counted(ops: Mapping[str, int]) -> Counts:
    return Counts(ops.get(INSERT, 0), ops.get(UPDATE, 0), ops.get(DELETE, 0))


def key_of_rows(options: Mapping[str, Any], target: str) -> Sequence[str]:
    """The columns of the messages' key; none: they have none."""
    found: Mapping[str, Sequence[str]] = options["keys"]
    return found.get(target, ())


def check_columns(what: str, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
    """Raises SinkRefusedError for a table without its key, or with a column that JSON cannot hold."""
    if missing := sorted(set(key) - set(schema.names)):
        raise SinkRefusedError(
            f"{what}: table {table}: expected the columns of its key, found no {', '.join(missing)} among "
            f"{', '.join(schema.names)}; correct key=[...]"
        )
    for column in schema:
        fault = json_fault(column.type)
        if fault:
            raise SinkRefusedError(
                f"{what}: table {table}, column {column.name!a}: {fault}; deliver a table without it"
            )


def rows_of(where: str, rows: RowBatches, key: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row, ready for the encoder, after what became of it. Raises RowRefusedError, which ``where`` begins."""
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
            f"{named(key, row)}. Nothing of this barrier was delivered. Correct the row by a revision; then clear the "
            "task"
        ) from None


def _without_decimals(column: pa.Array) -> pa.Array:
    """Arrow makes the texts that the encoder would make of Python's decimals, and sooner than these."""
    import pyarrow as pa

    return column.cast(pa.string()) if pa.types.is_decimal(column.type) else column


def beginnings(topology: str, table: str, called: str, delivery: Delivery) -> dict[str, bytes]:
    """Return what messages of each kind of change say first: all but the row's number, which comes next.

    ``called``: what readers know the table by.
    """
    said = {
        "topology": topology,
        "table": called,
        "barrier": delivery.barrier_id,
        "revision": delivery.revision,
        "timestamp": delivery.timestamp.isoformat(),
        "of": sum(batch.num_rows for batch in delivery.tables[table]),
    }
    return {op: JSON.encode({**said, "op": op})[:-1] + b',"n":' for op in (INSERT, UPDATE, DELETE)}


def named(key: Sequence[str], row: Mapping[str, Any]) -> str:
    """The row for people: its key, or as much of it as they can look at."""
    columns = key or list(row)
    return one_line(", ".join(f"{column}={row[column]!r}" for column in columns))[:500]
