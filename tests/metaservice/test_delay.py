"""Delay from what a MetaService has kept, on each database, against sums that were done by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from sqlalchemy import create_engine, update

from airflow_barrier.coordinator.delay import Delay, barrier_delay, delay
from airflow_barrier.metaservice import schema
from airflow_barrier.protocol.delay import Part
from airflow_barrier.protocol.deliveries import Counts, Position, SinkDeclaration
from airflow_barrier.protocol.errors import UnknownBarrierError, UnknownTableError, UnknownTopologyError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.states import AttemptState
from tests.metaservice.test_trimming import gone, trim
from tests.metaservice.world import AMOUNT, JOBS, PRICE, SHOPPING, TOP, World

#: job -> when its attempt was requested, started and PROCESSED, seconds after the barrier's timestamp
TIMES = {"load": (5, 6, 40), "amount": (5, 42, 50), "price": (5, 44, 74), "top": (5, 84, 130)}
OPENED, PRECOMMIT, COMMITTED = 4, 130, 140


def at_times(world: World, url: str, barrier_id: int, timestamp: datetime, slower: Mapping[str, float] = {}) -> None:
    """Say of a committed barrier that all of this happened at these seconds; of the jobs that are ``slower``, later."""

    def at(seconds: float) -> datetime:
        return timestamp + timedelta(seconds=seconds)

    later = sum(slower.values())
    barrier, attempt, progress = schema.barrier, schema.attempt, schema.table_progress
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            update(barrier)
            .where(barrier.c.barrier_id == barrier_id)
            .values(
                timestamp=timestamp,
                opened_at=at(OPENED),
                precommit_at=at(PRECOMMIT + later),
                committing_at=at(PRECOMMIT + later),
                commit_at=at(COMMITTED + later),
            )
        )
        cut = schema.cut
        connection.execute(update(cut).where(cut.c.barrier_id == barrier_id).values(made_at=at(OPENED)))
        for job, (requested, started, processed) in TIMES.items():
            of_job = attempt.c.state == AttemptState.PROCESSED.value, attempt.c.job == job
            connection.execute(
                update(attempt)
                .where(attempt.c.barrier_id == barrier_id, *of_job)
                .values(
                    requested_at=at(requested),
                    started_at=at(started + (later if job == "top" and "top" not in slower else 0)),
                    processed_at=at(processed + (later if job in {*slower, "top"} else 0)),
                )
            )
            connection.execute(
                update(progress)
                .where(progress.c.barrier_id == barrier_id, progress.c.job == job)
                .values(processed_at=at(processed + (later if job in {*slower, "top"} else 0)))
            )
    engine.dispose()


def blame(found: Delay) -> dict[tuple[str, str | None], float]:
    return {(share.part.value, share.job): share.seconds for share in found.blame}


@pytest.fixture
def begin(world: World) -> datetime:
    """Three hours before now, on the database's clock."""
    return world.meta.now().replace(microsecond=0) - timedelta(hours=3)


def test_a_window_has_percentiles_and_says_who_took_the_time(world: World, url: str, begin: datetime) -> None:
    for number in (1, 2, 3):
        world.committed(number)
    at_times(world, url, 1, begin)
    at_times(world, url, 2, begin + timedelta(hours=1), {"price": 60})
    at_times(world, url, 3, begin + timedelta(hours=2), {"top": 160})
    found = delay(world.meta, "shopping", timedelta(days=1), objective=timedelta(seconds=3800))
    assert [(point.barrier_id, point.seconds, point.stale) for point in found.points] == [
        (1, 140, None),
        (2, 200, 3800),
        (3, 300, 3900),
    ]
    assert (found.percentiles["p50"], found.percentiles["max"], found.scheduled["p50"]) == (200, 300, 4)
    assert (found.missed, found.looked_into) == (1, 3)
    assert blame(found) == {
        ("spark", "top"): 46 * 3 + 160,
        ("spark", "price"): 30 * 3 + 60,
        ("spark", "load"): 34 * 3,
        ("not asked for", "load"): 1 * 3,
        ("waking", "load"): 1 * 3,
        ("waking", "price"): 4 * 3,
        ("waking", "top"): 10 * 3,
        ("commit", None): 10 * 3,
    }
    assert sum(share.share for share in found.blame) == pytest.approx(1)
    assert {share.dag for share in found.blame} == {"dag", None}
    of_amount = delay(world.meta, "shopping", timedelta(days=1), table=AMOUNT)
    assert blame(of_amount)["spark", "amount"] == 8 * 3
    short = delay(world.meta, "shopping", timedelta(hours=2))
    assert [point.barrier_id for point in short.points] == [2, 3], "the first one is over two hours old"
    assert delay(world.meta, "shopping", timedelta(days=1), look_into=1).looked_into == 1


def test_a_look_works_out_so_many_barriers_and_the_next_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3):
        world.committed(number)
    monkeypatch.setattr("airflow_barrier.coordinator.delay._ROWS", len(TIMES))  # of one barrier
    looks = [delay(world.meta, "shopping", timedelta(days=1)).looked_into for _ in range(4)]
    assert looks == [1, 2, 3, 3]
    assert delay(world.meta, "shopping", timedelta(days=1), table=TOP).looked_into == 1


