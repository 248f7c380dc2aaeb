"""Values of Arrow columns as JSON, in files and in columns of a database: what JSON cannot hold exactly is refused.

Decimals are exact, times are ISO 8601, bytes are base64. A map whose keys are texts is an object, another one a list of
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

_Converter = Callable[[Any], Any]


class NotJsonError(ValueError):
    """``found``: what JSON cannot hold, in words; ``number``: of the value in its column that it is in."""

    def __init__(self, found: str, number: int) -> None:
        super().__init__(found)
        self.found, self.number = found, number


class _KeyTwiceError(ValueError):
    """A map that is no object."""


def encoder(decimals: Literal["string", "number"]) -> msgspec.json.Encoder:
    """Return the encoder for what :func:`plain_values` returns."""
    return msgspec.json.Encoder(decimal_format=decimals)


def json_fault(kind: pa.DataType) -> str | None:
    """Return why JSON cannot hold every value of the type; None: it can."""
    odd = next(filter(_is_not_json, _within(kind)), None)
    return None if odd is None else f"expected a type that JSON can hold exactly, found {odd}"


def plain_values(column: pa.Array) -> list[Any]:
    """A column's values, ready for the encoder. Raises NotJsonError."""
    values = python_values(column)
    if any(map(_has_no_number, _floats(column))):
        odd = next(number for number, value in enumerate(values) if _is_no_number(value))
        raise NotJsonError("a NaN or an infinity", odd)  # safety: nothing-lost-in-json
    convert = _converter(column.type)
    if convert is None:
        return values
    for number, value in enumerate(values):
        try:
            values[number] = convert(value)
        except _KeyTwiceError:
            raise NotJsonError("two entries of one key in a map", number) from None
    return values


def python_values(column: pa.Array) -> list[Any]:
    """A column's values. Raises NotJsonError for those that Python has no object for, nor JSON a text."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        found = "bytes that are no UTF-8" if isinstance(error, UnicodeDecodeError) else "a time beyond years 1 to 9999"
        odd = next(number for number, value in enumerate(column) if not _has_object(value))
        raise NotJsonError(found, odd) from None
    return values


def row_of(rows: pa.RecordBatch, number: int) -> dict[str, Any]:
    """One row for people: of texts that are none their bytes."""
    import pyarrow as pa

    row = {name: rows.column(name)[number] for name in rows.schema.names}
    return {
        name: value.as_py()
        if _has_object(value)
        else value.cast(pa.binary() if _is_text(value.type) else pa.string()).as_py()
        if not pa.types.is_nested(value.type)
        else "..."
        for name, value in row.items()
    }


def _has_object(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def _is_not_json(kind: pa.DataType) -> bool:
    from pyarrow import types

    # Of nanoseconds Python's times lose the last digits.
    timed = types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind)
    return bool(timed and kind.unit == "ns")


def _within(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for number in range(kind.num_fields):
        yield from _within(kind.field(number).type)


def is_list(kind: pa.DataType) -> bool:
    """Return True for a list, of whichever length its offsets are."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _converter(kind: pa.DataType) -> _Converter | None:
    """Return the function that makes objects of the maps in a value; None: there are none."""
    from pyarrow import types

    if types.is_struct(kind):
        fields = {field.name: found for field in kind if (found := _converter(field.type)) is not None}
        return _each(fields) if fields else None
    if is_list(kind):
        element = _converter(kind.value_type)
        return None if element is None else _where_known(lambda values: list(map(element, values)))
    if types.is_map(kind):
        return _entries(kind)
    return None


def _where_known(convert: _Converter) -> _Converter:
    return lambda value: None if value is None else convert(value)


def _each(fields: dict[str, _Converter]) -> _Converter:
    def convert(struct: dict[str, Any]) -> dict[str, Any]:
        return {**struct, **{name: field(struct[name]) for name, field in fields.items()}}

    return _where_known(convert)


def _entries(kind: pa.DataType) -> _Converter:
    key, item = _converter(kind.key_type), _converter(kind.item_type)

    def convert(entries: list[tuple[Any, Any]]) -> Any:
        pairs = [(key(name) if key else name, item(value) if item else value) for name, value in entries]
        if not _is_text(kind.key_type):
            return pairs
        found = dict(pairs)
        if len(found) < len(pairs):
            raise _KeyTwiceError
        return found

    return _where_known(convert)


def _floats(column: pa.Array) -> Iterator[pa.Array]:
    """The floating-point numbers in a column, however deep."""
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_floating(kind):
        yield column
    elif types.is_struct(kind):
        for field in column.flatten():
            yield from _floats(field)
    elif is_list(kind):
        yield from _floats(column.flatten())
    elif types.is_map(kind):  # its own `keys` and `items` are those of the array that it is a slice of
        yield from _floats(column.cast(pa.list_(kind.field(0))).flatten())


def _has_no_number(floats: pa.Array) -> bool:
    from pyarrow import compute as pc

    return bool(pc.any(pc.invert(pc.is_finite(floats))).as_py())


def _is_no_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_no_number, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_no_number, value))
    return isinstance(value, float) and not math.isfinite(value)
