"""What the tasks of a DAG do next at the ends of a barrier: opening and committing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_barrier.coordinator.committing import Committed
from airflow_barrier.coordinator.next import Skip, next_commit, next_opening
from airflow_barrier.coordinator.opening import Opened
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.waiting import Condition, Room, Wait
from airflow_barrier.protocol.errors import NotProcessedError
from airflow_barrier.protocol.states import BarrierState
from tests.support.scheduling import Scheduled, run_at
from tests.support.shop import FRAGMENT, MONDAY, Shop

ROWS = [{"amount": 1, "price": 1}]


def run_of_day(day: int) -> Run:
    return run_at("shopping_dag", MONDAY + timedelta(days=day))


def opening(shop: Shop, day: int) -> object:
    return next_opening(shop.deployment, run_of_day(day), FRAGMENT, Scheduled(), actor="test", triggered=False)


@pytest.mark.kills("commit-has-its-own-tables")
def test_a_commit_whose_own_jobs_tables_are_missing_fails(embedded: Shop) -> None:
    """Their tasks come before it by edges: marked success, they stage nothing, and nobody is to be waited for."""
    barrier = embedded.open(1)
    embedded.process(barrier, "load", ROWS)
    with pytest.raises(NotProcessedError, match=r"user_item_amount \(job amount\).*clear these jobs' tasks"):
        next_commit(embedded.deployment, run_of_day(1), "shopping", Scheduled(), actor="test")


@pytest.mark.kills("skipped-is-not-published")
def test_what_was_skipped_is_not_published(embedded: Shop) -> None:
    """A check, too, which no table tells of; once the barrier is published there is nothing to refuse."""
    for day in (1, 2):
        embedded.process_all(embedded.open(day), ROWS)

    def commit(day: int, **skipped: Any) -> Any:
        return next_commit(embedded.deployment, run_of_day(day), "shopping", Scheduled(), actor="test", **skipped)

    with pytest.raises(NotProcessedError, match=r"found skipped: check. Clear what .* barrier abort shopping 1$"):
        commit(1, skipped=["check"])
    assert embedded.deployment.meta.barriers.get("shopping", 1).state is BarrierState.PRECOMMIT
    assert isinstance(commit(1), Committed)
    assert isinstance(commit(1, skipped=["check"]), Committed)
    assert isinstance(commit(2, skipped=["check"], gives_up=True), Skip)
    assert embedded.deployment.meta.barriers.get("shopping", 2).state is BarrierState.ABORTED


def test_a_commit_waits_for_barriers_before_it_and_for_other_dags(embedded: Shop) -> None:
    first, second = embedded.open(1), embedded.open(2)
    embedded.process_all(first, ROWS)
    embedded.process(second, "load", ROWS)
    third = embedded.open(3)
    waits = next_commit(embedded.deployment, run_of_day(3), "shopping", Scheduled(), actor="test")
    assert isinstance(waits, Wait), "jobs of an earlier run may still deliver"
    assert waits.conditions == tuple(Condition("PRECOMMIT", barrier_id=n) for n in (2, third.barrier_id))
    assert embedded.deployment.meta.barriers.get("shopping", 1).state.value == "COMMIT"
    done = next_commit(embedded.deployment, run_of_day(1), "shopping", Scheduled(), actor="test")
    assert isinstance(done, Committed)
    assert done.published == ()


def test_an_opening_waits_for_room(embedded: Shop) -> None:
    limit = embedded.deployment.max_open_barriers
    for day in range(1, 1 + limit):
        assert isinstance(opening(embedded, day), Opened)
    waits = opening(embedded, 1 + limit)
    assert isinstance(waits, Wait)
    assert (waits.conditions, waits.not_before) == ((Room(limit),), None)
    assert "cannot open yet" in waits.reason
