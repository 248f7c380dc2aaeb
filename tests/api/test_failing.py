"""A job that has failed: said at once, with the try that it was, who waits, and the way to its log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from airflow_barrier.cli.commands.status import show_status
from airflow_barrier.coordinator.signals import signals
from airflow_barrier.coordinator.status import status
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.health import Health
from airflow_barrier.protocol.records import Attempt, Tries
from airflow_barrier.protocol.topology import Job
from tests.api.asking import Asking
from tests.metaservice.world import World
from tests.support.runs import run_of

LOAD = Job("load", "shop", outlets=("shop.orders", "shop.lines"))
RATIO = Job("ratio", "crm", inlets=("shop.orders",), outlets=("crm.ratio",))
RANK = Job("rank", "crm", inlets=("crm.ratio",), outlets=("crm.rank",))
FINAL = Tries(3, 3, None)


@pytest.fixture
def shop(meta: MetaService) -> World:
    """Its barrier 1 is open."""
    world = World(meta, "shop", ())
    world.declare([LOAD], "shop")
    world.declare([RATIO, RANK], "crm")
    world.open(1, run=run_of("shop/scheduled__1"))
    return world


def begun(shop: World, generation: str = "g1") -> Attempt:
    return shop.start(1, "load", generation, "shop/manual__2025-01-01T00:00:00+00:00/later/load/-1")


def fails(shop: World, tries: Tries | None) -> Attempt:
    attempt = shop.meta.attempts.abort(begun(shop).attempt_id, "ValueError: no", "test")
    if tries is not None:
        shop.meta.attempts.tried(attempt.request_key, tries)
    return attempt


def test_a_job_that_has_failed_for_good(shop: World, asking: Asking) -> None:
    attempt = fails(shop, FINAL)
    told = asking.told("shop")
    assert (told["health"], told["late"]) == ("failing", [])
    (failed,) = told["failed"]
    assert attempt.ended_at is not None
    assert failed == {
        "barrier_id": 1,
        "job": "load",
        "dag": "shop",
        "tables": ["shop.orders", "shop.lines"],
        "at": attempt.ended_at.isoformat().replace("+00:00", "Z"),
        "tried": 3,
        "tries": 3,
        "again_at": None,
        "holds_up": 2,
        "summary": "load (DAG shop) failed at barrier 1, try 3 of 3; it holds up 2 tables",
        "reason": "ValueError: no",
        "task": {
            "dag_id": "shop",
            "run_id": "manual__2025-01-01T00:00:00+00:00/later",
            "task_id": "load",
            "map_index": -1,
        },
    }
    (listed,) = asking.get("/prod/topologies").json()["topologies"]
    assert (listed["health"], listed["failed"]) == ("failing", [failed])
    detail = asking.told("shop/barriers/1")
    assert (detail["health"], detail["failed"], detail["late"]) == ("failing", [failed], [])
    assert [each["task"] for each in detail["attempts"]] == [failed["task"]]
    analyst = asking.may_read("analyst", "crm")
    for path in ("shop", "shop/barriers/1"):
        other = asking.told(path, analyst)
        assert (other["health"], other["failed"]) == ("ok", []), "another DAG's error is not told"
    found = status(shop.meta, "shop")
    assert (found.health, [each.summary for each in found.failed]) == (Health.FAILING, [failed["summary"]])
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    show_status([found], console)
    assert isinstance(console.file, StringIO)
    said = console.file.getvalue().splitlines()
    assert said[0] == f"shop (version {found.version}): failing · readers have the baseline"
    assert said[1].startswith(f"  {failed['summary']}, at ")
    assert said[1].endswith(" UTC")
    assert said[2] == "    ValueError: no"
    assert said[-3:] == [
        f"  barrier 1 of {found.open[0].barrier.timestamp:%Y-%m-%d %H:%M:%S} UTC is OPEN, 0 of 4 tables staged",
        "    load: failed, 3 of 3",
        "    2 more jobs wait for these",
    ]
    # once a person has cleared it, it is at work
    begun(shop, generation="g2")
    told = asking.told("shop")
    assert (told["health"], told["failed"]) == ("ok", [])


def test_the_task_of_another_dag_is_not_told(shop: World, asking: Asking) -> None:
    """It may have asked while the job was its own."""
    shop.start(1, "load", "g1", "crm/manual__1/load/-1")
    (attempt,) = asking.told("shop/barriers/1", asking.may_read("reader", "shop"))["attempts"]
    assert (attempt["job"], attempt["task"]) == ("load", None)
    (attempt,) = asking.told("shop/barriers/1")["attempts"]
    assert attempt["task"]["dag_id"] == "crm"


def test_a_job_that_is_tried_again(shop: World, asking: Asking) -> None:
    again_at = shop.meta.now() + timedelta(seconds=40)
    fails(shop, Tries(1, 3, again_at))
    told = asking.told("shop")
    assert told["health"] == "retrying"
    (failed,) = told["failed"]
    assert failed["again_at"] == again_at.isoformat().replace("+00:00", "Z")
    assert failed["summary"] == (
        "load (DAG shop) is to be tried again after it failed at barrier 1, try 1 of 3; it holds up 2 tables"
    )
    begun(shop)
    assert asking.told("shop")["health"] == "ok"


def test_one_that_was_killed_is_tried_by_nobody(shop: World, asking: Asking) -> None:
    fails(shop, None)
    told = asking.told("shop")
    assert (told["health"], told["failed"][0]["tried"]) == ("failing", None)
    assert told["failed"][0]["summary"] == "load (DAG shop) failed at barrier 1; it holds up 2 tables"


def test_the_worst_is_said(shop: World, asking: Asking) -> None:
    shop.open(2, run=run_of("shop/scheduled__2"))
    fails(shop, Tries(1, 3, shop.meta.now()))
    shop.meta.attempts.abort(shop.request(2, "load", key="second").attempt_id, "no", "test")
    shop.meta.attempts.tried("second", FINAL)
    told = asking.told("shop")
    assert [(each["barrier_id"], each["again_at"] is None) for each in told["failed"]] == [(1, False), (2, True)]
    assert told["health"] == "failing"
    shop.abort(2)
    assert asking.told("shop")["health"] == "retrying", "of a barrier that was given up nobody waits for it"


#: What may become of the newest attempt of a job whose tables a barrier lacks.
FATES: dict[str, Callable[[World], Any]] = {
    "none": lambda shop: None,
    "requested": lambda shop: shop.request(1, "load"),
    "running": begun,
    "failed": lambda shop: fails(shop, FINAL),
    "to be tried again": lambda shop: fails(shop, Tries(1, 2, shop.meta.now())),
    "killed": lambda shop: fails(shop, None),
    "fenced and at work again": lambda shop: (begun(shop), begun(shop)),
    "voided": lambda shop: (shop.process(1, "load"), shop.process(1, "ratio"), shop.request(1, "load", "g2")),
    "processed": lambda shop: shop.process(1, "load"),
}


@pytest.mark.parametrize("fate", FATES)
def test_what_is_well_has_no_failed_cell(shop: World, asking: Asking, fate: str) -> None:
    """And what is not has one: the word above the grid and the marks in it never disagree."""
    FATES[fate](shop)
    grid = asking.told("shop/grid")
    cells = {cell for row in grid["rows"] for cell in row["cells"]}
    assert (asking.told("shop")["health"] in ("failing", "retrying")) == ("failed" in cells)


def test_whoever_is_told_of_failures_is_told_once(shop: World) -> None:
    before = shop.meta.now()
    attempt = fails(shop, FINAL)
    shop.meta.attempts.abort(shop.request(1, "ratio", key="waits").attempt_id, "timeout", "test")
    shop.meta.attempts.tried("waits", Tries(1, 3, shop.meta.now()))
    after = shop.meta.now() + timedelta(seconds=1)
    (signal,) = signals(shop.meta, "shop", before, after)
    assert (signal.kind, signal.barrier_id, signal.at, signal.dag) == ("failed", 1, attempt.ended_at, "shop")
    assert signal.summary == ("load (DAG shop) failed at barrier 1, try 3 of 3; it holds up 2 tables: ValueError: no")
    assert signals(shop.meta, "shop", after, after + timedelta(minutes=5)) == ()
    begun(shop, generation="g2")
    assert signals(shop.meta, "shop", before, after) == (), "somebody has seen to it"


def test_a_job_that_has_begun_waits_for_nobody(shop: World) -> None:
    """What it read may be cleared since: that it has failed says more."""
    shop.process(1, "load")
    shop.meta.attempts.abort(shop.start(1, "ratio").attempt_id, "no", "test")
    shop.request(1, "load", "g2")
    (barrier,) = status(shop.meta, "shop").open
    assert {job.job: (job.waits_for, job.summary) for job in barrier.jobs} == {
        "load": ((), "requested"),
        "ratio": ((), "failed"),
        "rank": (("ratio",), "waits for ratio"),
    }
