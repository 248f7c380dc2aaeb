"""Which barriers the days are that a person names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from itertools import pairwise
from typing import TypeGuard

from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import RevisionMode, check_range
from airflow_barrier.protocol.states import BarrierState

_A_DAY = len("2017-01-05")


@dataclass(frozen=True)
class Replay:
    """``window``: the barriers that a person asks for, in order. ``barriers``: what is computed again for that, from
    the first of them to the head, those that are still open included.
    """

    window: tuple[Barrier, ...]
    barriers: tuple[Barrier, ...]


def replay_of(meta: MetaService, wanted: Wanted) -> Replay:
    """The barriers whose epochs overlap the days that a person names, and those after them.

    Reads no more of the history than ``wanted`` allows to replay. Raises RevisionRefusedError for days that no barrier
    covers, and for a replay that is longer; UnknownTopologyError.
    """
    name = wanted.topology
    meta.topologies.version(name)
    newest = meta.barriers.newest_epochs(name, limit=1)
    if not newest:
        raise RevisionRefusedError(  # safety: something-to-correct
            f"topology {name}: expected a barrier that is COMMIT, found none; there is nothing to correct yet"
        )
    if wanted.first is None and wanted.mode is not RevisionMode.FULL:
        raise RevisionRefusedError(
            f"topology {name}: expected the first day to correct, found none; say --from"
        )  # safety: days-are-named
    first: Barrier | None
    if wanted.first is None:
        first, last = _first_readable(meta, newest[0]), None
    else:
        last = wanted.first if wanted.last is None else wanted.last
        first = _first_of(meta, name, wanted.first, last)
    if first is None:
        (oldest,) = meta.barriers.epochs(name, committed=True, limit=1)
        raise RevisionRefusedError(  # safety: range-in-history
            f"topology {name}: expected days within its history, which is committed from {oldest} to "
            f"{newest[0]}, found {wanted.first} to {last}; choose days that it covers: a day is one of data, and the "
            f"data of a barrier lies before its timestamp{_by_its_run(meta, name, wanted.first)}"
        )
    barriers = tuple(meta.barriers.epochs(name, first=first.barrier_id, limit=wanted.max_replay_barriers + 1))
    if len(barriers) > wanted.max_replay_barriers:  # counted for the error only
        count = meta.barriers.count_epochs(name, first.barrier_id)
        check_range(f"revision of {name} from {first}", count, wanted.max_replay_barriers)
    window = (first,) if last is None else _up_to(last, barriers)
    return Replay(window, barriers)


def day_notes(meta: MetaService, wanted: Wanted, window: Sequence[Barrier]) -> tuple[str, ...]:
    """Return a note on the meaning of days, if the runs that had their data are of other days: a timetable whose runs
    have no data interval, as Airflow 3 makes one of ``@daily``, dates a run by the end of its data.
    """
    days = {barrier.run_date.date() for barrier in window}
    first, last = wanted.first, wanted.first if wanted.last is None else wanted.last
    if not _is_day(first) or not _is_day(last) or all(first <= day <= last for day in days):
        return ()
    runs = f"the run of {min(days)}" if len(days) == 1 else f"the runs from {min(days)} to {max(days)}"
    which = f"{first}" if first == last else f"{first} to {last}"
    return (f"a day is one of data: {which} was read by {runs}{_by_its_run(meta, wanted.topology, first)}",)


def _by_its_run(meta: MetaService, topology: str, day: date | datetime | int | None) -> str:
    """Return a hint on how to name the barrier whose run is of that day; empty if there is none."""
    if not _is_day(day):
        return ""
    found = meta.barriers.epochs(topology, after=_begin(day) - timedelta(microseconds=1), committed=True, limit=1)
    of_day = [barrier for barrier in found if barrier.run_date.date() == day]
    return "".join(
        f". The run of {day} (its ds) opened {barrier}: if you mean that one, say --from {barrier.barrier_id}"
        for barrier in of_day
    )


def _is_day(day: date | datetime | int | None) -> TypeGuard[date]:
    return isinstance(day, date) and not isinstance(day, datetime)


def _first_readable(meta: MetaService, newest: Barrier) -> Barrier:
    first = meta.barriers.oldest_readable_epoch(newest.topology)
    if first is None:
        raise RevisionRefusedError(  # safety: expired-is-not-revised
            f"topology {newest.topology}: expected a barrier with an epoch within retention, found that {newest}, the "
            "newest one, has expired, and only maintenance is left of it; begin when another barrier is committed"
        )
    return first


def _first_of(
    meta: MetaService, topology: str, first: date | datetime | int, last: date | datetime | int
) -> Barrier | None:
    """The first barrier that is COMMIT and whose epoch overlaps these days, or numbers; None: there is none."""
    if isinstance(first, int) or isinstance(last, int):
        lowest, highest = int_of(first), int_of(last)
        found = meta.barriers.epochs(topology, first=lowest, committed=True, limit=1)
        return next((each for each in found if each.barrier_id <= highest), None)
    begin, end = _begin(first), _end(last)
    found = meta.barriers.epochs(topology, after=begin, committed=True, limit=1)
    return next((each for each in found if (start := _start(meta, each)) is None or start < end), None)


def _up_to(last: date | datetime | int, barriers: Sequence[Barrier]) -> tuple[Barrier, ...]:
    """Return the COMMIT ones of ``barriers`` that are in the window. The first of ``barriers`` is in it."""
    committed = [each for each in barriers if each.state is BarrierState.COMMIT]
    if isinstance(last, int):
        return tuple(each for each in committed if each.barrier_id <= last)
    end = _end(last)
    later = (each for before, each in pairwise(committed) if before.timestamp < end)
    return (committed[0], *later)


def _start(meta: MetaService, barrier: Barrier) -> datetime | None:
    """Return the beginning of an epoch: the timestamp of the barrier before it.

    The first epoch holds all that came before its barrier; days that it is asked for by are as long as the next's, so
    that a date long before the history is told that it is. None: it is the only one.
    """
    oldest = meta.barriers.epochs(barrier.topology, committed=True, limit=2)
    if oldest[0].barrier_id != barrier.barrier_id:
        return meta.barriers.get(barrier.topology, barrier.predecessor or 0).timestamp
    if len(oldest) < 2:
        return None
    return oldest[0].timestamp - (oldest[1].timestamp - oldest[0].timestamp)


def days_or_barrier(argument: str, value: str | int | date) -> date | datetime | int:
    """A day (``2017-01-05``), a time in ISO 8601 with its zone, or a barrier's number, also as text.

    Raises RevisionRefusedError for anything else, naming the argument.

    >>> days_or_barrier("first", "5"), days_or_barrier("first", "2017-01-05").isoformat()
    (5, '2017-01-05')
    """
    if not isinstance(value, str):
        return value
    if value.isdecimal():
        return int(value)
    try:
        # Python 3.10 does not know Z
        return (
            date.fromisoformat(value) if len(value) == _A_DAY else datetime.fromisoformat(value.replace("Z", "+00:00"))
        )
    except ValueError:
        raise RevisionRefusedError(
            f"{argument}: expected a day such as 2017-01-05, a time with its zone, or a barrier's number, found "
            f"{value!r}"
        ) from None


def int_of(number: date | datetime | int) -> int:
    """Raises RevisionRefusedError where a barrier's number stands beside a date."""
    if not isinstance(number, int):
        raise RevisionRefusedError(  # safety: days-are-named
            f"expected two barriers' numbers or two days, found {number} beside a number; name both the same way"
        )
    return number


def _begin(day: date | datetime | int) -> datetime:
    return _aware(day) if isinstance(day, datetime) else datetime.combine(_day(day), time(), timezone.utc)


def _end(day: date | datetime | int) -> datetime:
    """The first moment after it."""
    if isinstance(day, datetime):
        return _aware(day)
    return datetime.combine(_day(day) + timedelta(days=1), time(), timezone.utc)


def _day(day: date | int) -> date:
    assert isinstance(day, date)  # numbers were seen to before
    return day


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise RevisionRefusedError(  # safety: days-are-named
            f"expected a time with its zone, found {moment}; write +00:00 for UTC"
        )
    return moment
