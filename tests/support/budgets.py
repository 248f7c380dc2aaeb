"""What each folder of tests may cost at a landing, in seconds of CPU on the machine of docs/reliability.md."""

from __future__ import annotations

from collections.abc import Mapping

#: A run that is over by more than this part of a budget says so in its last lines.
TOLERANCE = 0.2
BUDGETS: Mapping[str, int] = {}
