"""The page of a revision."""

from __future__ import annotations

from airflow_barrier.coordinator.status import revision_status
from airflow_barrier.plugins.html import render_revision
from tests.revising.world import RevisedShop


def test_a_revisions_page_says_why_it_is_and_how_far(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    revision = embedded.begin(2)
    embedded.replay(revision, 2)
    meta = embedded.deployment.meta
    meta.revisions.bind_run("shop", 1, 2, "shopping_dag", "<b>scheduled__2</b>", 1)
    meta.revisions.bind_run("shop", 1, 3, "shopping_dag", "scheduled__3", None)
    page = render_revision(revision_status(meta, "shop", 1))
    for said in (
        "revision 1 of shop: STAGING",
        "corrected (begun",
        "barrier 3",
        "&lt;b&gt;scheduled__2&lt;/b&gt;",
        "woken",
    ):
        assert said in page
    assert "<td>2</td><td>2040-01-04 00:00:00</td><td>PRECOMMIT</td>" in page
    assert "shop.shopping (job load)" in page
    embedded.replay(revision, 3)
    embedded.publish(revision)
    assert "revision 1 of shop: COMMIT" in render_revision(revision_status(meta, "shop", 1))
