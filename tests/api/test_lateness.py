"""What is late, told to each caller: jobs, commits that nobody makes, barriers that nobody opens, what readers have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from airflow_barrier.api.access import Outlook, Wait
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.metaservice import schema
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.topology import Job
from tests.api.asking import Asking
from tests.api.live import statements
from tests.metaservice.world import World, changed_by_hand
from tests.support.runs import run_of

RUN = f"scheduled__{4 * 365 * 10}"
TIMES = ("opened_at", "precommit_at", "committing_at", "commit_at")
LOAD = Job("load", "shop", outlets=("shop.orders",))
RATIO = Job("ratio", "crm", inlets=("shop.orders",), outlets=("crm.ratio",))


@pytest.fixture
def shop(meta: MetaService) -> World:
    world = World(meta, "shop", ())
    world.declare([LOAD], "shop")
    world.declare([RATIO], "crm")
    return world


def opened(world: World, number: int) -> int:
    return world.open(number, run=run_of(f"shop/scheduled__{number}")).barrier_id


def ago(world: World, barrier_id: int, hours: float) -> None:
    """All that happened at a barrier happened so long ago, and so it has its timestamp from."""
    at = world.meta.now() - timedelta(hours=hours)
    with changed_by_hand(world.meta) as connection:
        for table, columns in (
            (schema.barrier, TIMES),
            (schema.table_progress, ("processed_at",)),
            (schema.attempt, ("requested_at", "started_at", "processed_at")),
        ):
            here = (table.c.topology == world.name, table.c.barrier_id == barrier_id)
            for column in columns:
                connection.execute(update(table).where(*here, table.c[column].is_not(None)).values({column: at}))
            if table is schema.barrier:
                connection.execute(update(table).where(*here).values(timestamp=at))


def late(asking: Asking, user: str = "admin") -> list[tuple[Any, ...]]:
    told = asking.told("shop", user)
    assert told["health"] == ("blocked" if told["health"] == "blocked" else "late" if told["late"] else told["health"])
    return [(each["barrier_id"], each["job"], each["dag"]) for each in told["late"]]


@pytest.fixture
def hourly(shop: World) -> World:
    """Three hourly barriers, of which the last was an hour ago."""
    for number in (1, 2, 3):
        opened(shop, number)
        shop.process_all(number)
        shop.commit(number)
    for number in (1, 2, 3):
        ago(shop, number, 4 - number)
    return shop


def test_nobody_is_late_in_the_usual_time(hourly: World, asking: Asking) -> None:
    assert late(asking) == []
    opened(hourly, 4 * 365 * 10)
    assert late(asking) == []


def test_a_job(hourly: World, asking: Asking) -> None:
    number = opened(hourly, 4 * 365 * 10)
    hourly.process(number, "load")
    hourly.request(number, "ratio")
    ago(hourly, number, 0.5)
    assert late(asking) == [(4, "ratio", "crm")]
    (told,) = asking.told("shop")["late"]
    assert told["summary"] == "crm.ratio holds up barrier 4 (job ratio of DAG crm: requested)"
    assert late(asking, asking.may_read("shopper", "shop")) == [], "another DAG's is not told"


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (lambda world: None, "barrier 4 is staged, nobody commits it: clear its commit task, or airflow-barrier "),
        (
            lambda world: world.meta.barriers.checked("shop", 4, 0, "ids", "1 row", "test"),
            "barrier 4 is staged, and a check holds it up: mend what it has found, ",
        ),
        (lambda world: world.begin_commit(4), "barrier 4 is decided and not published: clear its commit task, or "),
    ],
)
def test_a_commit(hourly: World, asking: Asking, begin: Callable[[World], Any], said: str) -> None:
    number = opened(hourly, 4 * 365 * 10)
    hourly.process_all(number)
    begin(hourly)
    assert late(asking) == []
    ago(hourly, number, 0.5)
    assert late(asking) == [(4, None, "shop")]
    assert asking.told("shop")["late"][0]["summary"].startswith(said)
    asking.rights.wait = lambda each: Wait(Outlook.STOPPED, f"{each} is so")
    assert asking.told("shop")["late"][0]["summary"].endswith(f"; {Awaited('shop', RUN)} is so")
    analyst = asking.may_read("analyst", "crm")
    assert late(asking, analyst) == [(4, None, None)]
    assert "is so" not in asking.told("shop", analyst)["late"][0]["summary"]


def test_a_barrier_that_waits_for_the_one_before_is_not_late(hourly: World, asking: Asking) -> None:
    first, second = opened(hourly, 4 * 365 * 10), opened(hourly, 4 * 365 * 10 + 1)
    for number in (first, second):
        hourly.process(number, "load")
    hourly.process(first, "ratio")
    hourly.process(second, "ratio")
    for number, hours in ((first, 0.5), (second, 0.4)):
        ago(hourly, number, hours)
    assert late(asking) == [(first, None, "shop")]


def test_a_barrier_that_nobody_opens(hourly: World, asking: Asking) -> None:
    for number in (1, 2, 3):
        ago(hourly, number, 5.5 - number)
    assert late(asking) == [(None, None, "shop")]
    assert late(asking, asking.may_read("analyst", "crm")) == [(None, None, None)]
    (told,) = asking.told("shop")["late"]
    assert told["summary"] == "no barrier was opened after 3, as a rule there is one every 1 h"
    asking.rights.wait = lambda each: Wait(Outlook.STOPPED, f"{each} is so")
    assert asking.told("shop")["late"][0]["summary"] == f"{told['summary']}; {Awaited('shop')} is so"
    assert asking.told("shop", "analyst")["late"] == [{**told, "dag": None}]
    asking.rights.wait = lambda each: None
    # then it is not for want of a run
    hourly.abort(opened(hourly, 4 * 365 * 10))
    ago(hourly, 4, 1)
    (told,) = asking.told("shop")["late"]
    assert told["summary"] == "all barriers that were opened after 3 were aborted, as a rule there is one every 1 h"


def test_what_readers_have_is_too_old(hourly: World, asking: Asking) -> None:
    hourly.declare([replace(LOAD, freshness=1800.0)], "shop")
    hourly.declare([replace(RATIO, freshness=7200.0)], "crm")
    told = asking.told("shop")
    assert (told["objective"], told["health"]) == (1800, "late")
    assert told["age"] == pytest.approx(3600, abs=60)
    assert told["late"][0]["summary"] == "readers have barrier 3, older than the objective of 30 min"
    number = opened(hourly, 4 * 365 * 10)
    hourly.process(number, "load")
    ago(hourly, number, 0.4)
    hourly.declare([LOAD], "shop")
    assert late(asking) == [(4, "ratio", "crm")]
    hourly.declare([replace(LOAD, freshness=600.0)], "shop")
    assert late(asking) == [(4, "ratio", "crm"), (None, None, None)], "its reason comes first, though it is younger"
    hourly.abort(number)
    hourly.declare([LOAD], "shop")
    assert late(asking) == []


def test_of_many_topologies_no_more_is_asked(meta: MetaService, asking: Asking) -> None:
    asked = []
    for number, name in enumerate(("one", "two", "three"), start=1):
        world = World(meta, name, [Job("load", "dag", outlets=(f"{name}.orders",))])
        ago(world, opened(world, 1), hours=4)
        asking.get("/prod/topologies")  # a process reads a definition once
        with statements() as executed:
            told = asking.get("/prod/topologies").json()["topologies"]
        assert [len(each["late"]) for each in told] == [1] * number
        asked.append(len(executed))
    assert asked == asked[:1] * 3


def test_delay(hourly: World, asking: Asking) -> None:
    told = asking.told("shop/delay", window=86_400)
    assert (told["barriers"], told["looked_into"], told["objective"]) == (3, 3, None)
    assert asking.told("shop/delay", window=5400)["barriers"] == 1
    assert asking.get("/prod/topologies/shop/delay", window=0).status_code == 422
    number = opened(hourly, 4 * 365 * 10)
    hourly.process(number, "load")
    hourly.start(number, "ratio")
    ago(hourly, number, 0.5)
    told = asking.told(f"shop/barriers/{number}/delay")
    assert told["critical_path"][-1]["job"] == "ratio"
    assert told["jobs"]["ratio"][-1]["part"] == "spark"
    assert asking.told("shop/delay")["present"]["barrier_id"] == number
    shopper = asking.may_read("shopper", "shop")
    told = asking.told(f"shop/barriers/{number}/delay", shopper)
    assert told["critical_path"][-1]["job"] is None
    assert [table["table"] for table in told["tables"]] == ["shop.orders"]
    assert "ratio" not in told["jobs"]
    assert {share["job"] for share in asking.told("shop/delay", shopper)["blame"]} <= {"load", None}
    assert asking.get("/prod/topologies/shop/delay", shopper, table="crm.ratio").status_code == 404
    assert asking.told("shop/delay", table="crm.ratio")["table"] == "crm.ratio"
    assert asking.get(f"/prod/topologies/shop/barriers/{number + 1}/delay").status_code == 404
