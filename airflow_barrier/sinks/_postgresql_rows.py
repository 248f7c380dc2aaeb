"""Arrow batches as what COPY reads, and which row it is that the server refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.deliveries import CHANGE, DELETE
from airflow_barrier.sinks.port import RowBatches

if TYPE_CHECKING:
    import pyarrow as pa


def csv_of(batch: pa.RecordBatch) -> memoryview:
    """Rows as CSV: NULL is nothing, the empty string is quoted, bytes are PostgreSQL's hexadecimal form."""
    import pyarrow as pa
    from pyarrow import csv

    columns = [
        _text(column) if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) else column
        for column in batch.columns
    ]
    text = pa.BufferOutputStream()
    csv.write_csv(
        pa.RecordBatch.from_arrays(columns, names=batch.schema.names),
        text,
        csv.WriteOptions(include_header=False, quoting_style="needed", batch_size=max(batch.num_rows, 1)),
    )
    return memoryview(text.getvalue())


def _text(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())


def has_rows(rows: RowBatches) -> bool:
    return any(batch.num_rows for batch in rows)


def find_refused(rows: RowBatches, is_refused: Callable[[pa.RecordBatch], bool]) -> dict[str, Any] | None:
    """The first row, by its columns, that is refused by itself; None: none is."""
    for batch in rows:
        if CHANGE in batch.schema.names:  # of a row that goes only the key is there
            import pyarrow.compute as pc

            batch = batch.filter(pc.not_equal(batch.column(CHANGE), DELETE)).drop_columns([CHANGE])
        if batch.num_rows and is_refused(batch):
            while batch.num_rows > 1:
                half = batch.slice(0, batch.num_rows // 2)
                batch = half if is_refused(half) else batch.slice(half.num_rows)
            row: dict[str, Any] = batch.to_pylist()[0]
            return row
    return None


def named(columns: Sequence[str], values: Sequence[Any]) -> str:
    """A key for people: ``userId=7, itemId='a'``."""
    return ", ".join(f"{column}={value!r}" for column, value in zip(columns, values, strict=True))
