"""Forgetting the details of barriers that nobody can read any more: what others still need is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_barrier.metaservice.maintenance import Upkeep
from airflow_barrier.protocol.deliveries import Position
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    ExpiredBarrierError,
    UnknownBarrierError,
    UnknownTableError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.states import BarrierState, TableState
from tests.metaservice.test_deliveries import B1, B2, B3, PRICES, delivered, register
from tests.metaservice.test_expiring import expire
from tests.metaservice.world import AMOUNT, AMOUNT_JOB, JOBS, LOAD_JOB, PRICE, SHOPPING, TOP, World, day
from tests.support.runs import run_of


def trim(world: World, days: int = 1) -> list[int]:
    """Of what went up to so many days from now."""
    before = world.meta.now() + timedelta(days=days)
    trimmed: list[int] = []
    while some := world.meta.expiry.trim(world.name, before, "test"):
        trimmed += some
    return trimmed


def gone(world: World, *barrier_ids: int) -> None:
    assert expire(world, *barrier_ids) == list(barrier_ids)
    world.meta.expiry.expired(world.name, barrier_ids, "test")


def count(world: World, barrier_id: int) -> tuple[int, int, set[str]]:
    """Rows of tables and attempts, and what the audit still speaks of."""
    kinds = {entry.kind for entry in world.meta.audit.newest(world.name, barrier_id, 10_000)}
    return len(world.tables(barrier_id)), len(world.meta.attempts.of(world.name, barrier_id)), kinds


def test_the_details_of_what_expired_go_and_the_barriers_stay(world: World) -> None:
    for number in (1, 2, 3, 4):
        world.open(number, items=[f"file {number}"])
        world.process_all(number)
        world.commit(number)
    late = world.meta.attempts.of(world.name, 1)[0]
    gone(world, 1, 2)
    assert trim(world, days=-1) == [], "not before their time"
    assert trim(world) == [1, 2]
    assert trim(world) == [], "again"
    assert count(world, 1) == (0, 0, {"barrier", "topology"})
    assert count(world, 3) == (4, 4, {"barrier", "table", "attempt"})
    assert (world.state(1), world.barrier(3).predecessor) == (BarrierState.COMMIT, 2)
    with pytest.raises(ExpiredBarrierError):
        world.meta.answers.resolve(world.name, Level.REPEATABLE_READ, at=1)
    assert world.meta.cuts.used_items(world.name, "files", ["file 1", "file 5"]) == {"file 1"}
    assert world.meta.cuts.of(world.name, 1) == {"files": Cut("files", None, {"day": 1}, ("file 1",))}
    assert world.meta.barriers.at(world.name, day(1)) == world.barrier(1)
    with pytest.raises(AlreadyCommittedError):
        world.request(1, "load")
    with pytest.raises(UnknownBarrierError, match="its barrier expired or was aborted since, and its details were"):
        world.close(late)
    assert world.committed(5).barrier_id == 5
    assert [entry.event for entry in world.meta.audit.newest(world.name, limit=10_000) if entry.event == "trimmed"] == [
        "trimmed"
    ]


def test_what_was_delivered_goes_with_its_barrier(world: World) -> None:
    for number in (1, 2, 3):
        world.committed(number)
    register(world)
    register(world, replace(PRICES, name="pair"))
    for position in (B1, B2, Position(2, 1), B3):
        delivered(world, position)
    delivered(world, B2, name="pair")
    before = world.meta.deliveries.get(world.name, "prices")
    world.meta.deliveries.hold(world.name, "pair", 0, "test")
    gone(world, 1, 2)
    assert trim(world) == [1, 2]
    assert [each.barrier_id for each in world.meta.deliveries.history(world.name, "prices")] == [3]
    assert world.meta.deliveries.history(world.name, "pair") == []
    assert world.meta.deliveries.get(world.name, "prices") == before
    assert world.meta.deliveries.get(world.name, "pair").position == B2
    assert count(world, 2) == (0, 0, {"barrier"})
    assert count(world, 3)[2] == {"barrier", "table", "attempt", "sink"}


def test_before_any_commit_there_is_nothing_to_trim(world: World) -> None:
    world.open(1, baseline=dict.fromkeys((AMOUNT, PRICE, SHOPPING, TOP)))
    world.abort(1)
    assert trim(world) == []


def test_what_was_aborted_goes_when_nobody_reads_below_it_any_more(world: World) -> None:
    world.committed(1)
    world.open(2)
    world.process(2, "load")
    world.abort(2)
    world.committed(3)
    assert trim(world) == []
    reached = world.meta.barriers.stands(world.name, 2).reached([AMOUNT], TableState.PROCESSED)
    assert (reached.done, reached.aborted, reached.missing) == (False, True, (AMOUNT,))
    gone(world, 1)
    assert trim(world) == [1, 2]
    assert count(world, 2) == (0, 0, {"barrier"})
    assert world.meta.barriers.stands(world.name, 2).reached([AMOUNT], TableState.PROCESSED) == reached
    for target in (TableState.WRITTEN, BarrierState.COMMIT):
        assert world.meta.barriers.stands(world.name, 1).reached([AMOUNT], target).done
    with pytest.raises(UnknownTableError, match="nowhere"):
        world.meta.barriers.stands(world.name, 1).reached(["shop.nowhere"], TableState.WRITTEN)


@pytest.mark.kills("trims-the-past-only")
def test_the_epoch_that_a_compaction_stands_on_stays(world: World) -> None:
    world.committed(1)
    world.meta.maintenance.open(
        Upkeep(
            world.name,
            [AMOUNT],
            run=run_of("upkeep/tonight"),
            request_key="upkeep/tonight",
            generation="g1",
            max_open=4,
            actor="test",
        ),
    )
    world.meta.attempts.abort(world.meta.attempts.of(world.name, 2)[0].attempt_id, "changed my mind", "test")
    world.meta.maintenance.carry(world.name, 2, "test")
    world.commit(2)
    gone(world, 1)
    assert trim(world) == []
    world.committed(3)
    assert trim(world) == [1]


@pytest.mark.kills("newest-row-stays")
def test_a_table_that_has_left_is_known_where_it_stood_last(world: World) -> None:
    world.committed(1)
    world.committed(2)
    stood = world.snapshots(2)
    world.declare([LOAD_JOB, AMOUNT_JOB])
    for number in (3, 4):
        world.committed(number)
    gone(world, 1, 2, 3)
    assert trim(world) == [1, 2, 3]
    assert world.tables(1) == world.tables(3) == {}
    assert world.snapshots(2) == {PRICE: stood[PRICE], TOP: stood[TOP]}
    for table, barrier_id in ((PRICE, 2), (TOP, 2), (AMOUNT, 4), (SHOPPING, 4)):
        last = world.meta.starts.last_progress(world.name, table)
        assert last is not None
        assert last.barrier_id == barrier_id
    world.declare(JOBS)
    world.open(5, baseline={PRICE: stood[PRICE], TOP: stood[TOP]})
    world.process_all(5)
    world.commit(5)
    assert world.served(Level.REPEATABLE_READ).keys() == stood.keys()


def test_many_are_trimmed_some_at_a_time(world: World) -> None:
    world.declare([LOAD_JOB])
    for number in range(1, 25):
        world.committed(number)
    gone(world, *range(1, 23))
    before = world.meta.now() + timedelta(days=1)
    assert world.meta.expiry.trim(world.name, before, "test") == list(range(1, 21))
    assert world.meta.expiry.trim(world.name, before, "test") == [21, 22]
    assert world.meta.expiry.trim(world.name, before, "test") == []
