"""Arrow batches as what COPY reads, and which row it is that the server refuses."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import TYPE_CHECKING, Any

from psycopg import errors

from airflow_barrier.protocol.deliveries import CHANGE
from airflow_barrier.sinks.json_values import NotJsonError, encoder, plain_values, python_values, row_of
from airflow_barrier.sinks.port import RowBatches

if TYPE_CHECKING:
    import pyarrow as pa

#: `jsonb` keeps each digit of a number.
_JSON = encoder("number")


def csv_of(batch: pa.RecordBatch, arrays: Container[str]) -> memoryview:
    """Rows as CSV: NULL is nothing, the empty string is quoted, bytes are PostgreSQL's hexadecimal form.

    Structs, lists and maps are JSON, but lists in columns that are ``arrays`` PostgreSQL's arrays. Raises DataError, as
    the server does, for what it cannot hold.
    """
    import pyarrow as pa
    from pyarrow import csv

    columns = [_column(name, batch.column(name), name in arrays) for name in batch.schema.names]
    text = pa.BufferOutputStream()
    csv.write_csv(
        pa.RecordBatch.from_arrays(columns, names=batch.schema.names),
        text,
        csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=max(batch.num_rows, 1)),
    )
    return memoryview(text.getvalue())


def _column(name: str, column: pa.Array, is_array: bool) -> pa.Array:
    from pyarrow import types

    try:
        if is_array:
            return _texts(python_values(column), _array)
        if types.is_nested(column.type):
            return _texts(plain_values(column), lambda value: _JSON.encode(value).decode())
    except NotJsonError as error:
        holder = "an array" if is_array else "JSON"
        raise errors.DataError(f"column {name}: {holder} cannot hold {error.found}") from None
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return _texts(column.to_pylist(), _element)
    return column


def _texts(values: Sequence[Any], text: Callable[[Any], str]) -> pa.Array:
    import pyarrow as pa

    return pa.array([None if value is None else text(value) for value in values], pa.string())


def _array(values: Sequence[Any]) -> str:
    """A list as PostgreSQL reads an array."""
    return f"{{{','.join('NULL' if value is None else _quoted(_element(value)) for value in values)}}}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _element(value: Any) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def columns_of(rows: RowBatches) -> pa.Schema:
    """The table's columns, without what becomes of each row."""
    import pyarrow as pa

    return pa.schema([column for column in rows.schema if column.name != CHANGE])


def has_rows(rows: RowBatches) -> bool:
    return any(batch.num_rows for batch in rows)


@dataclass(frozen=True)
class Part:
    """:class:`~airflow_barrier.sinks.port.RowBatches` of one batch."""

    batch: pa.RecordBatch

    @property
    def schema(self) -> pa.Schema:
        return self.batch.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield self.batch


def find_refused(rows: RowBatches, is_refused: Callable[[pa.RecordBatch], bool]) -> dict[str, Any] | None:
    """The first row, by its columns, that is refused by itself; None: none is."""
    for batch in rows:
        while batch.num_rows > 1:
            middle = batch.num_rows // 2
            batch = next(filter(is_refused, (batch.slice(0, middle), batch.slice(middle))), batch.slice(0, 0))
        if batch.num_rows and is_refused(batch):
            return row_of(batch, 0)
    return None


def left_out() -> errors.DataError:
    """The error that stands for one of the server's, which says nothing of rows that it takes and does not keep."""
    return errors.DataError("a trigger or rule of the target left it out")


def named(columns: Sequence[str], values: Sequence[Any]) -> str:
    """A key for people: ``userId=7, itemId='a'``."""
    return ", ".join(f"{column}={value!r}" for column, value in zip(columns, values, strict=True))
