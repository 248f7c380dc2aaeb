"""What a DAG's author has written, also as text, which is what templates make of everything."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from airflow_barrier.protocol.errors import ConfigurationError

_Each = TypeVar("_Each")


def barrier_or_time(value: int | str | datetime | None) -> int | datetime | None:
    """A barrier's id or a time, also as text.

    Raises ConfigurationError for other text, the "None" of an XCom that is not there included, and for a time without
    its zone.

    >>> barrier_or_time("3"), barrier_or_time("2026-01-05T00:00:00Z").isoformat()
    (3, '2026-01-05T00:00:00+00:00')
    """
    if not isinstance(value, str):
        return value
    return int(value) if value.isdecimal() else time_of("at", value, "a barrier's id, or ")


def time_of(argument: str, value: datetime | str, or_else: str = "") -> datetime:
    """A time with its zone. Raises ConfigurationError for anything else, naming the argument."""
    try:
        # Python 3.10 does not know Z
        at = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigurationError(
            f"{argument}: expected {or_else}a time in ISO 8601 with its zone, found {str(value)!r}; write +00:00 for "
            "UTC"
        )
    return at


def whole_number(argument: str, value: int | str) -> int:
    """A whole number. Raises ConfigurationError for text that is none, naming the argument."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{argument}: expected a whole number, found {value!r}; does the template that it comes from have a value?"
        ) from None


def true_or_false(argument: str, value: bool | str) -> bool:
    """A truth value. Raises ConfigurationError for text that is neither, naming the argument.

    >>> true_or_false("explain_only", "True")
    True
    """
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise ConfigurationError(f"{argument}: expected True or False, found {value!r}; write one of these")
    return found


def several(argument: str, given: Iterable[_Each]) -> tuple[_Each, ...]:
    """Return what stands in a list. Raises ConfigurationError for one thing alone; a text would be taken for its
    letters.

    >>> several("tables", ["shop.prices"])
    ('shop.prices',)
    """
    if isinstance(given, str) or not hasattr(given, "__iter__"):
        found = repr(given) if isinstance(given, str) else f"one {type(given).__name__}"
        raise ConfigurationError(f"{argument}: expected a list, found {found}; put it in brackets: [...]")
    return tuple(given)
