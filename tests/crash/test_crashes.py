"""A process dies at every step of a barrier, or sleeps through it and wakes; readers look all the time.

Children of a warm parent are killed by SIGKILL, or suspended by SIGSTOP, at every point of `points.py`. Then the tasks
run as Airflow would run them: the killed task again and what follows it, or all tasks once more. A zombie wakes after
the commit of its barrier, or in the middle of the next one. In the end all tables equal the ones of a run that nothing
disturbed, row by row, at every barrier and on `main`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.instrument import BEFORE
from tests.crash.lane import Orders
from tests.crash.playing import in_memory, play
from tests.crash.points import (
    APART,
    COUNTS,
    END,
    EVERY,
    Point,
    counted,
    of_ours,
    points,
    points_apart,
    points_in_metastores,
    points_of_commits,
)
from tests.crash.scenarios import LATE_ZOMBIE, RERUN, RETRY, ZOMBIE, Scenario
from tests.support.drawing import OPERATIONS, drawn
from tests.support.glue import GlueServer
from tests.support.hive import hive_metastore
from tests.support.postgresql import PASSWORD, PostgreSQL, without_password
from tests.support.reporting import report

_LANES = 2
#: Every so many zombies one sleeps into the next barrier.
_LATE = 4
#: Files of the package that a task runs. All jobs run the same ones, so `load` stands for them.
_ATTACKED = {"open": OPERATIONS["open"], "load": OPERATIONS["job"], "commit": OPERATIONS["commit"]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The operations of each kind of barrier, of two runs that nothing disturbs."""
    with in_memory(tmp_path_factory.mktemp("recorded")) as folder:
        shared, apart = _play([Orders(f"{folder}/shared"), Orders(f"{folder}/apart", "sqlite apart")])
    return {**shared, APART: [operation for operation in apart[EVERY] if operation.startswith("commit ")]}


def test_no_operation_comes_or_goes_unseen(recorded: dict[str, list[str]]) -> None:
    found = counted(recorded)
    assert found.splitlines() == COUNTS.read_text().splitlines(), (
        f"a barrier makes other operations than {COUNTS.name} says. If that is meant, it has to say:\n{found}"
    )
    report(
        f"crash: {len(recorded[EVERY])} operations in a barrier on any day, "
        f"{len(set().union(*recorded.values()))} different ones in all kinds of barriers"
    )


@pytest.mark.timeout(1200)
def test_death_and_waking_at_every_point(folder: str, recorded: dict[str, list[str]]) -> None:
    scenarios = _scenarios(points(recorded))
    results = _play([Orders(f"{folder}/{lane}", scenarios=scenarios[lane::_LANES]) for lane in range(_LANES)])
    seen = _judge(results, scenarios, "one SQLite database")
    assert seen["reads"] >= len(drawn(range(1000)))
    assert seen["barriers"] >= 5
    assert seen["steps_back"] >= 1


@pytest.mark.timeout(600)
def test_death_and_waking_in_a_commit_to_two_databases(folder: str, recorded: dict[str, list[str]]) -> None:
    scenarios = _scenarios(points_apart(recorded))
    orders = [Orders(f"{folder}/{lane}", "sqlite apart", scenarios=scenarios[lane::_LANES]) for lane in range(_LANES)]
    _judge(_play(orders), scenarios, "two SQLite databases")


@pytest.mark.timeout(600)
def test_death_and_waking_before_and_after_every_commit_on_postgresql(folder: str, postgresql: PostgreSQL) -> None:
    with postgresql.database() as one, postgresql.database() as other:
        orders = [Orders(f"{folder}/{lane}", without_password(url), PASSWORD) for lane, url in enumerate((one, other))]
        with postgresql.database() as third:
            alone = replace(orders[0], folder=f"{folder}/recorded", database=without_password(third))
            (recorded,) = _play([alone])
        at = points_of_commits(recorded[EVERY])
        scenarios = _scenarios(at, [point for point in at if point.when == BEFORE])
        results = _play([replace(order, scenarios=tuple(scenarios[lane::_LANES])) for lane, order in enumerate(orders)])
    _judge(results, scenarios, "one PostgreSQL database")


@pytest.mark.drawn("metastores")
@pytest.mark.touches("tables/_metastore.py", "tables/_hive_catalog.py", "tables/_glue_catalog.py")
@pytest.mark.timeout(900)
def test_death_and_waking_at_every_move_of_a_pointer_in_a_metastore(folder: str, glue: GlueServer) -> None:
    """A process that dies or sleeps within its lock keeps others waiting until the lock goes by itself."""
    with hive_metastore(Path(folder) / "metastore", lock_timeout=3) as hive:
        servers = {"hive": (hive.uri, {}), "glue": (glue.uri, glue.properties)}
        orders = [Orders(f"{folder}/{name}", metastore=server) for name, server in servers.items()]
        recorded = _play([replace(order, folder=f"{order.folder}-recorded") for order in orders])
        at = [points_in_metastores(each[EVERY]) for each in recorded]
        scenarios = [_all(each, of_ours(each)) for each in at]
        results = _play([replace(order, scenarios=each) for order, each in zip(orders, scenarios, strict=True)])
    _judge(results, [*scenarios[0], *scenarios[1]], "a Hive Metastore and Glue")


# --- playing --------------------------------------------------------------------------------------


def _scenarios(at: Sequence[Point], asleep_at: Sequence[Point] | None = None) -> tuple[Scenario, ...]:
    """A landing plays a part of them, and those of a task whose code it changes."""
    return tuple(drawn(_all(at, asleep_at), touches=lambda scenario: _ATTACKED.get(scenario.point.task, ())))


def _all(at: Sequence[Point], asleep_at: Sequence[Point] | None = None) -> tuple[Scenario, ...]:
    """At each point a death and (unless ``asleep_at`` says where) a zombie; what follows them takes turns."""
    deaths = [Scenario(point, (RETRY, RERUN)[number % 2]) for number, point in enumerate(at)]
    zombies = [
        Scenario(point, LATE_ZOMBIE if number % _LATE == 0 or point.when == END else ZOMBIE)
        for number, point in enumerate(at if asleep_at is None else asleep_at)
    ]
    return (*deaths, *zombies)


def _play(orders: Sequence[Orders]) -> list[dict[str, Any]]:
    return play("tests.crash.lane", [(each.folder, each.dumps()) for each in orders])


# --- judging --------------------------------------------------------------------------------------


def _judge(results: Sequence[dict[str, Any]], scenarios: Sequence[Scenario], where: str) -> dict[str, int]:
    failures = [result["failure"] for result in results if result["failure"]]
    assert not failures, f"{len(failures)} of {len(scenarios)} scenarios failed. The first ones:\n" + "\n".join(
        failures[:5]
    )
    modes = Counter(result["mode"] for result in results if "mode" in result)
    assert modes == Counter(scenario.mode for scenario in scenarios)
    readers = [result["reader"] for result in results if "reader" in result]
    seen = {key: sum(reader[key] for reader in readers) for key in ("reads", "steps_back")}
    seen["barriers"] = max(reader["barriers"] for reader in readers)
    ends = Counter(result["ended"] for result in results if "ended" in result)
    report(
        f"crash, {where}: {modes[RETRY] + modes[RERUN]} deaths, {modes[ZOMBIE] + modes[LATE_ZOMBIE]} zombies "
        f"({', '.join(f'{count} {end}' for end, count in ends.most_common())}); {seen['reads']} reads in "
        f"{len(readers)} deployments of up to {seen['barriers']} barriers, {seen['steps_back']} announced steps back "
        "of read committed, none torn"
    )
    return seen
