"""Rows as the protocol's records and back, by the names and the types of a record's fields.

A field is the column of its name. A record that is a field is the columns that begin with the field's name: ``run`` is
``run_dag_id``, ``run_id`` and so on. Lists and mappings, of records too, are JSON; states and the like are text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, TypeVar, cast, get_type_hints

from sqlalchemy import CursorResult, Row

from airflow_barrier.protocol.codec import encode, wire_form
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
    _, values_of, parts = _plan(cast("Hashable", kind), frozenset(given))
    return kind(**_fields(parts, values_of(row)), **given)


def to_records(kind: type[_R], rows: CursorResult[Any]) -> list[_R]:
    """The records of all rows, of which there may be thousands: in half of :func:`to_record`'s time for each.

    Columns are found once, by their places. The fields are set at once: a frozen class's own ``__init__`` sets them
    one after the other. So the class may have nothing else to do there.
    """
    columns, _, parts = _plan(cast("Hashable", kind), frozenset())
    assert not hasattr(kind, "__post_init__"), kind
    names = list(rows.keys())
    values_of = itemgetter(*map(names.index, columns))
    records = []
    for row in rows.all():
        record = object.__new__(kind)
        record.__dict__.update(_fields(parts, values_of(row)))
        records.append(record)
    return records


def _fields(parts: Sequence[_Part], values: Sequence[Any]) -> dict[str, Any]:
    return {name: values[at] if read is None else read(*values[at : at + count]) for name, at, count, read in parts}


def to_columns(kind: type, /, **values: Any) -> dict[str, Any]:
    """Map the columns of some fields of a record of this ``kind`` to a row's values."""
    return {
        column: _held(value if name is None else getattr(value, name))
        for field, value in values.items()
        for column, name in _columns(kind, field, type(value))
    }


def _held(value: Any) -> Any:
    """Return the value as a column can hold it; columns have times of their own."""
    return value if isinstance(value, datetime) else encode(value)


@cache
def _plan(kind: Any, given: frozenset[str]) -> tuple[Sequence[str], Callable[[Any], Sequence[Any]], Sequence[_Part]]:
    """Return the names of a record's columns, the getter of them, and the parts of them that its fields are made of."""
    columns: list[str] = []
    parts: list[_Part] = []
    for name, hint in get_type_hints(kind).items():
        if name not in given:
            own = [column for column, _ in _columns(kind, name, hint)]
            parts.append((name, len(columns), len(own), hint if _is_record(hint) else _reader(hint)))
            columns += own
    return columns, attrgetter(*columns), parts


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
    return None if hint in (datetime, datetime | None) else wire_form(hint).make


def _is_record(hint: Any) -> bool:
    return is_dataclass(hint)
