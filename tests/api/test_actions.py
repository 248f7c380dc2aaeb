"""What is done by the API: who may, what is told before and after, and what stands in the audit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier as Start
from typing import Any

import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import CatalogUnavailableError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import RevisionMode
from airflow_barrier.protocol.states import BarrierState
from tests.api.asking import Asking
from tests.api.scene import SECRET, declared, everything, joining, opened
from tests.foreign.attacked import UNDER_WAY, Attacked, Template
from tests.foreign.deciding import block, state
from tests.metaservice.world import World
from tests.support.shop import AMOUNT, PRICE
from tests.support.waiting import patience

THIRD = f"shopping/barriers/{UNDER_WAY}"
ACTIONS = [
    "shop/barriers/2/abort", "shop/barriers/2/commit", "shop/barriers/2/resolve", "shop/leases/1/release",
    "shop/revisions/1/cancel",
]  # fmt: skip


@pytest.fixture
def shop(meta: MetaService) -> World:
    return declared(meta)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return Template(tmp_path_factory.mktemp("actions"))


@pytest.fixture
def attacked(template: Template) -> Iterator[Attacked]:
    """Barrier 3, of real tables, is PRECOMMIT."""
    with template.put_back("staged") as attacked:
        yield attacked


@pytest.fixture
def there(attacked: Attacked) -> Asking:
    """The API over these tables."""
    deployment = attacked.shop.deployment
    return Asking({"prod": deployment.meta}, lambda _: deployment)


def offered(asking: Asking, path: str, user: str = "admin") -> dict[str, str]:
    """What may be done: label by action."""
    return {each["action"]: each["label"] for each in asking.told(path, user)["actions"]}


def done(asking: Asking, path: str, **body: Any) -> dict[str, Any]:
    answer = asking.post(path, **body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(asking: Asking, path: str, status: int = 409, **body: Any) -> str:
    answer = asking.post(path, **body)
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


def actors(meta: MetaService, topology: str, event: str) -> list[str]:
    return [each.actor for each in meta.audit.newest(topology) if each.event == event]


# --- who may ------------------------------------------------------------------------------------------


def test_who_may_not_edit_all_dags(shop: World, asking: Asking) -> None:
    """Neither who reads all, nor who edits one of two; to who sees nothing of it, it is not there."""
    everything(shop)
    before = len(shop.meta.audit.newest("shop", limit=10_000))
    asking.may_edit("ada", "shop")
    asking.rights.of["ada"] = None
    asking.may_edit("bob", "shop")
    asking.may_read("eve", "shop", "secret")
    asking.may_edit("blind", "shop", "secret")
    asking.may_read("blind", "shop")
    body = {"reason": "a test", "table": "shop.orders", "decision": "keep-ours"}
    for path in (*ACTIONS, "shop/barriers/2/decisions"):
        method = "GET" if path.endswith("decisions") else "POST"
        asks = partial(asking.request, method, f"/prod/topologies/{path}", json=body)
        for user in ("ada", "bob", "eve", "blind"):
            answer = asks(user=user)
            assert (answer.status_code, SECRET in answer.text) == (403, False), (path, user)
        other = asking.request(method, f"/prod/topologies/{path.replace('shop', 'nothing')}", "nobody", json=body)
        assert (asks(user="nobody").status_code, asks(user="nobody").text) == (404, other.text), path
        assert asks(user=None).status_code == 401, path
    assert len(shop.meta.audit.newest("shop", limit=10_000)) == before


def test_nothing_is_offered_to_who_may_not(shop: World, asking: Asking) -> None:
    everything(shop)
    reader = asking.may_read("eve", "shop", "secret")
    for user, some in (("admin", True), (reader, False)):
        assert bool(offered(asking, "shop/barriers/2", user)) is some
        assert bool(offered(asking, "shop/revisions/1", user)) is some
        assert bool(asking.told("shop/leases", user)["leases"][0]["actions"]) is some


def test_dags_that_have_left_are_asked_about_too(shop: World, asking: Asking) -> None:
    """The barrier has their tables: who gives it up, does so for them."""
    opened(shop, 1)
    shop.declare([], "shop")
    one = asking.may_edit("one", "secret")
    assert asking.post("shop/barriers/1/abort", one).status_code == 403
    assert offered(asking, "shop/barriers/1", one) == {}
    both = asking.may_edit("both", "secret", "shop")
    assert asking.post("shop/barriers/1/abort", both).status_code == 200


def test_dags_that_join_are_asked_about_too(shop: World, asking: Asking) -> None:
    """Whose history the revision computes: it is given up with the revision, or with a barrier that it goes to."""
    shop.committed(1)
    opened(shop, 2)
    joining(shop)
    members = asking.may_edit("members", "secret", "shop")
    asking.rights.of["members"] = None
    for path in ("shop/revisions/1", "shop/barriers/2"):
        assert offered(asking, path, members) == {}
        assert asking.post(f"{path}/{'cancel' if 'revisions' in path else 'abort'}", members).status_code == 403
    everybody = asking.may_edit("everybody", "secret", "shop", "stats")
    assert offered(asking, "shop/revisions/1", everybody) == {"cancel": "Cancel revision 1", "wake": "Wake its runs"}


def test_pages_of_other_sites_do_nothing(shop: World, asking: Asking) -> None:
    opened(shop, 1)
    post = partial(asking.request, "POST", "/prod/topologies/shop/barriers/1/abort", content=b'{"reason": "x"}')
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert post(headers={"Content-Type": kind}).status_code == 415, kind
    for site in ("cross-site", "same-site"):
        headers = {"Content-Type": "application/json", "Sec-Fetch-Site": site}
        assert post(headers=headers).status_code == 403, site
    assert shop.state(1) is BarrierState.OPEN
    headers = {"Content-Type": "application/json; charset=utf-8", "Sec-Fetch-Site": "same-origin"}
    assert post(headers=headers).status_code == 200


def test_a_reason_is_one_line(shop: World, asking: Asking) -> None:
    opened(shop, 1)
    reasons = ['""', '"  "', '"a\\nb"', '"a\\u0000"', '"\\ud800"', f'"{"x" * 501}"', "7", "null"]
    for body in (*(f'{{"reason": {reason}}}' for reason in reasons), "{}", "[]", "{"):
        answer = asking.request(
            "POST",
            "/prod/topologies/shop/barriers/1/abort",
            content=body.encode(),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 422, body
    assert shop.state(1) is BarrierState.OPEN


# --- what is done -------------------------------------------------------------------------------------


def test_abort(shop: World, asking: Asking) -> None:
    for number in (1, 2, 3):
        opened(shop, number)
    shop.process_all(1)
    (action,) = asking.told("shop/barriers/2")["actions"]
    assert action == {
        "action": "abort",
        "label": "Abort barriers 2 and 3",
        "says": "Gives up barriers 2 and 3; their epochs join the next barrier's.",
    }
    told = done(asking, "shop/barriers/2/abort", reason="  landed twice ")
    assert (told["changed"], told["states"]) == (True, {"barrier 2": "ABORTED", "barrier 3": "ABORTED"})
    # there are no tables in this test that could let go of its cuts
    assert told["summary"] == (
        "Aborted barriers 2 and 3; their epochs join the next barrier's. Tags that hold their input in tables outside "
        "the topology are left; the log says why."
    )
    assert shop.barrier(2).reason == "landed twice"
    assert actors(shop.meta, "shop", "aborted")[-1] == "admin (test)"
    assert offered(asking, "shop/barriers/2") == {}
    again = done(asking, "shop/barriers/2/abort")
    assert (again["changed"], again["summary"]) == (False, "Barrier 2 was aborted before.")
    shop.begin_commit(1)
    assert "expected OPEN or PRECOMMIT, found COMMITTING" in refused(asking, "shop/barriers/1/abort")
    assert asking.post("shop/barriers/9/abort").status_code == 404


def test_abort_says_what_it_takes_along(shop: World, asking: Asking) -> None:
    everything(shop)
    (action,) = asking.told("shop/barriers/2")["actions"]
    assert action["says"] == (
        "Gives up barrier 2; its epoch joins the next barrier's. What revision 1 has computed of that is given up, too."
    )


def test_release(shop: World, asking: Asking) -> None:
    shop.committed(1)
    shop.meta.answers.resolve("shop", Level.REPEATABLE_READ, hold=Hold("report", 600))
    (lease,) = asking.told("shop/leases")["leases"]
    assert [each["label"] for each in lease["actions"]] == [f"Release lease {lease['lease_id']}"]
    path = f"shop/leases/{lease['lease_id']}/release"
    assert done(asking, path)["changed"]
    assert shop.meta.leases.of("shop") == []
    assert actors(shop.meta, "shop", "released") == ["admin (test): a test"]
    again = done(asking, path)
    assert not again["changed"]
    assert "it was released before" in again["summary"]


def test_commit(attacked: Attacked, there: Asking) -> None:
    attacked.stage_next()
    assert offered(there, "shopping/barriers/4") == {"commit": "Commit barriers 3 and 4", "abort": "Abort barrier 4"}
    (commit, _) = there.told("shopping/barriers/4")["actions"]
    assert "Publishes barriers 3 and 4, with 3 tables" in commit["says"]
    told = done(there, "shopping/barriers/4/commit", reason="its DAG was deleted")
    assert told["states"] == {"barrier 3": "COMMIT", "barrier 4": "COMMIT"}
    attacked.check_mains(4)
    assert actors(attacked.meta, "shopping", "commit")[-1] == "admin (test): its DAG was deleted"
    assert done(there, "shopping/barriers/4/commit")["summary"] == "Barrier 4 was committed before."
    assert "decision to commit is durable" in refused(there, "shopping/barriers/4/abort")
    assert offered(there, "shopping/barriers/4") == {"revise": "Correct from here…"}


def test_what_is_not_precommit_is_not_committed(template: Template) -> None:
    with template.put_back("open") as attacked:
        there = Asking({"prod": attacked.meta}, lambda _: attacked.shop.deployment)
        assert set(offered(there, THIRD)) == {"abort"}
        assert f"not PROCESSED: {AMOUNT} (job amount)" in refused(there, f"{THIRD}/commit")
        assert state(attacked) is BarrierState.OPEN


def test_a_foreign_write_is_told(attacked: Attacked, there: Asking) -> None:
    attacked.hands.append()
    assert AMOUNT in refused(there, f"{THIRD}/commit")
    assert state(attacked) is BarrierState.PRECOMMIT


def test_a_blocked_barrier_is_led_out(attacked: Attacked, there: Asking) -> None:
    block(attacked)
    assert offered(there, THIRD) == {"resolve": "Decide about its tables"}
    assert "BLOCKED" in refused(there, f"{THIRD}/commit")
    (table,) = there.told(f"{THIRD}/decisions")["tables"]
    theirs = attacked.main()
    assert (table["table"], str(theirs) in table["finding"]) == (AMOUNT, True)
    keep, adopt = table["choices"]
    assert (keep["decision"], keep["label"]) == ("keep-ours", f"Keep ours of {AMOUNT}")
    assert f"Theirs, snapshot {theirs}, no longer counts, and is kept by the tag" in keep["says"]
    assert f"{AMOUNT} stays at theirs, snapshot {theirs}." in adopt["says"]
    assert "NOT published" in adopt["says"]
    keep_ours = {"table": AMOUNT, "decision": "keep-ours"}
    assert "shop.nothing" in refused(there, f"{THIRD}/resolve", 404, table="shop.nothing", decision="keep-ours")
    assert "in the way are" in refused(there, f"{THIRD}/resolve", table=PRICE, decision="keep-ours")
    assert done(there, f"{THIRD}/resolve", **keep_ours)["states"] == {"barrier 3": "COMMITTING"}
    again = done(there, f"{THIRD}/resolve", **keep_ours)
    assert (again["changed"], "before" in again["summary"]) == (False, True)
    assert "expected BLOCKED" in refused(there, f"{THIRD}/resolve", table=AMOUNT, decision="adopt-theirs")
    assert there.get(f"/prod/topologies/{THIRD}/decisions").status_code == 409
    assert actors(attacked.meta, "shopping", "keep-ours") == ["admin (test)"] * 2
    assert offered(there, THIRD) == {"commit": "Commit barrier 3"}
    assert done(there, f"{THIRD}/commit")["states"] == {"barrier 3": "COMMIT"}
    attacked.check_mains(UNDER_WAY)


def test_a_table_that_has_to_be_mended_first(attacked: Attacked, there: Asking) -> None:
    block(attacked, "rename")
    (table,) = there.told(f"{THIRD}/decisions")["tables"]
    assert (table["table"], table["choices"]) == (AMOUNT, [])


def test_somebody_has_mended_it(attacked: Attacked, there: Asking) -> None:
    block(attacked)
    attacked.hands.rollback()
    (table,) = there.told(f"{THIRD}/decisions")["tables"]
    assert (table["finding"], [each["label"] for each in table["choices"]]) == (None, ["Go on"])
    told = done(there, f"{THIRD}/resolve", table=table["table"], decision=table["choices"][0]["decision"])
    assert told["states"] == {"barrier 3": "COMMITTING"}


def test_cancel(attacked: Attacked, there: Asking) -> None:
    revise(attacked)
    assert offered(there, "shopping/revisions/1") == {"cancel": "Cancel revision 1", "wake": "Wake its runs"}
    (action, _) = there.told("shopping/revisions/1")["actions"]
    assert "what it has computed of 1 table from barrier 2 on is lost" in action["says"]
    told = done(there, "shopping/revisions/1/cancel", reason="the wrong day")
    assert (told["changed"], told["states"]) == (True, {"revision 1": "CANCELLED"})
    again = done(there, "shopping/revisions/1/cancel")
    assert (again["changed"], again["summary"]) == (False, "Revision 1 was cancelled before.")
    assert actors(attacked.meta, "shopping", "cancelled") == ["admin (test)"]
    assert there.post("shopping/revisions/2/cancel").status_code == 404


def revise(attacked: Attacked) -> None:
    attacked.meta.revisions.begin(
        NewRevision(
            topology="shopping", mode=RevisionMode.INCREMENTAL, first_barrier=2, predecessor=1, window_end=2,
            tables=[AMOUNT], jobs=["amount"], changed=["amount"],
            topology_version=attacked.meta.topologies.version("shopping"), reason="wrong sums", actor="ada",
        )
    )  # fmt: skip


# --- against each other -------------------------------------------------------------------------------


def at_once(attacked: Attacked, *acts: str) -> list[int]:
    there = Asking({"prod": attacked.meta}, lambda _: attacked.shop.deployment)
    start = Start(len(acts))

    def act(what: str) -> int:
        start.wait(patience())
        return there.post(f"{THIRD}/{what}").status_code

    with ThreadPoolExecutor(len(acts)) as all_of_them:
        return list(all_of_them.map(act, acts))


def test_abort_and_commit_at_once(template: Template) -> None:
    """One of them wins, and the other one is told so."""
    for _ in range(4):
        with template.put_back("staged") as attacked:
            statuses, ended = at_once(attacked, "abort", "commit"), state(attacked)
            assert (statuses, ended) in (([200, 409], BarrierState.ABORTED), ([409, 200], BarrierState.COMMIT))
            attacked.check_mains(UNDER_WAY if ended is BarrierState.COMMIT else UNDER_WAY - 1)


def test_two_commit_at_once(attacked: Attacked) -> None:
    """Who is second may be told to look again."""
    assert set(at_once(attacked, "commit", "commit", "commit")) <= {200, 503}
    assert state(attacked) is BarrierState.COMMIT
    attacked.check_mains(UNDER_WAY)
    written = [entry for entry in attacked.meta.audit.newest("shopping", UNDER_WAY) if entry.after == "COMMIT"]
    assert len(written) == 1


def test_tables_that_do_not_answer(attacked: Attacked, there: Asking) -> None:
    """The page of the barrier does without them; what needs them can be tried again; an abort needs none."""

    def away(_: str) -> Deployment:
        raise CatalogUnavailableError("https://catalog.internal does not answer")

    block(attacked)
    there.rights.connect = away
    assert set(offered(there, THIRD)) == {"resolve"}
    looked = there.get(f"/prod/topologies/{THIRD}/decisions")
    assert (looked.status_code, "internal" in looked.text) == (503, False)
    assert "trying again is harmless" in refused(there, f"{THIRD}/commit", 503)
    fourth = attacked.shop.open(4).barrier_id
    assert done(there, f"shopping/barriers/{fourth}/abort")["states"] == {"barrier 4": "ABORTED"}
