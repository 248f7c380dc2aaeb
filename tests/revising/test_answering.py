"""A backfill, in Airflow, of days that are committed."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.answering import Unchanged, answer_backfill, cancel_with_backfill
from airflow_barrier.coordinator.revisions.publish import cancel_revision
from airflow_barrier.coordinator.runs import ActiveBackfill, Run
from airflow_barrier.protocol.records import RunRef
from airflow_barrier.protocol.revisions import OnBackfill, Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.topology import Job
from tests.crash.shopping import FIRST_DAY
from tests.revising.world import RevisedShop

DAG = "shopping_dag"
ASKED = datetime(2026, 1, 1, tzinfo=timezone.utc)


def over(day: int) -> datetime:
    return FIRST_DAY + timedelta(days=day)


def backfill(first: int, last: int, **more: Any) -> ActiveBackfill:
    """The shop's runs have no data interval: they are of the day of their barrier's timestamp."""
    return ActiveBackfill(DAG, 12, ASKED, over(first), over(last), "ann", **more)


def answer(
    shop: RevisedShop, day: int, asked: ActiveBackfill | None, how: OnBackfill = OnBackfill.OWN, token: int = 0
) -> Revision | Unchanged | None:
    run = Run(RunRef(DAG, f"scheduled__{day}", "backfill"), over(day), "run_after", token=token, backfill=asked)
    return answer_backfill(shop.deployment, "shop", run, how)


def revised(shop: RevisedShop, day: int, asked: ActiveBackfill, how: OnBackfill = OnBackfill.OWN) -> Revision:
    found = answer(shop, day, asked, how)
    assert isinstance(found, Revision), found
    return found


def refused(shop: RevisedShop, day: int, asked: ActiveBackfill) -> str:
    found = answer(shop, day, asked)
    assert isinstance(found, Unchanged), found
    assert found.refused
    assert shop.deployment.meta.revisions.newest("shop", 1) == []
    return found.reason


def with_another_dag(shop: RevisedShop) -> None:
    """A table of another DAG's stands on the shop's from day 3 on."""
    shop.days(1, 2)
    mirror = Job("mirror", "mirror_dag", inlets=(shop.shop.table("amounts"),), outlets=("shop.mirror",))
    shop.deployment.tables.catalog.create_table(
        "shop.mirror", shop.deployment.tables.load(shop.shop.table("amounts")).schema()
    )
    shop.deployment.meta.topologies.register("shop", "mirror_dag", [mirror], "test", at=over(3))


def test_the_first_run_begins_what_all_others_join(embedded: RevisedShop, caplog: pytest.LogCaptureFixture) -> None:
    embedded.days(1, 4)
    caplog.set_level(logging.INFO)
    asked = backfill(2, 3)
    revision = revised(embedded, 2, asked)
    assert (revision.first_barrier, revision.window_end, revision.mode) == (2, 3, RevisionMode.INCREMENTAL)
    assert (revision.actor, revision.reason) == (
        "backfill 12 of DAG shopping_dag of 2026-01-01 00:00:00 UTC",
        f"backfill 12 of DAG shopping_dag, {over(2).isoformat()} to {over(3).isoformat()}, by ann",
    )
    plan = "\n".join(caplog.messages)
    assert "barriers 2 to 4 are computed again, on top of barrier 1 of shop" in plan
    assert plan.index("readers see until it is published") < plan.index("revision 1 of shop is STAGING")
    for day in (2, 3):
        assert revised(embedded, day, asked) == revision
    embedded.replay_all(revision)
    embedded.publish(revision)
    assert revised(embedded, 3, asked).state is RevisionState.COMMIT
    again = revised(embedded, 3, replace(backfill(3, 3), number=13))
    assert (again.revision, again.first_barrier) == (2, 3)


def test_it_begins_one_however_many_ask_at_once(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    asked = backfill(2, 3)

    def ask(day: int) -> Revision | Unchanged | None:
        deployment = Deployment.connect(embedded.shop.settings)
        run = Run(RunRef(DAG, f"scheduled__{day}", "backfill"), over(day), "run_after", backfill=asked)
        try:
            return answer_backfill(deployment, "shop", run, OnBackfill.OWN)
        finally:
            deployment.close()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, (2, 3, 2, 3)))
    numbers = [each.revision for each in found if isinstance(each, Revision)]
    assert numbers == [1] * 4, found


def test_what_no_backfill_asks_for_is_left_alone(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    embedded.day(3, ("open",))
    assert answer(embedded, 2, None) is None
    assert answer(embedded, 2, backfill(2, 2), token=7) is None  # its author has planned one
    for day in (3, 4):  # open, and yet to open
        assert answer(embedded, day, backfill(2, 4)) is None
    assert embedded.deployment.meta.revisions.newest("shop", 1) == []


def test_a_person_says_what_was_wrong(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    revision = revised(embedded, 2, backfill(2, 2, jobs=("price",), full=True))
    assert (revision.changed, revision.jobs, revision.mode) == (("price",), ("price",), RevisionMode.FULL)


def test_what_makes_other_dags_compute_is_explained(embedded: RevisedShop, caplog: pytest.LogCaptureFixture) -> None:
    with_another_dag(embedded)
    caplog.set_level(logging.INFO)
    found = answer(embedded, 2, backfill(2, 2))
    assert isinstance(found, Unchanged), found
    assert not found.refused
    assert "since DAG mirror_dag would compute again, too" in found.reason
    assert "airflow-barrier revision run shop --from 2 --to 2 --reason" in found.reason
    assert 'BarrierGroup(..., backfill="revise")' in found.reason
    assert any("computed again: shop.mirror by job mirror of DAG mirror_dag" in line for line in caplog.messages)
    assert embedded.deployment.meta.revisions.newest("shop", 1) == []
    # what has nothing to do with the other DAG is done
    revised(embedded, 2, backfill(2, 2, jobs=("price",)))


def test_a_dag_says_what_becomes_of_its_backfills(embedded: RevisedShop) -> None:
    with_another_dag(embedded)
    found = answer(embedded, 2, backfill(2, 2, jobs=("price",)), OnBackfill.EXPLAIN)
    assert isinstance(found, Unchanged), found
    assert embedded.deployment.meta.revisions.newest("shop", 1) == []
    assert "mirror" in revised(embedded, 2, backfill(2, 2), OnBackfill.REVISE).jobs


def test_a_plan_that_is_refused_changes_nothing(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    assert "no job" in refused(embedded, 2, backfill(2, 2, jobs=("nothing",)))
    assert f"expected days from {over(1).isoformat()} on" in refused(embedded, 0, backfill(0, 2))
    other = replace(backfill(2, 2), dag_id="another_dag")
    assert "which run shopping_dag/scheduled__2 opened; backfill that DAG" in refused(embedded, 2, other)
    embedded.begin(2)
    found = answer(embedded, 2, backfill(2, 2))
    assert isinstance(found, Unchanged), found
    assert "expected no revision under way, found revision 1 of shop" in found.reason


def test_who_cancels_the_backfill_cancels_the_revision(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    asked, deployment = backfill(2, 3), embedded.deployment
    assert cancel_with_backfill(deployment, asked) == []
    revision = revised(embedded, 2, asked)
    assert cancel_with_backfill(deployment, replace(asked, number=13)) == []
    cancelled = cancel_with_backfill(deployment, asked)
    assert [(each.revision, each.state) for each in cancelled] == [(revision.revision, RevisionState.CANCELLED)]
    found = answer(embedded, 3, asked)
    assert isinstance(found, Unchanged), found
    assert "was cancelled: backfill the days again" in found.reason
    assert cancel_with_backfill(deployment, asked) == []


def test_a_revision_that_another_dag_is_at_work_for_goes_on(
    embedded: RevisedShop, caplog: pytest.LogCaptureFixture
) -> None:
    with_another_dag(embedded)
    asked, deployment = backfill(2, 2), embedded.deployment
    revision = revised(embedded, 2, asked, OnBackfill.REVISE)
    bind = deployment.meta.revisions.bind_run
    bind("shop", revision.revision, 2, DAG, "scheduled__2", 1)
    bind("shop", revision.revision, 2, "mirror_dag", "scheduled__2", None)  # woken, and has not come
    bind("shop", revision.revision, 2, "mirror_dag", "scheduled__2", 1)
    assert cancel_with_backfill(deployment, asked) == []
    assert "revision 1 of shop goes on: DAGs mirror_dag are in it" in caplog.text
    cancel_revision(deployment, "shop", revision.revision, reason="by hand", actor="test")
