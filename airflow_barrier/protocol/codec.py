"""Records as JSON values and back, by the names and types of their fields: journals, specs, triggers, JSON columns.

Who adds a field to a record adds it to its class only. The fields are of JSON's own types, datetimes (ISO 8601), enums,
tuples of one type, mappings from text, and records; each may be None. A field with the metadata ``omit_none`` is left
out while it is None. Class variables are constants that are written too: ``version``, or the ``kind`` by which the
members of a union are told apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from airflow_barrier.protocol.errors import WireFormError

_T = TypeVar("_T")
_PLAIN = frozenset({str, int, float, bool, NoneType})
_WORDS: dict[type, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NoneType: "null",
}


def encode(value: Any) -> Any:
    """Return the JSON values of a record, or of lists and mappings of records."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return [each if type(each) in _PLAIN else encode(each) for each in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value):
        constants, names, omitted = _layout(kind)
        written = {name: encode(getattr(value, name)) for name in names}
        for name in omitted:
            if written[name] is None:
                del written[name]
        return constants | written
    if isinstance(value, Mapping):
        return {str(name): each if type(each) in _PLAIN else encode(each) for name, each in value.items()}
    return value


@overload
def decode(kind: type[_T], data: Any) -> _T: ...
@overload
def decode(kind: object, data: Any) -> Any: ...
def decode(kind: Any, data: Any) -> Any:
    """Return what :func:`encode` made ``data`` of; ``kind``: its class, or a union of classes.

    A field that is missing has its default. Raises WireFormError, which shows no value but a choice among names.
    """
    return _read(wire_form(kind), data)


def digest(value: Any) -> str:
    """Return the SHA-256, in hex, of a value's wire form: equal digests are of equal values."""
    return hashlib.sha256(json.dumps(encode(value), sort_keys=True).encode()).hexdigest()


class WireForm(NamedTuple):
    """The JSON types that the values of a type are written in, and what makes a value of one (None: it is that)."""

    types: frozenset[type]
    make: Callable[[Any], Any] | None = None


@cache
def wire_form(hint: Any) -> WireForm:
    """Return how the values of a type are written. Raises TypeError for a type that the codec does not know."""
    parts, origin = get_args(hint), get_origin(hint)
    if hint is Any:
        return WireForm(frozenset(_WORDS))
    if hint in _PLAIN and hint is not float:
        return WireForm(frozenset({hint}))
    if hint is float:
        return WireForm(frozenset({float, int}))
    if hint is datetime:
        return WireForm(frozenset({str}), _time)
    if origin in (Union, UnionType):
        return _union(parts)
    if origin is Literal:
        return WireForm(frozenset(map(type, parts)))
    if origin is tuple:
        return WireForm(frozenset({list}), _tuple(wire_form(parts[0])))
    if origin is Mapping:
        return WireForm(frozenset({dict}), _mapping(wire_form(parts[1])))
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = {each.value: each for each in hint}
        return WireForm(frozenset(map(type, members)), lambda data: _chosen(members, data))
    if is_dataclass(hint):
        return WireForm(frozenset({dict}), _record(hint))
    raise TypeError(f"expected a type that has a wire form, found {hint}; see {__name__}")


def _read(form: WireForm, data: Any) -> Any:
    types, make = form
    if type(data) not in types:
        raise _of_another_type(types, data)
    return data if make is None else make(data)


def _read_all(form: WireForm, names: Iterable[object], values: Iterable[Any]) -> Iterator[Any]:
    """Yield what is read of each value; an error says which."""
    for name, data in zip(names, values, strict=True):
        try:
            yield _read(form, data)
        except WireFormError as error:
            raise WireFormError(f"{name}: {error}") from None


def _time(data: str) -> datetime:
    try:
        return datetime.fromisoformat(data)
    except ValueError:
        raise _mismatch("a time (ISO 8601)", "another text") from None


def _tuple(form: WireForm) -> Callable[[list[Any]], tuple[Any, ...]]:
    return lambda data: tuple(data if _are_plain(form, data) else _read_all(form, range(len(data)), data))


def _mapping(form: WireForm) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def make(data: dict[str, Any]) -> dict[str, Any]:
        values = data.values()
        return data if _are_plain(form, values) else dict(zip(data, _read_all(form, data, values), strict=True))

    return make


def _are_plain(form: WireForm, values: Iterable[Any]) -> bool:
    """Return True if the values stand as they are read: found in one step, since there may be a thousand."""
    return form.make is None and form.types.issuperset(map(type, values))


def _union(parts: tuple[Any, ...]) -> WireForm:
    """A type or None, or records that their ``kind`` tells apart."""
    others = [part for part in parts if part is not NoneType]
    if len(others) < len(parts):
        types, make = wire_form(Union[tuple(others)])  # noqa: UP007  # of a tuple
        return WireForm(types | {NoneType}, make and (lambda data: None if data is None else make(data)))
    kinds: dict[str, WireForm] = {each.kind: wire_form(each) for each in others}
    return WireForm(frozenset({dict}), lambda data: _read(_chosen(kinds, str(data.get("kind")), "a kind of"), data))


def _record(kind: Any) -> Callable[[dict[str, Any]], Any]:
    hints = get_type_hints(kind)
    constants, names, _ = _layout(kind)
    parts = [(name, *wire_form(hints[name])) for name in names]
    known = {*constants, *names}
    needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}

    def make(data: dict[str, Any]) -> Any:
        there = parts
        if data.keys() != known:
            _check_names(kind, known, needed | constants.keys(), data)
            there = [part for part in parts if part[0] in data]
        values = dict(data)
        for name, constant in constants.items():
            if values.pop(name) != constant:
                raise _mismatch(f"{kind.__name__} of {name} {constant}", repr(data[name]))
        try:
            for name, types, part in there:
                if type(data[name]) not in types:
                    raise _of_another_type(types, data[name])
                if part is not None:
                    values[name] = part(data[name])
        except WireFormError as error:
            raise WireFormError(f"{kind.__name__}.{name}: {error}") from None
        return kind(**values)

    return make


def _check_names(kind: type, known: set[str], needed: set[str], data: Mapping[str, Any]) -> None:
    missing, more = ", ".join(sorted(needed - data.keys())), ", ".join(sorted(data.keys() - known))
    if missing or more:
        found = f"no {missing}" if missing else f"{more} besides"
        raise _mismatch(f"{kind.__name__} with {', '.join(sorted(known))}", found)


def _chosen(choices: Mapping[Any, _T], data: Any, words: str = "one of") -> _T:
    if data not in choices:
        raise _mismatch(f"{words} {', '.join(sorted(choices))}", repr(data))
    return choices[data]


def _of_another_type(types: frozenset[type], data: Any) -> WireFormError:
    expected = " or ".join(words for each, words in _WORDS.items() if each in types)
    return _mismatch(expected, _WORDS.get(type(data), type(data).__name__))


def _mismatch(expected: str, found: str) -> WireFormError:
    return WireFormError(
        f"expected {expected}, found {found}; run the same version of airflow-provider-barrier everywhere"
    )


class _Layout(NamedTuple):
    """The parts that a record is written with: its constants, the names of its fields, and those that are left out if
    None.
    """

    constants: dict[str, Any]
    names: tuple[str, ...]
    omitted: frozenset[str]


@cache
def _layout(kind: Any) -> _Layout:
    constants = [name for name, hint in get_type_hints(kind).items() if get_origin(hint) is ClassVar]
    return _Layout(
        {name: getattr(kind, name) for name in constants},
        tuple(each.name for each in fields(kind)),
        frozenset(each.name for each in fields(kind) if each.metadata.get("omit_none")),
    )
