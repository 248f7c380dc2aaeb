"""Opening barriers: in order, on the head, within the limit, with cuts and baselines."""

from __future__ import annotations

import dataclasses
from datetime import timedelta, timezone

import pytest

from airflow_barrier.metaservice.barriers import Opening
from airflow_barrier.protocol.errors import (
    BarrierOrderError,
    ConfigurationError,
    HeadMovedError,
    IllegalTransitionError,
    SourceDataError,
    TooManyOpenBarriersError,
    TopologyError,
    UnknownBarrierError,
)
from airflow_barrier.protocol.records import Cut, JobStart
from airflow_barrier.protocol.states import BarrierState, TableState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import (
    AMOUNT,
    AMOUNT_JOB,
    FILES,
    JOBS,
    LOAD_JOB,
    PRICE,
    PRICE_JOB,
    SHOPPING,
    TOP,
    World,
    day,
    joining,
)
from tests.support.runs import run_of


def test_the_first_opens_on_the_baseline(world: World) -> None:
    assert world.meta.barriers.head("shopping") is None
    assert world.meta.barriers.unjoined("shopping") == (AMOUNT, PRICE, SHOPPING, TOP)
    first = world.open(1, baseline={AMOUNT: 11, PRICE: None, SHOPPING: 2**62, TOP: None})
    assert (first.barrier_id, first.predecessor, first.state) == (1, 0, BarrierState.OPEN)
    assert (first.timestamp, first.run, first.timestamp_from) == (day(1), run_of("scheduled__1"), "data interval end")
    assert set(world.tables(1).values()) == {TableState.PENDING}
    assert {p.table: p.job for p in world.meta.barriers.progress("shopping", 1)} == {
        AMOUNT: "amount", PRICE: "price", SHOPPING: "load", TOP: "top",
    }  # fmt: skip
    assert world.snapshots(0) == {AMOUNT: 11, PRICE: None, SHOPPING: 2**62, TOP: None}
    assert world.state(0) is BarrierState.COMMIT
    assert world.meta.barriers.unjoined("shopping") == ()


def test_ids_and_timestamps_rise_and_each_names_its_predecessor(world: World) -> None:
    barriers = [world.open(number) for number in (1, 2, 5)]
    assert [(b.barrier_id, b.predecessor, b.timestamp) for b in barriers] == [
        (1, 0, day(1)), (2, 1, day(2)), (3, 2, day(5)),
    ]  # fmt: skip
    assert world.meta.barriers.uncommitted("shopping") == barriers
    assert world.meta.barriers.head("shopping") == barriers[-1]


def test_times_are_utc_whatever_zone_they_came_in(world: World) -> None:
    world.open(1)
    cest = day(2).astimezone(timezone(timedelta(hours=2)))
    opened = world.meta.barriers.open(Opening(
        "shopping", cest, topology_version=1, cuts=[Cut("files", None, {})], predecessor=1, run=run_of("r"),
        timestamp_from="o", max_open=9, baseline={}, starts=[], actor="test",
    ))  # fmt: skip
    assert opened.timestamp == day(2)
    assert opened.timestamp.utcoffset() == opened.opened_at.utcoffset() == timedelta(0)
    assert world.meta.barriers.at("shopping", cest) == opened


@pytest.mark.kills("timestamps-rise")
@pytest.mark.parametrize(("number", "relation"), [(2, "equals"), (1, "is before")])
def test_a_timestamp_not_after_the_head_names_both_and_the_run(world: World, number: int, relation: str) -> None:
    world.open(1)
    world.open(2)
    with pytest.raises(BarrierOrderError) as refused:
        world.open(number, run=run_of("manual__x"))
    for part in (day(2).isoformat(), "barrier 2", "scheduled__2", day(number).isoformat(), relation):
        assert part in str(refused.value)


def test_a_timestamp_without_zone_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        world.meta.barriers.open(Opening(
            "shopping", day(1).replace(tzinfo=None), topology_version=1, cuts=[], predecessor=0, run=run_of("r"),
            timestamp_from="o", max_open=1, baseline={}, starts=[], actor="test",
        ))  # fmt: skip


