"""Waiting for a state, not for a time: bounded so that a run ends, and so widely that a slow machine does not fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

#: Seconds that anything outside of Airflow may take to happen; only reached when it does not happen at all.
PATIENCE = 400.0
_Found = TypeVar("_Found")


def wait_for(what: str, condition: Callable[[], _Found]) -> _Found:
    """The first answer of ``condition`` that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s in vain for {what}"
        Event().wait(0.05)
    return found
