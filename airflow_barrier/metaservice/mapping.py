"""Rows as the protocol's records and back, by the names and the types of a record's fields.

A field is the column of its name. A record that is a field is the columns that begin with the field's name: ``run`` is
``run_dag_id``, ``run_id`` and so on. Lists and mappings, of records too, are JSON; states and the like are text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

from sqlalchemy import Row

from airflow_barrier.protocol.codec import encode, wire_form
from airflow_barrier.protocol.records import AuditEntry, TableProgress

_R = TypeVar("_R")
#: Columns that have another name than their field.
_NAMED = {
    (TableProgress, "table"): "table_name",
    (AuditEntry, "before"): "state_before",
    (AuditEntry, "after"): "state_after",
}


def to_record(kind: type[_R], row: Row[Any], /, **given: Any) -> _R:
    """The record of a row; ``given``: the fields that are no column."""
    plan = _plan(cast("Hashable", kind), frozenset(given))
    return kind(**plan.fields(plan.values_of(row)), **given)


def to_records(kind: type[_R], rows: Iterable[Row[Any]]) -> list[_R]:
    """The records of all rows, of which there may be thousands: in a third of :func:`to_record`'s time for each.

    Columns are found once, by their places. The fields are set at once: a frozen class's own ``__init__`` sets them
    one after the other. So the class may have nothing else to do there.
    """
    plan = _plan(cast("Hashable", kind), frozenset())
    assert not hasattr(kind, "__post_init__"), kind
    found = list(rows)
    if not found:
        return []
    values_of = itemgetter(*map(found[0]._fields.index, plan.columns))
    records = []
    for row in found:
        record = object.__new__(kind)
        record.__dict__.update(plan.fields(values_of(row)))
        records.append(record)
    return records


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


class _Plan(NamedTuple):
    """A record's columns, and their getter. First come those that are fields as they are, which ``plain`` names.
    ``made``: the other fields, each with the slice of the columns that it is made of, and by what.
    """

    columns: Sequence[str]
    values_of: Callable[[Any], Sequence[Any]]
    plain: Sequence[str]
    made: Sequence[tuple[str, slice, Callable[..., Any]]]

    def fields(self, values: Sequence[Any]) -> dict[str, Any]:
        found = dict(zip(self.plain, values, strict=False))
        for name, its, make in self.made:
            found[name] = make(*values[its])
        return found


@cache
def _plan(kind: Any, given: frozenset[str]) -> _Plan:
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in given}
    makers = {name: hint if _is_record(hint) else _reader(hint) for name, hint in hints.items()}
    plain = [name for name, make in makers.items() if make is None]
    columns = [column for name in plain for column, _ in _columns(kind, name, hints[name])]
    made = []
    for name, make in makers.items():
        if make is not None:
            own = [column for column, _ in _columns(kind, name, hints[name])]
            made.append((name, slice(len(columns), len(columns) + len(own)), make))
            columns += own
    return _Plan(columns, attrgetter(*columns), plain, made)


def _columns(kind: type, field: str, hint: Any) -> Iterator[tuple[str, str | None]]:
    """The columns of a field, and of which field of the record in it each is (None: of itself)."""
    if _is_record(hint):
        prefix = f"{field}_"
        for each in fields(hint):
            yield each.name if each.name.startswith(prefix) else prefix + each.name, each.name
    else:
        yield _NAMED.get((kind, field), field), None


def _reader(hint: Any) -> Callable[..., Any] | None:
    """Return the function that makes a column's value one of that type; None: it is one already."""
    return None if hint in (datetime, datetime | None) else wire_form(hint).make


def _is_record(hint: Any) -> bool:
    return is_dataclass(hint)
