"""A publish that is overtaken between its look and its decision: by another publisher, by a commit, by a stranger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from airflow_barrier.coordinator import committing
from airflow_barrier.coordinator.revisions import publish as swapping
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped
from airflow_barrier.protocol.errors import ForeignWriteError, HeadMovedError
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import BarrierState
from tests.revising.world import RevisedShop


def staged(shop: RevisedShop, committed: int = 2, uncommitted: int = 0) -> Revision:
    """A corrected second day, computed again up to the head, and so many barriers that could be committed."""
    shop.days(1, committed)
    for day in range(committed + 1, committed + uncommitted + 1):
        shop.day(day, ["open", "load", "amount", "price"])
    shop.correct(2, shop.landed[2][:1])
    revision = shop.begin(2)
    shop.replay_all(revision)
    return revision


@contextmanager
def overtaken(module: Any, *hands: Callable[[], object]) -> Iterator[None]:
    """Each of the next looks at tables by what publishes is preceded by one of these; all of them must have come."""
    look, left = module.current_mains, list(hands)

    def after_a_hand(*arguments: Any) -> dict[str, int | None]:
        if left:
            hand = left.pop(0)
            with pytest.MonkeyPatch.context() as undisturbed:
                undisturbed.setattr(module, "current_mains", look)
                hand()
        found: dict[str, int | None] = look(*arguments)
        return found

    with pytest.MonkeyPatch.context() as disturbed:
        disturbed.setattr(module, "current_mains", after_a_hand)
        yield
    assert not left, f"{module.__name__} did not look at its tables where it is to be overtaken"


def check(shop: RevisedShop, day: int) -> None:
    assert shop.at() == shop.mains() == shop.expected(day)


@pytest.mark.kills("decided-by-another")
def test_by_another_publisher(shop: RevisedShop) -> None:
    revision = staged(shop)
    with overtaken(swapping, lambda: shop.publish(revision)):
        assert isinstance(shop.publish(revision), Swapped)
    check(shop, 2)


@pytest.mark.kills("decided-by-another")
def test_by_another_decision(shop: RevisedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decided died before the publish: this one goes on."""
    revision = staged(shop)
    meta, name = shop.deployment.meta, shop.shop.name
    extend = meta.revisions.extend

    def decided(*arguments: Any) -> object:
        monkeypatch.undo()
        expected = shop.deployment.tables.mains(shop.shop.tables())
        meta.revisions.begin_swap(name, revision.revision, 2, expected, "another")
        return extend(*arguments)

    monkeypatch.setattr(meta.revisions, "extend", decided)
    assert isinstance(shop.publish(revision), Swapped)
    check(shop, 2)


@pytest.mark.kills("committed-by-another")
def test_by_a_commit(shop: RevisedShop) -> None:
    revision = staged(shop, 2, 1)
    with overtaken(swapping, lambda: shop.day(3, ["commit"])):
        assert isinstance(shop.publish(revision), Swapped)
    assert shop.barrier(3).state is BarrierState.COMMIT
    check(shop, 3)


def test_by_a_commit_after_the_look(embedded: RevisedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    revision = staged(embedded, 2, 1)
    look = embedded.deployment.tables.look

    def looked(publications: Any) -> None:
        look(publications)
        monkeypatch.undo()
        embedded.day(3, ["commit"])

    monkeypatch.setattr(embedded.deployment.tables, "look", looked)
    assert isinstance(embedded.publish(revision), Swapped)
    check(embedded, 3)


@pytest.mark.kills("looks-run-out")
def test_by_one_commit_after_another(embedded: RevisedShop) -> None:
    revision = staged(embedded, 2, 3)
    commits = [lambda day=day: embedded.day(day, ["commit"]) for day in (3, 4, 5)]
    unsteady = pytest.raises(HeadMovedError, match="expected no table to change between the look and the publish")
    with overtaken(swapping, *commits), unsteady:
        embedded.publish(revision)
    assert isinstance(embedded.publish(revision), Swapped)
    check(embedded, 5)


def test_by_who_opens(embedded: RevisedShop) -> None:
    revision = staged(embedded)
    with overtaken(swapping, lambda: embedded.day(3, ["open"])):
        missing = embedded.publish(revision)
    assert isinstance(missing, NotStaged)
    assert "was opened since" in missing.reason


@pytest.mark.kills("committed-by-another")
def test_by_a_stranger(embedded: RevisedShop) -> None:
    revision = staged(embedded)
    iceberg = embedded.deployment.tables.load(embedded.shop.table("prices"))
    rows = pa.Table.from_pylist([{"id": 0, "price": 0}], iceberg.schema().as_arrow())
    with overtaken(swapping, lambda: iceberg.append(rows)), pytest.raises(ForeignWriteError):
        embedded.publish(revision)
    assert embedded.deployment.meta.revisions.get(embedded.shop.name, 1).state is RevisionState.STAGING


@pytest.mark.kills("last-look")
def test_what_would_stop_a_decided_one_is_said_before(embedded: RevisedShop) -> None:
    revision = staged(embedded)
    iceberg = embedded.deployment.tables.load(embedded.shop.table("prices"))
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    iceberg.manage_snapshots().create_tag(snapshot.snapshot_id, "barrier_shop_b2_r1").commit()
    with pytest.raises(ForeignWriteError):
        embedded.publish(revision)
    assert embedded.deployment.meta.revisions.get(embedded.shop.name, 1).state is RevisionState.STAGING
    iceberg.refresh().manage_snapshots().remove_tag("barrier_shop_b2_r1").commit()
    assert isinstance(embedded.publish(revision), Swapped)
    check(embedded, 2)


@pytest.mark.kills("revised-by-another")
def test_a_commit_by_a_revision(shop: RevisedShop) -> None:
    revision = staged(shop, 2, 1)
    with overtaken(committing, lambda: shop.publish(revision)):
        shop.day(3, ["commit"])
    check(shop, 3)


def test_a_clear_at_an_open_barrier_after_the_swap(embedded: RevisedShop) -> None:
    revision = staged(embedded, 2, 2)
    embedded.publish(revision)
    for job in ("load", "amount", "price"):
        embedded.shop.run_on(embedded.deployment, job, 3, "2/1")
    for day in (3, 4):
        embedded.day(day, ["load", "amount", "price", "commit"])
        check(embedded, day)


@pytest.mark.kills("committed-by-another")
def test_by_a_commit_that_dies_half_way(shop: RevisedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two databases, the tables are published then, and the barrier is not COMMIT yet."""
    revision = staged(shop, 2, 1)

    def dies(*_: Any) -> None:
        raise OSError("died")

    with monkeypatch.context() as dying:
        dying.setattr(shop.deployment.meta.publishing, "swapping", dies)
        with pytest.raises(OSError, match="died"):
            shop.day(3, ["commit"])
    missing = shop.publish(revision)
    assert isinstance(missing, NotStaged)
    assert "COMMITTING; finish that one first" in missing.reason
    shop.day(3, ["commit"])
    assert isinstance(shop.publish(revision), Swapped)
    check(shop, 3)
