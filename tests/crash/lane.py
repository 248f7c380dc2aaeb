"""A warm parent: everything is imported, nothing is opened and no thread started before it forks.

Run as a process of its own, since a test runner has threads. It reads :class:`Orders` as JSON from its standard input
and prints what came of them as JSON lines.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

# pyiceberg writes with a pool of threads; with one at a time, operations have an order. Before it is imported.
os.environ["PYICEBERG_MAX_WORKERS"] = "1"

import psycopg  # noqa: F401
import pyiceberg.catalog.sql  # noqa: F401

import airflow_barrier.coordinator.deployment
import airflow_barrier.metaservice.store
import airflow_barrier.tables.iceberg  # noqa: F401
from airflow_barrier.coordinator.settings import Settings
from tests.crash import instrument
from tests.crash.checking import check_all
from tests.crash.points import EVERY, FIRST, UNCHANGED, Point
from tests.crash.processes import Standing, Tell, run
from tests.crash.reading import ReaderProcess, start_reader
from tests.crash.scenarios import RERUN, RETRY, Scenario, crash, tasks_of, zombie
from tests.crash.shopping import TASKS, Shop
from tests.support.computing import a_core
from tests.support.copying import share_parts_of_metadata

#: Barriers of one deployment: metadata stays small, and the tags of all of them are kept.
_BARRIERS = 30
#: Days before the first scenario, so that logs and tables are as on any other day.
_QUIET = 4
_KINDS = {1: FIRST, _QUIET: EVERY, _QUIET + 1: UNCHANGED}


@dataclass(frozen=True)
class Orders:
    """What to do in ``folder``: play ``scenarios``; without any, record the operations of each kind of barrier.

    ``database``: ``sqlite``, ``sqlite apart`` (one for each of MetaService and catalog), or an URL of PostgreSQL, where
    ``password`` goes with it. ``metastore``: address and properties of the catalog, beside a MetaService in SQLite.
    """

    folder: str
    database: str = "sqlite"
    password: str | None = None
    metastore: tuple[str, Mapping[str, str]] | None = None
    scenarios: tuple[Scenario, ...] = ()

    def shop(self, folder: Path, name: str = "shop") -> Shop:
        folder.mkdir(parents=True, exist_ok=True)
        lake = str(folder / "lake")
        if self.metastore is not None:
            uri, properties = self.metastore
            of_catalog = tuple({**properties, "warehouse": lake}.items())
            settings = Settings(f"sqlite:///{folder}/meta.db", uri, lake, catalog_properties=of_catalog)
            name = f"{name}_{crc32(self.folder.encode())}"  # all processes have tables in the same metastore
        elif self.database == "sqlite":
            settings = Settings.embedded(lake)
        elif self.database == "sqlite apart":
            settings = Settings(f"sqlite:///{folder}/meta.db", f"sqlite:///{folder}/catalog.db", lake)
        else:
            passwords = {"metaservice_password": self.password, "catalog_password": self.password}
            settings = Settings(self.database, self.database, lake, **passwords)
        Path(lake).mkdir(exist_ok=True)
        return Shop(str(folder), settings, name)

    @classmethod
    def loads(cls, text: str) -> Orders:
        orders = json.loads(text)
        scenarios = [Scenario(Point(**each["point"]), each["mode"]) for each in orders.pop("scenarios")]
        return cls(**orders, scenarios=tuple(scenarios))

    def dumps(self) -> str:
        return json.dumps(asdict(self))


def rehearse(orders: Orders) -> None:
    """Import here what tasks import when they need it, found out by a child that runs a barrier."""
    shop = orders.shop(Path(orders.folder) / "rehearsal", "rehearsal")

    def work(tell: Tell) -> None:
        shop.create()
        shop.land(1, True)
        for task in TASKS:
            shop.run(task, 1)
        check_all(shop, [True])
        tell({"modules": sorted(name for name in sys.modules if not name.startswith("__"))})  # of multiprocessing

    for module in run(work, "the rehearsal")[-1]["modules"]:
        importlib.import_module(module)
    shutil.rmtree(shop.folder)
    share_parts_of_metadata()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, "a process that forks must have no threads"


def record(orders: Orders) -> dict[str, list[str]]:
    """Kind of barrier -> its operations, from a run that nothing disturbs."""
    shop = orders.shop(Path(orders.folder) / "recorded")
    priced = [True] * _QUIET + [False]
    recorded: dict[str, list[str]] = {}
    run(partial(_create, shop, priced), "creating tables")
    for day in range(1, len(priced) + 1):
        kind = _KINDS.get(day)
        for task in TASKS:
            operations = _recorded(shop, day, task)
            if kind is not None and (kind != UNCHANGED or task in ("price", "commit")):
                recorded.setdefault(kind, []).extend(operations)
    run(lambda _: check_all(shop, priced), "the recorded run")
    return recorded


def _recorded(shop: Shop, day: int, task: str) -> list[str]:
    def work(tell: Tell) -> None:
        operations: list[str] = []

        def observe(when: str, operation: str) -> None:
            if when == instrument.BEFORE:
                operations.append(f"{task} {operation}")

        before = _files(shop)
        with instrument.watching(observe, shop.folder, shop.name) as watch:
            shop.run(task, day)
        _check_accounted(task, {watch.path(file) for file in before ^ _files(shop)}, operations)
        tell({"operations": operations})

    found: list[str] = run(work, f"recording {task}")[-1]["operations"]
    return found


def _files(shop: Shop) -> set[Path]:
    """All but the databases'."""
    return {path for path in Path(shop.folder).rglob("*") if path.is_file() and ".db" not in path.name}


