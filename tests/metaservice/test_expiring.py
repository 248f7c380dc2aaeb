"""The end of a barrier as something to read: nobody gets it any more, unless somebody holds it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import Connection

from airflow_barrier.metaservice import expiring
from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.expiring import Expiry
from airflow_barrier.metaservice.leases import grant, sweep
from airflow_barrier.protocol.deliveries import Position
from airflow_barrier.protocol.errors import IllegalTransitionError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.states import BarrierState
from tests.metaservice.test_deliveries import B1, B2, B3, PRICES, age, delivered, register
from tests.metaservice.test_leases import kill, leased
from tests.metaservice.test_maintenance import compact, maintain
from tests.metaservice.world import AMOUNT, LOAD_JOB, World


@pytest.fixture
def aged(history: World) -> World:
    """Barriers 1 to 4 are COMMIT, 5 is PRECOMMIT, 6 was aborted."""
    history.committed(4)
    history.open(5)
    history.process_all(5)
    history.open(6)
    history.abort(6)
    return history


def readable(world: World) -> list[int]:
    return [barrier.barrier_id for barrier in world.meta.answers.readable(world.name)]


def being_expired(world: World) -> list[int]:
    return [barrier.barrier_id for barrier in world.meta.expiry.pending(world.name)]


def expire(world: World, *barrier_ids: int) -> list[int]:
    return world.meta.expiry.expire(world.name, barrier_ids, "test")


def test_what_nobody_holds_expires_in_two_steps(aged: World) -> None:
    assert readable(aged) == [1, 2, 3, 4]
    assert expire(aged, 2, 1) == [1, 2]
    assert (readable(aged), being_expired(aged)) == ([3, 4], [1, 2])
    assert expire(aged, 1, 2) == [], "again"
    one = aged.barrier(1)
    assert (one.state, one.expired_at, one.expiring_at is not None) == (BarrierState.COMMIT, None, True)
    assert aged.meta.expiry.expired(aged.name, [1], "test") == [1]
    assert aged.meta.expiry.expired(aged.name, [1], "test") == [], "again"
    assert aged.barrier(1).expired_at is not None
    assert being_expired(aged) == [2], "what somebody died over is gone on with"
    story = [
        (entry.event, entry.after) for entry in aged.meta.audit.newest(aged.name, 1, 100) if entry.kind == "barrier"
    ]
    assert story[-3:] == [("commit", "COMMIT"), ("expiring", "COMMIT"), ("expired", "COMMIT")]


@pytest.mark.kills("newest-stays-readable")
def test_the_newest_and_what_is_not_committed_stay(aged: World) -> None:
    assert expire(aged, 0, 4, 5, 6, 7) == []
    assert aged.served(Level.REPEATABLE_READ).keys() == aged.snapshots(4).keys()


def test_what_a_reader_holds_stays_until_he_is_done(aged: World, url: str) -> None:
    one, mixed = leased(aged, at=1), leased(aged, Level.READ_UNCOMMITTED, at=3)
    assert expire(aged, 1, 2, 3) == [2]
    aged.meta.leases.release(one.lease_id)
    assert expire(aged, 1, 2, 3) == [1]
    kill(url, mixed)
    assert expire(aged, 1, 2, 3) == [3]


@pytest.mark.kills("held-is-not-expired")
def test_what_was_leased_since_it_was_chosen_stays(
    aged: World, url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL chooses by what was there when the statement began: a lease may be granted before it locks the row."""
    database = Database(url)
    request.addfinalizer(database.close)

    def and_a_reader_comes(connection: Connection, topology: str) -> None:
        sweep(connection, topology)
        assert grant(connection, topology, 2, 2, 0, Hold("reader", 60)) is not None

    monkeypatch.setattr(expiring, "sweep", and_a_reader_comes)
    assert database.write(lambda connection: Expiry(connection).expire(aged.name, [1, 2], "test")) == [1]


@pytest.mark.kills("undelivered-is-not-expired")
def test_what_a_sink_received_last_and_what_it_lacks_stays(aged: World) -> None:
    register(aged)
    assert expire(aged, 1) == [1], "a sink that has received nothing needs no barrier in particular"
    delivered(aged, B2)
    aged.meta.deliveries.pause(aged.name, "prices", "test", "moves")
    assert holding(aged) == ["prices"]
    assert expire(aged, 2, 3) == []
    delivered(aged, B3)
    assert expire(aged, 2, 3) == [2]
    aged.meta.deliveries.release(aged.name, "prices", "test", "moves")
    assert expire(aged, 2, 3) == [3]


def test_the_sink_that_is_furthest_behind_counts_of_the_topologys_own(aged: World) -> None:
    other = World(aged.meta, "other", [replace(LOAD_JOB, outlets=("shop.other",))])
    register(other, replace(PRICES, targets={"shop.other": "other"}))
    delivered(other, B1)
    for name, position in (("prices", B3), ("pair", B2)):
        register(aged, replace(PRICES, name=name))
        delivered(aged, position, name=name)
    assert holding(aged) == ["pair", "prices"]
    assert expire(aged, 1, 2, 3) == [1]


