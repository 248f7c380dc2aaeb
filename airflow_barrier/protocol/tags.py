"""Which barriers keep their tags: what is kept must stay bounded, or each commit costs more than the last."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_barrier.protocol.errors import ConfigurationError

_TEXT = re.compile(r"^(?:every=(?P<every>[1-9]\d*)|newest=(?P<newest>[1-9]\d*))$")


@dataclass(frozen=True)
class TagPolicy:
    """Keep the tags of every n-th barrier (all of them: every first), or of the newest k.

    With ``every`` the newest barrier keeps its tag too, until the next one is published.

    >>> TagPolicy.parse("newest=3").keeps(barrier_id=5, newest_id=7)
    True
    """

    every: int = 1
    newest: int | None = None

    @classmethod
    def parse(cls, text: str) -> TagPolicy:
        """Parse ``every=N`` or ``newest=K``. Raises :class:`ConfigurationError`."""
        match = _TEXT.match(text.strip())
        if match is None:
            raise ConfigurationError(f"tag policy {text!r}: expected 'every=N' (1: all) or 'newest=K' with N, K >= 1")
        every, newest = match["every"], match["newest"]
        return cls(every=int(every)) if every else cls(newest=int(newest))

    def __str__(self) -> str:
        return f"every={self.every}" if self.newest is None else f"newest={self.newest}"

    @property
    def unbroken(self) -> int | None:
        """Return how many barriers in a row, up to the newest, keep their tags; None: all of them."""
        if self.newest is not None:
            return self.newest
        return None if self.every == 1 else 1

    def keeps(self, barrier_id: int, newest_id: int) -> bool:
        """Return whether the tag of ``barrier_id`` stays once ``newest_id`` is published."""
        if barrier_id == newest_id:
            return True
        if self.newest is not None:
            return barrier_id > newest_id - self.newest
        return barrier_id % self.every == 0

    def dropped(self, previous_id: int, newest_id: int) -> tuple[int, ...]:
        """The barriers whose tags go when ``newest_id`` is published after ``previous_id``.

        Looks only at what changed between the two, so its cost does not grow with history.

        >>> TagPolicy(newest=3).dropped(previous_id=7, newest_id=8)
        (5,)
        """
        if self.newest is not None:
            candidates = range(max(1, previous_id - self.newest + 1), newest_id)
        else:
            candidates = range(max(1, previous_id), newest_id)
        return tuple(
            barrier_id
            for barrier_id in candidates
            if self.keeps(barrier_id, previous_id) and not self.keeps(barrier_id, newest_id)
        )