def _check_accounted(task: str, changed: set[str | None], operations: Sequence[str]) -> None:
    """A file that came or went past all boundaries is an operation that nobody dies at."""
    named = {word for operation in operations for word in operation.split() if "/" in word}
    assert changed <= named, f"{task}: files came or went that no operation names: {sorted(map(str, changed - named))}"


def play(orders: Orders) -> Iterator[dict[str, Any]]:
    """All scenarios, in as many deployments as they need; what each came to, and what readers saw."""
    firsts = [scenario for scenario in orders.scenarios if scenario.point.kind == FIRST]
    others = [scenario for scenario in orders.scenarios if scenario.point.kind != FIRST]
    number = 0
    while others:
        count = _fitting(others)
        last = count == len(others)
        yield from _play_deployment(orders, number, others[:count], firsts if last else firsts[:count])
        others, firsts = others[count:], firsts[count:]
        number += 1


def _fitting(scenarios: Sequence[Scenario]) -> int:
    """How many of the next scenarios a deployment has room for."""
    days = _QUIET
    for count, scenario in enumerate(scenarios):
        days += len(scenario.priced)
        if days >= _BARRIERS:
            return count
    return len(scenarios)


def _play_deployment(
    orders: Orders, number: int, scenarios: Sequence[Scenario], firsts: Sequence[Scenario]
) -> Iterator[dict[str, Any]]:
    folder = Path(orders.folder) / f"deployment-{number}"
    # PostgreSQL's database is the same for all: there each has a topology and tables of its own
    shop = orders.shop(folder, f"shop{number}")
    priced = [True] * _QUIET
    for scenario in scenarios:
        priced += scenario.priced
    priced.append(True)
    standing = Standing()
    standing.run(partial(_create, shop, priced), "creating tables")
    tasks_of(standing, shop, 1, TASKS, "quiet days")
    reader = start_reader(shop, priced)
    for day in range(2, _QUIET + 1):
        tasks_of(standing, shop, day, TASKS, "quiet days")
    day = _QUIET + 1
    for scenario in scenarios:
        if scenario.settles:
            tasks_of(standing, shop, day, TASKS, f"before {scenario}")
        yield _played(standing, shop, day + scenario.settles, scenario, reader.glance)
        day += len(scenario.priced)
    for other, scenario in enumerate(firsts):
        yield _played_first(standing, orders.shop(folder, f"other{number}x{other}"), scenario)
    yield {"failure": _failure(lambda: _last_day(standing, shop, day, reader))}
    yield {"failure": _failure(standing.end)}
    seen = reader.end()
    yield {"reader": seen, "failure": seen.get("trace")}
    yield {"failure": _failure(lambda: run(lambda _: check_all(shop, priced), f"the end of {folder.name}"))}
    shutil.rmtree(folder)


def _create(shop: Shop, priced: Sequence[bool], _: Tell) -> None:
    """Its tables, and what lands from the first day on."""
    shop.create()
    for day, with_prices in enumerate(priced, start=1):
        shop.land(day, with_prices)


def _last_day(standing: Standing, shop: Shop, day: int, reader: ReaderProcess) -> None:
    """All is PRECOMMIT, then somebody clears a job: read committed steps back, and readers are told."""
    tasks_of(standing, shop, day, TASKS[:-1], "last day")
    reader.look()
    run(lambda _: shop.run("load", day, generation="2/1"), "clearing")
    reader.look()
    tasks_of(standing, shop, day, ("amount", "price", "commit"), "last day")


def _played_first(standing: Standing, shop: Shop, scenario: Scenario) -> dict[str, Any]:
    """A scenario at the first barrier of a topology, and one more barrier after it."""
    priced = [*scenario.priced, True]
    standing.run(partial(_create, shop, [True] * len(priced)), f"creating {shop.name}")
    result = _played(standing, shop, 1, scenario, lambda: None)
    if result["failure"] is None:
        tasks_of(standing, shop, len(priced), TASKS, f"after {scenario}")
        result["failure"] = _failure(lambda: run(lambda _: check_all(shop, priced), f"after {scenario}"))
    return result


def _played(standing: Standing, shop: Shop, day: int, scenario: Scenario, glance: Callable[[], None]) -> dict[str, Any]:
    result: dict[str, Any] = {"scenario": str(scenario), "mode": scenario.mode}

    def work() -> None:
        if scenario.mode in (RETRY, RERUN):
            crash(standing, shop, day, scenario, glance)
        else:
            result["ended"] = zombie(standing, shop, day, scenario, glance)

    with a_core():
        result["failure"] = _failure(work)
    return result


def _failure(work: Callable[[], Any]) -> str | None:
    try:
        work()
    except AssertionError:
        return traceback.format_exc()
    return None


def main() -> None:
    orders = Orders.loads(sys.stdin.read())
    instrument.install()
    rehearse(orders)
    if not orders.scenarios:
        print(json.dumps(record(orders)))
    for result in play(orders):
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
