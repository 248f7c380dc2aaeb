"""Asking a MetaService again and again whether something has changed."""

from __future__ import annotations

import random

#: By what part of itself a pause may be shorter or longer, so that processes do not all ask at once.
_JITTER = 0.2
#: How often a pause is doubled at most.
_LONGEST = 3


class Pace:
    """Pauses between questions: steady while there are answers, and doubled with each one that does not come.

    :param interval: seconds between two answers.

    >>> pace = Pace(1.0)
    >>> 0.8 <= pace.pause() <= 1.2
    True
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._failures = 0

    def answered(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        self._failures += 1

    @property
    def is_slow(self) -> bool:
        """True if the last answer did not come."""
        return self._failures > 0

    def pause(self) -> float:
        """Seconds until the next question."""
        longer = 1 << min(max(self._failures - 1, 0), _LONGEST)
        return self._interval * longer * random.uniform(1 - _JITTER, 1 + _JITTER)
