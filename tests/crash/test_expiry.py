"""An expiry dies at every step, or sleeps through another one's work: readers see whole barriers or a clear error.

In the end tags, snapshots and what the MetaService remembers are as after expiries that nothing disturbed.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.crash.expiry import DEATH, ZOMBIE
from tests.crash.playing import play
from tests.support.drawing import is_whole
from tests.support.reporting import report

_LANES = 2


@pytest.mark.timeout(600)
def test_an_expiry_that_dies_or_wakes_at_every_point(folder: str) -> None:
    lanes = [
        (f"{folder}/{lane}", json.dumps({"folder": f"{folder}/{lane}", "lane": lane, "lanes": _LANES}))
        for lane in range(_LANES)
    ]
    results = play("tests.crash.expiry", lanes)
    operations, points = results[0]["operations"], [result for result in results if "mode" in result]
    for result in points:
        assert result["left"] == result["undisturbed"], f"{result['point']}, {result['mode']}: something else is left"
    modes = Counter(result["mode"] for result in points)
    assert not is_whole() or (modes[DEATH] >= 50 and modes[ZOMBIE] >= 15), modes
    ends = Counter(result["ended"] for result in points if result["mode"] == ZOMBIE)
    report(
        f"crash of an expiry: {operations} operations, {modes[DEATH]} deaths, {modes[ZOMBIE]} zombies "
        f"({', '.join(f'{count} {end}' for end, count in ends.most_common())}), "
        f"{sum(result['reads'] for result in points)} reads of whole barriers"
    )
