"""What readers hold is there as long as they hold it, whatever is committed, staged anew or thinned meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.protocol.errors import ExpiredBarrierError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.names import parse_branch, parse_tag
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.tags import TagPolicy
from tests.support.deployments import APART, SHARED
from tests.support.shop import AMOUNT, COLUMNS, PRICE, SHOPPING, Shop

#: One database for all, and two: the publish is a part of COMMIT's transaction, or is not.
EITHER = (SHARED[0], APART[1])


def rows(day: int) -> list[dict[str, int]]:
    return [{"amount": 10**day, "price": 2 * 10**day}]


def committed(shop: Shop, day: int) -> Barrier:
    shop.process_all(barrier := shop.open(day), rows(day))
    shop.commit(barrier)
    return barrier


def read(shop: Shop, level: Level, at: int | None = None) -> tuple[Resolution, int]:
    """An answer that is held, and the number of its lease."""
    answer = shop.deployment.meta.answers.resolve("shopping", level, at=at, hold=Hold("reader", 600))
    assert answer.lease is not None
    return answer, answer.lease.lease_id


def totals(shop: Shop, answer: Resolution) -> dict[str, int]:
    return {name: shop.total(name, table.snapshot_id) for name, table in answer.tables.items()}


def total(*days: int) -> dict[str, int]:
    amount = sum(10**day for day in days)
    return {SHOPPING: 2 * amount, AMOUNT: amount, PRICE: 2 * amount}


def tagged(shop: Shop) -> set[int]:
    """The barriers whose tags every table has. None has another one."""
    per_table = [
        {tag.barrier_id for name in shop.deployment.tables.load(table).metadata.refs if (tag := parse_tag(name))}
        for table in COLUMNS
    ]
    assert all(tags == per_table[0] for tags in per_table), per_table
    return per_table[0]


def branches(shop: Shop, table: str) -> list[int]:
    """The barriers of the attempts that still have a branch."""
    refs = shop.deployment.tables.load(table).metadata.refs
    return sorted(branch.barrier_id for name in refs if (branch := parse_branch(name)))


def thinning(shop: Shop, policy: TagPolicy) -> None:
    shop.deployment = replace(shop.deployment, tag_policy=policy)


def readable(shop: Shop) -> set[int]:
    return {barrier.barrier_id for barrier in shop.deployment.meta.answers.readable("shopping")}


@pytest.mark.parametrize("shop", EITHER, indirect=True)
def test_what_the_policy_drops_is_spared_while_a_reader_holds_it(shop: Shop) -> None:
    thinning(shop, TagPolicy(newest=2))
    committed(shop, 1)
    committed(shop, 2)
    answer, lease = read(shop, Level.REPEATABLE_READ, at=1)
    committed(shop, 3)
    assert tagged(shop) == readable(shop) == {1, 2, 3}
    committed(shop, 4)
    assert tagged(shop) == readable(shop) == {1, 3, 4}
    assert totals(shop, answer) == total(1)
    shop.deployment.meta.leases.release(lease)
    committed(shop, 5)
    assert tagged(shop) == readable(shop) == {4, 5}
    with pytest.raises(ExpiredBarrierError, match="the oldest that can still be read is barrier 4"):
        read(shop, Level.REPEATABLE_READ, at=1)
    assert [b.barrier_id for b in shop.deployment.meta.expiry.pending("shopping")] == []


@pytest.mark.parametrize(("policy", "kept"), [("every=1", {1, 2, 3, 4}), ("every=2", {2, 3, 4}), ("newest=1", {3, 4})])
@pytest.mark.parametrize("shop", SHARED[:1], indirect=True)
def test_tags_and_what_can_be_read_are_the_same_with_each_policy(shop: Shop, policy: str, kept: set[int]) -> None:
    thinning(shop, TagPolicy.parse(policy))
    for day in (1, 2, 3, 4):
        committed(shop, day)
        assert tagged(shop) == readable(shop)
    assert tagged(shop) == kept, "and the one before the newest, which readers had until the publish"


@pytest.mark.parametrize("shop", EITHER, indirect=True)
def test_a_committer_that_died_after_the_decision_is_gone_on_from(shop: Shop) -> None:
    thinning(shop, TagPolicy(newest=1))
    for day in (1, 2):
        committed(shop, day)
    shop.process_all(barrier := shop.open(3), rows(3))
    mains = shop.deployment.tables.mains(list(COLUMNS))
    shop.deployment.meta.publishing.begin("shopping", 3, mains, "dies", [2])
    assert (readable(shop), tagged(shop)) == ({2}, {1, 2}), "visibility first"
    thinning(shop, TagPolicy())  # whoever goes on does what was decided
    commit_barrier(shop.deployment, "shopping", barrier.barrier_id, actor="goes on")
    assert readable(shop) == tagged(shop) == {2, 3}


@pytest.mark.parametrize("shop", SHARED[:1], indirect=True)
def test_what_was_staged_anew_stays_readable_for_who_holds_it(shop: Shop) -> None:
    committed(shop, 1)
    shop.process_all(second := shop.open(2), rows(2))
    old, lease = read(shop, Level.READ_COMMITTED)
    assert (old.barrier_id, totals(shop, old)) == (2, total(1, 2))
    for job in ("load", "amount", "price"):
        shop.process(second, job, rows(3), generation="cleared")
    shop.commit(second)
    assert shop.main_totals() == total(1, 3)
    assert totals(shop, old) == total(1, 2), "no torn read, no missing file"
    assert branches(shop, AMOUNT) == [2, 2], "of the attempt that he reads, and of the one that took its place"
    assert shop.deployment.meta.leases.renew(lease, 600).rolled_back
    committed(shop, 4)
    assert totals(shop, old) == total(1, 2)
    shop.deployment.meta.leases.release(lease)
    committed(shop, 5)
    assert branches(shop, AMOUNT) == branches(shop, SHOPPING) == []


@pytest.mark.parametrize("shop", SHARED[:1], indirect=True)
def test_a_table_that_leaves_keeps_what_is_held(shop: Shop) -> None:
    committed(shop, 1)
    shop.process_all(second := shop.open(2), rows(2))
    old, lease = read(shop, Level.READ_COMMITTED)
    for job in ("load", "amount", "price"):
        shop.process(second, job, rows(3), generation="cleared")
    shop.commit(second)
    leave(shop.deployment, "shopping", "shopping_dag", "price", reason="moves", actor="test")
    assert totals(shop, old)[PRICE] == total(1, 2)[PRICE]
    shop.deployment.meta.leases.release(lease)
    leave(shop.deployment, "shopping", "shopping_dag", "price", reason="moves", actor="test")
    assert branches(shop, PRICE) == []
