"""Sessions of Spark Connect servers: each is in the row of one attempt, which runs in it, or idle in one row."""

from __future__ import annotations

import itertools

import pytest

from airflow_barrier.coordinator.staging import Asking, begin_after
from airflow_barrier.metaservice.attempts import _MOST_IDLE, Request
from airflow_barrier.protocol.records import Attempt
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import World, staged
from tests.support.shop import Shop

#: More than sessions are kept idle, none of which reads another one's table.
MANY = tuple(Job(f"job{number:02}", "dag", outlets=(f"shop.t{number:02}",)) for number in range(_MOST_IDLE + 2))

_days = itertools.count(1)


def _start(world: World, barrier_id: int, job: str, server: str | None = "connect") -> Attempt:
    request = Request(world.name, barrier_id, job, f"{barrier_id}/{job}", "g1", "test", server=server)
    return world.meta.attempts.begin(request).attempt


def _finish(world: World, attempt: Attempt, idle: bool = True) -> None:
    world.meta.attempts.finish(attempt, staged(attempt), "test", idle=idle)


def _submit(world: World, barrier_id: int, *jobs: str) -> None:
    """Let jobs do their work without a session."""
    for job in jobs:
        submitted = _start(world, barrier_id, job, None)
        assert submitted.session is None
        _finish(world, submitted)


def _open(world: World) -> int:
    return world.open(next(_days), max_open=99).barrier_id


@pytest.fixture
def many(world: World) -> World:
    return World(world.meta, "many", MANY)


@pytest.mark.kills("session-serves-one-attempt")
def test_a_session_serves_one_attempt_after_the_other(many: World) -> None:
    barriers = [_open(many) for _ in range(4)]
    first = _start(many, barriers[0], "job00")
    _finish(many, first)
    assert many.meta.attempts.get(first.attempt_id).session is None
    second = _start(many, barriers[1], "job00")
    assert second.session == first.session
    _finish(many, second, idle=False)  # it left something in it, and has ended it
    third = _start(many, barriers[2], "job00")
    assert third.session not in (None, first.session)
    _finish(many, third)
    fourth = _start(many, barriers[3], "job00")
    assert fourth.session == third.session


def test_two_attempts_are_never_in_one_session(many: World) -> None:
    here, there = _open(many), _open(many)
    first = _start(many, here, "job00")
    _finish(many, first)
    _submit(many, here, "job01", "job02")
    taken = [_start(many, there, job).session for job in ("job00", "job01", "job02")]
    assert taken[0] == first.session
    assert len(set(taken)) == 3
    assert None not in taken


def test_a_session_is_of_one_topology_and_one_server(world: World, many: World) -> None:
    here, there = _open(many), _open(many)
    first = _start(many, here, "job00")
    _finish(many, first)
    assert _start(many, there, "job00", "another").session != first.session
    world.open(1)
    assert _start(world, 1, "load").session != first.session


def test_a_topology_keeps_a_bounded_number_of_idle_sessions(many: World) -> None:
    here, there, later = _open(many), _open(many), _open(many)
    begun = [_start(many, here, job.name) for job in MANY[:_MOST_IDLE]]
    for attempt in begun:
        _finish(many, attempt)
    _submit(many, here, MANY[-2].name, MANY[-1].name)
    stranger = _start(many, there, MANY[-1].name)
    assert stranger.session == begun[0].session  # that is idle longest
    another = _start(many, there, MANY[-2].name)
    assert another.session not in {attempt.session for attempt in begun}
    _finish(many, stranger)
    assert _start(many, later, MANY[-1].name).session == stranger.session


def test_only_a_session_that_the_fenced_attempt_is_still_in_is_ended(shop: Shop) -> None:
    ended: list[str] = []
    barrier = shop.open(5)
    lost = shop.begin(barrier, "load", server="connect")

    def clear(generation: str) -> None:
        asking = Asking("shopping_dag/5/load", generation, "test", server="connect", end=ended.append)
        begin_after(shop.deployment, barrier, "load", asking, lost.attempt)

    # it was RUNNING when the task looked at it, and has left its session to another one since
    record = shop.write(lost, [])
    shop.deployment.meta.attempts.finish(lost.attempt, record.staged, "test", idle=True)
    clear("g1")
    assert ended == []
    lost = shop.begin(barrier, "load", "g2", server="connect")
    clear("g3")
    assert ended == [lost.attempt.session]
    # nobody else gets it
    assert shop.begin(barrier, "load", "g4", server="connect").attempt.session not in ended
