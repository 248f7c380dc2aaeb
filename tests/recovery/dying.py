"""A recovery that dies: in a process of its own, since the test runner has threads, and cannot fork."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import count
from typing import Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.tables.iceberg import IcebergTables
from tests.races.racers import PROCESSES
from tests.support.waiting import patience


def killed_at(point: int, settings: Settings, topology: str) -> bool:
    """Recover in a child that gets a real SIGKILL before or after a step; False: it had no such step, and ended."""
    child = PROCESSES.Process(target=_recover, args=(point, settings, topology), daemon=True)
    child.start()
    child.join(patience())
    assert child.exitcode in (0, -signal.SIGKILL), f"the child failed by itself: {child.exitcode}"
    return child.exitcode != 0


def _recover(point: int, settings: Settings, topology: str) -> None:
    _watch(point)
    deployment = Deployment.connect(settings)
    recover(deployment, topology, actor="child", reason="test")
    deployment.close()


def _watch(point: int) -> None:
    """From here on the process is killed at that point: before or after one of the steps that change something."""
    steps = count()

    def step(work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if next(steps) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            done = work(*arguments, **named)
            if next(steps) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return watched

    for owner, name in (
        (IcebergTables, "reattach"),
        (IcebergTables, "write_text"),
        (IcebergTables, "publish"),
        (MetaService, "recover"),
    ):
        setattr(owner, name, step(getattr(owner, name)))
