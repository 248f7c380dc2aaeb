"""Looking into landed files without Spark: is it what was declared, and which event times does it hold.

Nothing here reads more than a footer, a first line, or one column, and that one batch at a time. What a damaged file
raises comes from one library or another, and may quote the file: :func:`.bounded.fault` says what may be said of it.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.ddl import INTEGERS, Column, SparkType
from airflow_barrier.sources import bounded
from airflow_barrier.sources.bounded import Limits, UnfitFileError
from airflow_barrier.sources.text.csv_dialect import CsvDialect

if TYPE_CHECKING:
    import pyarrow as pa

#: The first and the last moment that Python knows, which no barrier is beyond. Spark knows others.
YEARS = (datetime.min.replace(tzinfo=timezone.utc), datetime.max.replace(tzinfo=timezone.utc))
# positions of a first line that are spelled out
_MOST_VALUES = 50


@dataclass(frozen=True)
class Layout:
    """The way that files are written: ``format`` is parquet, csv or json (an object a line), ``dialect`` is that of
    CSV.

    ``limits``: up to which they are read.
    """

    format: str
    columns: tuple[Column, ...]
    dialect: CsvDialect = field(default_factory=CsvDialect)
    limits: Limits = field(default_factory=Limits)

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
    """Return what is wrong with the file's schema, as "expected …, found …", or None. Raises what a damaged file
    raises.
    """
    if layout.format == "parquet":
        return _parquet_mismatch(fs, path, layout.columns)
    if layout.format == "csv":
        return _csv_mismatch(fs, path, layout)
    return _json_mismatch(fs, path, layout)


def _parquet_mismatch(fs: Any, path: str, columns: Sequence[Column]) -> str | None:
    with bounded.parquet(fs, path) as file:
        schema = file.schema_arrow
    there = {name: schema.field(name).type for name in schema.names}
    wrong = [
        f"column {column.name}: expected {column.type}, found {bounded.shortened(str(there[column.name]))}"
        for column in columns
        if column.name in there and not _fits(column.type, there[column.name])
    ]
    return "; ".join([*wrong, *_names_differ([column.name for column in columns], list(there))]) or None


def _fits(declared: SparkType, found: pa.DataType) -> bool:
    """Return whether Spark reads a Parquet column of arrow type ``found`` as ``declared`` and every value stays what
    it is.

    Narrower integers, floats and decimals fit wider ones. Nanoseconds do not: Spark refuses them.
    """
    import pyarrow.types as types

    if types.is_dictionary(found):
        found = found.value_type
    name = declared.name
    if name in INTEGERS:
        width = INTEGERS[name] - types.is_unsigned_integer(found)
        return bool(types.is_integer(found) and found.bit_width <= width)
    if name == "DECIMAL":
        precision, scale = declared.numbers
        return bool(types.is_decimal(found) and found.scale == scale and found.precision <= precision)
    if name == "TIMESTAMP":
        return bool(types.is_timestamp(found) and found.unit in ("ms", "us"))
    if name == "TIMESTAMP_NTZ":
        return bool(types.is_timestamp(found) and found.unit in ("ms", "us") and found.tz is None)
    if name == "ARRAY":
        return _is_list(found) and _fits(declared.parts[0].type, found.value_type)
    if name == "MAP":
        key, value = declared.parts
        return types.is_map(found) and _fits(key.type, found.key_type) and _fits(value.type, found.item_type)
    if name == "STRUCT":
        return types.is_struct(found) and _fields_fit(declared.parts, found)
    return bool(
        {
            "STRING": lambda: types.is_string(found) or types.is_large_string(found),
            "BINARY": lambda: (
                types.is_binary(found) or types.is_large_binary(found) or types.is_fixed_size_binary(found)
            ),
            "BOOLEAN": lambda: types.is_boolean(found),
            "FLOAT": lambda: types.is_float32(found),
            "DOUBLE": lambda: types.is_float32(found) or types.is_float64(found),
            "DATE": lambda: types.is_date32(found),
        }[name]()
    )


def _is_list(found: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_list(found) or types.is_large_list(found))


def _fields_fit(declared: tuple[Column, ...], found: pa.StructType) -> bool:
    there = {found.field(i).name: found.field(i).type for i in range(found.num_fields)}
    return len(there) == len(declared) and all(
        column.name in there and _fits(column.type, there[column.name]) for column in declared
    )


def _csv_mismatch(fs: Any, path: str, layout: Layout) -> str | None:
    lines = (line for _, line in bounded.lines(fs, path, layout.limits))
    if layout.dialect.multiline:
        return _multiline_mismatch(lines, layout)
    line = next(lines, "")
    if layout.dialect.header:
        return _header_mismatch(next(_csv_rows([line], layout.dialect), []), layout)
    # of what is quoted, Spark says how many values it has
    values = line.count(layout.dialect.delimiter) + 1
    if (layout.dialect.quote and layout.dialect.quote in line) or values == len(layout.columns):
        return None
    return f"expected {len(layout.columns)} values a line, found {values} in the first"


def _multiline_mismatch(lines: Iterator[str], layout: Layout) -> str | None:
    """Reads all of the file: Spark takes a quote that is never closed for one value up to the file's end."""
    rows = _csv_rows(lines, layout.dialect)
    wrong = _header_mismatch(next(rows, []), layout) if layout.dialect.header else None
    try:
        deque(rows, maxlen=0)
    except csv.Error:
        return wrong or f"expected quotes that are closed and escaped, found one ({layout.dialect.quote}) that is not"
    return wrong


