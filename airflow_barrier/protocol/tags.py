"""Which barriers keep their tags: what is kept must stay bounded, or each commit costs more than the last."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_barrier.protocol.errors import ConfigurationError

_TEXT = re.compile(r"^(?:all|every=(?P<every>[1-9]\d*)|newest=(?P<newest>[1-9]\d*))$")


@dataclass(frozen=True)
class TagPolicy:
    """Keep the tags of all barriers, of every n-th, or of the newest k.

    With ``every`` the newest barrier keeps its tag too, until the next one is published.

    >>> TagPolicy.parse("newest=3").keeps(barrier_id=5, newest_id=7)
    True
    """

    every: int | None = None
    newest: int | None = None

    @classmethod
    def parse(cls, text: str) -> TagPolicy:
        """From ``all``, ``every=N`` or ``newest=K``. Raises :class:`ConfigurationError`."""
        match = _TEXT.match(text.strip())
        if match is None:
            raise ConfigurationError(f"tag policy {text!r}: expected 'all', 'every=N' or 'newest=K' with N, K >= 1")
        every, newest = match["every"], match["newest"]
        return cls(int(every) if every else None, int(newest) if newest else None)

    def __str__(self) -> str:
        if self.every is not None:
            return f"every={self.every}"
        return "all" if self.newest is None else f"newest={self.newest}"

    @property
    def unbroken(self) -> int | None:
        """How many barriers in a row, up to the newest, keep their tags; None: all of them."""
        if self.every is not None:
            return None if self.every == 1 else 1
        return self.newest

    def keeps(self, barrier_id: int, newest_id: int) -> bool:
        """Whether the tag of ``barrier_id`` stays once ``newest_id`` is published."""
        if barrier_id == newest_id:
            return True
        if self.every is not None:
            return barrier_id % self.every == 0
        if self.newest is not None:
            return barrier_id > newest_id - self.newest
        return True

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
