"""A reader gets a barrier while it is about to go: either he holds it and it stays, or he is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import ExpiredBarrierError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.topology import Job
from tests.metaservice.auditing import check_audit
from tests.metaservice.world import World
from tests.races.interleaving import all_orders, explore, few_suspensions, stepping
from tests.races.racers import Racers
from tests.races.worlds import worlds
from tests.support.drawing import OPERATIONS
from tests.support.reporting import report
from tests.support.shop import COLUMNS, Shop

# --- every order of two ---------------------------------------------------------------------------------


def third_precommit(shop: Shop) -> None:
    """With the commit of the third barrier the tags of the first one go."""
    for day in (1, 2, 3):
        shop.process_all(barrier := shop.open(day), [{"amount": 10**day, "price": 2 * 10**day}])
        if day < 3:
            shop.commit(barrier)


def tags(shop: Shop, barrier_id: int) -> int:
    """How many tables have the barrier's tag."""
    documents = shop.deployment.tables._committer.read(list(COLUMNS)).values()
    return sum(tag_name("shopping", barrier_id, 0) in document["refs"] for document in documents)


def check_readers(shop: Shop) -> None:
    """What is held is there, and so is what can be read."""
    meta = shop.deployment.meta
    held = {lease.barrier_id for lease in meta.leases.of("shopping")}
    for barrier_id in held | {barrier.barrier_id for barrier in meta.answers.readable("shopping")}:
        if barrier_id != 3 or shop.deployment.shares_database:  # tags of two databases come before COMMIT
            assert tags(shop, barrier_id) == len(COLUMNS), f"barrier {barrier_id} is read, and its tags are gone"


def commits(shop: Shop) -> Callable[[], Any]:
    return lambda: commit_barrier(shop.deployment, "shopping", 3, actor="committer")


def reads(shop: Shop) -> Callable[[], Any]:
    return lambda: shop.deployment.meta.answers.resolve(
        "shopping", Level.REPEATABLE_READ, at=1, hold=Hold("reader", 600)
    )


def reads_and_leaves(shop: Shop) -> Callable[[], Any]:
    def work() -> Resolution:
        answer: Resolution = reads(shop)()
        assert answer.lease is not None
        shop.deployment.meta.leases.renew(answer.lease.lease_id, 600)
        shop.deployment.meta.leases.release(answer.lease.lease_id)
        return answer

    return work


def expires(shop: Shop) -> Callable[[], Any]:
    """What an expiry does, without its plan."""

    def work() -> list[int]:
        meta = shop.deployment.meta
        moved = meta.expiry.expire("shopping", [1], "expiry")
        for barrier in meta.expiry.pending("shopping"):
            shop.deployment.tables.drop_tags(list(COLUMNS), [barrier.tag])
            meta.expiry.expired("shopping", [barrier.barrier_id], "expiry")
        return moved

    return work


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize(
    ("first", "second", "orders"),
    [
        (commits, reads, all_orders),
        (expires, reads_and_leaves, all_orders),
        (commits, expires, few_suspensions),
    ],
    ids=["commit, read", "expiry, read and leave", "commit, expiry"],
)
@pytest.mark.drawn
@pytest.mark.touches(*OPERATIONS["expiry"])
def test_in_every_order_what_is_held_stays(
    first: Any, second: Any, orders: Any, shared: bool, request: pytest.FixtureRequest
) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    with worlds(shared=shared, tag_policy="newest=1") as made, stepping(shared=shared):
        made.keep(third_precommit, processes=3)
        one, other, looker = made.shops

        def operations() -> list[Callable[[], Any]]:
            made.restore()
            return [first(one), second(other)]

        def check(outcomes: list[Any]) -> None:
            kinds = tuple(type(outcome).__name__ for outcome in outcomes)
            seen[kinds[0], kinds[1]] += 1
            assert isinstance(outcomes[0], (Committed, list)), outcomes
            assert isinstance(outcomes[1], (Resolution, ExpiredBarrierError, list)), outcomes
            check_readers(looker)
            looker.commit(looker.deployment.meta.barriers.get("shopping", 3))
            check_readers(looker)
            assert looker.deployment.meta.expiry.pending("shopping") == []
            check_audit(made.settings.metaservice_url)

        explored = explore(operations, check, lambda: check_readers(looker), orders)
    if second is not expires:
        assert len({kinds[1] for kinds in seen}) == 2, f"some are read in time, and some are not: {seen}"
    outcomes = ", ".join(f"{count} {' + '.join(both)}" for both, count in sorted(seen.items()))
    name = request.node.callspec.id
    report(f"races, {name}: {explored.orders} orders of up to {explored.steps} steps; {outcomes}")


# --- processes ------------------------------------------------------------------------------------------

BARRIERS = 40


def lease(deployment: Deployment, barrier_id: int) -> int:
    """Leases a barrier, and keeps it."""
    answer = deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=barrier_id, hold=Hold("racer", 600))
    return answer.tables["shop.a"].barrier_id


def expire(deployment: Deployment, barrier_id: int) -> list[int]:
    return deployment.meta.expiry.expire("shopping", [barrier_id], "racer")


def test_of_readers_and_expiries_at_once_one_side_has_its_way(settings: Settings, racers: Racers) -> None:
    deployment = Deployment.connect(settings)
    world = World(deployment.meta, "shopping", [Job("load", "dag", outlets=("shop.a",))])
    for number in range(1, BARRIERS + 2):
        world.committed(number)
    ends: Counter[str] = Counter()
    for number in range(1, BARRIERS + 1):
        outcomes = racers.race([(lease, (number,)), (expire, (number,))] * 3)
        granted = [each for each in outcomes[::2] if each == number]
        refused = [each for each in outcomes[::2] if isinstance(each, ExpiredBarrierError)]
        moved = [each for some in outcomes[1::2] for each in some]
        assert len(granted) + len(refused) == 3, outcomes
        assert moved in ([], [number]), "by one"
        assert bool(granted) != bool(moved), f"barrier {number}: {outcomes}"
        assert bool(deployment.meta.leases.of("shopping", number)) == bool(granted)
        ends["expired" if moved else "held"] += 1
    deployment.close()
    report(f"races, leases and expiries on {settings.metaservice_url.partition(':')[0]}: {dict(ends)}")
