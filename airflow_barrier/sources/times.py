"""Which times of records end an epoch, whatever source they are of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

#: What clocks may be ahead by, where the source does not say.
MAX_FUTURE_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Times:
    """The rules by which records' times end an epoch.

    ``max_future_skew``: records that are later than that after the present end none, since their clocks are wrong.
    ``lateness``: by event time, how much later than the barrier a source (of a topic each partition) has to be before
    the barrier opens; None: it is not waited for. ``idle_timeout``: nor is one whose newest record is older than that
    (None: it is).
    """

    max_future_skew: timedelta
    lateness: timedelta | None = None
    idle_timeout: timedelta | None = None

    def future(self, now: datetime) -> datetime:
        """Return the moment behind which records end no epoch."""
        return now + self.max_future_skew

    def newest(self, moments: Iterable[datetime | None], now: datetime) -> datetime | None:
        """The newest one that ends epochs."""
        future = self.future(now)
        return max(
            (
                moment
                for moment in moments
                if moment is not None and moment <= future  # safety: the-future-ends-no-epoch
            ),
            default=None,
        )

    def watermark(self, newest: datetime | None) -> datetime | None:
        """Return the moment up to which everything is taken to have come."""
        return newest - (self.lateness or timedelta(0)) if newest is not None else None
