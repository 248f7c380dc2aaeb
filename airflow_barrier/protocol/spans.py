"""Lengths of time, in words."""

from __future__ import annotations

from datetime import timedelta


def short(time: timedelta | float) -> str:
    """A length of time, or seconds, by its two largest units.

    >>> short(104.2), short(timedelta(days=7)), short(0.21), short(-3)
    ('1 min 44 s', '7 d', '0.2 s', '0 s')
    """
    seconds = max(time.total_seconds() if isinstance(time, timedelta) else time, 0.0)
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if (count := left // size) or parts:
            parts.append(f"{count} {unit}" if count else "")
        left %= size
    return " ".join(part for part in parts[:2] if part)
