"""Maintenance barriers: the rows of the predecessor in other files; nobody is held up but by what they rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_barrier.metaservice.maintenance import Upkeep
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import HeadMovedError, TooManyOpenBarriersError, UnknownTableError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Attempt, Barrier, Cut, Need, StagedTable
from airflow_barrier.protocol.states import AttemptState, BarrierState, TableState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import (
    AMOUNT,
    AMOUNT_JOB,
    JOBS,
    LOAD_JOB,
    PRICE,
    SHOPPING,
    TOP,
    World,
    day,
)
from tests.scale.meters import metering
from tests.support.runs import run_of

PENDING, PROCESSED = TableState.PENDING, TableState.PROCESSED


def maintain(world: World, tables: Sequence[str] | None = (AMOUNT,), max_open: int = 4) -> Barrier | None:
    return world.meta.maintenance.open(
        Upkeep(
            world.name,
            tables,
            run=run_of("upkeep/tonight"),
            request_key="upkeep/tonight",
            generation="g1",
            max_open=max_open,
            actor="test",
        ),
    )


def compact(world: World, barrier: Barrier, table: str, snapshot: int | None = 99) -> None:
    """As the coordinator does it: ``snapshot`` None says that there is nothing to rewrite."""
    attempt = world.request(barrier.barrier_id, f"compaction of {table}", key="run")
    started = world.meta.attempts.start(attempt.attempt_id)
    assert isinstance(started, Attempt), started
    staged = {table: StagedTable(table, snapshot, unchanged=snapshot is None)}
    world.meta.attempts.close(attempt.attempt_id, staged, "test")
    world.meta.attempts.report(attempt.attempt_id, "test")


@pytest.mark.kills("resumes-after-an-epoch")
def test_it_inherits_and_is_no_epoch(world: World) -> None:
    world.committed(1)
    barrier = maintain(world)
    assert barrier is not None
    assert (barrier.barrier_id, barrier.timestamp, barrier.predecessor) == (2, day(1), 1)
    assert barrier.is_maintenance
    assert world.meta.cuts.of("shopping", 2) == {}
    assert world.meta.barriers.epoch_of(barrier).barrier_id == 1
    assert maintain(world) == barrier, "one is unfinished"
    found = world.meta.barriers.at("shopping", day(1))
    assert found is not None
    assert found.barrier_id == 1
    compact(world, barrier, AMOUNT)
    before = world.snapshots(1)
    assert world.meta.maintenance.carry("shopping", 2, "test") == 3
    assert world.meta.maintenance.carry("shopping", 2, "test") == 0
    assert world.snapshots(2) == {**before, AMOUNT: 99}
    assert {row.table: row.carried_from for row in world.meta.barriers.progress("shopping", 2)} == {
        AMOUNT: None,
        PRICE: 1,
        SHOPPING: 1,
        TOP: 1,
    }
    assert world.state(2) is BarrierState.PRECOMMIT
    world.commit(2)
    assert world.meta.publishing.unannounced("shopping", 4).keys() == {1}, "of a compaction there is nothing to tell"
    for at in (None, 2, day(1), day(5)):
        resolution = world.meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=at)
        assert (resolution.barrier_id, resolution.tables[AMOUNT].snapshot_id) == (2, 99)
    last = world.meta.starts.last_progress("shopping", AMOUNT)
    assert last is not None
    assert (last.barrier_id, last.job) == (1, "amount"), "the last epoch that it has"
    assert world.open(2).predecessor == 2
    assert world.start(3, "load").bases == {SHOPPING: before[SHOPPING]}


def test_what_it_has_maintained_already_waits_for_news(world: World) -> None:
    world.committed(1)
    maintain(world)
    compact(world, world.barrier(2), AMOUNT)
    world.meta.maintenance.carry(world.name, 2, "test")
    world.commit(2)
    assert maintain(world) is None
    more = maintain(world, [AMOUNT, PRICE])
    assert more is not None, "another table"
    compact(world, more, AMOUNT, None)
    world.meta.attempts.abort(world.request(more.barrier_id, f"compaction of {PRICE}").attempt_id, "failed", "test")
    world.meta.maintenance.carry(world.name, more.barrier_id, "test")
    world.commit(more.barrier_id)
    assert maintain(world) is None
    again = maintain(world, [PRICE])
    assert again is not None, "it was given up"
    world.meta.maintenance.carry(world.name, again.barrier_id, "test")
    assert world.state(again.barrier_id) is BarrierState.OPEN, "its turn comes"


def test_carrying_costs_what_its_tables_cost(tmp_path: Path) -> None:
    """Whoever needs one of the tables waits for it."""
    costs = []
    with metering() as meter:
        for count in (20, 80):
            tables = tuple(f"wide.t{number:02}" for number in range(count))
            world = World(MetaService(f"sqlite:///{tmp_path}/{count}.db"), "wide", [Job("wide", "dag", outlets=tables)])
            world.committed(1)
            barrier = maintain(world, tables[:1])
            assert barrier is not None
            carried = meter.of(lambda world=world: world.meta.maintenance.carry("wide", 2, "test"))  # type: ignore[misc]
            costs.append(carried.touched)
            world.meta.close()
    assert costs[1] < 6 * costs[0]


@pytest.mark.kills("taken-is-not-passed-by")
def test_what_is_staged_later_stands_on_it(world: World) -> None:
    world.committed(1)
    barrier = maintain(world)
    assert barrier is not None
    world.open(2)
    world.process(3, "load")
    waiting = world.request(3, "amount")
    needs = (Need(AMOUNT, 2, f"compaction of {AMOUNT}"),)
    assert world.meta.attempts.start(waiting.attempt_id) == needs
    assert world.meta.attempts.start(waiting.attempt_id) == needs
    assert not world.meta.barriers.stands("shopping", 2).reached([AMOUNT], PROCESSED).done
    assert world.start(3, "price").bases == {PRICE: world.snapshots(1)[PRICE]}, "nobody compacts it"
    compact(world, barrier, AMOUNT)
    started = world.meta.attempts.start(waiting.attempt_id)
    assert isinstance(started, Attempt)
    assert started.bases == {AMOUNT: 99}
    assert world.tables(2) == {AMOUNT: PROCESSED, PRICE: PROCESSED, SHOPPING: PROCESSED, TOP: PENDING}


def test_a_compaction_that_is_given_up_holds_up_nobody(world: World) -> None:
    world.committed(1)
    maintain(world)
    world.open(2)
    world.process(3, "load")
    waiting = world.request(3, "amount")
    world.meta.attempts.start(waiting.attempt_id)
    attempt = world.meta.attempts.current("shopping", 2, f"compaction of {AMOUNT}")
    assert attempt is not None
    world.meta.attempts.abort(attempt.attempt_id, "Spark went away", "test")
    assert world.meta.barriers.stands("shopping", 2).reached([AMOUNT], PROCESSED).done, (
        "or a deferred task would wait for ever"
    )
    started = world.meta.attempts.start(waiting.attempt_id)
    assert isinstance(started, Attempt)
    assert started.bases == {AMOUNT: world.snapshots(1)[AMOUNT]}
    assert world.tables(2)[AMOUNT] is PROCESSED


def test_each_table_waits_for_itself_only(world: World) -> None:
    """The jobs of other tables fail for days, and what does not need them goes on."""
    world.open(1)
    world.process(1, "load")
    world.process(1, "amount")
    barrier = maintain(world, tables=(AMOUNT, PRICE))
    assert barrier is not None
    compact(world, barrier, AMOUNT)
    price = world.request(2, f"compaction of {PRICE}", key="run")
    assert world.meta.attempts.start(price.attempt_id) == (Need(PRICE, 1, "price"),)
    assert world.meta.maintenance.carry("shopping", 2, "test") == 1
    assert world.tables(2) == {AMOUNT: PROCESSED, PRICE: PENDING, SHOPPING: PROCESSED, TOP: PENDING}
    world.open(2)
    world.process(3, "load")
    assert world.start(3, "amount").bases == {AMOUNT: 99}
    top = world.request(3, "top")
    needs = world.meta.attempts.start(top.attempt_id)
    assert isinstance(needs, tuple)
    assert Need(TOP, 1, "top") in needs, "nobody compacts it, so it stands where it stood"


def test_staging_anew_before_it_voids_what_stands_on_that(world: World) -> None:
    world.open(1)
    world.process_all(1)
    barrier = maintain(world, tables=(TOP, SHOPPING))
    assert barrier is not None
    compact(world, barrier, TOP)
    compact(world, barrier, SHOPPING, snapshot=98)
    world.meta.maintenance.carry("shopping", 2, "test")
    assert world.state(2) is BarrierState.PRECOMMIT
    world.request(1, "price", generation="g2")
    assert world.tables(2) == {AMOUNT: PROCESSED, PRICE: PENDING, SHOPPING: PROCESSED, TOP: PENDING}
    assert world.state(2) is BarrierState.OPEN
    assert world.meta.maintenance.carry("shopping", 2, "test") == 0
    assert not world.meta.barriers.stands("shopping", 2).reached(None, BarrierState.PRECOMMIT).done
    world.process_all(1, generation="g2")
    assert world.meta.barriers.stands("shopping", 2).reached(None, BarrierState.PRECOMMIT).done, (
        "its commit carries what is left"
    )
    assert world.meta.maintenance.carry("shopping", 2, "test") == 2
    assert world.state(2) is BarrierState.PRECOMMIT
    assert world.snapshots(2)[TOP] == world.snapshots(1)[TOP]
    voided = world.meta.attempts.current("shopping", 2, f"compaction of {TOP}")
    assert voided is not None
    assert voided.state is AttemptState.PROCESSED


def test_who_has_left_or_not_joined_has_no_part_in_it(world: World) -> None:
    assert maintain(world) is None
    assert world.meta.barriers.head("shopping") is None
    world.committed(1)
    versions = world.meta.topologies.version("shopping")
    world.declare((LOAD_JOB, AMOUNT_JOB))
    with pytest.raises(UnknownTableError, match="price"):
        maintain(world, tables=(PRICE,))
    barrier = maintain(world, tables=None)
    assert barrier is not None
    assert sorted(world.tables(2)) == [AMOUNT, SHOPPING]
    assert world.meta.topologies.version("shopping") > versions
    assert world.meta.topologies.get("shopping").jobs == (AMOUNT_JOB, LOAD_JOB), "what is registered is what it was"
    world.declare(JOBS)
    assert set(world.meta.barriers.unjoined("shopping")) == {PRICE, TOP}


def test_it_takes_a_place_among_the_open_ones(world: World) -> None:
    world.open(1)
    with pytest.raises(TooManyOpenBarriersError):
        maintain(world, max_open=1)
    assert maintain(world, max_open=2) is not None
    with pytest.raises(TooManyOpenBarriersError):
        world.open(2, max_open=2)


def test_the_next_cut_begins_where_the_epoch_before_ends(world: World) -> None:
    world.open(1, cuts=[Cut("files", None, {"day": 1})])
    maintain(world)
    world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 7}), "test")
    with pytest.raises(HeadMovedError, match="barrier 1 ends"):
        world.open(2, cuts=[Cut("files", {"day": 1}, {"day": 2})])
    world.open(2, cuts=[Cut("files", {"day": 7}, {"day": 8})])
    with pytest.raises(Exception, match="to end where that of barrier 3"):
        world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 1}), "test")


def test_it_is_aborted_with_the_barrier_that_it_stands_on(world: World, meta: MetaService) -> None:
    world.open(1)
    assert meta.maintenance.carry("shopping", 1, "test") == 0, "a job's own epoch is its own"
    maintain(world)
    assert world.abort(1) == [1, 2]
    assert meta.maintenance.carry("shopping", 2, "test") == 0
    world.open(1)
    assert maintain(world) is not None