def _header_mismatch(first: Sequence[str], layout: Layout) -> str | None:
    return None if first == layout.names else f"expected header {layout.names}, found {_header(first, layout)}"


def _header(first: Sequence[str], layout: Layout) -> str:
    """A first line in the declared names alone: where the header is missing, the rest of it is data."""
    said = [name if name in layout.names else "?" for name in first[:_MOST_VALUES]]
    return f"{said}" + (f" and {len(first) - _MOST_VALUES} more" if len(first) > _MOST_VALUES else "")


def _json_mismatch(fs: Any, path: str, layout: Layout) -> str | None:
    number, first = next(bounded.json_lines(fs, path, layout.limits), (1, None))
    if not isinstance(first, dict):
        return f"expected an object on every line, found {type(first).__name__ if first is not None else 'no line'}"
    others = len(first.keys() - set(layout.names))
    return f"expected only {layout.names}, found {others} of other names in line {number}" if others else None


def _names_differ(declared: Sequence[str], there: Sequence[str]) -> list[str]:
    missing = [name for name in declared if name not in there]
    more = [name for name in there if name not in declared]
    parts = [f"expected column {', '.join(missing)}, found none of that name"] if missing else []
    return [*parts, f"found column {bounded.column_names(more)}, which is not declared"] if more else parts


# --- event time -----------------------------------------------------------------------------------


def span(fs: Any, path: str, layout: Layout, column: str) -> Span:
    """Oldest and newest event time in the file: a Parquet footer knows, of other files the column is read.

    Raises what a damaged file raises.
    """
    import pyarrow.compute as pc

    oldest: list[datetime] = []
    newest: list[datetime] = []
    for part in _parts(fs, path, layout, column):
        if part.span is not None:
            known = [part.span]
        else:
            bounds = [pc.min_max(moments).as_py() for moments in part.moments()]
            known = [Span(each["min"], each["max"]) for each in bounds]
        oldest.extend(each.oldest for each in known if each.oldest is not None)
        newest.extend(each.newest for each in known if each.newest is not None)
    return Span(min(oldest, default=None), max(newest, default=None))


def newest_up_to(fs: Any, path: str, layout: Layout, column: str, moment: datetime) -> datetime | None:
    """The newest event time in the file that is not after ``moment``. Raises what a damaged file raises."""
    return _newest(_parts(fs, path, layout, column), moment)


def newest_up_to_parquet(file: Any, column: str, moment: datetime) -> datetime | None:
    """:func:`newest_up_to` of a Parquet file that is open already."""
    with _open(file) as parquet:
        return _newest(_parquet_parts(parquet, column), moment)


def _newest(parts: Iterator[_Part], moment: datetime) -> datetime | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: list[datetime | None] = []
    for part in parts:
        if part.span is not None and part.span.newest is not None and part.span.newest <= moment:
            found.append(part.span.newest)
        elif part.span is None or part.span.oldest is None or part.span.oldest <= moment:
            for moments in part.moments():
                found.append(pc.max(moments.filter(pc.less_equal(moments, pa.scalar(moment, moments.type)))).as_py())
    return max((each for each in found if each is not None), default=None)


def count_late(fs: Any, path: str, layout: Layout, column: str, after: datetime) -> int:
    """Return how many records of the file have an event time up to ``after``. Raises what a damaged file raises."""
    return _late(_parts(fs, path, layout, column), after)


def count_late_parquet(file: Any, column: str, after: datetime) -> int:
    """:func:`count_late` of a Parquet file that is open already."""
    with _open(file) as parquet:
        return _late(_parquet_parts(parquet, column), after)


