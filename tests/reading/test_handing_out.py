"""What is handed to others: held for the time that was said, by nobody who renews it, and not longer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    LeaseLostError,
    NotReadableYetError,
    StaleAnswerError,
    UnknownBarrierError,
    UnknownDialectError,
)
from airflow_barrier.protocol.leases import LONGEST_HOLD_SECONDS, Hold
from airflow_barrier.protocol.levels import Resolution
from airflow_barrier.reading.handing_out import hand_out
from tests.support.shop import AMOUNT, PRICE, Shop, make_shop
from tests.support.waiting import patience, wait_for

OUTSIDER = Hold("dashboard of ada", 3600)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Barriers 1 and 2 are COMMIT, 3 is OPEN."""
    shop = make_shop(Settings.embedded(str(tmp_path)))
    for day in (1, 2):
        barrier = shop.open(day)
        shop.process_all(barrier, [{"amount": 25, "price": 250}])
        shop.commit(barrier)
    shop.open(3)
    yield shop
    shop.deployment.close()


def test_ids_tags_and_sql_are_of_one_barrier_which_stays(shop: Shop) -> None:
    meta = shop.deployment.meta
    given = hand_out(shop.deployment, "shopping", OUTSIDER, at=1)
    assert shop.total(AMOUNT, given.snapshots[AMOUNT]) == 25
    assert set(given.tags.values()) == {"barrier_shopping_b1_r0"}
    pinned = given.sql(f"SELECT * FROM {PRICE}", "trino").sql
    assert pinned == f"SELECT * FROM {PRICE} FOR VERSION AS OF {given.snapshots[PRICE]}"
    assert meta.leases.of("shopping") == [given.lease]
    assert meta.expiry.expire("shopping", [1], "test") == []


@pytest.mark.kills("handed-out-for-a-time")
def test_it_is_held_for_as_long_as_was_said(shop: Shop) -> None:
    given = hand_out(shop.deployment, "shopping", Hold("quick", 0.3))
    wait_for("the hold to end", lambda: shop.deployment.meta.leases.of("shopping") == [])
    with pytest.raises(
        LeaseLostError, match=r"lease 1 of quick on barrier 2 of shopping: expected to read by it befor"
    ):
        assert given.snapshots


def test_it_may_be_held_for_longer_and_never_for_less(shop: Shop) -> None:
    given = hand_out(shop.deployment, "shopping", OUTSIDER)
    before = given.lease.expires_at
    given.hold_for(60)
    assert given.lease.expires_at == before
    given.hold_for(7200)
    assert given.lease.expires_at > before
    with pytest.raises(ConfigurationError, match=r"at most 604800 seconds \(7 days\) to live, found 604801"):
        given.hold_for(LONGEST_HOLD_SECONDS + 1)


def test_what_is_too_old_is_not_handed_out(shop: Shop) -> None:
    with pytest.raises(StaleAnswerError, match="not older than 0:05:00, found barrier 2 of 2026-01-07"):
        hand_out(shop.deployment, "shopping", OUTSIDER, not_older_than=timedelta(minutes=5))
    assert shop.deployment.meta.leases.of("shopping") == []
    with pytest.raises(ConfigurationError, match="which says what is waited for, found it without"):
        hand_out(shop.deployment, "shopping", OUTSIDER, wait=timedelta(minutes=5))


def test_it_waits_for_what_is_new_enough_and_its_time_begins_with_that(shop: Shop) -> None:
    meta = shop.deployment.meta
    age = meta.now() - meta.barriers.get("shopping", 2).timestamp
    resolve, looked = meta.answers.resolve, []

    def overtaken(*asked: Any, **how: Any) -> Resolution:
        found = resolve(*asked, **how)
        if not looked:
            third = meta.barriers.get("shopping", 3)
            shop.process_all(third, [{"amount": 25, "price": 250}])
            shop.commit(third)
        looked.append(time.monotonic())
        return found

    meta.answers.resolve = overtaken  # type: ignore[method-assign]
    enough = age - timedelta(hours=1)
    given = hand_out(shop.deployment, "shopping", OUTSIDER, not_older_than=enough, wait=timedelta(seconds=patience()))
    assert given.resolution.barrier_id == 3
    assert meta.leases.of("shopping") == [given.lease]
    assert looked[0] + OUTSIDER.seconds < given._until < looked[1] + OUTSIDER.seconds


def test_nothing_is_handed_out_for_longer_than_a_week() -> None:
    with pytest.raises(ConfigurationError, match=r"at most 604800 seconds \(7 days\) to live.* hand out anew"):
        Hold("for ever", LONGEST_HOLD_SECONDS + 1)


def test_what_cannot_be_handed_out(shop: Shop) -> None:
    with pytest.raises(NotReadableYetError, match="expected COMMIT"):
        hand_out(shop.deployment, "shopping", OUTSIDER, at=3)
    with pytest.raises(UnknownBarrierError):
        hand_out(shop.deployment, "shopping", OUTSIDER, at=77)
    with pytest.raises(ConfigurationError, match="consistency level 'dirty': expected one of"):
        hand_out(shop.deployment, "shopping", OUTSIDER, level="dirty")
    assert shop.deployment.meta.leases.of("shopping") == []
    with pytest.raises(UnknownDialectError, match="expected one of athena, duckdb, presto, spark, trino, found 'tsql'"):
        hand_out(shop.deployment, "shopping", OUTSIDER).sql("SELECT 1", "tsql")
