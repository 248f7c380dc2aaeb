"""What a job's step costs does not grow with the number of other jobs: counted beside few and beside many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import World
from tests.scale.meters import metering
from tests.support.reporting import report

FEW, MANY = 20, 200


@pytest.mark.parametrize("others", ["wait", "are done"])
def test_a_jobs_steps_cost_the_same_in_a_wide_topology(others: str, tmp_path: Path) -> None:
    few, many = (_costs(tmp_path / f"{others} {jobs}.db", jobs, others == "are done") for jobs in (FEW, MANY))
    for step, (touched, calls) in many.items():
        report(f"{step}, others {others}: {FEW} jobs {few[step]}, {MANY} jobs {(touched, calls)} (SQLite, Python)")
    for step, (touched, calls) in many.items():
        assert touched <= 1.5 * few[step][0], f"{step}: {touched} instructions of SQLite beside {few[step][0]}"
        assert calls <= 1.5 * few[step][1], f"{step}: {calls} calls of Python beside {few[step][1]}"


def _costs(file: Path, jobs: int, others_are_done: bool) -> dict[str, tuple[int, int]]:
    """Instructions of SQLite, and calls of Python, of each step of one of many jobs."""
    with metering() as meter:
        world = World(MetaService(f"sqlite:///{file}"), "wide", _pairs(jobs))
        world.open(1)
        if others_are_done:
            for number in range(jobs):
                if number not in (jobs // 2, jobs // 2 + 1):  # the second reads what the first writes
                    world.process(1, f"job{number}")
        name, found = f"job{jobs // 2}", {}

        def measure(step: str, work: Callable[[], object]) -> None:
            with _counted() as calls:
                touched = meter.of(work).touched
            found[step] = touched, calls[0]

        world.meta.topologies.get("wide")  # a process reads it once
        measure("request", lambda: world.request(1, name))
        attempt = world.request(1, name)
        measure("start", lambda: world.meta.attempts.start(attempt.attempt_id))
        measure("close", lambda: world.close(world.meta.attempts.get(attempt.attempt_id)))
        measure("report", lambda: world.meta.attempts.report(attempt.attempt_id, "test"))
        world.meta.close()
    return found


def _pairs(jobs: int) -> list[Job]:
    """Each second job reads the table of the one before it."""
    return [Job(f"job{n}", "dag", inlets=(f"w.t{n - 1}",) if n % 2 else (), outlets=(f"w.t{n}",)) for n in range(jobs)]


@contextmanager
def _counted() -> Iterator[list[int]]:
    calls = [0]

    def called(frame: FrameType, event: str, argument: object) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        yield calls
    finally:
        sys.setprofile(None)
