"""Checks of what is staged, by a barrier and by a revision: what they read, and in which order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from airflow_barrier.coordinator.next import Checkable, next_check
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.waiting import Condition, Wait
from airflow_barrier.protocol.errors import NotReadableYetError
from airflow_barrier.reading.staged import Staged, staged_session
from tests.crash.shopping import COLUMNS
from tests.revising.test_runs import DAG, midnight_after
from tests.revising.world import RevisedShop
from tests.support.runs import run_of
from tests.support.scheduling import Scheduled

TASKS = ("open", "load", "amount", "price")


def rows(staged: Staged) -> dict[str, Counter[Any]]:
    found = {}
    for table in staged.snapshots:
        arrow = staged.table(table).scan().to_arrow()
        names = COLUMNS[table.rpartition(".")[2]]
        found[table] = Counter(tuple(row[name] for name in names) for row in arrow.to_pylist())
    return found


@pytest.mark.kills("staged-anew-is-checked-anew")
def test_what_a_barrier_has_staged_is_read_until_it_is_staged_anew(embedded: RevisedShop) -> None:
    embedded.days(1, 1)
    embedded.day(2, TASKS)
    barrier = embedded.barrier(2)
    with staged_session(embedded.deployment, barrier, "test") as staged:
        assert rows(staged) == embedded.expected(2)
        assert staged.still_stands()
        embedded.shop._work(embedded.deployment, barrier, "price", "cleared")
        assert not staged.still_stands()
    assert embedded.at() == embedded.expected(1), "nobody else reads it"
    embedded.day(3, ("open",))
    with pytest.raises(NotReadableYetError), staged_session(embedded.deployment, embedded.barrier(3), "test"):
        pass


@pytest.mark.kills("staged-anew-is-checked-anew")
def test_what_a_revision_has_staged_is_read_with_what_it_leaves_alone(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    before = embedded.expected(3)
    embedded.correct(2, embedded.landed[2][:1])
    revision = embedded.begin(2)
    embedded.replay(revision, 2)
    barrier = embedded.deployment.meta.barriers.get("shop", 2, revision.revision)
    with staged_session(embedded.deployment, barrier, "test") as staged:
        assert rows(staged) == embedded.expected(2)
        assert staged.still_stands()
        embedded.replay(revision, 2, generation="cleared")
        assert not staged.still_stands()
    assert embedded.at(3) == before


@pytest.mark.kills("checked-in-order")
def test_a_check_in_a_revision_waits_for_that_of_the_barriers_before(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    revision = embedded.begin(2)
    embedded.replay_all(revision)
    for day in (2, 3):
        bound = ("shop", revision.revision, day, DAG, f"scheduled__{day}")
        embedded.deployment.meta.revisions.bind_run(*bound, clear_number=1)

    def check(day: int, **scheduler: Any) -> Any:
        run = Run(run_of(f"{DAG}/scheduled__{day}"), midnight_after(day), "test")
        return next_check(embedded.deployment, run, "shop", Scheduled(**scheduler))

    assert check(2) == Checkable(embedded.deployment.meta.barriers.get("shop", 2, revision.revision))
    waits = check(3)
    assert isinstance(waits, Wait)
    assert waits.conditions == (Condition("COMMIT", barrier_id=2, line=revision.revision),)
    found = check(3, passed={"scheduled__2"})
    assert isinstance(found, Checkable)
    assert (found.barrier.barrier_id, found.barrier.line) == (3, revision.revision)
