"""Which barriers stay readable, and why each other one may go: a plan that can be explained before it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.records import Barrier

if TYPE_CHECKING:
    from airflow_barrier.protocol.deliveries import SinkRecord


@dataclass(frozen=True)
class Retention:
    """A barrier stays while it is among the newest ``barriers`` or was committed no longer than ``age`` ago.

    >>> Retention(barriers=0)
    Traceback (most recent call last):
    airflow_barrier.protocol.errors.ConfigurationError: retention: expected to keep 1 barrier or more, found 0; ...
    """

    barriers: int
    age: timedelta = timedelta(0)

    def __post_init__(self) -> None:
        if self.barriers < 1:
            raise ConfigurationError(
                f"retention: expected to keep 1 barrier or more, found {self.barriers}; the newest committed barrier "
                "is what everybody reads"
            )
        if self.age < timedelta(0):
            raise ConfigurationError(f"retention: expected an age of zero or more, found {self.age}")

    def __str__(self) -> str:
        newest = "the newest barrier" if self.barriers == 1 else f"the newest {self.barriers} barriers"
        return f"{newest} and those of the last {self.days}" if self.age else newest

    @property
    def days(self) -> str:
        """The age in words, such as ``4 days`` or ``1 day, 6:00:00``."""
        return str(self.age).removesuffix(", 0:00:00")


@dataclass(frozen=True)
class BarrierVerdict:
    """The fate of one barrier, and why. ``recent``: it is in the window that the retention itself keeps, or a sink
    holds, with every step since; what a lease keeps beyond it stands alone.
    """

    barrier: Barrier
    keep: bool
    reason: str
    recent: bool = False


def barrier_verdicts(
    readable: Sequence[Barrier],
    retention: Retention,
    now: datetime,
    held: Mapping[int, Collection[str]],
    in_use: Mapping[int, str],
    sinks: Sequence[SinkRecord],
) -> list[BarrierVerdict]:
    """A verdict on each of ``readable``: the barriers that are COMMIT and not expired, oldest first.

    ``now`` is the database's (UTC). ``held``: barrier -> who holds a lease on it. ``in_use``: barrier -> what stands on
    it, such as an open barrier whose predecessor it is. ``sinks``: each holds what it received last, and all since.
    """
    newest = {barrier.barrier_id for barrier in readable[-retention.barriers :]}
    return [_verdict(barrier, newest, retention, now, held, in_use, sinks) for barrier in readable]


def _verdict(
    barrier: Barrier,
    newest: Collection[int],
    retention: Retention,
    now: datetime,
    held: Mapping[int, Collection[str]],
    in_use: Mapping[int, str],
    sinks: Sequence[SinkRecord],
) -> BarrierVerdict:
    number = barrier.barrier_id
    if number in newest:
        return BarrierVerdict(barrier, True, f"among the newest {retention.barriers}", recent=True)
    if barrier.commit_at is not None and now - barrier.commit_at < retention.age:
        committed = f"committed {barrier.commit_at:%Y-%m-%d %H:%M}"
        return BarrierVerdict(barrier, True, f"{committed}, within {retention.days}", recent=True)
    lacking = [
        f"sink {sink.name} is at {sink.position}"
        for sink in sinks
        if sink.position is not None and sink.position.barrier_id <= number
    ]
    if lacking:  # safety: undelivered-steps-stay
        return BarrierVerdict(barrier, True, "; ".join(lacking), recent=True)
    if holders := held.get(number):
        return BarrierVerdict(barrier, True, f"leased by {', '.join(sorted(holders))}")
    if use := in_use.get(number):
        return BarrierVerdict(barrier, True, use)
    return BarrierVerdict(barrier, False, f"beyond {retention}, and nobody holds it")


def window_start(verdicts: Sequence[BarrierVerdict]) -> Barrier | None:
    """The barrier with which the recent window begins, of which a replay needs every step."""
    return next((verdict.barrier for verdict in verdicts if verdict.recent), None)
