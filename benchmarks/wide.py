"""A barrier of many jobs through the MetaService, and how long others wait for its topology meanwhile."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Connection, Engine, event

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from benchmarks.metaservice import database
from benchmarks.report import Measured
from tests.metaservice.world import World
from tests.support.postgresql import PostgreSQL

_WIDTHS = (10, 100, 1_000)
#: Of a job, in their order.
_OF_JOB = ("request", "start", "close", "report")
_OF_BARRIER = ("open", "decide", "COMMIT")


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    widths = (4, 8) if quick else _WIDTHS
    rows = []
    with PostgreSQL(fsync="on", full_page_writes="on") as server:
        for kind in ("SQLite", "PostgreSQL"):
            for width in widths:
                with database(kind, folder, server) as url:
                    rows.append([f"{width:,} jobs, {kind}", *_row(url, width)])
    return [
        Measured(
            "A barrier of many jobs",
            "A job a table, each second one reads the table of the one before it; the second barrier is measured. "
            "Times are of the transactions that write, from BEGIN to COMMIT: that long others of the topology may "
            "wait. Of a job's four steps the medians. *All of it* is their sum over the barrier. SQLite in WAL mode; "
            "PostgreSQL with fsync, over loopback. No tables and no Spark in it.",
            ["milliseconds", *_OF_JOB, *_OF_BARRIER, "longest", "all of it", "all of it, a job"],
            rows,
        )
    ]


def _row(url: str, width: int) -> list[str]:
    jobs = [Job(f"job{n}", "dag", inlets=(f"w.t{n - 1}",) if n % 2 else (), outlets=(f"w.t{n}",)) for n in range(width)]
    world = World(MetaService(url), "wide", jobs)
    try:
        _play(world, 1, jobs, defaultdict(list))
        found: defaultdict[str, list[float]] = defaultdict(list)
        _play(world, 2, jobs, found)
    finally:
        world.meta.close()
    return _shown(found, width)


def _shown(found: Mapping[str, list[float]], width: int) -> list[str]:
    everything = [each for times in found.values() for each in times]
    steps = [median(found[step]) for step in (*_OF_JOB, *_OF_BARRIER)]
    return [f"{1000 * each:,.1f}" for each in (*steps, max(everything), sum(everything), sum(everything) / width)]


def _play(world: World, number: int, jobs: list[Job], found: defaultdict[str, list[float]]) -> None:
    """A barrier from its opening to its COMMIT, and how long each step's transactions took."""

    def timed(step: str, work: Callable[[], Any]) -> Any:
        with _written() as times:
            done = work()
        found[step].append(sum(times))
        return done

    timed("open", lambda: world.open(number))
    for job in jobs:
        attempt = timed("request", lambda name=job.name: world.request(number, name))
        started = timed("start", lambda one=attempt: world.meta.attempts.start(one.attempt_id))
        timed("close", lambda one=started: world.close(one))
        timed("report", lambda one=attempt: world.meta.attempts.report(one.attempt_id, "test"))
    timed("decide", lambda: world.begin_commit(number))
    timed("COMMIT", lambda: world.publish(number))


@contextmanager
def _written() -> Iterator[list[float]]:
    """Seconds of each transaction that wrote meanwhile."""
    began: dict[int, float] = {}
    times: list[float] = []

    def executed(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("BEGIN IMMEDIATE", "BEGIN ISOLATION LEVEL READ COMMITTED")):
            began[id(connection)] = time.perf_counter()

    def commit(connection: Connection) -> None:
        if id(connection) in began:
            times.append(time.perf_counter() - began.pop(id(connection)))

    event.listen(Engine, "before_cursor_execute", executed)
    event.listen(Engine, "commit", commit)
    try:
        yield times
    finally:
        event.remove(Engine, "before_cursor_execute", executed)
        event.remove(Engine, "commit", commit)
