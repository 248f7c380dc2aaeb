"""History is corrected by the API: the plan, who may, that it is begun once, and whose runs are woken."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier as Start
from typing import Any

import pytest

from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.topology import Job
from tests.api.asking import Asking, Clock
from tests.revising.world import RevisedShop
from tests.support.kept import Kept
from tests.support.waiting import patience

DAG = "shopping_dag"
SECOND = {"first": 2}
#: As the plan below has it.
BEGIN = {**SECOND, "revision": 1, "reason": "bad prices"}


@pytest.fixture
def shop(kept: Kept) -> Iterator[RevisedShop]:
    """Three days are committed."""
    with RevisedShop.in_kept(kept) as shop:
        shop.days(1, 3)
        yield shop


@pytest.fixture
def asking(shop: RevisedShop) -> Asking:
    return Asking({"prod": shop.deployment.meta}, lambda _: shop.deployment)


def runs(*days: int) -> list[str]:
    return [f"{DAG}/scheduled__{day}" for day in days]


def answered(asking: Asking, path: str, **body: Any) -> dict[str, Any]:
    answer = asking.post(f"shop/revisions{path}", **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(asking: Asking, path: str, **body: Any) -> str:
    answer = asking.post(f"shop/revisions{path}", **body)
    assert answer.status_code == 409, answer.text
    return str(answer.json()["detail"])


def offered(asking: Asking, path: str, user: str = "admin") -> list[str]:
    return [each["action"] for each in asking.told(f"shop/{path}", user)["actions"]]


def revisions(shop: RevisedShop) -> list[Revision]:
    return shop.deployment.meta.revisions.newest("shop", 10)


def test_a_plan_changes_nothing(shop: RevisedShop, asking: Asking) -> None:
    assert offered(asking, "barriers/2") == ["revise"]
    plan = answered(asking, "/plan", **SECOND)
    assert (plan["revision"], plan["dags"]) == (1, [DAG])
    assert plan["lines"][0].startswith("barriers 2 to 3 are computed again, on top of barrier 1 of shop")
    assert plan["command"] == 'airflow-barrier revision run shop --from 2 --reason "..."'
    job = answered(asking, "/plan", first=3, jobs=["price"])["lines"]
    assert [" by job price of DAG " in line for line in job if line.startswith("computed again: ")] == [True]
    recut = answered(asking, "/plan", first=2, last=3, recut=["purchases"])
    assert "source purchases is cut anew at barrier 2: none leave, none join" in recut["lines"]
    assert "--recut purchases" in recut["command"]
    assert answered(asking, "/plan", first=2, full=True)["command"].count("--full") == 1
    assert (revisions(shop), asking.rights.waker.woken) == ([], [])


def test_what_cannot_be_planned_says_why(shop: RevisedShop, asking: Asking) -> None:
    assert "choose days that it covers" in refused(asking, "/plan", first=7)
    assert "nothing" in refused(asking, "/plan", first=2, jobs=["nothing"])
    assert "nothing" in refused(asking, "/plan", first=2, recut=["nothing"])
    shop.file(2).unlink()
    assert "part.parquet" in refused(asking, "/plan", **SECOND)
    assert "part.parquet" in refused(asking, "", **BEGIN)
    for body in ({}, {"first": -1}, {"first": 2**63}, {"first": "2017-01-05"}, {"first": 2, "jobs": "price"}):
        assert asking.post("shop/revisions/plan", **body).status_code == 422, body
    for body in (SECOND, {**BEGIN, "revision": 0}, {**BEGIN, "reason": " "}):
        assert asking.post("shop/revisions", **body).status_code == 422, body
    assert revisions(shop) == []


def test_it_is_begun_and_its_runs_are_woken(shop: RevisedShop, asking: Asking) -> None:
    done = answered(asking, "", **{**BEGIN, "last": 3})
    assert (done["changed"], done["states"]) == (True, {"revision 1": "STAGING"})
    assert done["summary"] == f"Began revision 1 of shop. Woke 2 runs for it: {', '.join(runs(2, 3))}."
    assert asking.rights.waker.woken == runs(2, 3)
    (revision,) = revisions(shop)
    assert (revision.first_barrier, revision.window_end) == (2, 3)
    assert (revision.actor, revision.reason) == ("admin (test)", "bad prices")
    bound = shop.deployment.meta.revisions.runs("shop", 1)
    assert [(run.barrier_id, run.run_id) for run in bound] == [(2, "scheduled__2"), (3, "scheduled__3")]
    # while it is under way no other one is offered, nor begun
    assert offered(asking, "barriers/2") == []
    assert "found revision 1 of shop" in refused(asking, "", **{**BEGIN, "revision": 2})
    assert "expected what you begin to be revision 1" in refused(asking, "", **{**BEGIN, "first": 3})
    assert offered(asking, "revisions/1") == ["cancel", "wake"]


@pytest.mark.kills("begun-once")
def test_it_is_begun_once(shop: RevisedShop, asking: Asking) -> None:
    """Also by who asks again since an answer was lost; meanwhile it may have been published."""
    answered(asking, "", **BEGIN)
    again = answered(asking, "", **BEGIN)
    assert (again["changed"], again["states"]) == (False, {"revision 1": "STAGING"})
    assert again["summary"] == "revision 1 of shop was begun before. No run had to be woken."
    shop.replay_all(revisions(shop)[0])
    shop.publish(revisions(shop)[0])
    late = answered(asking, "", **BEGIN)
    assert (late["changed"], late["states"]) == (False, {"revision 1": "COMMIT"})
    assert "found that the next one is revision 2" in refused(asking, "", **{**BEGIN, "reason": "another one"})
    assert [each.revision for each in revisions(shop)] == [1]
    assert asking.rights.waker.woken == runs(2)


def test_two_who_begin_at_once(shop: RevisedShop, asking: Asking) -> None:
    start = Start(2)

    def begin(_: int) -> int:
        start.wait(patience())
        return asking.post("shop/revisions", **BEGIN).status_code

    with ThreadPoolExecutor(2) as both:
        assert list(both.map(begin, range(2))) == [200, 200]
    assert [each.revision for each in revisions(shop)] == [1]


def test_runs_that_could_not_be_woken_are_woken_later(shop: RevisedShop, asking: Asking) -> None:
    """By whoever may, from the revision's page: the server may have died after it began it."""
    waker: Clock = asking.rights.waker
    waker.away = True
    done = answered(asking, "", **BEGIN)
    assert (done["changed"], done["states"]) == (True, {"revision 1": "STAGING"})
    assert "its runs could not be woken just now" in done["summary"]
    assert asking.post("shop/revisions/1/wake").status_code == 503
    waker.away = False
    waker.busy = {*runs(2)}
    busy = answered(asking, "/1/wake")
    assert (busy["changed"], f"Still at work for something else: {runs(2)[0]}" in busy["summary"]) == (False, True)
    waker.busy = set()
    assert answered(asking, "/1/wake")["summary"] == f"Woke 1 run for it: {runs(2)[0]}."
    assert answered(asking, "/1/wake")["summary"] == "No run had to be woken."
    assert waker.woken == runs(2)
    # it has failed since
    waker.busy = set()
    assert answered(asking, "/1/wake")["changed"]
    answered(asking, "/1/cancel")
    assert answered(asking, "/1/wake")["states"] == {"revision 1": "CANCELLED"}
    assert "found that the next one is revision 2" in refused(asking, "", **BEGIN)
    assert asking.post("shop/revisions/2/wake").status_code == 404
    assert offered(asking, "revisions/1") == []
    assert revisions(shop)[0].state is RevisionState.CANCELLED


