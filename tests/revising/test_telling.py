"""What the API tells of a revision."""

from __future__ import annotations

from tests.api.asking import Asking
from tests.revising.world import RevisedShop


def test_a_revision_is_told_with_why_it_is_and_how_far(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    revision = embedded.begin(2)
    embedded.replay(revision, 2)
    meta = embedded.deployment.meta
    meta.revisions.bind_run("shop", 1, 2, "shopping_dag", "scheduled__2", 1)
    meta.revisions.bind_run("shop", 1, 3, "shopping_dag", "scheduled__3", None)
    meta.revisions.bind_run("shop", 1, 3, "another_dag", "hidden__3", None)
    asking = Asking({"prod": meta})
    told = asking.told("shop/revisions/1")
    assert (told["state"], told["reason"], told["actor"]) == ("STAGING", "corrected", "person")
    assert [(each["barrier_id"], each["timestamp"], each["state"]) for each in told["barriers"]] == [
        (2, "2040-01-04T00:00:00Z", "PRECOMMIT"),
        (3, "2040-01-05T00:00:00Z", "OPEN"),
    ]
    assert told["barriers"][0]["jobs"]["load"] == "processed"
    assert told["barriers"][1]["jobs"]["load"] == "not started"
    assert [(run["run_id"], run["barrier_id"], run["arrived_at"] is None) for run in told["runs"]] == [
        ("scheduled__2", 2, False),
        ("hidden__3", 3, True),
        ("scheduled__3", 3, True),
    ]
    limited = asking.told("shop/revisions/1", asking.may_read("ada", "shopping_dag"))
    assert [run["run_id"] for run in limited["runs"]] == ["scheduled__2", "scheduled__3"]
    (missing,) = told["missing"]
    assert missing["barrier_id"] == 3
    assert "shop.shopping (job load)" in missing["tables"]
    embedded.replay(revision, 3)
    embedded.publish(revision)
    told = asking.told("shop/revisions/1")
    assert (told["state"], told["missing"]) == ("COMMIT", [])
