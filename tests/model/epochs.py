"""What an epoch does to the rows of a table: some come, and some go, also of epochs before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.model.inputs import adds_nothing, key_of, taken_back_by
from tests.support.memory_tables import Rows

#: (row of an inlet, that table) -> how often it came; below zero: how often it went.
Weights = Mapping[tuple[Any, str], int]


def difference(after: Rows, before: Rows) -> Rows:
    """What came, and below zero what went."""
    weights = after.copy()
    weights.subtract(before)
    return Counter({row: times for row, times in weights.items() if times})


@dataclass(frozen=True)
class Epoch:
    """Of one job. ``by``: its name and the code that ran, which all rows say that it made."""

    by: str
    #: what the records of its external sources say, in their order
    texts: tuple[str, ...] = ()
    weights: Weights = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.texts or self.weights)

    def onto(self, rows: Rows) -> Rows:
        """The rows after the epoch, of those before. What was made of what went goes, whatever code made it; what never
        was there cannot.
        """
        after = rows.copy()
        for text in self.texts:
            if (old := taken_back_by(text)) is not None:
                for row in [row for row in after if _is_of(row, old)]:
                    del after[row]
            if not adds_nothing(text):
                after[text, self.by] += 1
        for made_of, times in self.weights.items():
            if times > 0:
                after[(*made_of, self.by)] += times
        self._take_back(after)
        return after

    def _take_back(self, rows: Rows) -> None:
        gone = Counter({made_of: -times for made_of, times in self.weights.items() if times < 0})
        if not gone:
            return
        for row in sorted((row for row in rows if row[:2] in gone), key=lambda row: row[-1]):
            times = min(gone[row[:2]], rows[row])
            gone[row[:2]] -= times
            rows[row] -= times


def _is_of(row: Any, key: str) -> bool:
    """Whether a row is a record's; a stranger's is a text, and one that was made of a table's row has three parts."""
    return isinstance(row, tuple) and len(row) == 2 and key_of(row[0]) == key
