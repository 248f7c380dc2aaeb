"""Giving up a barrier: with all later ones, before the decision only; its timestamp and items are free again."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.errors import AlreadyCommittedError, BarrierAbortedError, BarrierOrderError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from tests.metaservice.world import SHOPPING, World, day
from tests.support.runs import run_of


def test_it_takes_every_later_uncommitted_barrier_along(world: World) -> None:
    world.committed(1)
    for number in (2, 3, 4):
        world.open(number)
    world.process_all(2)
    assert world.abort(3) == [3, 4]
    assert [world.state(n) for n in (1, 2, 3, 4)] == [
        BarrierState.COMMIT, BarrierState.PRECOMMIT, BarrierState.ABORTED, BarrierState.ABORTED,
    ]  # fmt: skip
    assert world.barrier(3).reason == "bad input"
    assert world.barrier(4).reason == "with barrier 3: bad input"
    assert world.barrier(3).aborted_at is not None
    assert world.meta.barriers.head("shopping") == world.barrier(2)
    assert world.abort(3) == []


@pytest.mark.kills("abort-voids-attempts", "abort-unstages-tables")
def test_attempts_are_voided_and_nothing_counts_as_staged(world: World) -> None:
    world.open(1)
    world.process(1, "load")
    running, closed, waiting = (
        world.start(1, "amount"), world.close(world.start(1, "price")), world.request(1, "top"),
    )  # fmt: skip
    world.abort(1)
    assert {a.state for a in world.meta.attempts.of("shopping", 1)} == {AttemptState.VOIDED}
    assert set(world.tables(1).values()) == {TableState.PENDING}
    for attempt in (running, closed, waiting):
        with pytest.raises(BarrierAbortedError):
            world.meta.attempts.report(attempt.attempt_id, "zombie")
    assert set(world.served(Level.READ_UNCOMMITTED).values()) == {0}


def test_an_attempt_that_ended_before_keeps_its_own_end(world: World) -> None:
    world.open(1)
    killed = world.meta.attempts.abort(world.start(1, "load").attempt_id, "killed", "test")
    world.abort(1)
    assert world.meta.attempts.get(killed.attempt_id) == killed


@pytest.mark.kills("abort-frees-items")
def test_the_run_may_reopen_its_timestamp_under_a_new_id_on_the_predecessor(world: World) -> None:
    world.open(1, items=["a"])
    world.process_all(1)
    second = world.open(2, items=["b"])
    world.process(2, "load")
    world.open(3, items=["c"])
    world.abort(2)
    assert world.meta.cuts.used_items("shopping", "files", ["a", "b", "c"]) == {"a"}
    again = world.open(2, items=["b", "c"])
    assert (again.barrier_id, again.timestamp, again.predecessor) == (4, second.timestamp, 1)
    assert world.meta.barriers.of_run("shopping", run_of("scheduled__2")) == again
    assert world.meta.barriers.at("shopping", day(2)) == again
    assert world.meta.barriers.at("shopping", day(3)) is None
    started = world.start(4, "load")
    assert started.bases == {SHOPPING: world.snapshots(1)[SHOPPING]}, "never the aborted barrier's"
    world.close(started)
    world.meta.attempts.report(started.attempt_id, "test")
    world.process_all(4)
    world.commit(1)
    world.commit(4)
    assert world.meta.answers.resolve("shopping", Level.REPEATABLE_READ).barrier_id == 4


@pytest.mark.kills("abort-again")
def test_aborting_again_leaves_alone_what_was_opened_since(world: World) -> None:
    world.open(1)
    assert world.abort(1) == [1]
    again = world.open(1)
    assert world.abort(1) == []
    assert world.state(again.barrier_id) is BarrierState.OPEN


def test_an_aborted_timestamp_does_not_hold_up_an_earlier_one(world: World) -> None:
    world.open(1)
    world.open(5)
    world.abort(2)
    assert world.open(2).barrier_id == 3
    with pytest.raises(BarrierOrderError):
        world.open(2)


def test_after_the_first_is_aborted_the_baseline_is_the_head(world: World) -> None:
    world.open(1)
    world.abort(1)
    head = world.meta.barriers.head("shopping")
    assert head is not None
    assert head.barrier_id == 0
    assert world.meta.barriers.unjoined("shopping") == world.meta.topologies.get("shopping").tables, (
        "nobody has joined yet"
    )
    assert world.open(1).barrier_id == 2


@pytest.mark.kills("decided-is-not-aborted")
@pytest.mark.parametrize("state", [BarrierState.COMMITTING, BarrierState.BLOCKED, BarrierState.COMMIT])
def test_from_committing_on_it_is_refused(world: World, state: BarrierState) -> None:
    world.open(1)
    world.process_all(1)
    world.begin_commit(1)
    if state is BarrierState.BLOCKED:
        world.meta.publishing.block("shopping", 1, "moved", "test")
    if state is BarrierState.COMMIT:
        world.publish(1)
    world.open(2)
    with pytest.raises(AlreadyCommittedError, match=f"expected OPEN or PRECOMMIT, found {state.value}"):
        world.abort(1)
    assert world.state(1) is state
    assert world.abort(2) == [2], "a later one can go"


def test_the_baseline_cannot_be_aborted(world: World) -> None:
    world.open(1)
    with pytest.raises(AlreadyCommittedError):
        world.abort(0)
