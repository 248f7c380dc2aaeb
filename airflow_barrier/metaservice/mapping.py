"""Rows as the protocol's records and back, by the names and the types of a record's fields.

A field is the column of its name. A record that is a field is the columns that begin with the field's name: ``run`` is
``run_dag_id``, ``run_id`` and so on. Lists and mappings, of records too, are JSON; states and the like are text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import Row

from airflow_barrier.protocol.records import AuditEntry, TableProgress

_R = TypeVar("_R")
_Read = Callable[..., Any]
#: A field, its first column, how many it has, and how it is read from them.
_Part = tuple[str, int, int, "_Read | None"]
#: Columns that have another name than their field.
_NAMED = {
    (TableProgress, "table"): "table_name",
    (AuditEntry, "before"): "state_before",
    (AuditEntry, "after"): "state_after",
}


def to_record(kind: type[_R], row: Row[Any], /, **given: Any) -> _R:
    """The record of a row; ``given``: the fields that are no column."""
    columns, parts = _plan(cast("Hashable", kind), frozenset(given))
    values = columns(row)
    found = {name: values[at] if read is None else read(*values[at : at + count]) for name, at, count, read in parts}
    return kind(**found, **given)


def to_columns(kind: type, /, **values: Any) -> dict[str, Any]:
    """Map the columns of some fields of a record of this ``kind`` to a row's values."""
    return {
        column: _plain(value if name is None else getattr(value, name))
        for field, value in values.items()
        for column, name in _columns(kind, field, type(value))
    }


@cache
def _plan(kind: Any, given: frozenset[str]) -> tuple[Callable[[Row[Any]], Sequence[Any]], list[_Part]]:
    """Return the getter of a row's columns, and the parts of them that the record's fields are made of."""
    columns: list[str] = []
    parts: list[_Part] = []
    for name, hint in get_type_hints(kind).items():
        if name not in given:
            own = [column for column, _ in _columns(kind, name, hint)]
            parts.append((name, len(columns), len(own), hint if _is_record(hint) else _reader(hint)))
            columns += own
    return attrgetter(*columns), parts


def _columns(kind: type, field: str, hint: Any) -> Iterator[tuple[str, str | None]]:
    """The columns of a field, and of which field of the record in it each is (None: of itself)."""
    if _is_record(hint):
        prefix = f"{field}_"
        for each in fields(hint):
            yield each.name if each.name.startswith(prefix) else prefix + each.name, each.name
    else:
        yield _NAMED.get((kind, field), field), None


def _reader(hint: Any) -> _Read | None:
    """Return the function that makes a column's value one of that type; None: it is one already."""
    parts = get_args(hint)
    if type(None) in parts:
        read = next(_reader(part) for part in parts if part is not type(None))
        return None if read is None else lambda value: None if value is None else read(value)
    if get_origin(hint) is tuple:
        of = _reader(parts[0])
        return tuple if of is None else lambda values: tuple(of(value) for value in values)
    if get_origin(hint) is Mapping:
        named = _reader(parts[1])
        return None if named is None else lambda values: {key: named(value) for key, value in values.items()}
    if _is_record(hint):
        return lambda values: hint(**values)
    return hint if isinstance(hint, type) and issubclass(hint, Enum) else None


def _is_record(hint: Any) -> bool:
    return is_dataclass(hint)


def _plain(value: Any) -> Any:
    """Return the value as a column can hold it."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
