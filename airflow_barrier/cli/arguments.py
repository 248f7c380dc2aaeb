"""Arguments that several commands have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.levels import Level

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def topology_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology")


def barrier_argument(parser: argparse._ActionsContainer, nargs: str | None = None) -> None:
    parser.add_argument(
        "barrier", type=int, nargs=nargs, help="the barrier's id, as `status` and `barrier list` show it"
    )


def revision_argument(parser: argparse._ActionsContainer, text: str | None = None, nargs: str | None = None) -> None:
    parser.add_argument("revision", type=one_or_more, metavar="NUMBER", nargs=nargs, help=text)


def reason_option(text: str = "why, for the audit") -> Callable[[argparse.ArgumentParser], None]:
    """Return what adds ``--reason``, a required option; ``text`` is its help."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--reason", required=True, help=text)

    return add


def level_argument(parser: argparse.ArgumentParser) -> None:
    """``--level``; None: that of :func:`airflow_barrier.cli.connection.level`."""
    names = ", ".join(level.value for level in Level)
    parser.add_argument("--level", type=_level_of, metavar="LEVEL", help=f"{names} (default: the connection's)")


def _level_of(text: str) -> Level:
    try:
        return Level.parse(text)
    except ConfigurationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def one_or_more(text: str) -> int:
    """A whole number from 1 on, for ``type=``."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, found {number}")
    return number


def number_from_0(text: str) -> int:
    """A whole number from 0 on, for ``type=``."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected 0 or more, found {number}")
    return number


def moment_of(text: str) -> datetime:
    """A time in ISO 8601, for ``type=``; in UTC unless it says another zone, as times are shown.

    >>> moment_of("2026-01-05 06:00").isoformat(), moment_of("2026-01-05T06:00:00Z").isoformat()
    ('2026-01-05T06:00:00+00:00', '2026-01-05T06:00:00+00:00')
    """
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not know Z
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def day_of(text: str) -> date | datetime | int:
    """A day, a time in ISO 8601 (in UTC unless it says another zone) or a barrier's number, for ``type=``.

    >>> day_of("2017-01-05"), day_of("12"), day_of("2017-01-05T06:00").isoformat()
    (datetime.date(2017, 1, 5), 12, '2017-01-05T06:00:00+00:00')
    """
    if text.isdecimal() and len(text) < len("20170105"):  # that one is a day as well
        return int(text)
    if "T" in text or ":" in text:
        return moment_of(text)
    return date.fromisoformat(text)


def lasting(unit: str) -> Callable[[str], timedelta]:
    """A number of ``unit``, as :class:`timedelta` names it, for ``type=``.

    >>> lasting("minutes")("1.5")
    datetime.timedelta(seconds=90)
    """

    def parse(text: str) -> timedelta:
        try:
            found = timedelta(**{unit: float(text)})
        except (ValueError, OverflowError):
            found = timedelta(-1)
        if found < timedelta(0):
            raise argparse.ArgumentTypeError(f"expected a number of {unit} from 0 on, found {text!r}")
        return found

    return parse


def span(text: str) -> timedelta:
    """A length of time with its unit, for ``type=``: seconds, minutes, hours, days or weeks.

    >>> span("7d"), span("1.5h")
    (datetime.timedelta(days=7), datetime.timedelta(seconds=5400))
    """
    unit = _UNITS.get(text[-1:])
    try:
        found = timedelta(**{unit: float(text[:-1])}) if unit else timedelta(0)
    except (ValueError, OverflowError):
        found = timedelta(0)
    if found <= timedelta(0):
        raise argparse.ArgumentTypeError(f"expected a length of time such as 7d, 12h, 90m or 30s, found {text!r}")
    return found


day_of.__name__ = "day, time or barrier's number"
moment_of.__name__ = "time"  # argparse's words for them in an error
one_or_more.__name__ = number_from_0.__name__ = "int"
