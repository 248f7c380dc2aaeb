"""The members of a topology change while its next barrier is opened: each joins, in it or after it, as its DAG says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.joining import StaysOut, take_part, takes_part
from airflow_barrier.coordinator.leaving import Left, leave
from airflow_barrier.coordinator.opening import Later, Opened, open_barrier
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from tests.metaservice.auditing import check_audit
from tests.races.interleaving import Explored, all_orders, explore, stepping
from tests.races.worlds import worlds
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.shop import AMOUNT, JOBS, MONDAY, PRICE, SHOPPING, Shop

OWN = Fragment("shopping", "shopping_dag", JOBS[:2])
#: Of another team, over the same table.
PRICES = Fragment("shopping", "price_dag", (Job("price", "price_dag", inlets=(SHOPPING,), outlets=(PRICE,)),))
ROWS = [{"amount": 10, "price": 20}]


def work_off(shop: Shop, barrier: Barrier) -> None:
    for job in ("load", "amount", "price"):
        if takes_part(shop.deployment, barrier, job):
            shop.process(barrier, job, ROWS)
    shop.commit(barrier)


def without_prices(shop: Shop) -> None:
    work_off(shop, shop.open(1, OWN))


def with_prices(shop: Shop) -> None:
    """Both DAGs' jobs are members, and a barrier with both is published."""
    without_prices(shop)
    assert isinstance(register(shop), Later)
    work_off(shop, shop.open(2, OWN))


def after_leaving(shop: Shop) -> None:
    """The job has left and been told that it may come back; its DAG has not run since."""
    with_prices(shop)
    leaves(shop)()
    assert shop.deployment.meta.topologies.readmit("shopping", "price_dag", None, "member")


def register(shop: Shop, day: int = 2) -> Any:
    at = MONDAY + timedelta(days=day)
    return take_part(shop.deployment, PRICES, PRICES.jobs[0], at, "member")


def opens(shop: Shop, day: int = 2) -> Callable[[], Any]:
    at, run = MONDAY + timedelta(days=day), f"shopping_dag/{day}"
    return lambda: open_barrier(shop.deployment, OWN, at, timestamp_from="test", run=run_of(run), actor="opener")


def joins(shop: Shop, day: int = 2) -> Callable[[], Any]:
    return lambda: register(shop, day)


def leaves(shop: Shop) -> Callable[[], Any]:
    return lambda: leave(shop.deployment, "shopping", "price_dag", None, reason="moves", actor="member")


def everything_at_first(previous: Any) -> None:
    assert previous == {SHOPPING: None}, "its first epoch has all that came before"


def since_it_left(previous: Any) -> None:
    assert previous[SHOPPING] is not None, "it goes on where it left off"


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize(
    ("before", "day", "begins"),
    [(without_prices, 2, everything_at_first), (after_leaving, 3, since_it_left)],
    ids=["for the first time", "coming back"],
)
@pytest.mark.drawn
def test_a_job_that_joins_while_a_barrier_opens_gets_all_of_its_inlets(
    before: Callable[[Shop], None], day: int, begins: Callable[[Any], None], shared: bool
) -> None:
    seen: Counter[bool] = Counter()
    with worlds(shared=shared) as made, stepping(shared=shared):
        made.keep(before, processes=3)
        opener, member, looker = made.shops

        def operations() -> list[Callable[[], Any]]:
            made.restore()
            return [opens(opener, day), joins(member, day)]

        def check(outcomes: list[Any]) -> None:
            opened, registered = outcomes
            assert isinstance(opened, Opened), outcomes
            in_time = takes_part(looker.deployment, opened.barrier, "price")
            assert isinstance(registered, (Barrier, Later) if in_time else (StaysOut, Later)), outcomes
            seen[in_time] += 1
            first = opened.barrier if in_time else looker.open(day + 1, OWN)
            if not in_time:
                work_off(looker, opened.barrier)
            looker.process(first, "load", ROWS)
            begins(looker.begin(first, "price").spec.previous)
            check_audit(made.settings.metaservice_url)

        explored = explore(operations, check, lambda: None, all_orders)
    assert len(seen) == 2, f"it joins in time, and it does not: {seen}"
    _report("joining", before.__name__, shared, explored, seen)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "apart"])
@pytest.mark.drawn
def test_a_job_that_leaves_while_a_barrier_opens_is_in_it_or_gives_its_table_back(shared: bool) -> None:
    seen: Counter[bool] = Counter()
    with worlds(shared=shared) as made, stepping(shared=shared):
        made.keep(with_prices, processes=3)
        opener, member, looker = made.shops

        def operations() -> list[Callable[[], Any]]:
            made.restore()
            return [opens(opener, 3), leaves(member)]

        def check(outcomes: list[Any]) -> None:
            opened, left = outcomes
            assert isinstance(opened, Opened), outcomes
            assert isinstance(left, Left), outcomes
            has_it = takes_part(looker.deployment, opened.barrier, "price")
            seen[has_it] += 1
            # What a barrier has when it opens goes on with it. So the table is given back by then, or not yet.
            assert (left.open, left.tables) == (((opened.barrier,), ()) if has_it else ((), (PRICE,))), outcomes
            abort_barrier(looker.deployment, "shopping", opened.barrier.barrier_id, reason="ends", actor="looker")
            assert leaves(looker)().tables == (PRICE,)
            assert not takes_part(looker.deployment, looker.open(4, OWN), "price")
            assert looker.main_totals() == {SHOPPING: 40, AMOUNT: 20, PRICE: 20}
            check_audit(made.settings.metaservice_url)

        explored = explore(operations, check, lambda: None, all_orders)
    assert len(seen) == 2, f"the barrier has it, and it does not: {seen}"
    _report("leaving", with_prices.__name__, shared, explored, seen)


def _report(what: str, before: str, shared: bool, explored: Explored, seen: Counter[bool]) -> None:
    report(
        f"races, opening and {what} {before.replace('_', ' ')}, {'shared' if shared else 'apart'}: {explored.orders} "
        f"orders of up to {explored.steps} steps, the job is in the barrier in {seen[True]}"
    )