def _open(file: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def _late(parts: Iterator[_Part], after: datetime) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    late = 0
    for part in parts:
        if part.span is not None and part.span.oldest is not None and part.span.oldest > after:
            continue
        for moments in part.moments():
            late += pc.sum(pc.less_equal(moments, pa.scalar(after, moments.type))).as_py() or 0
    return late


@dataclass(frozen=True)
class _Part:
    """A stretch of a file: what its statistics say, and how to read the column's values in it, as arrays in UTC."""

    span: Span | None
    moments: Callable[[], Iterator[Any]]


def _parts(fs: Any, path: str, layout: Layout, column: str) -> Iterator[_Part]:
    if layout.format == "parquet":
        with bounded.parquet(fs, path) as file:
            yield from _parquet_parts(file, column)
        return
    texts = _csv_texts(fs, path, layout, column) if layout.format == "csv" else _json_texts(fs, path, layout, column)
    yield _Part(None, lambda: _moments(texts, column))


def _parquet_parts(file: Any, column: str) -> Iterator[_Part]:
    import pyarrow.types as types

    position = file.schema_arrow.get_field_index(column)
    found = file.schema_arrow.field(position).type if position >= 0 else None
    if found is None or not types.is_timestamp(found):
        raise UnfitFileError(
            f"expected event-time column {column} of a timestamp type, found "
            f"{'none of that name' if found is None else bounded.shortened(str(found))}"
        )
    leaf = next(i for i in range(len(file.schema)) if file.schema.column(i).path == column)
    for group in range(file.num_row_groups):
        known = _known(file.metadata.row_group(group).column(leaf).statistics)
        yield _Part(known, partial(_group_moments, file, group, column))


def _known(statistics: Any) -> Span | None:
    if statistics is None or not statistics.has_min_max:
        return None
    try:
        bounds = statistics.min, statistics.max
    except OverflowError:  # a year that Python does not have
        return None
    return Span(_aware(bounds[0]), _aware(bounds[1])) if isinstance(bounds[0], datetime) else None


def _group_moments(file: Any, group: int, column: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    utc = pa.timestamp("us", "UTC")
    first, last = (pa.scalar(moment, utc) for moment in YEARS)
    for values in bounded.parquet_batches(file, group, column):
        moments = values.cast(utc)
        moments = pc.if_else(pc.less(moments, first), first, moments)
        yield pc.if_else(pc.greater(moments, last), last, moments)


def _csv_texts(fs: Any, path: str, layout: Layout, column: str) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    dialect = layout.dialect
    with bounded.unpacked(fs, path, layout.limits.max_unpacked_bytes) as file:
        reader = arrow_csv.open_csv(
            file,
            # a line has to fit into a block; other threads are at other files
            read_options=arrow_csv.ReadOptions(
                column_names=None if dialect.header else layout.names,
                block_size=layout.limits.max_line_characters,
                use_threads=False,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote or False,
                double_quote=dialect.escape_in_quotes is None,
                escape_char=dialect.escape_in_quotes or False,
                newlines_in_values=dialect.multiline,
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=[column],
                column_types={column: pa.string()},
                strings_can_be_null=True,
                null_values=[dialect.null_value],
            ),
        )
        for batch in reader:
            yield batch.column(0)


def _json_texts(fs: Any, path: str, layout: Layout, column: str) -> Iterator[Any]:
    import pyarrow as pa

    records = bounded.json_lines(fs, path, layout.limits)
    for batch in bounded.batches(_json_text(number, record, column) for number, record in records):
        yield pa.array(batch, pa.string())


def _json_text(number: int, record: Any, column: str) -> str | None:
    if not isinstance(record, dict):
        raise UnfitFileError(f"expected an object on every line, found {type(record).__name__} in line {number}")
    text = record.get(column)
    if text is not None and not isinstance(text, str):
        raise UnfitFileError(f"expected {column} as ISO 8601 text, found {type(text).__name__} in line {number}")
    return text


def _moments(batches: Iterator[Any], column: str) -> Iterator[Any]:
    """ISO 8601 texts as UTC: with the zone they name, or UTC where they name none (so is Spark told to read them)."""
    import pyarrow as pa

    before = 0
    for texts in batches:
        try:
            yield _in_utc(texts)
        except pa.ArrowInvalid:
            number = before + _first_wrong(texts) + 1
            raise UnfitFileError(f"expected {column} as ISO 8601 text, found another in record {number}") from None
        before += len(texts)


def _in_utc(texts: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    utc = pa.timestamp("us", "UTC")
    texts = pc.utf8_trim_whitespace(texts)
    zoned = pc.match_substring_regex(texts, r"(Z|[+-]\d{2}:\d{2})$")
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.if_else(zoned, texts, nothing).cast(utc)
    without = pc.if_else(zoned, nothing, texts).cast(pa.timestamp("us")).cast(utc)
    return pc.coalesce(with_zone, without)


def _first_wrong(texts: Any) -> int:
    """The position of the first text that is no time: pyarrow quotes it, and does not say where it stands."""
    import pyarrow as pa

    start, end = 0, len(texts)
    while end - start > 1:
        middle = (start + end) // 2
        try:
            _in_utc(texts.slice(start, middle - start))
            start = middle
        except pa.ArrowInvalid:
            end = middle
    return start


# --- parts ----------------------------------------------------------------------------------------


def _csv_rows(lines: Iterable[str], dialect: CsvDialect) -> Iterator[list[str]]:
    return csv.reader(
        lines,
        strict=True,
        delimiter=dialect.delimiter,
        quotechar=dialect.quote or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        doublequote=dialect.escape_in_quotes is None,
        escapechar=dialect.escape_in_quotes,
    )


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
