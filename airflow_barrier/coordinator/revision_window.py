"""Which barriers the days are that a person names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revision_plan import Wanted
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.states import BarrierState

_A_DAY = len("2017-01-05")


#: As many barriers as a topology may have.
_ALL = 2**31 - 1


def window_of(deployment: Deployment, wanted: Wanted) -> tuple[Barrier, ...]:
    """The barriers that a person asks for: those whose epochs overlap the days, in order.

    Raises RevisionRefusedError for days that no barrier covers, UnknownTopologyError.
    """
    deployment.meta.topology_version(wanted.topology)
    return window_in(wanted, standing_barriers(deployment, wanted.topology))


def standing_barriers(deployment: Deployment, topology: str) -> list[Barrier]:
    """Every barrier with an epoch that counts, oldest first."""
    states = [state for state in BarrierState if state is not BarrierState.ABORTED]
    newest_first = deployment.meta.barriers(topology, states, limit=_ALL)
    return [each for each in reversed(newest_first) if each.barrier_id and not each.is_maintenance]


def window_in(wanted: Wanted, standing: Sequence[Barrier]) -> tuple[Barrier, ...]:
    """The barriers whose epochs overlap the days that a person named."""
    name = wanted.topology
    committed = [each for each in standing if each.state is BarrierState.COMMIT]
    if not committed:
        raise RevisionRefusedError(  # safety: something-to-correct
            f"topology {name}: expected a barrier that is COMMIT, found none; there is nothing to correct yet"
        )
    if wanted.first is None:
        if wanted.mode is not RevisionMode.FULL:
            raise RevisionRefusedError(
                f"topology {name}: expected the first day to correct, found none; say --from"
            )  # safety: days-are-named
        return (_first_readable(name, committed),)
    last = wanted.first if wanted.last is None else wanted.last
    if isinstance(wanted.first, int) or isinstance(last, int):
        chosen = [each for each in committed if int_of(wanted.first) <= each.barrier_id <= int_of(last)]
    else:
        chosen = _covering(committed, _begin(wanted.first), _end(last))
    if not chosen:
        raise RevisionRefusedError(  # safety: range-in-history
            f"topology {name}: expected days within its history, which is committed from {committed[0]} to "
            f"{committed[-1]}, found {wanted.first} to {last}; choose days that it covers"
        )
    return tuple(chosen)


def _first_readable(name: str, committed: Sequence[Barrier]) -> Barrier:
    for barrier in committed:
        if barrier.expiring_at is None:
            return barrier
    raise RevisionRefusedError(  # safety: expired-is-not-revised
        f"topology {name}: expected a barrier with an epoch within retention, found that {committed[-1]}, the newest "
        "one, has expired, and only maintenance is left of it; begin when another barrier is committed"
    )


def _covering(committed: Sequence[Barrier], begin: datetime, end: datetime) -> list[Barrier]:
    """An epoch ends with its barrier's timestamp and begins with the one before it."""
    starts = [_start_of_first(committed), *(each.timestamp for each in committed[:-1])]
    return [
        each
        for start, each in zip(starts, committed, strict=True)
        if each.timestamp > begin and (start is None or start < end)
    ]


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


def _start_of_first(committed: Sequence[Barrier]) -> datetime | None:
    """The first epoch holds all that came before its barrier; days that it is asked for by are as long as the next's,
    so that a date long before the history is told that it is.
    """
    if len(committed) < 2:
        return None
    return committed[0].timestamp - (committed[1].timestamp - committed[0].timestamp)


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
