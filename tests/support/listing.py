"""What a landing may play in part, as it was collected. `tests/whole.txt` says the same, and a test compares.

So nothing that `make test` leaves out today can be lost tomorrow without a line that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.drawing import variant_of

#: The files that this process has collected, and the lines about them, before anything was left out.
COLLECTED = pytest.StashKey[tuple[set[str], list[str]]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = {item.nodeid.partition("::")[0] for item in items}, lines_of(items)


def lines_of(items: Sequence[pytest.Item]) -> list[str]:
    """Drawn tests with their list and number of items, files with that of each deployment and format."""
    found: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        if marker := item.get_closest_marker("drawn"):
            found[f"{function} drawn of {marker.args[0] if marker.args else 'its items'}"] += 1
        elif variant := variant_of(item):
            every = ", every_deployment" if item.get_closest_marker("every_deployment") else ""
            found[f"{function.partition('::')[0]} on {' '.join(variant)}{every}"] += 1
    return sorted(f"{what}: {count}" for what, count in found.items())
