"""Schedules that have shown something, played again as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_barrier.coordinator.opening import Later, Opened
from airflow_barrier.coordinator.revision_plan import Wanted
from airflow_barrier.coordinator.swapping import Swapped, cancel_revision
from airflow_barrier.protocol.errors import RevisionEndedError, RevisionRefusedError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.revisions import RevisionMode
from tests.model import work
from tests.model.machine import Schedules
from tests.model.tasks import Task
from tests.model.topology import NAME
from tests.model.world import Bench

_INCREMENTAL = RevisionMode.INCREMENTAL
_FULL = RevisionMode.FULL


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    Schedules.bench = bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def state(bench: Bench) -> Iterator[Schedules]:
    state = Schedules()
    yield state
    state.teardown()


def _revised(state: Schedules, *changed: str, first: int | None = 1, mode: RevisionMode = _INCREMENTAL) -> Task:
    """A person begins a revision."""
    wanted = Wanted(NAME, first, changed=changed, mode=mode, accept_pause=True)
    task = state.world.run(work.revising(state.world, wanted), None)
    state.oracle.check()
    return task


def _published(state: Schedules) -> None:
    """What is left of the revision under way is computed, and it is published."""
    state.replay()
    publisher = state.world.run(work.publishing(state.world, max(state.oracle.revisions)), None)
    state.oracle.check()
    assert isinstance(publisher.result, Swapped), publisher.error


def _another(state: Schedules) -> None:
    """A barrier with new input is committed."""
    state.open(arrived="clicks", steps=None, again=False)
    state.finish()


@pytest.mark.parametrize("steps", [3, 7, 8, 10, 13, 16, 18, 20])
def test_two_publishers_of_a_revision_both_succeed(state: Schedules, steps: int) -> None:
    """Whatever the first has done when the second overtakes it."""
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    assert _revised(state, "load").error is None
    state.replay()
    first, second = (work.publishing(state.world, 1) for _ in range(2))
    state.world.run(first, steps)
    state.world.run(second, None)
    state.oracle.check()
    if first.paused:
        state.world.run(first, None)
    state.oracle.check()
    for task in (first, second):
        assert task.error is None, task.error
        assert isinstance(task.result, Swapped), task.result


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_publisher_is_told_that_its_revision_was_cancelled(state: Schedules, steps: int) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    _revised(state, "load")
    state.replay()
    publisher = state.world.run(work.publishing(state.world, 1), steps)
    cancel_revision(state.world.deployment, NAME, 1, reason="no", actor="a person")
    state.world.run(publisher, None)
    assert isinstance(publisher.error, RevisionEndedError), publisher.error


def test_what_a_table_held_when_it_joined_and_has_expired_is_not_built_on(state: Schedules) -> None:
    """It bears no tag, so an expiry takes it once the recent window begins later."""
    state.begin(shared=True, extra=set(), foreign=True)
    state._finish()
    state.expire(keep=1, steps=None)
    assert isinstance(_revised(state, "sums").error, RevisionRefusedError)
    assert not state.oracle.revisions


def test_an_expiry_leaves_a_revision_what_it_builds_on(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=True)
    state._finish()
    assert _revised(state, "sums").error is None
    state.expire(keep=1, steps=None)
    state.replay()
    publisher = state.world.run(work.publishing(state.world, 1), None)
    state.oracle.check()
    assert isinstance(publisher.result, Swapped), publisher.error


def test_a_job_that_left_and_came_back_is_not_revised_in_part(state: Schedules) -> None:
    """Nobody would publish its table at the barriers that it had before it left."""
    state.begin(shared=True, extra={"top"}, foreign=False)
    state.join_or_leave(job="top", how="finished and back")
    error = _revised(state, "load").error
    assert isinstance(error, RevisionRefusedError)
    assert "its job left" in str(error)
    assert not state.oracle.revisions


def test_a_table_that_joined_with_an_open_barrier_is_revised_too(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    state.join_or_leave(job="top", how="once")
    state.open(arrived="clicks", steps=None, again=False)
    state.process_all(0)
    assert _revised(state, "load").error is None
    state.replay()
    publisher = state.world.run(work.publishing(state.world, 1), None)
    state.oracle.check()
    assert isinstance(publisher.result, Swapped), publisher.error
    state.finish()


@pytest.mark.parametrize(("extra", "job"), [(set(), "top"), ({"top"}, "returns")])
def test_a_table_that_joins_while_a_revision_is_under_way_is_revised_too(
    state: Schedules, extra: set[str], job: str
) -> None:
    """Its job was declared when the revision was planned, and no barrier had it."""
    state.begin(shared=False, extra=extra, foreign=False)
    state.finish()
    state.join_or_leave(job=job, how="once")
    state.revise(which=1, jobs=set(), mode=_INCREMENTAL, steps=None)
    state.replay()
    state.revise_through(which=0, jobs=set(), mode=_INCREMENTAL, during="open", steps=19, then="commit", part=0)


def test_a_table_that_has_left_by_the_head_gets_the_revisions_tags(state: Schedules) -> None:
    """It has no part in the publish."""
    state.begin(shared=False, extra=set(), foreign=False)
    state.abort(which=0, steps=None)
    state.join_or_leave(job="visits", how="back")
    state.finish()
    state.finish()
    state.revise_through(which=0, jobs=set(), mode=_INCREMENTAL, during="none", steps=0, then="none", part=0)


def test_a_compaction_waits_while_the_gate_is_closed(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    _revised(state, "load")
    task = state.world.run(work.compacting(state.world, None), None)
    assert isinstance(task.result, Later), task.error


@pytest.mark.parametrize(("joined", "first"), [(1, 1), (2, 2), (2, 1)])
def test_the_first_epoch_of_a_history_can_be_computed_once_more(state: Schedules, joined: int, first: int) -> None:
    """It is all that its sources held, also before the first barrier of all, or before the one it joined with."""
    state.begin(shared=True, extra=set(), foreign=True)
    state._finish()
    state._open(None)
    state.oracle.check()
    state._finish()
    state.wait_or_leave(job="baskets")
    _revised(state, "baskets", first=joined)
    _published(state)
    assert state.oracle.begun == {(joined, "t.baskets")}
    _revised(state, "sums", first=first)
    _published(state)


def test_a_maintenance_barrier_is_read_by_its_revision_with_the_tables_that_joined(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    state.compact(others="none", steps=None)
    state.wait_or_leave(job="baskets")
    _revised(state, "baskets")
    _published(state)
    number = max(state.oracle.opened)
    assert state.oracle.barriers[number].is_maintenance
    for revision, there in ((1, True), (0, False)):
        found = state.world.meta.resolve(NAME, Level.REPEATABLE_READ, at=number, revision=revision)
        assert ("t.baskets" in found.tables) is there


def test_a_cancelled_history_leaves_nothing_although_its_job_is_gone(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    state.wait_or_leave(job="baskets")
    _revised(state, "baskets")
    state.replay()
    state.wait_or_leave(job="baskets")
    state.cancel(steps=None)
    assert not state.oracle.branches_of_cancelled()


def test_what_is_computed_anew_does_not_ask_for_what_came_before(state: Schedules) -> None:
    """What the barrier before its first one had, has expired."""
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    _another(state)
    _another(state)
    state.expire(keep=1, steps=None)
    assert _revised(state, first=None, mode=_FULL).error is None
    _published(state)


@pytest.mark.parametrize("mode", [_INCREMENTAL, _FULL])
def test_what_was_read_as_one_epoch_stays_the_epochs_that_it_was(state: Schedules, mode: RevisionMode) -> None:
    """Else the next revision of that barrier, or one from there on, would read them twice."""
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    _another(state)
    assert _revised(state, first=2, mode=_FULL).error is None
    _published(state)
    assert _revised(state, "load", first=2, mode=mode).error is None
    _published(state)


def test_where_only_maintenance_can_be_read_there_is_nothing_to_compute_anew(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    state.compact(others="none", steps=None)
    state.expire(keep=1, steps=None)
    assert all(barrier.is_maintenance for barrier in state.oracle.readable)
    assert isinstance(_revised(state, first=None, mode=_FULL).error, RevisionRefusedError)


@pytest.mark.parametrize("steps", range(12, 34))
def test_an_opener_that_was_overtaken_observes(state: Schedules, steps: int) -> None:
    """Also where the other's barrier is the first one that has its jobs, and cuts their sources."""
    state.begin(shared=False, extra={"visits"}, foreign=False)
    state.abort(which=0, steps=None)
    first, second = (work.opening(state.world, 2) for _ in range(2))
    state.world.run(first, steps)
    state.world.run(second, None)
    state.oracle.check()
    if first.paused:
        state.world.run(first, None)
    for task in (first, second):
        assert isinstance(task.result, Opened), task.error
