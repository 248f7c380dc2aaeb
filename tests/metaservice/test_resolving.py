"""Reading at a barrier or at a time, at each level, and what a reader is told who asks for what is not to be had."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_barrier.protocol.errors import (
    BarrierAbortedError,
    ConfigurationError,
    ExpiredBarrierError,
    NotReadableYetError,
    UnknownBarrierError,
    UnknownTableError,
)
from airflow_barrier.protocol.levels import Level
from tests.metaservice.world import AMOUNT, AMOUNT_JOB, JOBS, LOAD_JOB, PRICE, SHOPPING, TOP, World, day

UNCOMMITTED, COMMITTED, REPEATABLE = Level.READ_UNCOMMITTED, Level.READ_COMMITTED, Level.REPEATABLE_READ


@pytest.fixture
def long(history: World) -> World:
    """Barriers 1 to 3 are COMMIT, 4 was aborted, 5 is PRECOMMIT, of 6 two tables are PROCESSED."""
    history.open(4)
    history.abort(4)
    history.open(5)
    history.process_all(5)
    history.open(6)
    history.process(6, "load")
    history.process(6, "price")
    return history


def at(world: World, level: Level, what: int | datetime | None) -> dict[str, int]:
    """Table -> the barrier that it is read at; its snapshot is that barrier's."""
    resolution = world.meta.answers.resolve(world.name, level, at=what)
    for name, table in resolution.tables.items():
        assert table.snapshot_id == world.snapshots(table.barrier_id)[name]
    if level is not UNCOMMITTED:
        assert {resolution.barrier_id} == {table.barrier_id for table in resolution.tables.values()}
        assert resolution.timestamp == world.barrier(resolution.barrier_id or 0).timestamp
    return {name: table.barrier_id for name, table in resolution.tables.items()}


def all_at(barrier_id: int) -> dict[str, int]:
    return dict.fromkeys((AMOUNT, PRICE, SHOPPING, TOP), barrier_id)


def test_at_a_barrier(long: World) -> None:
    for level in Level:
        for number in (1, 2, 3):
            assert at(long, level, number) == all_at(number)
    assert at(long, COMMITTED, 5) == at(long, UNCOMMITTED, 5) == all_at(5)
    assert at(long, UNCOMMITTED, 6) == {**all_at(5), SHOPPING: 6, PRICE: 6}


def test_at_a_time(long: World) -> None:
    between = timedelta(hours=1)
    for level in Level:
        assert at(long, level, day(2)) == at(long, level, day(3) - between) == all_at(2)
    assert at(long, REPEATABLE, day(9)) == at(long, REPEATABLE, day(4)) == all_at(3), "only what is COMMIT"
    assert at(long, COMMITTED, day(9)) == all_at(5), "only what is PRECOMMIT or further"
    assert at(long, COMMITTED, day(5) - between) == all_at(3), "an aborted barrier is none"
    assert at(long, UNCOMMITTED, day(9)) == at(long, UNCOMMITTED, None)
    assert at(long, UNCOMMITTED, day(5) + between) == all_at(5)


def test_the_answer_says_when_it_was_true(long: World) -> None:
    before = long.meta.now()
    resolution = long.meta.answers.resolve(long.name, REPEATABLE, [AMOUNT])
    assert before <= resolution.resolved_at <= long.meta.now()
    assert (resolution.timestamp, resolution.lease) == (day(3), None)
    assert long.meta.answers.resolve(long.name, UNCOMMITTED).timestamp is None


def test_the_baseline_has_no_time_and_no_number(world: World) -> None:
    world.open(1)
    resolution = world.meta.answers.resolve(world.name, REPEATABLE)
    assert (resolution.barrier_id, resolution.timestamp) == (0, None)
    for level in Level:
        with pytest.raises(UnknownBarrierError, match="from 1 on, found 0"):
            world.meta.answers.resolve(world.name, level, at=0)


