"""How slow the host is: by so much more time a test, and each wait of it, may take before it counts as failed.

Hosts differ by a factor of two and a half. The first process of a run measures a second of fixed work, once; the others
have its answer from their environment. A host that is quicker than the one that budgets are of counts as that one.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.support.reporting import report

_SLOWNESS = "BARRIER_TEST_SLOWNESS"
#: Seconds of CPU that :func:`_work` takes on the host that time-outs and budgets are of: half of what it took on a
#: host where most folders took twice their budget.
_REFERENCE = 0.5


def slowness() -> float:
    """1.0 or more: the factor for bounds of waits, for time-outs of tests and for budgets."""
    return float(os.environ.get(_SLOWNESS, "1"))


def pytest_configure(config: pytest.Config) -> None:
    if _SLOWNESS not in os.environ:
        os.environ[_SLOWNESS] = f"{max(1.0, _work() / _REFERENCE):.2f}"
        config.add_cleanup(lambda: os.environ.pop(_SLOWNESS))
        report(f"host: bounds and budgets are those of the reference host times {os.environ[_SLOWNESS]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test's time-out, its own or the run's, is that of this host."""
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker else usual
        item.add_marker(pytest.mark.timeout(seconds * slowness()), append=False)


def _work() -> float:
    """Seconds of CPU for work that is always the same."""
    began, total = time.process_time(), 0
    for number in range(14_000_000):
        total += number * number % 7
    return time.process_time() - began
