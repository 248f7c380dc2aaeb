"""Dates in file paths: which stretch of time a file says that it is about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from airflow_barrier.protocol.errors import ConfigurationError

_DIGITS = {"Y": 4, "m": 2, "d": 2, "j": 3, "H": 2, "M": 2, "S": 2}
_FIXED_PERIODS = (
    ("S", timedelta(seconds=1)),
    ("M", timedelta(minutes=1)),
    ("H", timedelta(hours=1)),
    ("d", timedelta(days=1)),
    ("j", timedelta(days=1)),
)


@dataclass(frozen=True)
class PathDate:
    """A pattern such as ``date=%Y-%m-%d`` or ``%Y/%m/%d/%H``: literal text and the directives %Y %m %d %j %H %M %S.

    A path is about the whole period that it names: ``date=2017-01-01`` about that day, up to the next midnight, UTC.
    """

    pattern: str
    regex: re.Pattern[str]
    directives: str

    @classmethod
    def of(cls, pattern: str) -> PathDate:
        """Raises :class:`ConfigurationError` for a pattern that names no period."""
        directives = ""
        regex = ""
        pieces = re.split(r"%(.)", pattern)
        for index, piece in enumerate(pieces):
            if index % 2 == 0:
                regex += re.escape(piece)
                continue
            if piece not in _DIGITS or piece in directives:
                raise _not_a_pattern(pattern)
            directives += piece
            regex += rf"(?P<{piece}>\d{{{_DIGITS[piece]}}})"
        if not _names_a_period(directives):
            raise _not_a_pattern(pattern)
        # a date is not to be found in the middle of a longer number
        return cls(pattern, re.compile(rf"(?<!\d){regex}(?!\d)" if pieces[0] == "" else rf"{regex}(?!\d)"), directives)

    def end_of(self, path: str) -> datetime | None:
        """The end of the period that ``path`` names where the pattern first fits; None if it fits nowhere.

        >>> PathDate.of("date=%Y-%m-%d").end_of("shop/date=2017-01-31/part-0.parquet").isoformat()
        '2017-02-01T00:00:00+00:00'
        """
        match = self.regex.search(path)
        if match is None:
            return None
        found = {directive: int(match[directive]) for directive in self.directives}
        try:
            start = datetime(found["Y"], found.get("m", 1), found.get("d", 1), tzinfo=timezone.utc) + timedelta(
                days=found.get("j", 1) - 1,
                hours=found.get("H", 0),
                minutes=found.get("M", 0),
                seconds=found.get("S", 0),
            )
        except ValueError:  # a thirteenth month
            return None
        for directive, period in _FIXED_PERIODS:
            if directive in found:
                return start + period
        if "m" in found:
            return (start + timedelta(days=32)).replace(day=1)
        return start.replace(year=start.year + 1)


def _names_a_period(directives: str) -> bool:
    """From the year down to something, without a gap."""
    return sorted(directives) in [sorted(chain) for chain in ("Y", "Ym", "Ymd", "YmdH", "YmdHM", "YmdHMS")] or sorted(
        directives
    ) in [sorted(chain) for chain in ("Yj", "YjH", "YjHM", "YjHMS")]


def _not_a_pattern(pattern: str) -> ConfigurationError:
    return ConfigurationError(
        f"path_date {pattern!r}: expected text with %Y and, from there down without a gap, %m %d (or %j) %H %M %S, "
        "each once, such as 'date=%Y-%m-%d' or '%Y/%m/%d/%H'"
    )
