"""Why something does not begin, as the host knows it: told where it is waited for, to who may read its DAG."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_barrier.api.access import Outlook, Wait
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.metaservice.store import MetaService
from tests.api.asking import Asking
from tests.api.scene import SECRET, age, declared, opened
from tests.metaservice.world import World
from tests.support.runs import run_of

RUN = "scheduled__1"


@pytest.fixture
def shop(meta: MetaService) -> World:
    """Barriers of `shop`'s runs, which `secret` is a member of: `load` and `veiled_load` are waited for."""
    world = declared(meta)
    world.open(1, run=run_of(f"shop/{RUN}"))
    return world


def asked(asking: Asking) -> list[Awaited]:
    """What the host is asked from now on."""
    found: list[Awaited] = []
    asking.rights.wait = found.append
    return found


def answer(asking: Asking, outlook: Outlook, dag: str = "secret") -> None:
    """The host's, of whatever it is asked about this DAG."""
    asking.rights.wait = lambda each: Wait(outlook, f"DAG {dag} is so") if each.dag_id == dag else None


def told(asking: Asking, user: str = "admin") -> tuple[str, list[Any]]:
    """The health, and who holds up what: of the topology, and of the list, which agree."""
    one = asking.told("shop", user)
    (listed,) = asking.get("/prod/topologies", user).json()["topologies"]
    assert (listed["health"], listed["late"]) == (one["health"], one["late"])
    return one["health"], [each["summary"] for each in one["late"]]


HELD_UP = "veiled.prices holds up barrier 1 (job veiled_load of DAG secret: {})"


@pytest.mark.parametrize(
    ("outlook", "early"),
    [(Outlook.PASSES, ("ok", [])), (Outlook.STOPPED, ("ok", [HELD_UP])), (Outlook.FAILED, ("failing", [HELD_UP]))],
)
def test_what_needs_somebody_is_told_before_anybody_is_late(
    shop: World, asking: Asking, outlook: Outlook, early: tuple[str, list[str]]
) -> None:
    answer(asking, outlook)
    health, said = early
    assert told(asking) == (health, [each.format("DAG secret is so") for each in said])
    grid = asking.told("shop/grid")
    (note,) = (each for each in grid["notes"] if each["table"] == "veiled.prices")
    assert (note["summary"], note["barrier_id"]) == ("DAG secret is so", 1)
    tables = {each["table"]: (each["state"], each["waits"]) for each in asking.told("shop/barriers/1")["tables"]}
    assert tables["veiled.prices"] == ("pending", "DAG secret is so")
    assert tables["shop.orders"] == ("pending", None), "of which the host has nothing to say"
    assert told(asking, asking.may_read("shopper", "shop")) == ("ok", [])


def test_who_is_late_says_why(shop: World, asking: Asking) -> None:
    age(shop, 1, 3600)
    answer(asking, Outlook.PASSES)
    health, (first, second) = told(asking)
    assert health == "late"
    assert first == "shop.orders holds up barrier 1 (job load of DAG shop: not started)"
    assert second == HELD_UP.format("DAG secret is so")
    asking.rights.wait = lambda each: None
    assert told(asking)[1][1] == HELD_UP.format("no run of DAG secret has asked for it yet")


def test_the_task_is_the_one_that_asked_or_did_so_before(shop: World, asking: Asking) -> None:
    found = asked(asking)
    told(asking)
    assert set(found) == {Awaited("shop", RUN, None), Awaited("secret", None, None)}
    for job, dag in (("load", "shop"), ("veiled_load", "secret")):
        attempt = shop.start(1, job, key=f"{dag}/earlier/group.{job}/-1")
        shop.close(attempt)
        shop.meta.attempts.report(attempt.attempt_id, "test")
    shop.process(1, "ratio")
    shop.commit(1)
    shop.open(2, run=run_of("shop/scheduled__2"))
    found.clear()
    told(asking)
    assert set(found) == {Awaited("shop", "scheduled__2", "group.load"), Awaited("secret", None, "group.veiled_load")}
    shop.request(2, "veiled_load", key="secret/by_hand/group.veiled_load/-1")
    found.clear()
    told(asking)
    assert Awaited("secret", "by_hand", "group.veiled_load") in found


def test_what_waits_for_others_is_not_asked_about(shop: World, asking: Asking) -> None:
    found = asked(asking)
    shop.process(1, "load")
    shop.process(1, "veiled_load")
    told(asking)
    assert {each.dag_id for each in found} == {"shop"}
    shop.process(1, "ratio")
    shop.commit(1)
    found.clear()
    assert told(asking) == ("ok", [])
    assert found == [], "nobody is waited for"


def test_nothing_of_other_dags_is_told(meta: MetaService, asking: Asking) -> None:
    """Nor is the host of a test asked about them."""
    world = declared(meta)
    opened(world, 1)
    age(world, 1, 3600)
    asking.rights.wait = lambda each: Wait(Outlook.FAILED, f"{SECRET if each.dag_id == 'secret' else 'shop'} is so")
    shopper = asking.may_read("shopper", "shop")
    for path in ("shop", "shop/grid", "shop/barriers/1"):
        some, everything = str(asking.told(path, shopper)), str(asking.told(path))
        assert ("shop is so" in some, SECRET in some, f"{SECRET} is so" in everything) == (True, False, True), path
    assert SECRET not in asking.get("/prod/topologies", shopper).text
