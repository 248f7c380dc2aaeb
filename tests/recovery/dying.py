"""A recovery, or the folding of a journal, that dies: in a process of its own, since the test runner has threads, and
cannot fork.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from airflow_barrier.coordinator import trimmed_journal
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.tables._local_files import LocalFiles
from airflow_barrier.tables.iceberg import IcebergTables
from tests.races.racers import PROCESSES
from tests.support.waiting import patience


def killed_at(point: int, settings: Settings, topology: str) -> bool:
    """Recover in a child that gets a real SIGKILL before or after a step; False: it had no such step, and ended."""
    return _killed(_recover, point, settings, topology)


def killed_folding_at(point: int, settings: Settings, topology: str, span: int, trimmed: Sequence[int]) -> bool:
    """The same for :func:`fold`."""
    return _killed(_fold, point, settings, topology, span, trimmed)


def _killed(work: Callable[..., None], *arguments: object) -> bool:
    child = PROCESSES.Process(target=work, args=arguments, daemon=True)
    child.start()
    child.join(patience())
    assert child.exitcode in (0, -signal.SIGKILL), f"the child failed by itself: {child.exitcode}"
    return child.exitcode != 0


def _recover(point: int, settings: Settings, topology: str) -> None:
    reattach, write, publish = ((IcebergTables, name) for name in ("reattach", "write_text", "publish"))
    _watch(point, reattach, write, publish, (MetaService, "recover"))
    deployment = Deployment.connect(settings)
    recover(deployment, topology, actor="child", reason="test")
    deployment.close()


def _fold(point: int, settings: Settings, topology: str, span: int, trimmed: Sequence[int]) -> None:
    _watch(point, (IcebergTables, "write_text"), (LocalFiles, "delete"))
    trimmed_journal.SPAN = span
    deployment = Deployment.connect(settings)
    trimmed_journal.fold(deployment, topology, trimmed)
    deployment.close()


def _watch(point: int, *changing: tuple[type, str]) -> None:
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

    for owner, name in changing:
        setattr(owner, name, step(getattr(owner, name)))