def test_a_sink_holds_for_so_long_as_it_may(aged: World, url: str) -> None:
    register(aged, hold_seconds=3 * 3600)
    delivered(aged, B2)
    for had in (1, 2):
        age(url, had, hours=4)
    assert expire(aged, 2, 3) == [], "it has received these"
    age(url, 3, hours=2)
    assert (expire(aged, 2, 3), holding(aged)) == ([], ["prices"])
    aged.meta.deliveries.hold(aged.name, "prices", 3600, "test")
    assert holding(aged) == []
    aged.meta.deliveries.hold(aged.name, "prices", 3 * 3600, "test")
    assert (expire(aged, 2), holding(aged)) == ([], ["prices"])
    age(url, 3, hours=2)
    assert holding(aged) == []
    assert expire(aged, 2, 3) == [2, 3]


def test_a_sink_lacks_no_barrier_of_maintenance(aged: World, url: str) -> None:
    aged.abort(5)
    register(aged, hold_seconds=3600)
    delivered(aged, Position(4, 0))
    compaction = maintain(aged)
    assert compaction is not None
    compact(aged, compaction, AMOUNT)
    aged.meta.maintenance.carry(aged.name, compaction.barrier_id, "test")
    aged.commit(compaction.barrier_id)
    age(url, compaction.barrier_id, hours=2)
    assert (expire(aged, 4), holding(aged)) == ([], ["prices"]), "the next epoch differs from that by its rows"


def holding(world: World) -> list[str]:
    return [sink.name for sink in world.meta.deliveries.holding(world.name)]


@pytest.mark.kills("visibility-goes-first")
def test_tags_do_not_go_before_visibility(aged: World) -> None:
    expire(aged, 1)
    with pytest.raises(IllegalTransitionError, match="expected barriers that are expiring, found that 2, 3 can still"):
        aged.meta.expiry.expired(aged.name, [1, 2, 3], "test")
    assert aged.barrier(1).expired_at is None


# --- along with a commit ----------------------------------------------------------------------------------


def decide(world: World, number: int, *thinned: int) -> None:
    """The decision about a barrier that is PRECOMMIT, where the policy keeps ``thinned`` no longer."""
    world.meta.publishing.begin(world.name, number, dict.fromkeys(world.tables(number)), "test", thinned)


def publish(world: World, number: int) -> None:
    gone = being_expired(world)
    with world.meta.publishing.swapping(world.name, number, "test", expired=gone):
        pass


def test_what_the_policy_keeps_no_longer_expires_with_the_decision(aged: World) -> None:
    decide(aged, 5, 1, 2)
    assert (readable(aged), being_expired(aged)) == ([3, 4], [1, 2])
    decide(aged, 5, 3)
    assert readable(aged) == [3, 4], "decided once"
    publish(aged, 5)
    assert (readable(aged), being_expired(aged)) == ([3, 4, 5], [])


def test_what_is_held_at_the_decision_is_caught_up_by_a_later_one(aged: World) -> None:
    lease = leased(aged, at=1)
    decide(aged, 5, 1)
    publish(aged, 5)
    assert readable(aged) == [1, 2, 3, 4, 5]
    aged.open(7)
    aged.process_all(7)
    aged.meta.leases.release(lease.lease_id)
    decide(aged, 7, 2)
    publish(aged, 7)
    assert (readable(aged), being_expired(aged)) == ([3, 4, 5, 7], [])


def test_what_a_sink_lacks_at_the_decision_is_caught_up_by_a_later_one(aged: World) -> None:
    register(aged)
    delivered(aged, B2)
    decide(aged, 5, 1, 2, 3)
    publish(aged, 5)
    assert readable(aged) == [2, 3, 4, 5]
    aged.open(7)
    aged.process_all(7)
    delivered(aged, Position(5, 0))
    decide(aged, 7)
    publish(aged, 7)
    assert (readable(aged), being_expired(aged)) == ([4, 5, 7], [])


@pytest.mark.kills("newest-stays-readable")
def test_the_newest_outlives_the_policy_until_the_next_is_published(aged: World) -> None:
    decide(aged, 5, 4)
    assert readable(aged) == [1, 2, 3, 4], "repeatable read is served from it until 5 is there"
    publish(aged, 5)
    aged.open(7)
    aged.process_all(7)
    decide(aged, 7, 5)
    assert (readable(aged), being_expired(aged)) == ([1, 2, 3, 5], [4])


def test_what_is_held_for_long_keeps_no_others_back(aged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "_MOST", 2)
    for held in (1, 2):
        leased(aged, at=held)
    decide(aged, 5, 1, 2, 3)
    assert (readable(aged), being_expired(aged)) == ([1, 2, 4], [3])
