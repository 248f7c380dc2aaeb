"""Our own steps of a barrier, with PostgreSQL at a distance."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

from airflow_barrier.coordinator.deployment import Deployment
from benchmarks.report import Measured
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy, settings_through
from tests.support.way import create_tables, is_on_the_way, take_barrier

_R = TypeVar("_R")

_DISTANCES = (0.0, 0.002, 0.01)
_BARRIERS = 5
_STEPS = ("opening", "step", "close", "commit")
_GOALS = {0.002: 0.8, 0.01: 2.5}


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    barriers = 1 if quick else _BARRIERS
    with PostgreSQL() as server:
        columns = [_seconds(server, folder / f"at {distance}", distance, barriers) for distance in _DISTANCES]
    whole = [sum(found[step] for step in _STEPS) for found in columns]
    rows = [[step, *(f"{found[step]:.2f}" for found in columns)] for step in _STEPS]
    rows.append(["all of it", *(f"{seconds:.2f}" for seconds in whole)])
    return [
        Measured(
            "Our own steps of a barrier, with PostgreSQL at a distance, in seconds",
            "The topology of `dags/shopping.py` without Spark: opening, three jobs that wait for one another (their "
            "steps until Spark would start, and their closes), commit. MetaService and catalog in one database, behind "
            "a proxy that lets each answer come so much later. The sum of each kind of step on that way, medians of "
            f"{barriers} barriers after the first. Files are local.",
            ["seconds", *(f"{distance * 1000:.0f} ms" for distance in _DISTANCES)],
            rows,
            [
                f"goal: at most {goal} s at {distance * 1000:.0f} ms; found {whole[_DISTANCES.index(distance)]:.2f} s"
                for distance, goal in _GOALS.items()
            ],
        )
    ]


def _seconds(server: PostgreSQL, folder: Path, distance: float, barriers: int) -> dict[str, float]:
    folder.mkdir()
    with settings_on("postgresql", folder, server) as settings, Proxy(server.port, distance) as proxy:
        deployment = Deployment.connect(settings_through(proxy, settings))
        try:
            create_tables(deployment)
            found = [_barrier(deployment, day) for day in range(1, barriers + 2)][1:]
        finally:
            deployment.close()
    return {step: median(each[step] for each in found) for step in _STEPS}


def _barrier(deployment: Deployment, day: int) -> Counter[str]:
    took: Counter[str] = Counter()

    def measured(step: str, work: Callable[[], _R], job: str | None = None) -> _R:
        began = time.perf_counter()
        done = work()
        took[step] += (time.perf_counter() - began) * is_on_the_way(job)
        return done

    take_barrier(deployment, day, measured)
    return took
