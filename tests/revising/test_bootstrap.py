"""A job joins a running topology with its history: computed aside, and part of every barrier in one publish."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.joining import StaysOut, take_part
from airflow_barrier.coordinator.revisions.backfills import Backfill, backfills_left, backfills_of_plan
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.bootstrap import says_that_it_waits
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped, cancel_revision
from airflow_barrier.coordinator.revisions.runs import runs_at
from airflow_barrier.coordinator.staging import Ready
from airflow_barrier.operators._binding import Binding, SparkWork
from airflow_barrier.operators._steps import EpochSteps
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.protocol.errors import ForeignWriteError, RevisionRefusedError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import ExternalSource, Fragment, Job
from airflow_barrier.sources.files import Files
from tests.crash.shopping import FIRST_DAY, TASKS
from tests.recovery.backups import Backups
from tests.recovery.test_revisions import Lossy, recovered, seen
from tests.revising.growing import DAY, GrowingShop, declare
from tests.revising.world import RevisedShop
from tests.support.deployments import settings_on
from tests.support.postgresql import PostgreSQL

PRICES = "shop.prices"


def grown_on(kind: str, folder: Path, postgresql: PostgreSQL) -> Iterator[RevisedShop]:
    with settings_on(kind, folder, postgresql) as settings:
        shop = GrowingShop(str(folder), settings)
        shop.create()
        shop.declare("load", "amount")
        deployment = Deployment.connect(settings)
        yield RevisedShop(shop, deployment, {})
        deployment.close()


@pytest.fixture(params=["sqlite", "sqlite apart", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, postgresql: PostgreSQL) -> Iterator[RevisedShop]:
    yield from grown_on(request.param, tmp_path, postgresql)


@pytest.fixture
def embedded(tmp_path: Path, postgresql: PostgreSQL) -> Iterator[RevisedShop]:
    yield from grown_on("sqlite", tmp_path, postgresql)


def days(shop: RevisedShop, first: int, last: int, tasks: Any = tuple(DAY)) -> None:
    for day in range(first, last + 1):
        shop.day(day, tasks)


def begin(shop: RevisedShop, first: int | None = None) -> Revision:
    return shop.begin(first, changed=["price"])  # type: ignore[arg-type]


def without_prices(tables: dict[str, Counter[Any]]) -> dict[str, Counter[Any]]:
    return {name: rows for name, rows in tables.items() if name != PRICES}


def refused(shop: RevisedShop, match: str, first: Any = None, **wanted: Any) -> None:
    with pytest.raises(RevisionRefusedError, match=match):
        plan_revision(shop.deployment, Wanted(shop.shop.name, first, **{"changed": ["price"], **wanted}))
    assert shop.deployment.meta.revisions.newest(shop.shop.name, 1) == []


def test_the_tables_of_a_new_job_are_part_of_every_barrier_at_once(shop: RevisedShop) -> None:
    days(shop, 1, 3)
    declare(shop)
    days(shop, 4, 4)  # without it: it waits
    before = {day: shop.at(day) for day in range(1, 5)}
    assert all(PRICES not in tables for tables in before.values())
    revision = begin(shop)
    assert (revision.mode, revision.first_barrier, revision.tables) == (RevisionMode.HISTORY, 1, (PRICES,))
    for barrier in (1, 2, 3, 4):
        assert isinstance(shop.publish(revision), NotStaged)
        shop.replay(revision, barrier)
        assert shop.at() == without_prices(shop.expected(4))
        assert shop.deployment.tables.mains([PRICES]) == {PRICES: None}
    assert isinstance(shop.publish(revision), Swapped)
    for day in range(1, 5):
        assert shop.at(day) == shop.expected(day), day
        assert shop.at(day, revision=0) == before[day], day
        for table, rows in shop.expected(day).items():
            assert shop.by_tag(table, f"barrier_shop_b{day}_r1") == rows
    assert shop.mains() == shop.expected(4)
    days(shop, 5, 6, TASKS)  # an ordinary member from here on
    assert shop.at() == shop.mains() == shop.expected(6)
    assert shop.deployment.meta.topologies.waiting("shop") == ()


def test_barriers_that_are_opened_and_committed_meanwhile_have_it_too(shop: RevisedShop) -> None:
    days(shop, 1, 2)
    declare(shop)
    revision = begin(shop)
    shop.replay(revision, 1)
    days(shop, 3, 3)
    shop.day(4, ["open", "load", "amount"])
    shop.day(5, ["open", "load"])
    assert isinstance(shop.publish(revision), NotStaged)
    shop.replay_all(revision)
    assert isinstance(shop.publish(revision), Swapped)
    assert shop.at() == shop.mains() == shop.expected(3)
    assert shop.at_level(Level.READ_COMMITTED) == (4, shop.expected(4))
    assert shop.barrier(5).state is BarrierState.OPEN
    shop.day(5, ["amount"])
    assert shop.at_level(Level.READ_COMMITTED) == (5, shop.expected(5))
    shop.day(4, ["commit"])
    shop.day(5, ["commit"])
    shop.day(6)
    assert shop.at() == shop.mains() == shop.expected(6)
    assert [shop.at(day) for day in (1, 2, 3, 4, 5)] == [shop.expected(day) for day in (1, 2, 3, 4, 5)]


def test_from_a_later_barrier_on_with_all_that_was_there(embedded: RevisedShop) -> None:
    days(embedded, 1, 3)
    declare(embedded)
    revision = begin(embedded, 2)
    embedded.replay_all(revision)
    embedded.publish(revision)
    assert PRICES not in embedded.at(1)
    assert [embedded.at(day) for day in (2, 3)] == [embedded.expected(day) for day in (2, 3)]


def test_a_cancelled_one_leaves_the_job_waiting(embedded: RevisedShop) -> None:
    days(embedded, 1, 2)
    declare(embedded)
    revision = begin(embedded)
    embedded.replay(revision, 1)
    cancelled = cancel_revision(embedded.deployment, "shop", revision.revision, reason="no", actor="person")
    assert cancelled.state is RevisionState.CANCELLED
    for table in (PRICES, "shop.shopping"):
        refs = embedded.deployment.tables.load(table).metadata.refs
        assert not [name for name in refs if "_r1" in name], table
    assert [job.name for job in embedded.deployment.meta.topologies.waiting("shop")] == ["price"]
    days(embedded, 3, 3)
    assert embedded.at() == without_prices(embedded.expected(3))
    again = begin(embedded)
    embedded.replay_all(again)
    assert isinstance(embedded.publish(again), Swapped)
    assert embedded.at() == embedded.expected(3)


def test_where_nothing_has_been_opened_there_is_no_history_to_wait_for(embedded: RevisedShop) -> None:
    declare(embedded)
    days(embedded, 1, 2, TASKS)
    assert embedded.at() == embedded.mains() == embedded.expected(2)


def test_history_without_a_row_and_one_that_is_empty_at_first(shop: RevisedShop) -> None:
    shop.day(1, DAY, priced=False)
    shop.day(2, DAY, priced=False)
    declare(shop)
    revision = begin(shop)
    shop.replay_all(revision)
    assert isinstance(shop.publish(revision), Swapped)
    assert shop.at() == shop.mains() == shop.expected(2)
    shop.day(3)
    assert shop.at() == shop.mains() == shop.expected(3)


@pytest.mark.kills("history-into-empty-tables")
def test_a_table_that_was_emptied(embedded: RevisedShop) -> None:
    table = embedded.deployment.tables.load(PRICES)
    table.append(pa.table({"id": [1], "price": [1]}))
    days(embedded, 1, 2)
    declare(embedded)
    refused(embedded, r"expected empty tables to compute history into, found rows in shop.prices")
    table.delete()
    revision = begin(embedded)
    embedded.replay_all(revision)
    assert isinstance(embedded.publish(revision), Swapped)
    assert embedded.mains() == embedded.at() == embedded.expected(2)
    embedded.day(3)
    assert embedded.mains() == embedded.at() == embedded.expected(3)


def test_a_foreign_write_to_a_table_that_joins_is_noticed(embedded: RevisedShop) -> None:
    days(embedded, 1, 2)
    declare(embedded)
    revision = begin(embedded)
    embedded.replay_all(revision)
    embedded.deployment.tables.load(PRICES).append(pa.table({"id": [1], "price": [1]}))
    with pytest.raises(ForeignWriteError, match=PRICES):
        embedded.publish(revision)
    assert embedded.deployment.meta.revisions.get("shop", 1).state is RevisionState.STAGING
    assert embedded.at() == without_prices(embedded.expected(2))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.kills("joins-alone")
def test_what_is_asked_for_beside_it(embedded: RevisedShop) -> None:
    days(embedded, 1, 2)
    declare(embedded)
    refused(
        embedded, r"nothing beside the jobs that wait .*, price, found load; let them join", changed=["load", "price"]
    )
    for wanted in ({"mode": RevisionMode.FULL}, {"recut": ["purchases"]}):
        refused(embedded, "found corrections, --reuse, --recut or --full", **wanted)
    refused(embedded, "max_replay_barriers", max_replay_barriers=1)


@pytest.mark.kills("joins-with-what-it-reads")
def test_what_another_one_has_yet_to_compute(embedded: RevisedShop) -> None:
    days(embedded, 1, 2)
    declare(embedded, outlets=("shop.receipts_priced",))
    meta, fragment = embedded.deployment.meta, embedded.shop.fragment
    dear = Job("dear", "shopping_dag", ("shop.receipts_priced",), (PRICES,), (), {"shop.receipts_priced": "history"})
    meta.topologies.register("shop", fragment.owner, (*fragment.jobs, dear), "test")
    refused(embedded, "all that job dear reads, found that price wait .*; name them too: --job price", changed=["dear"])


@pytest.mark.kills("history-of-what-is-there")
def test_a_source_that_has_no_history(embedded: RevisedShop) -> None:
    days(embedded, 1, 2)
    tills = ExternalSource("tills", "files", {})
    declare(embedded, externals=(tills,))
    refused(embedded, r"found that barrier 2 .* lacks tills; .*start_from='earliest'")
    refused(embedded, r"barrier 1 .* has all that price read, found that it lacks tills; begin later", 1)


@pytest.mark.kills("history-from-the-sources-beginning")
def test_a_shared_source_is_read_from_its_first_cut_on(embedded: RevisedShop) -> None:
    days(embedded, 1, 2)
    (purchases,) = next(job for job in embedded.shop.fragment.jobs if job.name == "load").externals
    assert purchases.kind == Files.kind
    declare(embedded, externals=(purchases,))
    refused(embedded, r"job price: .* begin with the first cut of its source purchases, found .*barrier 2", 2)
    plan = plan_revision(embedded.deployment, Wanted("shop", None, changed=["price"]))
    assert [each.barrier_id for each in plan.barriers] == [1, 2]
    assert [(each.job, each.kind) for each in plan.inputs] == [("price", "cut")]


# --- what tasks and people are told ---------------------------------------------------------------


def test_the_task_of_a_member_that_waits_says_so(embedded: RevisedShop) -> None:
    days(embedded, 1, 2)
    price = Job(
        "price", "pricing", inlets=("shop.shopping",), outlets=(PRICES,), start_from={"shop.shopping": "history"}
    )
    embedded.day(3, ["open"])
    fragment = Fragment("shop", "pricing", (price,))
    at = embedded.barrier(3).timestamp
    said = take_part(embedded.deployment, fragment, price, at, "test")
    assert said == StaysOut(says_that_it_waits("shop", "price"))
    assert "airflow-barrier revision run shop --job price" in says_that_it_waits("shop", "price")
    days(embedded, 3, 3)
    plan = plan_revision(embedded.deployment, Wanted("shop", None, changed=["price"]))
    assert plan.owners == ("pricing",)
    asked = [(each.dag_id, each.first, each.last) for each in backfills_of_plan(plan)]
    first, last = FIRST_DAY.replace(day=FIRST_DAY.day + 1), at
    assert asked == [("shopping_dag", first, first), ("pricing", first, last)]
    revision = begin(embedded)
    runs = runs_at(embedded.deployment, revision, embedded.barrier(2))
    assert (dict(runs.of), runs.unknown) == ({"shopping_dag": "scheduled__2"}, ("pricing",))


def test_backfills_of_a_member_are_asked_for_until_its_runs_have_come(embedded: RevisedShop) -> None:
    meta = embedded.deployment.meta
    days(embedded, 1, 2)
    price = Job(
        "price", "pricing", inlets=("shop.shopping",), outlets=(PRICES,), start_from={"shop.shopping": "history"}
    )
    assert isinstance(meta.topologies.join("shop", "pricing", "price", [price], "test"), int)
    plan = plan_revision(embedded.deployment, Wanted("shop", None, changed=["price"]))
    revision = begin_revision(embedded.deployment, plan, reason="new", actor="person")
    assert backfills_left(meta, revision) == backfills_of_plan(plan)
    meta.revisions.bind_run("shop", 1, 1, "shopping_dag", "scheduled__1", 1)
    meta.revisions.bind_run("shop", 1, 1, "pricing", "backfill__1", 1)
    days(embedded, 3, 3)
    meta.revisions.extend("shop", 1, "test")
    second, third = (embedded.barrier(barrier).timestamp for barrier in (2, 3))
    assert backfills_left(meta, revision) == (Backfill("pricing", second, third),)
    embedded.replay_all(revision)
    assert backfills_left(meta, revision) == ()
    assert isinstance(embedded.publish(revision), Swapped)
    assert backfills_left(meta, meta.revisions.get("shop", 1)) == ()


def test_the_task_of_the_opening_dag_does_nothing_while_it_waits(
    embedded: RevisedShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "warehouse": embedded.deployment.tables.location().removesuffix("/"),
        "metaservice_url": str(embedded.deployment.meta.url),
    }
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_HERE", json.dumps({"conn_type": "barrier", "extra": settings}))
    days(embedded, 1, 2)
    declare(embedded)
    embedded.day(3, ["open", "load", "amount"])
    operator = SparkEpochOperator(task_id="price", sql="INSERT INTO {target:shop.prices} SELECT 1")
    timestamp = embedded.barrier(3).timestamp
    ti = SimpleNamespace(
        dag_id="shopping_dag",
        run_id="scheduled__3",
        task_id="price",
        map_index=-1,
        start_date=timestamp,
        max_tries=0,
        try_number=1,
    )
    run = SimpleNamespace(
        logical_date=timestamp,
        data_interval_start=timestamp,
        data_interval_end=timestamp,
        run_type=SimpleNamespace(value="scheduled"),
        conf={},
        clear_number=0,
    )
    context: Any = {"ti": ti, "task": operator, "dag_run": run}
    fragment = embedded.shop.fragment
    binding = Binding(fragment.jobs[-1], fragment, False, None, "barrier_here", timedelta(hours=1))

    def never(ready: Ready) -> None:
        pytest.fail("there is nothing to run")

    steps = EpochSteps(operator, binding, SparkWork(run=never, stop=lambda: None), context)
    steps.log = logging.getLogger("price")
    with caplog.at_level("WARNING", "price"):
        assert steps.execute() == 3
    assert says_that_it_waits("shop", "price") in caplog.messages
    assert not [each for each in embedded.deployment.meta.attempts.of("shop", 3) if each.job == "price"]
    embedded.day(3, ["commit"])


# --- after a loss ---------------------------------------------------------------------------------


def test_it_is_a_member_after_the_metaservice_was_lost(tmp_path: Path, postgresql: PostgreSQL) -> None:
    with settings_on("sqlite", tmp_path, postgresql) as settings:
        growing = GrowingShop(str(tmp_path), settings)
        growing.create()
        growing.declare("load", "amount")
        world = Lossy(RevisedShop(growing, Deployment.connect(settings), {}), Backups(settings, tmp_path, postgresql))
        shop = world.shop
        days(shop, 1, 2)
        declare(shop)
        revision = begin(shop)
        shop.replay_all(revision)
        shop.publish(revision)
        before = seen(shop)
        shop = world.lose()
        assert recovered(shop) == (1,)
        assert seen(shop) == before
        assert shop.deployment.meta.topologies.waiting("shop") == ()
        shop.day(3)
        assert shop.at() == shop.mains() == shop.expected(3)
        shop.deployment.close()
