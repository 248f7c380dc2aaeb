"""What a landing may play in part, as it was collected. `tests/whole.txt` says the same, and a test compares.

So nothing that `make test` leaves out today can be lost tomorrow without a line that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.drawing import deployment_of

#: The lines about the files that this process has collected, before anything was left out.
COLLECTED = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = lines_of(items)


def lines_of(items: Sequence[pytest.Item]) -> list[str]:
    """Drawn and thorough tests with their number of items, files with that on each deployment."""
    found: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if thorough := item.get_closest_marker("thorough"):
            found[f"{function} in test-all only, at a landing {thorough.args[0]}"] += 1
        elif item.get_closest_marker("drawn"):
            found[f"{function} drawn"] += 1
        elif kind := deployment_of(item):
            every = ", every_deployment" if item.get_closest_marker("every_deployment") else ""
            found[f"{function.partition('::')[0]} on {kind}{every}"] += 1
    return sorted(f"{what}: {count}" for what, count in found.items())
