"""The members of a topology change while its next barrier is opened: each joins, in it or after it, as its DAG says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_barrier.coordinator.joining import StaysOut, take_part, takes_part
from airflow_barrier.coordinator.leaving import leave
from airflow_barrier.coordinator.opening import Fragment, Later, Opened, open_barrier
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Job
from tests.metaservice.auditing import check_audit
from tests.races.interleaving import all_orders, explore, stepping
from tests.races.worlds import worlds
from tests.support.reporting import report
from tests.support.shop import JOBS, MONDAY, PRICE, SHOPPING, Shop

OWN = Fragment("shopping", "shopping_dag", JOBS[:2])
#: Of another team, over the same table.
PRICES = Fragment("shopping", "price_dag", (Job("price", "price_dag", sources=(SHOPPING,), sinks=(PRICE,)),))
SECOND = MONDAY + timedelta(days=2)
ROWS = [{"amount": 10, "price": 20}]


def work_off(shop: Shop, barrier: Barrier) -> None:
    for job in ("load", "amount", "price"):
        if takes_part(shop.deployment, barrier, job):
            shop.process(barrier, job, ROWS)
    shop.commit(barrier)


def without_prices(shop: Shop) -> None:
    work_off(shop, shop.open(1, OWN))


def with_prices(shop: Shop) -> None:
    register(shop)
    without_prices(shop)


def register(shop: Shop) -> Any:
    return take_part(shop.deployment, PRICES, PRICES.jobs[0], SECOND, "member")


def opens(shop: Shop) -> Callable[[], Any]:
    return lambda: open_barrier(shop.deployment, OWN, SECOND, origin="test", run_key="shopping_dag/2", actor="opener")


def joins(shop: Shop) -> Callable[[], Any]:
    return lambda: register(shop)


def leaves(shop: Shop) -> Callable[[], Any]:
    return lambda: leave(shop.deployment, "shopping", "price_dag", None, reason="moves", actor="member")


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.drawn
def test_a_job_that_joins_while_a_barrier_opens_gets_all_of_its_sources(shared: bool) -> None:
    seen: Counter[bool] = Counter()
    with worlds(shared=shared) as made, stepping(shared=shared):
        made.keep(without_prices, processes=3)
        opener, member, looker = made.shops

        def operations() -> list[Callable[[], Any]]:
            made.restore()
            return [opens(opener), joins(member)]

        def check(outcomes: list[Any]) -> None:
            opened, registered = outcomes
            assert isinstance(opened, Opened), outcomes
            in_time = takes_part(looker.deployment, opened.barrier, "price")
            assert isinstance(registered, (Barrier, Later) if in_time else (StaysOut, Later)), outcomes
            seen[in_time] += 1
            first = opened.barrier if in_time else looker.open(3, OWN)
            if not in_time:
                work_off(looker, opened.barrier)
            looker.process(first, "load", ROWS)
            previous = looker.begin(first, "price").spec.previous
            assert previous == {SHOPPING: None}, "its first epoch has all that came before"
            check_audit(made.settings.metaservice_url)

        explored = explore(operations, check, lambda: None, all_orders)
    assert len(seen) == 2, f"it joins in time, and it does not: {seen}"
    report(
        f"races, opening and joining, {'shared' if shared else 'apart'}: {explored.orders} orders of up to "
        f"{explored.steps} steps, {seen[True]} in time"
    )
