"""What the tasks of a DAG do next at the ends of a barrier: opening, checking and committing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.committing import Committed
from airflow_barrier.coordinator.next import Checkable, Nothing, Skip, next_check, next_commit, next_opening
from airflow_barrier.coordinator.opening import Opened
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.waiting import Condition, Room, Wait
from airflow_barrier.protocol.errors import BarrierAbortedError, NotProcessedError
from airflow_barrier.protocol.states import BarrierState
from tests.support.runs import run_of
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


def check(shop: Shop, day: int, *passed: int) -> Any:
    """The next step of a check in the run of a day; it has ``passed`` in those of other days."""
    scheduler = Scheduled(passed={f"day-{each}" for each in passed})
    run = replace(run_of_day(day), ref=run_of(f"shopping_dag/day-{day}"))
    return next_check(shop.deployment, run, "shopping", scheduler)


def test_a_check_looks_at_what_is_staged_in_full(embedded: Shop) -> None:
    barrier = embedded.open(1)
    for job in ("load", "amount"):
        embedded.process(barrier, job, ROWS)
    with pytest.raises(NotProcessedError, match=r"user_item_price \(job price\).*clear these jobs' tasks"):
        check(embedded, 1)
    elsewhere = replace(run_of_day(1), ref=run_of("another_dag/today"))
    waits = next_check(embedded.deployment, elsewhere, "shopping", Scheduled())
    assert isinstance(waits, Wait), "another DAG's job may still deliver"
    assert waits.conditions == (Condition("PRECOMMIT", barrier_id=1),)
    embedded.process(barrier, "price", ROWS)
    assert check(embedded, 1) == Checkable(embedded.deployment.meta.barriers.get("shopping", 1))
    embedded.commit(barrier)
    assert isinstance(check(embedded, 1), Nothing)
    embedded.open(2)
    abort_barrier(embedded.deployment, "shopping", 2, reason="bad input", actor="test")
    with pytest.raises(BarrierAbortedError, match="bad input"):
        check(embedded, 2)


@pytest.mark.kills("checked-in-order")
def test_a_check_waits_for_the_same_check_of_barriers_before(embedded: Shop) -> None:
    """The commit that follows it would publish them."""
    for day in (1, 2, 3):
        embedded.process_all(embedded.open(day), ROWS)
    waits = check(embedded, 3, 1)
    assert isinstance(waits, Wait)
    assert waits.conditions == (Condition("COMMIT", barrier_id=2),)
    assert waits.look_again is not None, "mark-success of a commit: the check has passed, and nobody commits"
    assert isinstance(check(embedded, 3, 1, 2), Checkable)
    abort_barrier(embedded.deployment, "shopping", 2, reason="failed its check", actor="test")
    embedded.process_all(embedded.open(4), ROWS)
    assert isinstance(check(embedded, 4, 1), Checkable), "what was given up holds up nobody"


def test_what_a_check_has_found_is_told_of_its_barrier(embedded: Shop) -> None:
    meta = embedded.deployment.meta
    barrier = embedded.process_all(embedded.open(1), ROWS)

    def checked(check: str, found: str | None) -> str | None:
        meta.barriers.checked("shopping", 1, 0, check, found, "test")
        return meta.barriers.get("shopping", 1).reason

    assert checked("ids", None) is None
    assert checked("ids", "2 rows: {} {}") == "check 'ids' found 2 rows: {} {}"
    assert checked("prices", None) == "check 'ids' found 2 rows: {} {}", "it says nothing of another check"
    assert checked("ids", None) is None
    assert checked("ids", "1 row") == "check 'ids' found 1 row"
    embedded.process(barrier, "price", ROWS, generation="cleared")
    assert meta.barriers.get("shopping", 1).reason is None, "what it has found does not count any more"
    told = [entry.event for entry in meta.audit.newest("shopping", 1) if entry.event.startswith("check ")]
    assert told == ["check failed", "check passed", "check failed"]