@pytest.mark.kills(
    "opens-on-the-head", "opens-on-what-was-seen", "opens-with-members-that-were-seen", "opens-on-one-baseline"
)
def test_a_look_that_is_stale_is_told_to_look_again(world: World) -> None:
    with pytest.raises(HeadMovedError, match="expected barrier 1 to be the newest, found 0"):
        world.open(1, predecessor=1)
    baseline = dict.fromkeys(world.meta.barriers.unjoined("shopping"))
    with pytest.raises(HeadMovedError, match=rf"expected table {TOP} at snapshot 1, .* found it at None"):
        world.open(1, baseline=baseline, starts=joining(JOBS, {**baseline, TOP: 1}))
    world.open(1)
    with pytest.raises(HeadMovedError, match="expected barrier 0 to be the newest, found 1"):
        world.open(2, predecessor=0)
    with pytest.raises(HeadMovedError, match="a cut of each source"):
        world.open(2, cuts=[])
    with pytest.raises(HeadMovedError, match="a cut of each source"):
        world.open(2, cuts=[Cut("files", None, {}), Cut("kafka", None, {})])
    with pytest.raises(HeadMovedError, match=r"baseline of each table that joins \(none\), found shop\.x"):
        world.open(2, baseline={"shop.x": 1})
    with pytest.raises(HeadMovedError, match=r"how each job that joins begins \(none\), found top"):
        world.open(2, starts=[JobStart("top", None, {TOP: None}, {}, {})])
    with pytest.raises(HeadMovedError, match="expected version 7, found 1; a job joined or left meanwhile: look again"):
        world.open(2, topology_version=7)
    assert [b.barrier_id for b in world.meta.barriers.uncommitted("shopping")] == [1]


@pytest.mark.kills("max-open-barriers")
def test_no_more_than_max_open(world: World) -> None:
    world.open(1, max_open=2)
    world.open(2, max_open=2)
    with pytest.raises(TooManyOpenBarriersError, match=r"fewer than 2 .* found 2; the oldest is barrier 1 .*OPEN"):
        world.open(3, max_open=2)
    world.process_all(1)
    world.commit(1)
    assert world.open(3, max_open=2).barrier_id == 3


def test_a_topology_that_every_dag_has_left_opens_nothing(world: World) -> None:
    world.declare([])
    with pytest.raises(TopologyError, match="every DAG has left it"):
        world.open(1)


def test_barriers_are_found_by_time_and_by_run(world: World) -> None:
    world.open(1)
    second = world.open(2)
    assert world.meta.barriers.at("shopping", day(2)) == second
    assert world.meta.barriers.at("shopping", day(3)) is None
    assert world.meta.barriers.of_run("shopping", run_of("scheduled__2")) == second
    assert world.meta.barriers.of_run("shopping", run_of("scheduled__3")) is None
    with pytest.raises(UnknownBarrierError, match="found barriers up to 2"):
        world.barrier(3)


# --- cuts ---------------------------------------------------------------------------------------------


def test_cuts_come_back_as_they_were(world: World) -> None:
    first = Cut("files", None, {"high": "é", "n": 2**60}, ("b.parquet", "a.parquet"))
    world.open(1, cuts=[first])
    world.open(2, cuts=[Cut("files", first.end, {"high": "z"})])
    assert world.meta.cuts.of("shopping", 1) == {"files": dataclasses.replace(first, items=("a.parquet", "b.parquet"))}
    assert world.meta.cuts.of("shopping", 2) == {"files": Cut("files", first.end, {"high": "z"})}
    assert world.meta.cuts.of("shopping", 0) == {}


@pytest.mark.kills("item-in-one-cut")
def test_an_item_is_in_one_cut_only(world: World) -> None:
    world.open(1, items=["a", "b"])
    assert world.meta.cuts.used_items("shopping", "files", ["a", "c"]) == {"a"}
    assert world.meta.cuts.used_items("shopping", "other", ["a"]) == set()
    with pytest.raises(SourceDataError, match=r"source files: .*such as b; an item is read once"):
        world.open(2, items=["b", "c"])
    assert world.open(2, items=["c"]).barrier_id == 2


def test_many_items(world: World) -> None:
    items = [f"f{number:06}" for number in range(40_000)]
    world.open(1, items=items)
    assert world.meta.cuts.of("shopping", 1)["files"].items == tuple(items)
    assert len(world.meta.cuts.used_items("shopping", "files", [*items, "new"])) == 40_000


@pytest.mark.kills("cut-that-was-read")
def test_a_cut_is_pinned_anew_until_something_closed_over_it(world: World) -> None:
    world.open(1, items=["a", "b"])
    world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 1}, ("b", "c")), "test")
    assert world.meta.cuts.of("shopping", 1)["files"].items == ("b", "c")
    assert world.open(2, items=["a"]).barrier_id == 2, "a is free again"
    with pytest.raises(SourceDataError):
        world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 1}, ("a",)), "test")
    assert world.meta.cuts.of("shopping", 1)["files"].items == ("b", "c")
    world.close(world.start(1, "load"))
    with pytest.raises(IllegalTransitionError, match="closed over it"):
        world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 1}, ("c",)), "test")


