"""Schedules that have shown something, played again as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from airflow_barrier.coordinator.opening import Later, Opened
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import Swapped, cancel_revision
from airflow_barrier.coordinator.waiting import Wait
from airflow_barrier.protocol.errors import (
    GatedError,
    RevisionEndedError,
    RevisionRefusedError,
    TooManyOpenBarriersError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import RevisionMode, RevisionState
from tests.model import work
from tests.model.machine import Schedules
from tests.model.tasks import Task
from tests.model.topology import JOBS, NAME
from tests.model.world import Bench

_INCREMENTAL = RevisionMode.INCREMENTAL
_FULL = RevisionMode.FULL


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    Schedules.bench = bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def fresh(bench: Bench) -> Iterator[Callable[[], Schedules]]:
    """Makes a new world, and ends the one before it."""
    states: list[Schedules] = []

    def make() -> Schedules:
        while states:
            states.pop().teardown()
        states.append(Schedules())
        return states[0]

    yield make
    for state in states:
        state.teardown()


@pytest.fixture
def state(fresh: Callable[[], Schedules]) -> Schedules:
    return fresh()


def _standing_still(
    fresh: Callable[[], Schedules], begin: Callable[[Schedules], Task]
) -> Iterator[tuple[Schedules, Task]]:
    """What ``begin`` makes stands still before each of its operations, in one world after the other; in the last one
    it has ended.
    """
    for steps in count():
        state = fresh()
        task = begin(state)
        state.world.run(task, steps)
        state.oracle.check()
        paused = task.paused
        yield state, task
        if not paused:
            return


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


def _publisher(state: Schedules) -> Task:
    """Of a revision that is staged."""
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    assert _revised(state, "load").error is None
    state.replay()
    return work.publishing(state.world, 1)


@pytest.mark.kills("swapped-by-another")
def test_two_publishers_of_a_revision_both_succeed(fresh: Callable[[], Schedules]) -> None:
    """Whatever the first has done when the second overtakes it."""
    overtaken = set()
    for state, first in _standing_still(fresh, _publisher):
        if first.paused:
            overtaken.add(state.oracle.revisions[1].state)
        second = state.world.run(work.publishing(state.world, 1), None)
        state.oracle.check()
        if first.paused:
            state.world.run(first, None)
        state.oracle.check()
        for task in (first, second):
            assert task.error is None, task.error
            assert isinstance(task.result, Swapped), task.result
    assert overtaken == {"STAGING", "COMMITTING", "COMMIT"}


@pytest.mark.kills("swapped-by-another")
def test_a_publisher_is_told_that_its_revision_was_cancelled(fresh: Callable[[], Schedules]) -> None:
    """Wherever it stands still before the revision is decided."""
    before = []
    for state, publisher in _standing_still(fresh, _publisher):
        if state.oracle.revisions[1].state != "STAGING":
            break
        before.append(publisher.at)
        cancel_revision(state.world.deployment, NAME, 1, reason="no", actor="a person")
        state.world.run(publisher, None)
        assert isinstance(publisher.error, RevisionEndedError), publisher.error
    assert before[-1] == "write", "the last operation before it is decided is the decision"


@pytest.mark.kills("bases-are-there", "revised-steps-stay")
def test_what_a_table_held_when_it_joined_and_has_expired_is_not_built_on(state: Schedules) -> None:
    """It bears no tag, so an expiry takes it once the recent window begins later."""
    state.begin(shared=True, extra=set(), foreign=True)
    state._finish()
    state.expire(keep=1, steps=None)
    assert isinstance(_revised(state, "sums").error, RevisionRefusedError)
    assert not state.oracle.revisions


@pytest.mark.kills("revised-steps-stay")
def test_an_expiry_leaves_a_revision_what_it_builds_on(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=True)
    state._finish()
    assert _revised(state, "sums").error is None
    state.expire(keep=1, steps=None)
    state.replay()
    publisher = state.world.run(work.publishing(state.world, 1), None)
    state.oracle.check()
    assert isinstance(publisher.result, Swapped), publisher.error


@pytest.mark.kills("revised-tables-stay")
def test_a_job_that_left_and_came_back_is_not_revised_in_part(state: Schedules) -> None:
    """Nobody would publish its table at the barriers that it had before it left."""
    state.begin(shared=True, extra={"top"}, foreign=False)
    state.join_or_leave(job="top", how="finished and back")
    error = _revised(state, "load").error
    assert isinstance(error, RevisionRefusedError)
    assert "its job left" in str(error)
    assert not state.oracle.revisions


@pytest.mark.kills("cleared-is-not-gone-on-from")
def test_a_job_that_came_back_is_not_computed_from_a_beginning_before_that(state: Schedules) -> None:
    """It would go on from what the tables held that it reads, which are cleared."""
    state.begin(shared=True, extra={"top"}, foreign=False)
    state.join_or_leave(job="top", how="finished and back")
    state.finish()
    state.finish()
    came_back = max(state.oracle.opened)
    error = _revised(state, "load", first=came_back - 1, mode=_FULL).error
    assert isinstance(error, RevisionRefusedError)
    assert "job top joins with barrier" in str(error)
    assert not state.oracle.revisions
    assert _revised(state, "load", first=came_back, mode=_FULL).error is None
    _published(state)


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
    """Its job was declared when the revision was planned, and no barrier had it. Its first barrier is committed while
    the publisher has decided and nothing is swapped.
    """
    publisher = _joined(state, extra, job)
    state.world.run(publisher, None, before=("lock pointers",))
    state.oracle.check()
    assert publisher.paused
    assert state.oracle.revisions[1].state == "COMMITTING"
    assert set(JOBS[job].outlets) <= set(state.oracle.revisions[1].tables)
    state._happen("commit", 0)
    state.oracle.check()
    state.world.run(publisher, None)
    state.oracle.check()
    assert isinstance(publisher.result, Swapped), publisher.error


def _joined(state: Schedules, extra: set[str], job: str) -> Task:
    """The publisher of a revision that is staged up to the open barrier that a job joined with; two databases."""
    state.begin(shared=False, extra=extra, foreign=False)
    state.finish()
    state.join_or_leave(job=job, how="once")
    state.revise(which=1, jobs=set(), mode=_INCREMENTAL, steps=None)
    state.open(arrived=None, steps=None, again=False)
    state.replay()
    return work.publishing(state.world, 1)


def test_a_job_begins_while_the_tables_are_swapped_and_the_metaservice_is_not(state: Schedules) -> None:
    """With two databases a publisher may stand still, or be dead, between the two."""
    publisher = _joined(state, set(), "top")
    state.world.run(publisher, None, before=("lock pointers",))
    state.world.run(publisher, 1)
    assert publisher.at == "write"
    assert state.world.meta.revisions.get(NAME, 1).state is RevisionState.COMMITTING
    job = state.world.run(state._processing(state._oldest_in_flight(), "load"), None)
    assert isinstance(job.error, GatedError), job.error
    state.world.run(publisher, None)
    state.oracle.check()


def test_a_table_that_has_left_by_the_head_gets_the_revisions_tags(state: Schedules) -> None:
    """It has no part in the publish."""
    state.begin(shared=False, extra=set(), foreign=False)
    state.abort(which=0, steps=None)
    state.join_or_leave(job="visits", how="back")
    state.finish()
    state.finish()
    state.revise_through(which=0, jobs=set(), mode=_INCREMENTAL, during="none", steps=0, then="none", part=0)


def test_a_job_that_is_cleared_and_stops_has_written_nothing(state: Schedules) -> None:
    """What readers see then is a step back, which schedules seldom come to."""
    state.begin(shared=True, extra=set(), foreign=False)
    state.read_on(level=Level.READ_COMMITTED, others="clear and stop", job=0, steps=None)
    assert [task.at for task in state.world.tasks] == ["write t.shopping"]


def test_a_compaction_waits_while_the_gate_is_closed(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    _revised(state, "load")
    task = state.world.run(work.compacting(state.world, None), None)
    assert isinstance(task.result, Later), task.error


@pytest.mark.kills("joins-with-all")
@pytest.mark.parametrize(("joined", "first"), [(1, 1), (2, 2), (2, 1)])
def test_the_first_epoch_of_a_history_can_be_computed_once_more(state: Schedules, joined: int, first: int) -> None:
    """It is all that its inlets held, also before the first barrier of all, or before the one it joined with."""
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
        found = state.world.meta.answers.resolve(NAME, Level.REPEATABLE_READ, at=number, revision=revision)
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


@pytest.mark.kills("cut-is-of-one-epoch")
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


def test_a_job_that_came_back_at_a_barrier_that_was_given_up_is_computed_again_on_what_it_held_first(
    state: Schedules,
) -> None:
    """Barrier 0 says what a table held when it joined last: that was what barrier 1 had published."""
    state.begin(shared=False, extra={"top"}, foreign=False)
    state.finish()
    state.join_or_leave(how="back", job="top")
    assert state.world.run(work.aborting(state.world, 2), None).error is None
    state.correct(which=0, record=0, delete=False)
    assert _revised(state).error is None
    _published(state)


def _came_back(state: Schedules) -> None:
    """Job top was at barrier 1, not at barrier 2, which has new input, and is back from barrier 3 on."""
    state.begin(shared=True, extra={"top"}, foreign=False)
    state.finish()
    state.meddle(what="arrive", table="t.amount")
    state.join_or_leave(how="back", job="top")
    state.finish()
    state.finish()


def test_no_expiry_takes_what_a_revision_reads_of_a_job_that_came_back(state: Schedules) -> None:
    _came_back(state)
    assert _revised(state, "top", first=3).error is None
    state.expire(keep=1, steps=None)
    _published(state)


def test_where_it_has_expired_what_a_job_that_came_back_had_read_it_is_not_computed_again(state: Schedules) -> None:
    _came_back(state)
    state.expire(keep=2, steps=None)
    refused = _revised(state, "top", first=3)
    assert isinstance(refused.error, RevisionRefusedError), refused.error
    assert "every step of it since" in str(refused.error)


def test_a_job_waits_with_coming_back_for_the_last_barrier_that_had_it(state: Schedules) -> None:
    """Also after an expiry, when no step of `main` leads to what that barrier has staged."""
    state.begin(shared=True, extra={"top"}, foreign=False)
    state.finish()
    _another(state)
    state.expire(keep=1, steps=None)
    state.open(arrived="clicks", steps=None, again=False)
    state.process_all(which=0)
    state.join_or_leave(how="once", job="top")
    state.open(arrived=None, steps=None, again=False)
    state.join_or_leave(how="once", job="top")
    refused = state.world.run(work.opening(state.world, state.days + 1), None)
    assert isinstance(refused.error, TooManyOpenBarriersError), refused.error


@pytest.mark.kills("expired-is-not-revised")
def test_where_only_maintenance_can_be_read_there_is_nothing_to_compute_anew(state: Schedules) -> None:
    state.begin(shared=True, extra=set(), foreign=False)
    state.finish()
    state.compact(others="none", steps=None)
    state.expire(keep=1, steps=None)
    assert all(barrier.is_maintenance for barrier in state.oracle.readable)
    error = _revised(state, first=None, mode=_FULL).error
    assert isinstance(error, RevisionRefusedError)
    assert "only maintenance is left of it" in str(error)


def test_a_revision_stands_on_a_barrier_that_main_does_not_lead_to_any_more(state: Schedules) -> None:
    """A computation from the beginning has put `main` on another line, and what the barrier stood on has expired."""
    state.begin(shared=False, extra=set(), foreign=False)
    state.finish()
    state.compact(others="none", steps=None)
    state.expire(keep=1, steps=None)
    _another(state)
    for first, mode in ((None, _FULL), (3, _INCREMENTAL)):
        assert _revised(state, "load", first=first, mode=mode).error is None
        _published(state)


@pytest.mark.kills("joins-on-the-head")
def test_an_opener_that_was_overtaken_observes(fresh: Callable[[], Schedules]) -> None:
    """Also where the other's barrier is the first one that has its jobs, and cuts their sources."""

    def opener(state: Schedules) -> Task:
        state.begin(shared=False, extra={"visits"}, foreign=False)
        state.abort(which=0, steps=None)
        return work.opening(state.world, 2)

    overtaken = []
    for state, first in _standing_still(fresh, opener):
        if first.paused:
            overtaken.append(first.at)
        second = state.world.run(work.opening(state.world, 2), None)
        state.oracle.check()
        if first.paused:
            state.world.run(first, None)
            assert isinstance(second.result, Opened), second.error
            assert second.result.created
        assert isinstance(first.result, Opened), first.error
        assert first.result.barrier == second.result.barrier
        assert first.result.created != second.result.created
    assert overtaken[-1] == "write", "the last one stood still before it opened the barrier itself"