def test_one_barrier(world: World, url: str, begin: datetime) -> None:
    world.committed(1)
    at_times(world, url, 1, begin)
    found = barrier_delay(world.meta, "shopping", 1)
    assert found.seconds == sum(segment.seconds for segment in found.critical_path) == 140
    assert [segment.job for segment in found.critical_path if segment.part is Part.SPARK] == ["load", "price", "top"]
    own = {each.table: (each.own, each.inherited, each.parts[Part.SIBLINGS]) for each in found.tables}
    assert own == {SHOPPING: (36, 0, 90), AMOUNT: (10, 36, 80), PRICE: (34, 36, 56), TOP: (56, 70, 0)}


def test_a_barrier_under_way_and_one_that_was_aborted(world: World) -> None:
    world.open(1)
    world.process(1, "load")
    world.start(1, "price")
    found = barrier_delay(world.meta, "shopping", 1)
    assert found.critical_path[-1].end == found.until
    assert found.critical_path[-1].job in {"amount", "price"}, "both hold it up"
    now = delay(world.meta, "shopping", timedelta(days=1))
    assert (now.points, now.present.barrier_id, now.present.stale) == ((), 1, None)
    assert ("spark", "price") in blame(now), "what is open is blamed, too"
    world.abort(1)
    with pytest.raises(UnknownBarrierError, match=r"found ABORTED: bad input; ask for the barrier that has its epoch"):
        barrier_delay(world.meta, "shopping", 1)


def test_of_what_was_computed_again_or_trimmed_it_is_told_how_late_it_was(
    world: World, url: str, begin: datetime
) -> None:
    world.committed(1)
    world.declare(JOBS[:-1])  # its last row, of a table that `top` writes, is not trimmed
    for number in (2, 3):
        world.committed(number)
    for number in (1, 2, 3):
        at_times(world, url, number, begin + timedelta(hours=number - 1))
    world.revised(3, "price")
    gone(world, 1)
    trim(world)
    found = delay(world.meta, "shopping", timedelta(days=1))
    assert [point.seconds for point in found.points] == [140, 140, 140]
    assert found.looked_into == 1
    for number in (1, 3):
        one = barrier_delay(world.meta, "shopping", number)
        seconds = {segment.part.value: segment.seconds for segment in one.critical_path}
        assert seconds == {"schedule": 4, "not known any more": 126, "commit": 10}
        assert one.tables == ()


def test_who_is_not_there(world: World) -> None:
    with pytest.raises(UnknownTopologyError):
        delay(world.meta, "nobody", timedelta(days=1))
    with pytest.raises(UnknownTableError):
        delay(world.meta, "shopping", timedelta(days=1), table="shop.nobody")
    found = delay(world.meta, "shopping", timedelta(days=1))
    assert (found.points, found.percentiles, found.blame, found.scheduled) == ((), {}, (), {})
    assert (found.present.barrier_id, found.present.stale, found.deliveries) == (None, None, ())


def test_the_epoch_of_an_aborted_barrier_is_told_of_the_one_that_has_it(world: World) -> None:
    world.open(1)
    world.process(1, "load")
    world.start(1, "price")
    lost = world.barrier(1)
    world.abort(1)
    world.committed(2)
    found = barrier_delay(world.meta, "shopping", 2)
    assert found.since == lost.timestamp < found.barrier.timestamp
    assert ("failed tries", "price", 1) in {
        (each.part.value, each.job, each.barrier_id) for each in found.critical_path
    }
    ended = world.barrier(2).commit_at
    assert ended is not None
    (point,) = delay(world.meta, "shopping", timedelta(days=36_500)).points
    assert point.seconds == found.seconds == (ended - lost.timestamp).total_seconds()
    assert ("failed tries", "price") in blame(delay(world.meta, "shopping", timedelta(days=36_500)))


def test_a_source_that_was_away_is_told(world: World) -> None:
    world.open(1, cuts=[Cut.later("files", "no answer")], max_open=1)
    world.request(1, "load")

    def last() -> tuple[str, str | None]:
        at = barrier_delay(world.meta, "shopping", 1).critical_path[-1]
        return at.part.value, at.job

    assert last() == ("source away", "load")
    world.meta.cuts.make("shopping", 1, Cut("files", None, {"day": 1}), "test")
    assert last() == ("waking", "load")
    world.start(1, "load")
    assert last() == ("spark", "load")
    assert world.barrier(1).max_open == 1
    parts = {each.part.value for each in barrier_delay(world.meta, "shopping", 1).critical_path}
    assert "source away" in parts, "it is remembered when it was read"


def test_a_sink_gets_later_what_readers_have(world: World) -> None:
    declaration = SinkDeclaration("prices", "reports", "postgresql", {PRICE: "public.price"})
    world.meta.deliveries.register("shopping", declaration, "test")
    for number in (1, 2, 3):
        world.committed(number)
    counts = {"counts": Counts(), "seconds": 1, "actor": "task"}
    world.meta.deliveries.delivered("shopping", "prices", Position(1, 0), **counts)
    world.meta.deliveries.delivered("shopping", "prices", Position(3, 0), first_barrier=2, **counts)
    world.committed(4)
    (sink,) = delay(world.meta, "shopping", timedelta(days=36_500)).deliveries
    assert (sink.sink, sink.dag, sink.lacks, sink.since) == ("prices", "reports", 1, world.barrier(4).commit_at)
    second, third = (barrier_delay(world.meta, "shopping", number).deliveries for number in (2, 3))
    assert [each.delivered_at for each in second] == [each.delivered_at for each in third], "in one step"
    assert second[0].seconds > third[0].seconds > 0
    assert sink.percentiles["max"] == max(
        second[0].seconds, barrier_delay(world.meta, "shopping", 1).deliveries[0].seconds
    )
    assert barrier_delay(world.meta, "shopping", 4).deliveries == ()