@pytest.mark.kills("aborted-is-not-read", "not-read-before-its-level")
def test_barriers_that_cannot_be_read_at(long: World) -> None:
    for level in Level:
        with pytest.raises(UnknownBarrierError, match="barrier 7 of shopping: expected one that was opened"):
            long.meta.answers.resolve(long.name, level, at=7)
        with pytest.raises(BarrierAbortedError, match=r"barrier 4 of shopping .* was aborted \(bad input\)"):
            long.meta.answers.resolve(long.name, level, at=4)
    for number, level, least, state in (
        (5, REPEATABLE, "COMMIT", "PRECOMMIT"),
        (6, REPEATABLE, "COMMIT", "OPEN"),
        (6, COMMITTED, "PRECOMMIT", "OPEN"),
    ):
        said = rf"barrier {number} .*: expected {least} to read it at {level.value}, found {state}; wait for it"
        with pytest.raises(NotReadableYetError, match=said):
            long.meta.answers.resolve(long.name, level, at=number)


def test_times_that_cannot_be_read_at(long: World) -> None:
    for level in Level:
        with pytest.raises(UnknownBarrierError, match=r"first barrier on, which at .* is barrier 1 of shopping \(2017"):
            long.meta.answers.resolve(long.name, level, at=day(0))
        with pytest.raises(ConfigurationError, match=r"with a time zone to read at, found 2017-01-02 00:00:00;"):
            long.meta.answers.resolve(long.name, level, at=day(1).replace(tzinfo=None))


def test_before_the_first_barrier_is_that_far_a_time_finds_none(world: World) -> None:
    world.open(1)
    with pytest.raises(UnknownBarrierError, match="expected a barrier to read at"):
        world.meta.answers.resolve(world.name, REPEATABLE, at=day(1))
    with pytest.raises(UnknownBarrierError, match="which at read_uncommitted is barrier 1"):
        world.meta.answers.resolve(world.name, UNCOMMITTED, at=day(0))


@pytest.mark.kills("expired-is-not-read")
def test_an_expired_barrier_is_named_with_the_oldest_that_can_be_read(long: World) -> None:
    assert long.meta.expiry.expire(long.name, [1], "test") == [1]
    said = r"barrier 1 of shopping \(2017-01-02 .*\): expected .* found one that expired on .* is barrier 2 of shopping"
    for what in (1, day(1), day(2) - timedelta(seconds=1)):
        for level in Level:
            with pytest.raises(ExpiredBarrierError, match=said):
                long.meta.answers.resolve(long.name, level, at=what)
    assert at(long, REPEATABLE, day(2)) == all_at(2)
    assert [barrier.barrier_id for barrier in long.meta.answers.readable(long.name)] == [2, 3]


def test_a_table_that_joined_later_is_named_with_the_barrier_it_joined_with(world: World) -> None:
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.committed(1)
    world.declare(JOBS)
    world.open(2)
    world.abort(2)
    world.committed(3)
    for level in Level:
        assert world.meta.answers.resolve(world.name, level, [PRICE, AMOUNT], at=3).tables[PRICE].barrier_id == 3
        said = r"barrier 1 of .* that it has, found shop\.price, which joined with barrier 3 of shopping .*; read at"
        with pytest.raises(UnknownTableError, match=said):
            world.meta.answers.resolve(world.name, level, [AMOUNT, PRICE], at=1)
        with pytest.raises(UnknownTableError, match=r"which are shop\.amount, shop\.shopping; found shop\.nothing"):
            world.meta.answers.resolve(world.name, level, ["shop.nothing"], at=1)
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.committed(4)
    with pytest.raises(UnknownTableError, match=r"which are shop\.amount, shop\.shopping; found shop\.price; correct"):
        world.meta.answers.resolve(world.name, REPEATABLE, [PRICE])


def test_many_tables_asked_for_by_name(long: World) -> None:
    for level in Level:
        few = long.meta.answers.resolve(long.name, level, [TOP, AMOUNT]).tables
        assert list(few) == [TOP, AMOUNT]
        many = long.meta.answers.resolve(long.name, level, [TOP, AMOUNT, *[PRICE] * 300]).tables
        assert many == {**few, PRICE: many[PRICE]}


@pytest.mark.parametrize("text", ["ReadCommitted", "read_committed", "READ COMMITTED", "read-committed"])
def test_levels_as_people_write_them(text: str) -> None:
    assert Level.parse(text) is COMMITTED


def test_a_level_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="level 'Snapshot': expected one of read_uncommitted, read_committed"):
        Level.parse("Snapshot")
