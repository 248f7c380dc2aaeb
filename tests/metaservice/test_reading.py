"""What readers at each level get, what sensors are told, and the audit as people see it."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.errors import ConfigurationError, UnknownBarrierError, UnknownTableError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.reaching import Reached
from airflow_barrier.protocol.states import BarrierState, TableState
from tests.metaservice.world import AMOUNT, AMOUNT_JOB, JOBS, LOAD_JOB, PRICE, SHOPPING, TOP, World

UNCOMMITTED, COMMITTED, REPEATABLE = Level.READ_UNCOMMITTED, Level.READ_COMMITTED, Level.REPEATABLE_READ


def all_at(barrier_id: int) -> dict[str, int]:
    return dict.fromkeys((AMOUNT, PRICE, SHOPPING, TOP), barrier_id)


def test_the_seeds_timeline(world: World) -> None:
    """Price is PROCESSED first, then amount; the jobs fail after PRECOMMIT; at last the barrier is COMMIT."""
    world.committed(1)
    old, two = world.snapshots(1), world.open(2).barrier_id
    world.process(two, "load")
    world.process(two, "price")
    price = world.snapshots(two)[PRICE]
    mixed = world.meta.answers.resolve("shopping", UNCOMMITTED, [AMOUNT, PRICE])
    assert {name: table.snapshot_id for name, table in mixed.tables.items()} == {AMOUNT: old[AMOUNT], PRICE: price}
    assert (mixed.barrier_id, mixed.revision) == (None, None), "new price, old amount: no barrier's answer"
    assert world.served(COMMITTED) == world.served(REPEATABLE) == all_at(1)

    world.process_all(two)
    assert world.served(UNCOMMITTED) == world.served(COMMITTED) == all_at(2)
    assert world.served(REPEATABLE) == all_at(1)

    world.request(two, "load", generation="after a failure")
    assert world.served(COMMITTED) == world.served(UNCOMMITTED) == all_at(1), "read committed falls back"
    assert world.served(REPEATABLE) == all_at(1), "repeatable read never does"

    world.process_all(two, generation="after a failure")
    world.begin_commit(two)
    assert (world.served(COMMITTED), world.served(REPEATABLE)) == (all_at(2), all_at(1))
    world.publish(two)
    new = world.meta.answers.resolve("shopping", REPEATABLE)
    assert {name: table.snapshot_id for name, table in new.tables.items()} == world.snapshots(two)
    assert (new.barrier_id, new.revision, {t.revision for t in new.tables.values()}) == (2, 0, {0})


def test_before_any_commit_readers_get_the_baseline(world: World) -> None:
    for level in Level:
        with pytest.raises(UnknownBarrierError, match="none was opened yet"):
            world.meta.answers.resolve("shopping", level)
    world.open(1, baseline={AMOUNT: 11, PRICE: None, SHOPPING: None, TOP: None})
    for level in Level:
        assert world.served(level) == all_at(0)
        assert world.meta.answers.resolve("shopping", level, [AMOUNT]).tables[AMOUNT].snapshot_id == 11


def test_a_blocked_barrier_keeps_readers_where_they_were(world: World) -> None:
    world.committed(1)
    world.open(2)
    world.process_all(2)
    world.begin_commit(2)
    world.meta.publishing.block("shopping", 2, "moved", "test")
    assert world.served(REPEATABLE) == all_at(1)
    assert world.served(COMMITTED) == all_at(2), "decided: it can only go forward"


def test_aborted_barriers_are_read_at_no_level(world: World) -> None:
    world.committed(1)
    world.open(2)
    world.process_all(2)
    world.abort(2)
    for level in Level:
        assert world.served(level) == all_at(1)


def test_only_the_tables_asked_for_and_only_those_there_are(world: World) -> None:
    world.committed(1)
    for level in Level:
        assert set(world.meta.answers.resolve("shopping", level, [TOP, PRICE]).tables) == {PRICE, TOP}
        with pytest.raises(UnknownTableError, match=r"shop\.nothing"):
            world.meta.answers.resolve("shopping", level, [TOP, "shop.nothing"])


def test_a_table_is_there_from_the_barrier_that_it_joined_with(world: World) -> None:
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.committed(1)
    world.declare(JOBS)
    for level in Level:
        with pytest.raises(UnknownTableError, match=r"found shop\.price"):
            world.meta.answers.resolve("shopping", level, [PRICE])
    world.open(2, baseline={PRICE: 5, TOP: 6})
    assert world.served(UNCOMMITTED) == {AMOUNT: 1, SHOPPING: 1, PRICE: 0, TOP: 0}
    assert world.served(COMMITTED) == {AMOUNT: 1, SHOPPING: 1}
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.process_all(2)
    world.commit(2)
    world.committed(3)
    for level in Level:
        assert world.served(level) == {AMOUNT: 3, SHOPPING: 3}


# --- sensors ------------------------------------------------------------------------------------------


def test_reached_tables(world: World) -> None:
    world.open(1)
    world.process(1, "load")
    world.process(1, "price")

    def reached(tables: list[str] | None, target: TableState | BarrierState) -> Reached:
        return world.meta.barriers.stands("shopping", 1).reached(tables, target)

    assert reached([SHOPPING, PRICE], TableState.PROCESSED) == Reached(True, (), False, BarrierState.OPEN)
    assert reached(None, TableState.PROCESSED) == Reached(False, (AMOUNT, TOP), False, BarrierState.OPEN)
    assert not reached([PRICE], TableState.WRITTEN).done
    assert reached(None, BarrierState.PRECOMMIT) == Reached(False, (AMOUNT, TOP), False, BarrierState.OPEN)
    world.process_all(1)
    assert reached(None, BarrierState.PRECOMMIT) == Reached(True, (), False, BarrierState.PRECOMMIT)
    world.begin_commit(1)
    assert reached([PRICE], BarrierState.PRECOMMIT).done
    assert reached([PRICE], BarrierState.COMMIT) == Reached(False, (PRICE,), False, BarrierState.COMMITTING)
    world.publish(1)
    for target in (TableState.PROCESSED, TableState.WRITTEN, BarrierState.PRECOMMIT, BarrierState.COMMIT):
        assert reached(None, target) == Reached(True, (), False, BarrierState.COMMIT)


def test_who_waits_for_an_aborted_barrier_is_told(world: World) -> None:
    world.open(1)
    world.process_all(1)
    world.abort(1)
    for target in (TableState.PROCESSED, BarrierState.PRECOMMIT, BarrierState.COMMIT):
        reached = world.meta.barriers.stands("shopping", 1).reached([PRICE], target)
        assert (reached.done, reached.aborted) == (False, True)


def test_what_cannot_be_waited_for(world: World) -> None:
    world.open(1)
    with pytest.raises(ConfigurationError, match="PRECOMMIT or COMMIT, found ABORTED"):
        world.meta.barriers.stands("shopping", 1).reached(None, BarrierState.ABORTED)
    with pytest.raises(ConfigurationError, match="PROCESSED or WRITTEN, found PENDING"):
        world.meta.barriers.stands("shopping", 1).reached(None, TableState.PENDING)
    with pytest.raises(UnknownTableError, match=r"shop\.x"):
        world.meta.barriers.stands("shopping", 1).reached(["shop.x"], TableState.PROCESSED)
    with pytest.raises(UnknownBarrierError):
        world.meta.barriers.stands("shopping", 2).reached(None, TableState.PROCESSED)


# --- audit --------------------------------------------------------------------------------------------


def test_the_audit_tells_one_barriers_story(world: World) -> None:
    world.committed(1)
    world.open(2)
    entries = world.meta.audit.newest("shopping", 1, limit=1000)
    assert {entry.barrier_id for entry in entries} == {1}
    assert [entry.audit_id for entry in entries] == sorted(entry.audit_id for entry in entries)
    assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
    story = [(entry.event, entry.after) for entry in entries if entry.kind == "barrier"]
    assert story == [
        ("opened", "OPEN"), ("precommit", "PRECOMMIT"), ("committing", "COMMITTING"), ("commit", "COMMIT"),
    ]  # fmt: skip
    assert entries[0].detail["run"] == "dag/scheduled__1"


def test_the_audit_gives_the_newest(world: World) -> None:
    world.committed(1)
    everything = world.meta.audit.newest("shopping", limit=1000)
    assert world.meta.audit.newest("shopping", limit=3) == everything[-3:]
    assert everything[0].event == "registered"
    assert all(entry.actor in ("test", "try 1") for entry in everything)
