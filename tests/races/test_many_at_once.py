"""Six processes take the same step at the same moment: one does it, the others get its result or a clear answer."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from airflow_barrier.coordinator.committing import Committed, NotYet, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Later, Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Adopted, Asking, Ready, begin, close
from airflow_barrier.protocol.errors import (
    AttemptTakenError,
    BarrierOrderError,
    FencedAttemptError,
    HeadMovedError,
    TooManyOpenBarriersError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, AttemptState, BarrierState
from tests.races.checks import check_published_once
from tests.races.conftest import RACERS
from tests.races.racers import Racers
from tests.races.writing import write
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.shop import FRAGMENT, MONDAY, SHOPPING, Shop

ROWS = [{"amount": 1, "price": 10}]
ROUNDS = 3


def commit(deployment: Deployment, barrier_id: int) -> Committed | NotYet:
    return commit_barrier(deployment, "shopping", barrier_id, actor="racer")


def start(deployment: Deployment, day: int, run_key: str) -> Opened | Later:
    return open_barrier(
        deployment, FRAGMENT, MONDAY + timedelta(days=day), timestamp_from="race", run=run_of(run_key), actor=run_key
    )


def work(deployment: Deployment, barrier: Barrier, job: str, generation: str) -> Any:
    """A task: begin, write if there is anything to write, close."""
    step = begin(
        deployment,
        barrier,
        job,
        Asking(request_key=f"{generation}/{job}", generation=generation, actor=f"racer {generation}"),
    )
    if not isinstance(step, Ready):
        return step
    record = write(Shop(deployment), step, ROWS)
    return close(deployment, step.attempt, record=record, actor=f"racer {generation}")


def names(outcomes: list[Any]) -> Counter[str]:
    return Counter(type(outcome).__name__ for outcome in outcomes)


def test_of_many_committers_one_publishes_and_all_get_the_same(shop: Shop, racers: Racers, settings: Settings) -> None:
    for round_ in range(ROUNDS):
        first, second = shop.open(2 * round_ + 1), shop.open(2 * round_ + 2)
        shop.process_all(first, ROWS)
        shop.process_all(second, ROWS)
        # half of them commit the first barrier, half the second and the first along with it
        asked = [(first, second)[racer % 2].barrier_id for racer in range(RACERS)]
        outcomes = racers.race([(commit, (barrier_id,)) for barrier_id in asked])
        assert names(outcomes) == {"Committed": RACERS}, outcomes
        for barrier_id, outcome in zip(asked, outcomes, strict=True):
            assert outcome.barrier.barrier_id == barrier_id
            assert outcome.barrier.state is BarrierState.COMMIT
    check_published_once(shop, settings)
    assert shop.main_totals() == dict.fromkeys(shop.main_totals(), 0) | {
        SHOPPING: 20 * ROUNDS, "shop.user_item_amount": 2 * ROUNDS, "shop.user_item_price": 20 * ROUNDS,
    }  # fmt: skip


def test_of_many_starters_of_one_timestamp_one_opens_and_all_have_its_barrier(
    shop: Shop, racers: Racers, settings: Settings
) -> None:
    for round_ in range(ROUNDS):
        outcomes = racers.race([(start, (round_ + 1, f"dag{racer}/run")) for racer in range(RACERS)])
        assert names(outcomes) == {"Opened": RACERS}, outcomes
        assert Counter(outcome.created for outcome in outcomes) == {True: 1, False: RACERS - 1}
        (barrier,) = {outcome.barrier.barrier_id for outcome in outcomes}
        opener = next(outcome.barrier.run for outcome in outcomes if outcome.created)
        assert {outcome.barrier.run for outcome in outcomes} == {opener}, "each is told whose barrier it observes"
        shop.process_all(shop.deployment.meta.barriers.get("shopping", barrier), ROWS)
        shop.commit(shop.deployment.meta.barriers.get("shopping", barrier))
    check_published_once(shop, settings)


def test_starters_of_different_timestamps_open_in_order_or_are_told_why_not(shop: Shop, racers: Racers) -> None:
    told: Counter[str] = Counter()
    for round_ in range(ROUNDS):
        days = [10 * round_ + racer + 1 for racer in range(RACERS)]
        outcomes = racers.race([(start, (day, f"dag/run {day}")) for day in days])
        told += names(outcomes)
        opened = [outcome.barrier for outcome in outcomes if isinstance(outcome, Opened)]
        refused = [outcome for outcome in outcomes if not isinstance(outcome, Opened)]
        assert opened, "somebody is first"
        assert all(
            isinstance(r, (Later, BarrierOrderError, HeadMovedError, TooManyOpenBarriersError)) for r in refused
        ), refused
        there = shop.deployment.meta.barriers.uncommitted("shopping")
        assert {b.barrier_id for b in opened} == {b.barrier_id for b in there}, "who opened one has one"
        assert [b.timestamp for b in there] == sorted({b.timestamp for b in there}), "in the order of time"
        assert [b.predecessor for b in there[1:]] == [b.barrier_id for b in there[:-1]], "one chain"
        for barrier in there:
            shop.process_all(barrier, ROWS)
        shop.commit(there[-1])
    report(f"races: {RACERS} starters of different timestamps, {ROUNDS} rounds: {dict(sorted(told.items()))}")


def test_tries_of_one_task_run_it_once_and_none_is_torn(shop: Shop, racers: Racers, settings: Settings) -> None:
    """The scheduler thought that a task was dead and started it again, and again, while all of them live."""
    told: Counter[str] = Counter()
    for round_ in range(ROUNDS):
        barrier = shop.open(round_ + 1)
        outcomes = racers.race([(work, (barrier, "load", "g0"))] * RACERS)
        told += names(outcomes)
        assert all(isinstance(o, (Barrier, Adopted, FencedAttemptError, AttemptTakenError)) for o in outcomes), outcomes
        _check_one_is_left(shop, barrier, outcomes)
        shop.process(barrier, "amount", ROWS)
        shop.process(barrier, "price", ROWS)
        shop.commit(barrier)
    assert shop.main_totals()[SHOPPING] == 10 * ROUNDS
    check_published_once(shop, settings)
    report(f"races: {RACERS} tries of one task, {ROUNDS} rounds: {dict(sorted(told.items()))}")


def test_of_many_clears_of_one_task_the_newest_counts(shop: Shop, racers: Racers, settings: Settings) -> None:
    for round_ in range(ROUNDS):
        barrier = shop.open(round_ + 1)
        shop.process_all(barrier, ROWS)
        outcomes = racers.race([(work, (barrier, "load", f"g{racer}")) for racer in range(1, RACERS + 1)])
        assert all(isinstance(o, (Barrier, FencedAttemptError)) for o in outcomes), outcomes
        _check_one_is_left(shop, barrier, outcomes)
        for job in ("amount", "price"):
            shop.process(barrier, job, ROWS, generation="after")
        shop.commit(barrier)
    assert shop.main_totals()[SHOPPING] == 10 * ROUNDS
    check_published_once(shop, settings)


def _check_one_is_left(shop: Shop, barrier: Barrier, outcomes: list[Any]) -> None:
    attempts = [a for a in shop.deployment.meta.attempts.of("shopping", barrier.barrier_id) if a.job == "load"]
    live = [attempt for attempt in attempts if attempt.state in LIVE_ATTEMPTS]
    assert [attempt.state for attempt in live] == [AttemptState.PROCESSED]
    assert live == attempts[-1:], "the newest one"
    done = [outcome for outcome in outcomes if isinstance(outcome, (Barrier, Adopted))]
    assert done, "somebody finished it"
