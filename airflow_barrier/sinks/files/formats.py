"""Rows as bytes of a file: Parquet, CSV, JSON lines. What a format cannot hold exactly is refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from airflow_barrier.protocol.errors import RowRefusedError
from airflow_barrier.protocol.names import one_line
from airflow_barrier.sinks.json_values import NotJsonError, encoder, json_fault, plain_values, row_of

if TYPE_CHECKING:
    import pyarrow as pa


class Encoder(Protocol):
    """Writes one file."""

    def write(self, rows: pa.Table) -> None:
        """Raises RowRefusedError for a row with something that the format cannot hold."""
        ...

    def close(self) -> None: ...


class _Parquet:
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(stream, schema, compression="zstd")

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        from pyarrow import csv

        self._writer = csv.CSVWriter(stream, schema)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, stream: BinaryIO, schema: pa.Schema) -> None:
        self._stream = stream
        # Decimals as texts: most who read JSON make a float of a number, and lose digits.
        self._encoder = encoder("string")

    def write(self, rows: pa.Table) -> None:
        for batch in rows.to_batches(max_chunksize=4096):
            columns = [self._values(batch, name) for name in batch.schema.names]
            lines = [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
            self._stream.write(self._encoder.encode_lines(lines))

    def close(self) -> None:
        """Its last line is written."""

    @staticmethod
    def _values(rows: pa.RecordBatch, name: str) -> list[Any]:
        try:
            return plain_values(rows.column(name))
        except NotJsonError as error:
            odd = row_of(rows, error.number)
            raise RowRefusedError(
                f"column {name}: expected values that JSON can hold, found {error.found}, in the row "
                f"{one_line(str(odd))[:500]}; correct it in the table, or deliver another format"
            ) from None


_ENCODERS: dict[str, Callable[[BinaryIO, pa.Schema], Encoder]] = {"parquet": _Parquet, "csv": _Csv, "jsonl": _JsonLines}


@contextmanager
def encoder_of(format_: str, stream: BinaryIO, schema: pa.Schema) -> Iterator[Encoder]:
    """The file is complete once the block has ended; the stream stays open."""
    encoder = _ENCODERS[format_](stream, schema)
    try:
        yield encoder
    except BaseException:
        with suppress(Exception):  # or pyarrow does so some time later, on a stream that is closed
            encoder.close()
        raise
    encoder.close()


def column_fault(format_: str, column: pa.Field) -> str | None:
    """Return why files of that format cannot hold the column; None: they can."""
    import pyarrow as pa

    if format_ == "jsonl" and (fault := json_fault(column.type)) is not None:
        return fault
    if format_ == "csv" and _is_binary(column.type):
        return f"expected text, numbers or times in CSV, found {column.type}, which need not be UTF-8"
    schema = pa.schema([column.with_nullable(True)])
    try:
        with encoder_of(format_, io.BytesIO(), schema) as encoder:
            encoder.write(pa.table([pa.nulls(1, column.type)], schema=schema))
    except (NotImplementedError, ValueError, TypeError) as error:  # of pyarrow, each
        return f"expected a type that {format_} can hold, found {column.type} ({error})"
    return None


def _is_binary(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))
