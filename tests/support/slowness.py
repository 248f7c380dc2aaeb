"""How slow the host is: by so much more time a test, and each wait of it, may take before it counts as failed.

Hosts differ by a factor of four. The first process of a run measures fixed work, once; the others have its answer from
their environment. A host that is quicker than the one that bounds are of counts as that one.

What is measured is time on the clock, with as many processes at work as a landing has: a host of two cores may let all
of its processes together have half a core, and no process sees that in the CPU time of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.support.reporting import report

_SLOWNESS = "BARRIER_TEST_SLOWNESS"
#: Seconds that :data:`_WORK` takes, three times at once, on the host of two cores that these bounds are of.
_REFERENCE = 2.0
_AT_ONCE = 3
_WORK = """
total = 0
for number in range(10_000_000):
    total += number * number % 7
"""


def slowness() -> float:
    """1.0 or more: the factor for bounds of waits, for time-outs of tests and for the budget of a landing."""
    return float(os.environ.get(_SLOWNESS, "1"))


def pytest_configure(config: pytest.Config) -> None:
    if _SLOWNESS not in os.environ:
        os.environ[_SLOWNESS] = f"{max(1.0, _measured() / _REFERENCE):.2f}"
        config.add_cleanup(lambda: os.environ.pop(_SLOWNESS))
        report(f"host: bounds and the budget are those of the reference host times {os.environ[_SLOWNESS]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test's time-out, its own or the run's, is that of this host."""
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker else usual
        item.add_marker(pytest.mark.timeout(seconds * slowness()), append=False)


def _measured() -> float:
    began = time.monotonic()
    working = [subprocess.Popen([sys.executable, "-S", "-c", _WORK]) for _ in range(_AT_ONCE)]
    for process in working:
        process.wait()
    return time.monotonic() - began
