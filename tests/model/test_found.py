"""Schedules that have shown something, played again as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_barrier.coordinator.opening import Later
from airflow_barrier.coordinator.revision_plan import Wanted
from airflow_barrier.coordinator.swapping import Swapped, cancel_revision
from airflow_barrier.protocol.errors import RevisionEndedError, RevisionRefusedError
from airflow_barrier.protocol.revisions import RevisionMode
from tests.model import work
from tests.model.machine import Schedules
from tests.model.tasks import Task
from tests.model.topology import NAME
from tests.model.world import Bench

_INCREMENTAL = RevisionMode.INCREMENTAL


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


def _revised(state: Schedules, *changed: str) -> Task:
    """A person begins a revision from barrier 1 on."""
    task = state.world.run(work.revising(state.world, Wanted(NAME, 1, changed=changed, accept_pause=True)), None)
    state.oracle.check()
    return task


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


def test_tables_are_cleared_where_earlier_barriers_have_expired(state: Schedules) -> None:
    """All epochs up to there are one."""
    state.begin(shared=False, extra={"top"}, foreign=False)
    state.open(arrived=None, steps=None, again=False)
    state.finish()
    state.finish()
    state.expire(keep=1, steps=None)
    state.revise_through(which=3, jobs=set(), mode=RevisionMode.FULL, during="expire", steps=3, then="clear", part=7)


def test_nothing_is_cleared_where_every_epoch_has_expired(state: Schedules) -> None:
    """What can be read is the compaction's barrier, which has none."""
    state.begin(shared=False, extra=set(), foreign=False)
    state.finish()
    state.compact(others="none", steps=None)
    state.expire(keep=1, steps=None)
    error = state.world.run(work.revising(state.world, Wanted(NAME, None, mode=RevisionMode.FULL)), None).error
    assert isinstance(error, RevisionRefusedError)
    assert "the newest with an epoch, has expired" in str(error)


def test_a_compaction_waits_while_the_gate_is_closed(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    _revised(state, "load")
    task = state.world.run(work.compacting(state.world, None), None)
    assert isinstance(task.result, Later), task.error
