"""Rows as bytes of a file: Parquet, CSV, JSON lines. What a format cannot hold exactly is refused."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import msgspec

from airflow_barrier.protocol.errors import RowRefusedError
from airflow_barrier.protocol.names import one_line

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
        self._encoder = msgspec.json.Encoder(decimal_format="string")

    def write(self, rows: pa.Table) -> None:
        for name in rows.column_names:
            if any(map(_has_no_number, _floats(rows[name].combine_chunks()))):
                odd = next(row for row in rows.to_pylist() if _is_no_number(row[name]))
                raise RowRefusedError(  # safety: nothing-lost-in-json
                    f"column {name}: expected numbers, found a NaN or an infinity, which JSON cannot hold, in the row "
                    f"{one_line(str(odd))[:500]}; correct it in the table, or deliver another format"
                )
        for batch in rows.to_batches(max_chunksize=4096):
            self._stream.write(self._encoder.encode_lines(batch.to_pylist()))

    def close(self) -> None:
        """Its last line is written."""


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
    """Why files of that format cannot hold the column; None: they can."""
    import pyarrow as pa

    if format_ == "jsonl" and (odd := next(filter(_is_not_json, _within(column.type)), None)) is not None:
        return f"expected a type that JSON can hold exactly, found {odd}"
    if format_ == "csv" and _is_binary(column.type):
        return f"expected text, numbers or times in CSV, found {column.type}, which need not be UTF-8"
    schema = pa.schema([column.with_nullable(True)])
    try:
        with encoder_of(format_, io.BytesIO(), schema) as encoder:
            encoder.write(pa.table([pa.nulls(1, column.type)], schema=schema))
    except (NotImplementedError, ValueError, TypeError) as error:  # of pyarrow, each
        return f"expected a type that {format_} can hold, found {column.type} ({error})"
    return None


def _is_not_json(kind: pa.DataType) -> bool:
    from pyarrow import types

    # Of nanoseconds Python's times lose the last digits, and a map's keys need not be texts.
    timed = types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind)
    return bool(types.is_map(kind) or (timed and kind.unit == "ns"))


def _is_binary(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _within(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for number in range(kind.num_fields):
        yield from _within(kind.field(number).type)


def _floats(column: pa.Array) -> Iterator[pa.Array]:
    """The floating-point numbers in a column, however deep."""
    from pyarrow import types

    if types.is_floating(column.type):
        yield column
    elif types.is_struct(column.type):
        for field in column.flatten():
            yield from _floats(field)
    elif types.is_list(column.type) or types.is_large_list(column.type):
        yield from _floats(column.flatten())


def _has_no_number(floats: pa.Array) -> bool:
    from pyarrow import compute as pc

    return bool(pc.any(pc.invert(pc.is_finite(floats))).as_py())


def _is_no_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_no_number, value.values()))
    if isinstance(value, list):
        return any(map(_is_no_number, value))
    return isinstance(value, float) and not math.isfinite(value)
