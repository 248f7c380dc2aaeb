"""A reader's hold on what it reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from airflow_barrier.protocol.errors import ConfigurationError

#: A week: nobody reads longer, and what is held keeps data of every table from being deleted.
LONGEST_HOLD_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Hold:
    """A reader's wish for a lease along with its answer: who it is, and for how long unless it renews.

    ``holder`` is free text for the people who see it (`who holds what since when`); ``seconds`` more than 0, a week at
    most. Raises :class:`ConfigurationError`.

    >>> Hold("report of ada@host-3", seconds=60)
    Hold(holder='report of ada@host-3', seconds=60)
    """

    holder: str
    seconds: float

    def __post_init__(self) -> None:
        if not self.holder.strip():
            raise ConfigurationError("hold: expected who it is for, found an empty holder; name the reader")
        check_seconds(self.seconds)


@dataclass(frozen=True)
class Lease:
    """A reader's hold on the barriers ``barrier_id`` to ``through_id`` (the same one, but at read uncommitted).

    As long as it lives, what they consist of is neither expired nor deleted. Times are the database's, in UTC; at
    ``expires_at`` it ends unless it was renewed. ``rolled_back``: work that the answer may consist of was staged anew,
    aborted or decided against by a person since; the answer itself can still be read, and is out of date.
    """

    lease_id: int
    topology: str
    line: int
    barrier_id: int
    through_id: int
    holder: str
    granted_at: datetime
    expires_at: datetime
    rolled_back: bool = False

    def __str__(self) -> str:
        what = f"barrier {self.barrier_id}"
        if self.through_id != self.barrier_id:
            what = f"barriers {self.barrier_id} to {self.through_id}"
        return f"lease {self.lease_id} of {self.holder} on {what} of {self.topology}"


def check_seconds(seconds: float) -> None:
    """Raise :class:`ConfigurationError` unless a lease can live that long."""
    if not (math.isfinite(seconds) and 0 < seconds <= LONGEST_HOLD_SECONDS):
        raise ConfigurationError(
            f"lease: expected more than 0 and at most {LONGEST_HOLD_SECONDS:.0f} seconds (7 days) to live, found "
            f"{seconds}; renew it for as long as you read, or hand out anew what others read by"
        )
