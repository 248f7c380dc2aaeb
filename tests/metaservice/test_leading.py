"""A task that goes on past its own barrier takes attempts ahead, but only those that nobody has begun."""

from __future__ import annotations

import pytest

from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.protocol.errors import FencedAttemptError, NotOwnerError
from airflow_barrier.protocol.records import Attempt
from airflow_barrier.protocol.states import AttemptState
from tests.metaservice.world import World


def two_open(world: World) -> None:
    world.open(1)
    world.open(2)


def test_a_leader_takes_what_nobody_asked_for(world: World) -> None:
    two_open(world)
    world.process(1, "load")
    led = world.lead(2, "load")
    assert led is not None
    started = world.meta.attempts.start(led.attempt_id)
    assert isinstance(started, Attempt)
    world.close(started)
    world.meta.attempts.report(led.attempt_id, "test")
    # the barrier's own task comes later and finds its work done
    adopted = world.request(2, "load")
    assert (adopted.attempt_id, adopted.state) == (led.attempt_id, AttemptState.PROCESSED)
    # unless a person cleared it
    assert world.request(2, "load", generation="cleared").attempt_id != led.attempt_id


def test_a_task_that_waits_is_fenced_by_an_attempt_of_its_generation(world: World) -> None:
    two_open(world)
    waiting = world.request(2, "load", generation="cleared once", key="task 2")
    world.process(1, "load")
    led = world.lead(2, "load")
    assert led is not None
    assert (led.generation, led.request_key) == ("cleared once", "leader")
    with pytest.raises(FencedAttemptError, match="led by leader"):
        world.meta.attempts.start(waiting.attempt_id)


@pytest.mark.kills("only-unbegun-is-led")
@pytest.mark.parametrize("ends", ["runs", "closed", "processed", "failed"])
def test_what_somebody_has_begun_is_not_for_the_taking(world: World, ends: str) -> None:
    two_open(world)
    world.process(1, "load")
    begun = world.start(2, "load")
    if ends == "failed":
        world.meta.attempts.abort(begun.attempt_id, "failed", "test")
    if ends in ("closed", "processed"):
        world.close(begun)
    if ends == "processed":
        world.meta.attempts.report(begun.attempt_id, "test")
    before = world.meta.attempts.of("shopping", 2)
    assert world.lead(2, "load") is None
    assert world.meta.attempts.of("shopping", 2) == before


@pytest.mark.parametrize("ends", ["waits", "runs", "closed", "processed", "failed"])
def test_an_earlier_barrier_is_taken_once_every_attempt_there_has_ended(world: World, ends: str) -> None:
    two_open(world)
    world.process(1, "load")
    there = world.request(2, "load") if ends == "waits" else world.start(2, "load")
    if ends == "failed":
        world.meta.attempts.abort(there.attempt_id, "failed", "test")
    if ends in ("closed", "processed"):
        world.close(there)
    if ends == "processed":
        world.meta.attempts.report(there.attempt_id, "test")
    taken = world.lead(2, "load", after_end=True)
    assert (taken is not None) == (ends == "failed")
    assert world.meta.attempts.get(there.attempt_id).state is not AttemptState.FENCED


def test_a_leader_leads_within_open_barriers_of_its_own_jobs(world: World) -> None:
    two_open(world)
    world.process(1, "load")
    with pytest.raises(NotOwnerError):
        world.meta.attempts.lead(
            Request("shopping", 2, "load", request_key="k", generation="g1", actor="test", owner="another dag")
        )
    world.abort(2)
    assert world.lead(2, "load") is None