def test_two_first_runs_of_a_member_both_take_part(fresh: Callable[[], Schedules]) -> None:
    """Whatever the first has seen of the topology when the second registers the job and its barrier opens."""

    def member(state: Schedules) -> Task:
        state.begin(shared=True, extra=set(), foreign=False)
        state.finish()
        return work.taking_part(state.world, "visits", 2)

    for state, first in _standing_still(fresh, member):
        second = state.world.run(work.taking_part(state.world, "visits", 2), None)
        assert second.error is None, second.error
        state.open(arrived=None, steps=None, again=False)
        if first.paused:
            state.world.run(first, None)
            if isinstance(first.result, Wait):  # it had looked for the barrier before it opened
                first = state.world.run(work.taking_part(state.world, "visits", 2), None)
            assert isinstance(first.result, Barrier), first.error


def test_the_delay_of_a_barrier_to_which_a_job_has_come_with_its_history(state: Schedules) -> None:
    state.begin(shared=False, extra=set(), foreign=False)
    state.compact(others="none", steps=None)
    state.bootstrap_through(during="commit", first=None, jobs={"baskets"}, part=0, past=0, steps=0, then="none")
    state.settle(wake=True)
    state.oracle.check_delay()


def test_a_catalog_that_reads_an_open_barrier_which_a_revision_replaces(state: Schedules) -> None:
    """What it was given is of no revision any more: it is told to connect again."""
    late = {"sums": "latest", "top": "latest", "returns": "latest"}
    state.begin(
        shared=False,
        extra=set(),
        foreign=False,
        settles=True,
        starts=late,
        cadences={"top": 1, "visits": 1, "returns": 1},
    )
    for _ in range(3):
        state.catch_up()
    state.read(at=None, level=Level.READ_COMMITTED, steps=None)
    state.revise_through(during="none", jobs=set(), mode=_INCREMENTAL, part=0, steps=0, then="none", which=0)
    state.settle(wake=True)
    state.oracle.check()