@pytest.mark.kills("cut-that-was-built-on")
def test_a_cut_that_the_next_one_begins_at_is_not_changed_under_it(world: World) -> None:
    """What a file still holds for later epochs would be read twice, or never."""
    world.open(1, cuts=[Cut("files", None, {"day": 1, "held": ["b"], "files": ["a", "b"]})])
    world.open(2, cuts=[Cut("files", {"day": 1, "held": ["b"]}, {"day": 2, "held": [], "files": []})])
    world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 1, "held": ["b"], "files": ["a2", "b"]}), "test")
    moved = Cut("files", None, {"day": 1, "held": ["a2", "b"], "files": ["a2", "b"]})
    with pytest.raises(IllegalTransitionError, match=r"that of barrier 2 .* begins, found .* change its held: abort"):
        world.meta.cuts.repin("shopping", 1, moved, "test")
    world.abort(2)
    world.meta.cuts.repin("shopping", 1, moved, "test")
    assert world.meta.cuts.of("shopping", 1)["files"].end["held"] == ["a2", "b"]


@pytest.mark.kills("cut-begins-where-the-last-ended")
def test_a_barrier_does_not_open_over_a_cut_that_was_changed_meanwhile(world: World) -> None:
    world.open(1, cuts=[Cut("files", None, {"day": 1, "held": ["b"]})])
    looked = Cut("files", {"day": 1, "held": ["b"]}, {"day": 2, "held": []})
    world.meta.cuts.repin("shopping", 1, Cut("files", None, {"day": 1, "held": []}), "test")
    with pytest.raises(HeadMovedError, match=r"begin where that of barrier 1 ends, found that its held changed"):
        world.open(2, cuts=[looked])


# --- joining, leaving, coming back --------------------------------------------------------------------


def test_membership_is_frozen_when_a_barrier_opens(world: World) -> None:
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.open(1)
    world.declare([LOAD_JOB, AMOUNT_JOB, PRICE_JOB])
    assert set(world.tables(1)) == {AMOUNT, SHOPPING}
    assert world.meta.barriers.unjoined("shopping") == (PRICE,)
    world.open(2, baseline={PRICE: 77})
    assert set(world.tables(2)) == {AMOUNT, PRICE, SHOPPING}
    assert world.barrier(1).topology_version < world.barrier(2).topology_version
    world.process_all(1)
    assert world.state(1) is BarrierState.PRECOMMIT
    world.process(2, "load")
    joined = world.start(2, "price")
    assert joined.bases == {PRICE: 77}, "no row at the predecessor: the baseline"
    assert joined.previous == {SHOPPING: world.snapshots(1)[SHOPPING]}


def test_a_table_that_comes_back_starts_from_where_it_is_then(world: World) -> None:
    world.committed(1)
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.committed(2)
    world.declare(JOBS)
    assert world.meta.barriers.unjoined("shopping") == (PRICE, TOP)
    world.open(3, baseline={PRICE: 88, TOP: None})
    assert world.snapshots(0)[PRICE] == 88
    world.process(3, "load")
    assert world.start(3, "price").bases == {PRICE: 88}


@pytest.mark.kills("comes-back-after-publish")
def test_a_table_cannot_come_back_while_it_is_still_to_be_published(world: World) -> None:
    world.open(1)
    world.declare([LOAD_JOB, AMOUNT_JOB])
    world.open(2)
    world.declare(JOBS)
    with pytest.raises(TooManyOpenBarriersError, match=r"table shop\.(price|top) left and comes back"):
        world.open(3)
    world.process_all(1)
    world.commit(1)
    assert world.open(3).barrier_id == 3


def test_a_table_whose_first_barrier_was_aborted_joins_anew(world: World) -> None:
    world.declare([LOAD_JOB])
    world.committed(1)
    world.declare([LOAD_JOB, PRICE_JOB])
    world.open(2, baseline={PRICE: 5})
    world.abort(2)
    assert world.meta.barriers.unjoined("shopping") == (PRICE,)
    world.open(3, baseline={PRICE: 6})
    world.process(3, "load")
    assert world.start(3, "price").bases == {PRICE: 6}


def test_a_job_that_left_does_not_hold_up_precommit_of_later_barriers_but_their_commit(world: World) -> None:
    world.declare([LOAD_JOB, Job("other", "dag", outlets=("shop.other",))])
    world.open(1)
    world.process(1, "load")
    world.declare([LOAD_JOB])
    world.open(2)
    world.process(2, "load")
    assert (world.state(1), world.state(2)) == (BarrierState.OPEN, BarrierState.PRECOMMIT)
    assert FILES.name in world.meta.cuts.of("shopping", 2)
