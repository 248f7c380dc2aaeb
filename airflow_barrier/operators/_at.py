"""Which barrier a DAG's author means."""

from __future__ import annotations

from datetime import datetime

from airflow_barrier.protocol.errors import ConfigurationError


def barrier_or_time(value: int | str | datetime | None) -> int | datetime | None:
    """A barrier's id or a time, also as text, which is what templates make of either.

    Raises ConfigurationError for other text, the "None" of an XCom that is not there included, and for a time without
    its zone.

    >>> barrier_or_time("3"), barrier_or_time("2026-01-05T00:00:00Z").isoformat()
    (3, '2026-01-05T00:00:00+00:00')
    """
    if not isinstance(value, str):
        return value
    if value.isdecimal():
        return int(value)
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 does not know Z
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigurationError(
            f"at: expected a barrier's id, or a time in ISO 8601 with its zone, found {value!r}; write +00:00 for UTC"
        )
    return at
