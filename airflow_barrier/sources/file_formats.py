"""Looking into landed files without Spark: is it what was declared, and which event times does it hold.

Nothing here reads more than a footer, a first line, or one column, and that one batch at a time.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from typing import Any

from airflow_barrier.sources.ddl import Column, fits

#: What a damaged file raises, from one library or another.
DAMAGED = (ValueError, KeyError, NotImplementedError, OSError, EOFError, zlib.error, lzma.LZMAError, csv.Error)
_BATCH = 64 * 1024


@dataclass(frozen=True)
class Layout:
    """How files are written: ``format`` is parquet, csv or json (an object a line), ``options`` are Spark's for CSV."""

    format: str
    columns: tuple[Column, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def header(self) -> bool:
        return bool(self.options.get("header", False))

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


@dataclass(frozen=True)
class Span:
    """The event times in a file, in UTC; both None if no record has one."""

    oldest: datetime | None
    newest: datetime | None


# --- schema ---------------------------------------------------------------------------------------


def mismatch(fs: Any, path: str, layout: Layout) -> str | None:
    """What is wrong with the file's schema, as "expected …, found …", or None. Raises :data:`DAMAGED`."""
    if layout.format == "parquet":
        return _parquet_mismatch(fs, path, layout.columns)
    if layout.format == "csv":
        return _csv_mismatch(fs, path, layout)
    return _json_mismatch(fs, path, layout)


def _parquet_mismatch(fs: Any, path: str, columns: Sequence[Column]) -> str | None:
    with _parquet(fs, path) as file:
        schema = file.schema_arrow
    there = {name: schema.field(name).type for name in schema.names}
    wrong = [
        f"column {column.name}: expected {column.type}, found {there[column.name]}"
        for column in columns
        if column.name in there and not fits(column.type, there[column.name])
    ]
    return "; ".join([*wrong, *_names_differ([column.name for column in columns], list(there))]) or None


def _csv_mismatch(fs: Any, path: str, layout: Layout) -> str | None:
    with _text(fs, path) as text:
        first = next(csv.reader(text, strict=True, **_csv_dialect(layout)), [])
    if layout.header:
        return None if first == layout.names else f"expected header {layout.names}, found {first}"
    if len(first) == len(layout.columns):
        return None
    return f"expected {len(layout.columns)} values a line, found {len(first)} in the first"


def _json_mismatch(fs: Any, path: str, layout: Layout) -> str | None:
    first = next(_json_records(fs, path), None)
    if not isinstance(first, dict):
        return f"expected an object on every line, found {type(first).__name__ if first is not None else 'no line'}"
    unknown = [name for name in first if name not in layout.names]
    return f"expected only {layout.names}, found {unknown} in the first line" if unknown else None


def _names_differ(declared: Sequence[str], there: Sequence[str]) -> list[str]:
    missing = [name for name in declared if name not in there]
    more = [name for name in there if name not in declared]
    parts = [f"expected column {', '.join(missing)}, found none of that name"] if missing else []
    return [*parts, f"found column {', '.join(more)}, which is not declared"] if more else parts


# --- event time -----------------------------------------------------------------------------------


def span(fs: Any, path: str, layout: Layout, column: str) -> Span:
    """Oldest and newest event time in the file: a Parquet footer knows, of other files the column is read.

    Raises :data:`DAMAGED`.
    """
    import pyarrow.compute as pc

    oldest: list[datetime] = []
    newest: list[datetime] = []
    for part in _parts(fs, path, layout, column):
        if part.span is not None:
            known = part.span
        else:
            bounds = pc.min_max(part.moments()).as_py()
            known = Span(bounds["min"], bounds["max"])
        oldest.extend([known.oldest] if known.oldest is not None else [])
        newest.extend([known.newest] if known.newest is not None else [])
    return Span(min(oldest, default=None), max(newest, default=None))


def count_late(fs: Any, path: str, layout: Layout, column: str, after: datetime) -> int:
    """How many records of the file have an event time up to ``after``. Raises :data:`DAMAGED`."""
    return _late(_parts(fs, path, layout, column), after)


def count_late_parquet(file: Any, column: str, after: datetime) -> int:
    """:func:`count_late` of a Parquet file that is open already."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as parquet:
        return _late(_parquet_parts(parquet, column), after)


def _late(parts: Iterator[_Part], after: datetime) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    late = 0
    for part in parts:
        if part.span is not None and part.span.oldest is not None and part.span.oldest > after:
            continue
        moments = part.moments()
        late += pc.sum(pc.less_equal(moments, pa.scalar(after, moments.type))).as_py() or 0
    return late


@dataclass(frozen=True)
class _Part:
    """A stretch of a file: what its statistics say, and how to read the column's values in it."""

    span: Span | None
    moments: Any  # Callable[[], pa.Array | pa.ChunkedArray]


def _parts(fs: Any, path: str, layout: Layout, column: str) -> Iterator[_Part]:
    if layout.format == "parquet":
        with _parquet(fs, path) as file:
            yield from _parquet_parts(file, column)
        return
    texts = _csv_texts(fs, path, layout, column) if layout.format == "csv" else _json_texts(fs, path, column)
    for batch in texts:
        yield _Part(None, lambda batch=batch: _moments(batch))


def _parquet_parts(file: Any, column: str) -> Iterator[_Part]:
    import pyarrow as pa
    import pyarrow.types as types

    position = file.schema_arrow.get_field_index(column)
    if position < 0 or not types.is_timestamp(file.schema_arrow.field(position).type):
        raise ValueError(f"expected event-time column {column} of a timestamp type, found {file.schema_arrow.names}")
    utc = pa.timestamp("us", "UTC")
    leaf = next(i for i in range(len(file.schema)) if file.schema.column(i).path == column)
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(leaf).statistics
        known = None
        if statistics is not None and statistics.has_min_max and isinstance(statistics.min, datetime):
            known = Span(_aware(statistics.min), _aware(statistics.max))
        yield _Part(known, lambda group=group: file.read_row_group(group, columns=[column]).column(0).cast(utc))


def _csv_texts(fs: Any, path: str, layout: Layout, column: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    dialect = _csv_dialect(layout)
    null = layout.options.get("nullValue", "")
    with fs.open(path, "rb", compression="infer") as file:
        reader = arrow_csv.open_csv(
            file,
            read_options=arrow_csv.ReadOptions(column_names=None if layout.header else layout.names),
            parse_options=arrow_csv.ParseOptions(
                delimiter=dialect["delimiter"],
                quote_char=dialect["quotechar"],
                escape_char=dialect["escapechar"],
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=[column],
                column_types={column: pa.string()},
                strings_can_be_null=True,
                null_values=[null],
            ),
        )
        for batch in reader:
            yield batch.column(0)


def _json_texts(fs: Any, path: str, column: str) -> Iterator[Any]:
    import pyarrow as pa

    texts = (_json_text(record, column) for record in _json_records(fs, path))
    while batch := list(islice(texts, _BATCH)):
        yield pa.array(batch, pa.string())


def _json_text(record: Any, column: str) -> str | None:
    if not isinstance(record, dict):
        raise ValueError(f"expected an object on every line, found {type(record).__name__}")
    text = record.get(column)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"expected {column} as ISO 8601 text, found {text!r}")
    return text


def _moments(texts: Any) -> Any:
    """ISO 8601 texts as UTC: with the zone they name, or UTC where they name none (so is Spark told to read them)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    utc = pa.timestamp("us", "UTC")
    texts = pc.utf8_trim_whitespace(texts)
    zoned = pc.match_substring_regex(texts, r"(Z|[+-]\d{2}:\d{2})$")
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, nothing).cast(utc)
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us")).cast(utc)
    return pc.coalesce(with_zone, without)


# --- opening --------------------------------------------------------------------------------------


@contextmanager
def _parquet(fs: Any, path: str) -> Iterator[Any]:
    import pyarrow.parquet as pq

    with fs.open(path, "rb") as raw, pq.ParquetFile(raw, coerce_int96_timestamp_unit="us") as file:
        yield file


@contextmanager
def _text(fs: Any, path: str) -> Iterator[io.TextIOWrapper]:
    with fs.open(path, "rb", compression="infer") as raw, io.TextIOWrapper(raw, "utf-8", newline="") as text:
        yield text


def _json_records(fs: Any, path: str) -> Iterator[Any]:
    with _text(fs, path) as text:
        yield from (json.loads(line) for line in text if line.strip())


def _csv_dialect(layout: Layout) -> dict[str, Any]:
    return {
        "delimiter": layout.options.get("delimiter", ","),
        "quotechar": layout.options.get("quote", '"'),
        "escapechar": layout.options.get("escape", "\\"),
    }


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
