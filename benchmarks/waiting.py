"""Many tasks that wait in one triggerer: what they ask of the MetaService, and how soon they are told."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sqlalchemy import event, make_url

from airflow_barrier.coordinator.waiting import Condition, TopologyView, look
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from airflow_barrier.triggers.barrier import BarrierTrigger
from benchmarks.report import Measured
from tests.metaservice.world import World
from tests.support.postgresql import PostgreSQL

_CONN = "barrier_waiting"
_NAME = "waiting"
#: Barriers that are open, and tables of each, of which every one is waited for as often.
_BARRIERS, _TABLES = 4, 50
_WAITERS = (1_000, 10_000)
#: Seconds that it is looked on before the first table is PROCESSED, and between two of them.
_QUIET, _APART = 20.0, 0.5
#: How many tables are PROCESSED then, one by one.
_MOVED = 40
#: Seconds between two looks of a task that asks by itself, as all did before there was a watcher.
_BY_ITSELF = 5.0

#: Somebody who waits for a condition until it holds.
Waiting = Callable[[Condition], Awaitable[None]]


@dataclass(frozen=True)
class _Run:
    statements: float
    cpu: float
    delays: list[float]

    def row(self, waiters: int, how: str) -> list[str]:
        p99 = quantiles(self.delays, n=100)[-1]
        told = f"{median(self.delays):.2f}", f"{p99:.2f}", f"{max(self.delays):.2f}"
        return [f"{waiters:,} tasks, {how}", f"{self.statements:,.1f}", f"{self.cpu * 100:.1f} %", *told]


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    sizes, quiet = ((20, 40), 1.0) if quick else (_WAITERS, _QUIET)
    rows = []
    with PostgreSQL(fsync="on", full_page_writes="on") as server:
        for waiters in sizes:
            for how, waiting in (("each by itself", _by_itself), ("one watcher", _watched)):
                with server.database() as url, _connection(url, folder):
                    rows.append(asyncio.run(_run(url, waiting, waiters, quiet)).row(waiters, how))
    return [
        Measured(
            "Waiting tasks in one triggerer",
            f"So many triggers wait in one event loop, each for one of {_TABLES} tables of {_BARRIERS} open barriers "
            f"to be PROCESSED, on PostgreSQL over loopback. For {quiet:g} s nothing happens: statements and CPU are of "
            f"that time. Then a table a time is PROCESSED by another client, every {_APART:g} s; a delay is from its "
            f"COMMIT to the trigger's event. *Each by itself* looks every {_BY_ITSELF:g} s, in a thread, as all did "
            "before there was a watcher.",
            ["", "statements a second", "CPU of a core", "median, s", "p99, s", "longest, s"],
            rows,
        )
    ]


async def _run(url: str, waiting: Waiting, waiters: int, quiet: float) -> _Run:
    world = World(MetaService(url), _NAME, [Job(f"job{n}", "dag", outlets=(f"w.t{n}",)) for n in range(_TABLES)])
    for number in range(1, _BARRIERS + 1):
        world.open(number)
    wanted = [(number, table) for table in range(_TABLES) for number in range(1, _BARRIERS + 1)]
    processed: dict[tuple[int, int], float] = {}
    delays: list[float] = []

    async def wait(one: tuple[int, int]) -> None:
        number, table = one
        await waiting(Condition("PROCESSED", barrier_id=number, tables=(f"w.t{table}",)))
        now = time.monotonic()
        delays.append(now - processed.get(one, now))

    tasks = [asyncio.create_task(wait(wanted[n % len(wanted)])) for n in range(waiters)]
    await asyncio.sleep(2 * _BY_ITSELF)  # all have begun
    with _statements(BarrierHook(_CONN).get_meta_service()) as count:
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(quiet)
        took = time.monotonic() - began
        statements, cpu = count[0] / took, (time.process_time() - used) / took
    moved = wanted[: _BARRIERS if quiet < _QUIET else _MOVED]
    with ThreadPoolExecutor(1) as client:  # one of its own: the waiting tasks' looks fill the loop's threads
        for number, table in moved:
            await asyncio.get_running_loop().run_in_executor(client, world.process, number, f"job{table}")
            processed[number, table] = time.monotonic()
            await asyncio.sleep(_APART)
    await asyncio.wait_for(asyncio.gather(*(task for n, task in enumerate(tasks) if n % len(wanted) < len(moved))), 300)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    world.meta.close()
    return _Run(statements, cpu, delays)


async def _watched(condition: Condition) -> None:
    trigger = BarrierTrigger(topology=_NAME, barrier_conn_id=_CONN, conditions=[condition])
    async for _ in trigger.run():
        return


async def _by_itself(condition: Condition) -> None:
    meta = BarrierHook(_CONN).get_meta_service()
    while True:
        found = await asyncio.to_thread(lambda: look(TopologyView(meta, _NAME), condition))
        if found.waits_for is None:
            return
        await asyncio.sleep(_BY_ITSELF)


@contextmanager
def _connection(url: str, folder: Path) -> Iterator[None]:
    address = make_url(url)
    extra = {"warehouse": str(folder), "metaservice_url": address._replace(password=None).render_as_string()}
    connection = {"conn_type": "barrier", "password": address.password, "extra": extra}
    settings = {
        f"AIRFLOW_CONN_{_CONN.upper()}": json.dumps(connection),
        # no scheduler is there to be waited for
        "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "0",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0",
    }
    os.environ.update(settings)
    try:
        yield
    finally:
        BarrierHook(_CONN).get_meta_service().close()
        for name in settings:
            del os.environ[name]


@contextmanager
def _statements(meta: MetaService) -> Iterator[list[int]]:
    """How many statements this MetaService executes."""
    count = [0]

    def counted(*_: Any) -> None:
        count[0] += 1

    engine = meta._db._engine
    event.listen(engine, "before_cursor_execute", counted)
    yield count
    event.remove(engine, "before_cursor_execute", counted)
