"""What a step costs does not grow with history: counted in instructions of SQLite's machine, not in time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import TableState
from tests.metaservice.world import LOAD_JOB, PRICE_JOB, SHOPPING, World, day

_GRAIN = 10


class Counter:
    """Counts instructions, in steps of ``_GRAIN``, on every connection that is made while it listens."""

    def __init__(self) -> None:
        self.count = 0

    def listen(self, connection: sqlite3.Connection, record: object) -> None:
        connection.set_progress_handler(self._tick, _GRAIN)

    def _tick(self) -> None:
        self.count += 1

    def of(self, work: Callable[[], object]) -> int:
        before = self.count
        work()
        return self.count - before


@pytest.fixture
def counter() -> Iterator[Counter]:
    counter = Counter()
    event.listen(Engine, "connect", counter.listen)
    yield counter
    event.remove(Engine, "connect", counter.listen)


def costs(world: World, counter: Counter, number: int) -> dict[str, int]:
    """Of each step of barrier ``number``, the next one, and of the questions asked meanwhile."""
    meta, name = world.meta, world.name
    last = number - 1
    steps: dict[str, Callable[[], object]] = {
        "register": lambda: world.declare([LOAD_JOB, PRICE_JOB]),
        "head": lambda: meta.head(name),
        "unjoined": lambda: meta.unjoined(name),
        "used items": lambda: meta.used_items(name, "files", [f"file {last}", "new"]),
        "open": lambda: world.open(number, items=[f"file {number}"]),
        "open barriers": lambda: meta.open_barriers(name),
        "by time": lambda: meta.barrier_at(name, day(last)),
        "by run": lambda: meta.barrier_of_run(name, f"scheduled__{last}"),
        "cuts": lambda: meta.cuts(name, last),
        "waiting": lambda: meta.start_attempt(world.request(number, "price").attempt_id),
        "load": lambda: world.process(number, "load"),
        "unchanged": lambda: world.process(number, "price", unchanged=True),
        "restage": lambda: world.request(number, "load", generation="g2"),
        "stage again": lambda: world.process_all(number, generation="g2"),
        "reached": lambda: meta.reached(name, number, [SHOPPING], TableState.PROCESSED),
        "read uncommitted": lambda: meta.resolve(name, Level.READ_UNCOMMITTED),
        "read committed": lambda: meta.resolve(name, Level.READ_COMMITTED),
        "repeatable read": lambda: meta.resolve(name, Level.REPEATABLE_READ),
        "commit": lambda: world.commit(number),
        "audit": lambda: meta.audit(name, number),
        "newest audit": lambda: meta.audit(name, limit=5),
    }
    return {what: counter.of(step) for what, step in steps.items()}


def test_a_hundredth_barrier_costs_what_a_tenth_costs(tmp_path: Path, counter: Counter) -> None:
    meta = MetaService(f"sqlite:///{tmp_path}/barrier.db")
    world = World(meta, jobs=[LOAD_JOB, PRICE_JOB])

    def history(first: int, last: int) -> None:
        for number in range(first, last + 1):
            world.open(number, items=[f"file {number}"])
            world.process(number, "load")
            world.process(number, "price", unchanged=True)
            world.commit(number)

    history(1, 9)
    early = costs(world, counter, 10)
    history(11, 99)
    late = costs(world, counter, 100)
    meta.close()
    assert all(late.values()), "counted"
    grown = {what: (early[what], cost) for what, cost in late.items() if cost > early[what] * 1.2 + 20}
    assert not grown, f"instructions / {_GRAIN}, at barrier 10 and at barrier 100"
