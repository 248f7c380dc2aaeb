"""Values of a result as JSON has them."""

from __future__ import annotations

import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

from airflow_barrier.protocol.errors import ConfigurationError


def check_columns(names: Iterable[str]) -> None:
    """Raise ConfigurationError if two columns bear the same name: of rows by name, one would be lost."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigurationError(
            f"result: expected columns of different names, found {', '.join(map(repr, twice))} more than once; name "
            "them by AS"
        )


def json_value(value: Any) -> Any:
    """Nothing is rounded: decimals are text. Instants are ISO 8601 in UTC, times without a zone have none; durations
    are seconds, bytes base64; numbers that JSON does not have are `NaN`, `Infinity` and `-Infinity`.

    >>> json_value({"price": Decimal("8.50"), "day": date(2026, 1, 5), "ids": (1, None)})
    {'price': '8.50', 'day': '2026-01-05', 'ids': [1, None]}
    """
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(json_value(key)): json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(each) for each in value]
    if isinstance(value, datetime):
        return (value.astimezone(timezone.utc) if value.tzinfo else value).isoformat(timespec="microseconds")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(value).decode()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
