"""The MetaService by itself: transitions per second, and what a consistent read costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from threading import Barrier

from sqlalchemy import create_engine, text

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.topology import Job
from benchmarks.report import Measured
from tests.metaservice.world import World
from tests.scale.history import multiply
from tests.support.postgresql import USER, PostgreSQL, with_driver

_WRITERS = 4
#: Tables of the wide topology, and how many of them each of its jobs writes.
_TABLES, _OUTLETS = 1_000, 100
_HISTORY = 100_000
_SECONDS = 4.0
#: Seconds for all writers to have begun.
_PATIENCE = 120
_READS = 50
#: Transactions that a job's part of a barrier takes: request, start, close, report.
_OF_JOB = 4
#: ... and a barrier: open, the decision, COMMIT.
_OF_BARRIER = 3


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    seconds, tables, history, several = (0.2, 10, 20, 2) if quick else (_SECONDS, _TABLES, _HISTORY, _WRITERS)
    # durable, as in production: the tests' own server is not
    with PostgreSQL(fsync="on", full_page_writes="on") as server:
        transitions, reads = [], []
        for kind in ("SQLite", "PostgreSQL"):
            rates = []
            for writers in (1, several):
                with database(kind, folder, server) as url:
                    rates.append(_rate(url, writers, seconds))
            transitions.append([kind, *(f"{rate:,.0f}" for rate in rates)])
            with database(kind, folder, server) as url:
                wide, leased = _wide(url, tables)
            with database(kind, folder, server) as url:
                long, rows = _long(url, history)
            reads.append([kind, *(f"{each * 1000:.1f}" for each in (wide, leased, long)), f"{rows:,}"])
    return [
        Measured(
            "MetaService: transitions per second",
            "Whole barriers of a topology of four jobs, one step after the other: opened, each job's attempt "
            "requested, started, closed and reported, decided, committed. That is "
            f"{_OF_BARRIER} + 4 x {_OF_JOB} transactions that write, each with its reads, its compare-and-set and its "
            f"audit rows, for {seconds:g} s. Several writers are processes with a topology each in one database. "
            "SQLite in WAL mode; PostgreSQL with fsync, over loopback. No tables and no Spark in it.",
            ["transitions per second", "one writer", f"{several} writers"],
            transitions,
        ),
        Measured(
            "MetaService: resolving a consistent read",
            f"`meta.answers.resolve` of all tables at repeatable read, median of {_READS}: of {tables:,} tables at one "
            f"barrier, the same with a lease (which writes), and of four tables after {history:,} barriers, whose rows "
            "are copies of a real one.",
            ["milliseconds", f"{tables:,} tables", "with a lease", f"{history:,} barriers", "rows of history"],
            reads,
            [
                f"goal: {tables:,} tables in at most 5 ms; found "
                + ", ".join(f"{plain} ms, with a lease {leased} ms ({kind})" for kind, plain, leased, *_ in reads)
            ],
        ),
    ]


@contextmanager
def database(kind: str, folder: Path, server: PostgreSQL) -> Iterator[str]:
    """A new one of these."""
    if kind == "PostgreSQL":
        with server.database() as url:
            server.run(f"GRANT SET ON PARAMETER session_replication_role TO {USER}", database=url)
            yield url
        return
    name = f"{time.monotonic_ns()}.db"
    yield f"sqlite:///{folder}/{name}"
    for file in folder.glob(f"{name}*"):
        file.unlink()


# --- transitions ------------------------------------------------------------------------------------------


def _rate(url: str, writers: int, seconds: float) -> float:
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(writers, mp_context=context) as pool:
        all_there = manager.Barrier(writers)
        return sum(pool.map(_write, [url] * writers, range(writers), [all_there] * writers, [seconds] * writers))


def _write(url: str, number: int, all_there: Barrier, seconds: float) -> float:
    """Transitions per second of one writer."""
    world = _world(url, number)
    world.committed(1)
    all_there.wait(_PATIENCE)  # before anybody counts
    began, barriers = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        world.committed(barriers + 2)
        barriers += 1
    each = _OF_BARRIER + _OF_JOB * len(_jobs(number))
    rate = barriers * each / (time.perf_counter() - began)
    world.meta.close()
    return rate


def _world(url: str, number: int) -> World:
    return World(MetaService(url), f"topology{number}", _jobs(number))


def _jobs(number: int) -> list[Job]:
    """A diamond, on tables of its own."""
    root, left, right, top = (f"n{number}.{name}" for name in ("root", "left", "right", "top"))
    return [
        Job("load", "dag", outlets=(root,)),
        Job("left", "dag", inlets=(root,), outlets=(left,)),
        Job("right", "dag", inlets=(root,), outlets=(right,)),
        Job("top", "dag", inlets=(left, right), outlets=(top,)),
    ]


# --- reading ------------------------------------------------------------------------------------------------


def _wide(url: str, tables: int) -> tuple[float, float]:
    """Without a lease and with one."""
    names = [f"wide.t{number:04}" for number in range(tables)]
    jobs = [Job(f"job{at}", "dag", outlets=tuple(names[at : at + _OUTLETS])) for at in range(0, tables, _OUTLETS)]
    world = World(MetaService(url), "wide", jobs)
    world.committed(1)
    try:
        return _resolving(world), _resolving(world, Hold("benchmark", 60))
    finally:
        world.meta.close()


def _long(url: str, barriers: int) -> tuple[float, int]:
    """The time, and the rows of that history."""
    world = World(MetaService(url), "long", _jobs(0))
    for number in (1, 2):
        world.committed(number)
    engine = create_engine(with_driver(url))
    with engine.begin() as connection:
        rows = multiply(connection, template=2, last=barriers)
    # a database that lives so long has been looked at
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE"))
    engine.dispose()
    try:
        return _resolving(world), rows
    finally:
        world.meta.close()


def _resolving(world: World, hold: Hold | None = None) -> float:
    """Seconds of one read."""
    times = []
    for _ in range(_READS):
        began = time.perf_counter()
        world.meta.answers.resolve(world.name, Level.REPEATABLE_READ, hold=hold)
        times.append(time.perf_counter() - began)
    return median(times)