def test_who_may(shop: RevisedShop, asking: Asking) -> None:
    asking.may_read("eve", DAG)
    assert offered(asking, "barriers/2", "eve") == []
    answered(asking, "", **BEGIN)
    shop.deployment.meta.revisions.cancel("shop", 1, "test", "test")
    for path, body in (("/plan", SECOND), ("", {**BEGIN, "revision": 2}), ("/1/wake", {})):
        asks = partial(asking.request, "POST", f"/prod/topologies/shop/revisions{path}", json=body)
        assert asks(user="eve").status_code == 403, path
        assert asks(user="nobody").status_code == 404, path
        assert asks(user=None).status_code == 401, path
        assert asks(headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403, path
    assert [each.revision for each in revisions(shop)] == [1]


def test_dags_that_join_by_it_are_asked_about_too(shop: RevisedShop, asking: Asking) -> None:
    """Nobody knows their runs: what is to be done about these is said."""
    deployment, inlet = shop.deployment, "shop.receipts"
    schema = deployment.tables.load(inlet).schema()
    deployment.tables.catalog.create_table("shop.mean", schema, properties={"format-version": "2"})
    mean = Job("mean", "stats", inlets=(inlet,), outlets=("shop.mean",), start_from={inlet: "history"})
    deployment.meta.topologies.register("shop", "stats", [mean], "test")
    asking.may_edit("member", DAG)
    asking.rights.of["member"] = None
    body = {**SECOND, "jobs": ["mean"]}
    for path, sent in (("/plan", body), ("", {**BEGIN, **body})):
        assert asking.post(f"shop/revisions{path}", "member", **sent).status_code == 403
    assert revisions(shop) == []
    assert answered(asking, "/plan", **body)["dags"] == ["stats"]
    told = answered(asking, "", **{**BEGIN, **body})["summary"]
    assert f"Woke 1 run for it: {runs(2)[0]}. revision 1 of shop waits for DAG stats at barrier 2" in told
    assert "backfill that day with --dag-run-conf '{\"barrier_revision\": 1}'" in told
