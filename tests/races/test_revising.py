"""The publish of a revision and another step at once, in the orders that their steps can have: each ends legally.

Two barriers are COMMIT and the third is PRECOMMIT; what the job `amount` made of the second was corrected, and is
computed again up to the third. After each order everybody tries again, and all tables are as if nothing had raced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from airflow_barrier.coordinator.committing import Committed, NotYet
from airflow_barrier.coordinator.journal import read_head
from airflow_barrier.coordinator.opening import Later, Opened
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped, cancel_revision, publish_revision
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.errors import GatedError, RevisionEndedError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import BarrierState
from tests.metaservice.auditing import check_audit
from tests.races.interleaving import explore, few_suspensions, stepping
from tests.races.test_interleavings import JOBS, ROWS, Operation, ask, commit, fingerprint, kind, names, start
from tests.races.worlds import worlds
from tests.support.drawing import OPERATIONS
from tests.support.reporting import report
from tests.support.shop import COLUMNS, MONDAY, Shop

AMOUNT = next(table for table in COLUMNS if table.endswith("amount"))
#: What `amount` should have made of the second day.
CORRECTED = {**ROWS, 2: [{"amount": 777, "price": 0}], 4: [{"amount": 10**4, "price": 2 * 10**4}]}
DAYS = {**ROWS, 4: CORRECTED[4]}


def publish(shop: Shop) -> Callable[[], Any]:
    return lambda: publish_revision(shop.deployment, "shopping", 1, actor="publisher")


def cancel(shop: Shop) -> Callable[[], Any]:
    return lambda: cancel_revision(shop.deployment, "shopping", 1, reason="no", actor="person")


def revised(shop: Shop) -> None:
    for day in (1, 2, 3):
        shop.process_all(shop.open(day), ROWS[day])
        if day < 3:
            shop.commit(shop.deployment.meta.barriers.get("shopping", day))
    plan = plan_revision(shop.deployment, Wanted("shopping", 2, changed=("amount",), accept_pause=True))
    begin_revision(shop.deployment, plan, reason="corrected", actor="person")
    shop.deployment.meta.revisions.gate("shopping", 1, closed=False, actor="person")
    replay(shop)


def replay(shop: Shop) -> None:
    for barrier in shop.deployment.meta.revisions.barriers("shopping", 1):
        step = begin(shop.deployment, barrier, "amount", Asking(request_key="again", generation="g0", actor="again"))
        if isinstance(step, Ready):
            rows = CORRECTED[(barrier.timestamp - MONDAY).days]
            close(shop.deployment, step.attempt, record=shop.write(step, rows), actor="again")


@dataclass(frozen=True)
class Pair:
    """A publish and another operation; ``ends`` are the pairs of outcomes that are legal."""

    other: Operation
    ends: frozenset[tuple[str, str]]


PAIRS = {
    "publish": Pair(publish, names((Swapped, Swapped))),
    "commit": Pair(commit(3), names((Swapped, Committed), (NotStaged, Committed), (Swapped, NotYet))),
    "open": Pair(start(4, "a"), names((Swapped, Opened), (NotStaged, Opened), (Swapped, Later), (Swapped, GatedError))),
    "clear": Pair(ask(3, "load", "cleared"), names((Swapped, Ready), (NotStaged, Ready))),
    "cancel": Pair(cancel, names((Swapped, RevisionEndedError), (RevisionEndedError, Revision))),
}
CASES = [(name, shared) for shared in (True, False) for name in PAIRS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{'shared' if case[1] else 'apart'}")
@pytest.mark.drawn
@pytest.mark.touches(*OPERATIONS["revision"])
def test_whatever_races_with_a_publish_ends_legally(case: tuple[str, bool]) -> None:
    (name, shared), pair = case, PAIRS[case[0]]
    seen: Counter[tuple[str, ...]] = Counter()
    ends: set[str] = set()
    totals: dict[int | None, int] = {}
    with worlds(shared=shared) as made, stepping(shared=shared):
        made.keep(revised, processes=3)
        first, second, looker = made.shops

        def operations() -> list[Callable[[], Any]]:
            made.restore()
            return [publish(first), pair.other(second)]

        def check(outcomes: list[Any]) -> None:
            both = tuple(map(kind, outcomes))
            seen[both] += 1
            assert both in pair.ends, outcomes
            if (now := fingerprint(looker)) not in ends:
                ends.add(now)
                settle(looker, totals)
                check_audit(made.settings.metaservice_url)

        explored = explore(operations, check, partial(check_nothing_torn, looker, totals), few_suspensions)
    outcomes = ", ".join(f"{count} {' + '.join(both)}" for both, count in sorted(seen.items()))
    report(
        f"races, publish of a revision and {name}, {'shared' if shared else 'apart'}: {explored.orders} orders of up "
        f"to {explored.steps} steps, {len(ends)} ends; {outcomes}"
    )


# --- what is always true ----------------------------------------------------------------------------------


def expected(barrier_days: int, corrected: bool) -> dict[str, int]:
    """The sums of the tables up to a day."""
    days = range(1, barrier_days + 1)
    price = sum(DAYS[day][0]["price"] for day in days)
    amount = sum((CORRECTED if corrected else DAYS)[day][0]["amount"] for day in days)
    return {table: amount if table == AMOUNT else price for table in COLUMNS}


def sums(shop: Shop, snapshots: dict[str, int | None], totals: dict[int | None, int]) -> dict[str, int]:
    for table, snapshot in snapshots.items():
        if snapshot not in totals:
            totals[snapshot] = shop.total(table, snapshot)
    return {table: totals[snapshot] for table, snapshot in snapshots.items()}


def check_nothing_torn(shop: Shop, totals: dict[int | None, int]) -> None:
    """Each answer is of one barrier and one revision, and `main` with it, or on its way where that is another step."""
    meta = shop.deployment.meta
    corrected = meta.barriers.get("shopping", 2).computed_in == 1
    answers = [meta.answers.resolve("shopping", level) for level in (Level.READ_COMMITTED, Level.REPEATABLE_READ)]
    for answer in answers:
        snapshots = {name: table.snapshot_id for name, table in answer.tables.items()}
        assert answer.barrier_id is not None
        assert sums(shop, snapshots, totals) == expected(answer.barrier_id, corrected), answer
    if shop.deployment.shares_database:
        served = {name: table.snapshot_id for name, table in answers[-1].tables.items()}
        assert shop.deployment.tables.mains(list(COLUMNS)) == served


def settle(shop: Shop, totals: dict[int | None, int]) -> None:
    """Everybody tries again until day 4 is done."""
    meta = shop.deployment.meta
    if meta.barriers.at("shopping", MONDAY + timedelta(days=4)) is None:
        shop.open(4)
    for barrier in meta.barriers.uncommitted("shopping"):
        for job in JOBS:
            step = begin(shop.deployment, barrier, job, Asking(request_key="after", generation="g0", actor="after"))
            if isinstance(step, Ready):
                rows = DAYS[(barrier.timestamp - MONDAY).days]
                close(shop.deployment, step.attempt, record=shop.write(step, rows), actor="after")
    if meta.revisions.under_way("shopping") is not None:
        meta.revisions.extend("shopping", 1, "after")
        replay(shop)
        assert isinstance(publish(shop)(), Swapped)
    for barrier in meta.barriers.uncommitted("shopping"):
        shop.commit(barrier)
    corrected = meta.revisions.get("shopping", 1).state is RevisionState.COMMIT
    newest = meta.barriers.newest_decided("shopping")
    assert newest is not None
    assert (newest.barrier_id, newest.state) == (4, BarrierState.COMMIT)
    check_nothing_torn(shop, totals)
    assert shop.main_totals() == expected(4, corrected)
    head = read_head(shop.deployment, "shopping")
    assert head is not None
    assert (head.barrier_id, head.revision) == (4, meta.revisions.newest_decided("shopping"))
