"""Waiting for a state, not for a time: bounded so that a run ends, and so widely that a slow machine does not fail.

As a plugin of pytest it gives each part of a test, set-up, call and teardown, the whole of the test's time-out. Whoever
asks first for a server pays for its start, but not with the time of the test.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from tests.support.slowness import slowness

if TYPE_CHECKING:
    import pytest

#: Seconds that anything may take to happen on the reference host; only reached when it does not happen at all.
PATIENCE = 240.0
#: Seconds that a wait ends before its test's time-out does, which says where a test was, but not what it waited for.
_MARGIN = 20.0
_Found = TypeVar("_Found")

_ends = math.inf
_settings: Any = None


def patience(most: float = PATIENCE) -> float:
    """Seconds that a wait may last on this host: ``most`` of the reference host, or what is left of the test."""
    return max(1.0, min(most * slowness(), _ends - _MARGIN - time.monotonic()))


def wait_for(what: str, condition: Callable[[], _Found]) -> _Found:
    """The first answer of ``condition`` that is true."""
    seconds = patience()
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        Event().wait(0.05)
    return found


# --- the time of a test, as pytest-timeout measures it ---------------------------------------------


def pytest_timeout_set_timer(settings: Any) -> None:
    global _ends, _settings
    _ends, _settings = time.monotonic() + settings.timeout, settings


def pytest_timeout_cancel_timer() -> None:
    global _ends
    _ends = math.inf


def pytest_runtest_call(item: pytest.Item) -> None:
    _begin_anew(item)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    _begin_anew(item)


def _begin_anew(item: pytest.Item) -> None:
    if _ends < math.inf:  # without a time-out, there is nothing to begin
        item.config.hook.pytest_timeout_cancel_timer(item=item)
        item.config.hook.pytest_timeout_set_timer(item=item, settings=_settings)
