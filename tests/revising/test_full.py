"""Tables cleared and computed from the beginning, aside."""

from __future__ import annotations

import pytest

from airflow_barrier.coordinator.revisions.publish import Swapped
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.revisions import RevisionMode
from tests.revising.world import RevisedShop


def test_everything_is_computed_from_the_first_barrier(shop: RevisedShop) -> None:
    shop.days(1, 3)
    before = {day: shop.expected(day) for day in (1, 2, 3)}
    shop.correct(1, shop.landed[1][:1])
    shop.correct(3, shop.landed[3][1:])
    revision = shop.begin(None, mode=RevisionMode.FULL)
    for barrier in (1, 2, 3):
        shop.replay(revision, barrier)
        assert shop.at() == shop.mains() == before[3]
    assert isinstance(shop.publish(revision), Swapped)
    for day in (1, 2, 3):
        assert shop.at(day) == shop.expected(day)
        assert shop.at(day, revision=0) == before[day]
    assert shop.mains() == shop.expected(3)
    shop.day(4)
    assert shop.at() == shop.mains() == shop.expected(4)


def test_state_that_cannot_be_replayed_is_computed_from_all_that_its_source_holds(shop: RevisedShop) -> None:
    shop.days(1, 4)
    revision = shop.begin(3, changed=["price"], mode=RevisionMode.FULL)
    shop.replay_all(revision)
    assert isinstance(shop.publish(revision), Swapped)
    assert [shop.at(day) for day in (1, 2, 3, 4)] == [shop.expected(day) for day in (1, 2, 3, 4)]
    prices = shop.deployment.tables.load(shop.shop.table("prices"))
    # one epoch up to barrier 3, and one for barrier 4
    added = [s.summary["added-records"] for s in prices.metadata.snapshots if s.summary.get("barrier.revision") == "1"]
    assert [int(count) for count in added if count is not None] == [9, 3]


def test_what_came_before_the_first_barrier_that_can_be_read_is_one_epoch(embedded: RevisedShop) -> None:
    embedded.days(1, 4)
    deployment, name = embedded.deployment, embedded.shop.name
    assert deployment.meta.expiry.expire(name, [1, 2], "test") == [1, 2]
    embedded.correct(1, embedded.landed[1][:1])
    embedded.correct(4, embedded.landed[4][1:])
    revision = embedded.begin(None, mode=RevisionMode.FULL)
    assert revision.first_barrier == 3
    embedded.replay_all(revision)
    assert isinstance(embedded.publish(revision), Swapped)
    assert [embedded.at(day) for day in (3, 4)] == [embedded.expected(day) for day in (3, 4)]
    embedded.day(5)
    assert embedded.at() == embedded.mains() == embedded.expected(5)
    # each file is still used up by the barrier that it came with
    with pytest.raises(RevisionRefusedError, match="has expired"):
        embedded.begin(2)
    again = embedded.begin(4)
    embedded.replay_all(again)
    assert isinstance(embedded.publish(again), Swapped)
    assert embedded.at() == embedded.expected(5)
