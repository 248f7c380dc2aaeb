"""Reads that share a transaction see one state, and what a transaction keeps is never older than its own writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection

from airflow_barrier.metaservice.rows import load_attempt, load_barrier, lock_topology
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.metaservice.transitions import Event, end_attempt
from airflow_barrier.protocol.errors import UnknownBarrierError
from airflow_barrier.protocol.states import AttemptState, BarrierState
from tests.metaservice.world import World


@pytest.fixture
def other(world: World, url: str) -> Iterator[MetaService]:
    """Another process."""
    meta = MetaService(url)
    yield meta
    meta.close()


def test_a_look_sees_one_state_until_its_end(world: World, other: MetaService) -> None:
    world.open(1)
    barriers = world.meta.barriers
    with world.meta.look():
        before = barriers.get("shopping", 1)
        other.barriers.abort("shopping", 1, "bad input", "test")
        with world.meta.look():  # a part of the one around it
            assert barriers.get("shopping", 1) == before
            assert [each.barrier_id for each in barriers.uncommitted("shopping")] == [1]
        assert barriers.head("shopping") == before
    assert barriers.get("shopping", 1).state is BarrierState.ABORTED


@pytest.mark.kills("look-ends-before-a-write")
def test_a_look_ends_before_a_write_and_goes_on_with_what_is_there_then(world: World, other: MetaService) -> None:
    world.open(1)
    barriers, attempts = world.meta.barriers, world.meta.attempts
    with world.meta.look():
        barriers.get("shopping", 1)
        assert attempts.current("shopping", 1, "load") is None
        requested = world.request(1, "load")
        assert attempts.current("shopping", 1, "load") == requested
        started = attempts.start(requested.attempt_id)
        assert attempts.get(requested.attempt_id) == started
        other.attempts.abort(requested.attempt_id, "killed", "test")
        assert attempts.get(requested.attempt_id).state is AttemptState.RUNNING, "as when the look went on"
        retry = world.request(1, "load")
        assert retry.attempt_id != requested.attempt_id
        assert attempts.get(requested.attempt_id).state is AttemptState.ABORTED


def test_a_look_goes_on_after_an_error(world: World) -> None:
    world.open(1)
    with world.meta.look():
        with pytest.raises(UnknownBarrierError):
            world.meta.barriers.get("shopping", 7)
        assert world.meta.barriers.get("shopping", 1).barrier_id == 1


@pytest.mark.kills("kept-until-a-write")
def test_a_transaction_reads_again_what_it_has_written(world: World) -> None:
    world.open(1)
    requested = world.request(1, "load")

    def work(connection: Connection) -> tuple[AttemptState, AttemptState]:
        before = load_attempt(connection, requested.attempt_id)
        end_attempt(connection, before, AttemptState.ABORTED, "killed", Event("aborted", "test"))
        return before.state, load_attempt(connection, requested.attempt_id).state

    assert world.meta._db.write(work) == (AttemptState.REQUESTED, AttemptState.ABORTED)


@pytest.mark.kills("kept-in-one-transaction")
def test_a_transaction_keeps_nothing_of_the_one_before(world: World, other: MetaService) -> None:
    world.open(1)
    assert world.state(1) is BarrierState.OPEN  # and its connection goes back
    other.barriers.abort("shopping", 1, "bad input", "test")
    assert world.state(1) is BarrierState.ABORTED


@pytest.mark.kills("lock-forgets")
def test_what_was_read_before_the_lock_is_read_again(world: World) -> None:
    """Who had to wait for the lock must see what others did meanwhile: here it is done past SQLAlchemy."""
    world.open(1)

    def work(connection: Connection) -> list[str | None]:
        before = load_barrier(connection, "shopping", 1)
        connection.connection.cursor().execute("UPDATE barrier_barrier SET reason = 'by another' WHERE barrier_id = 1")
        kept = load_barrier(connection, "shopping", 1)
        lock_topology(connection, "shopping")
        return [before.reason, kept.reason, load_barrier(connection, "shopping", 1).reason]

    assert world.meta._db.write(work) == [None, None, "by another"]


def test_an_attempt_begins_in_one_transaction(world: World) -> None:
    """As request and start do in two; what waits, and what reads a cut that was put off, is left REQUESTED."""
    world.open(1)
    begun = world.begin(1, "load")
    assert (begun.attempt.state, begun.needs) == (AttemptState.RUNNING, ())
    assert (begun.barrier.barrier_id, begun.predecessor.barrier_id, begun.job.name) == (1, 0, "load")
    waits = world.begin(1, "amount")
    assert waits.attempt.state is AttemptState.REQUESTED
    assert [need.job for need in waits.needs] == ["load"]
    assert world.meta.attempts.get(waits.attempt.attempt_id).waited_for == waits.needs
    world.close(begun.attempt)
    again = world.begin(1, "load")
    assert (again.attempt.attempt_id, again.attempt.state) == (begun.attempt.attempt_id, AttemptState.CLOSED)
