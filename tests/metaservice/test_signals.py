"""What somebody is told of a topology: each thing once, by whoever looks at intervals that tile the time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import update

from airflow_barrier.coordinator.signals import signals
from airflow_barrier.metaservice import audit, schema
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError, UnknownTopologyError
from airflow_barrier.protocol.signals import KINDS, Signal, SignalKind, check_kinds
from airflow_barrier.protocol.topology import Job
from tests.metaservice.test_deliveries import B1, B2, B3, PRICES, delivered, register
from tests.metaservice.world import PRICE, World, changed_by_hand
from tests.support.runs import run_of

TIMES = ("opened_at", "precommit_at", "committing_at", "commit_at", "aborted_at")
LOAD = Job("load", "shop", outlets=("shop.orders",))
RATIO = Job("ratio", "crm", inlets=("shop.orders",), outlets=("crm.ratio",))
MINUTE = timedelta(minutes=1)


def later(meta: MetaService, by: timedelta) -> None:
    """All that has happened happened earlier by so much."""
    with changed_by_hand(meta) as connection:
        for table, key, columns in (
            (schema.barrier, ("topology", "line", "barrier_id"), ("timestamp", *TIMES)),
            (schema.table_progress, ("topology", "line", "barrier_id", "table_name"), ("processed_at",)),
            (schema.attempt, ("attempt_id",), ("requested_at", "started_at", "closed_at", "processed_at", "ended_at")),
            (schema.audit, ("audit_id",), ("at",)),
            (schema.sink, ("topology", "name"), ("delivered_at", "failed_at", "created_at")),
            (schema.delivery, ("topology", "sink", "barrier_id", "revision"), ("delivered_at",)),
        ):
            # the oldest first: no two barriers have one timestamp at any moment
            oldest_first = table.select().order_by(*(table.c[name] for name in key))
            for row in connection.execute(oldest_first).mappings().all():
                here = [table.c[name] == row[name] for name in key]
                values = {name: row[name] - by for name in columns if row[name] is not None}
                if values:
                    connection.execute(update(table).where(*here).values(values))


class Looking:
    """Somebody who looks at the interval since the last look, whenever the test says that it is time to."""

    def __init__(self, world: World, *on: SignalKind) -> None:
        self._world, self._on = world, on or KINDS
        self._passed = timedelta(0)
        self._looked = world.meta.now()

    def passes(self, by: timedelta) -> None:
        later(self._world.meta, by)
        self._passed += by

    def told(self) -> list[Signal]:
        """What is told at the end of an interval of which the beginning was the last one's end."""
        now = self._world.meta.now()
        # in the time of then: what was looked at has gone to the past with all the rest
        found = signals(self._world.meta, self._world.name, self._looked - self._passed, now, self._on)
        self._looked, self._passed = now, timedelta(0)
        return list(found)

    def every(self, by: timedelta, times: int) -> list[Signal]:
        """What is told in so many intervals of this length."""
        found = []
        for _ in range(times):
            self.passes(by)
            found += self.told()
        return found


def kinds(told: Iterable[Signal]) -> list[tuple[str, int | None, str | None]]:
    return [(each.kind, each.barrier_id, each.dag) for each in told]


def opened(world: World, number: int) -> int:
    return world.open(number, run=run_of(f"shop/scheduled__{number}")).barrier_id


@pytest.fixture
def shop(meta: MetaService) -> World:
    """Three hourly barriers, each of which took twelve minutes."""
    world = World(meta, "shop", ())
    world.declare([LOAD], "shop")
    world.declare([RATIO], "crm")
    for number in (1, 2, 3):
        opened(world, number)
        later(meta, timedelta(minutes=12))
        world.process_all(number)
        world.commit(number)
        later(meta, timedelta(minutes=48))
    return world


def test_a_job_is_late_once(shop: World) -> None:
    looking = Looking(shop)
    number = opened(shop, 4 * 365 * 10)
    shop.process(number, "load")
    shop.request(number, "ratio")
    told = looking.every(5 * MINUTE, 12)
    assert kinds(told) == [("late", 4, "crm")]
    assert told[0].summary == "crm.ratio holds up barrier 4 (job ratio of DAG crm: requested)"


def test_a_moment_stays_whatever_is_committed_meanwhile(meta: MetaService) -> None:
    """The usual time is that of when the wait began: a slow barrier would move the moment to after the last look."""
    world = World(meta, "shop", ())
    world.declare([LOAD], "shop")
    world.declare([RATIO], "crm")
    before = opened(world, 1)
    later(meta, 12 * MINUTE)
    world.process_all(before)
    world.commit(before)
    looking = Looking(world, "late")
    first, second = opened(world, 2), opened(world, 3)
    for each in (first, second):
        world.process(each, "load")
    world.process(first, "ratio")
    assert looking.every(5 * MINUTE, 4) == []
    found = looking.every(5 * MINUTE, 2)
    assert sorted(kinds(found)) == [("late", first, "shop"), ("late", second, "crm")]
    world.commit(first)  # at 30 minutes
    assert looking.every(5 * MINUTE, 8) == []


def test_who_does_not_commit_and_who_does_not_open_are_told_once(shop: World) -> None:
    looking = Looking(shop, "late")
    number = opened(shop, 4 * 365 * 10)
    shop.process_all(number)
    found = looking.every(7 * MINUTE, 10)
    assert [(each.barrier_id, each.summary[:40]) for each in found] == [(4, "barrier 4 is staged, nobody commits it: ")]
    shop.commit(number)
    # timestamps of hours, and of a year
    assert looking.every(7 * MINUTE, 10) == []


def test_that_nobody_opens_is_told_from_when_nothing_is_open_any_more(meta: MetaService) -> None:
    world = World(meta, "shop", ())
    world.declare([LOAD], "shop")
    for number in (1, 2, 3):
        opened(world, number)
        if number < 3:
            world.process_all(number)
            world.commit(number)
            later(meta, 10 * MINUTE)
    with changed_by_hand(meta) as connection:
        connection.execute(update(schema.barrier).values(timestamp=schema.barrier.c.opened_at))
    looking = Looking(world, "late")
    world.process_all(3)
    looking.passes(30 * MINUTE)  # the third stays open for long
    assert [each.barrier_id for each in looking.told()] == [3]
    world.commit(3)
    found = looking.every(MINUTE, 5)
    assert [(each.barrier_id, each.summary.partition(",")[0]) for each in found] == [
        (None, "no barrier was opened after 3")
    ]


def test_that_readers_have_something_too_old_is_told_once(shop: World) -> None:
    number = opened(shop, 4 * 365 * 10)
    with changed_by_hand(shop.meta) as connection:
        here = (schema.barrier.c.topology == "shop", schema.barrier.c.barrier_id == number)
        connection.execute(update(schema.barrier).where(*here).values(timestamp=shop.meta.now()))
    shop.process_all(number)
    shop.commit(number)
    shop.declare([replace(LOAD, freshness=1800.0)], "shop")
    looking = Looking(shop, "late")
    found = looking.every(7 * MINUTE, 10)
    assert [each.summary for each in found] == ["readers have barrier 4, older than the objective of 30 min"]


def test_blocked_and_aborted_are_told_once(shop: World) -> None:
    looking = Looking(shop)
    number = opened(shop, 4 * 365 * 10)
    shop.process_all(number)
    shop.begin_commit(number)
    shop.meta.publishing.block("shop", number, "shop.orders was written by somebody else", "test")
    found = looking.every(5 * MINUTE, 12)
    assert kinds(found) == [("blocked", 4, "shop")]
    assert found[0].summary == "barrier 4 is BLOCKED: shop.orders was written by somebody else"
    shop.meta.publishing.unblock("shop", number, "put back", "test")
    shop.publish(number)
    first, second = opened(shop, 4 * 365 * 10 + 1), opened(shop, 4 * 365 * 10 + 2)
    shop.abort(first)
    found = looking.every(10 * timedelta(seconds=1), 5)
    assert kinds(found) == [("aborted", first, "shop"), ("aborted", second, "shop")]
    assert found[0].summary.startswith(f"barrier {first} was aborted by test: bad input")


def test_a_revision_is_told_once_and_what_it_gives_up_is_not(shop: World) -> None:
    looking = Looking(shop)
    cancelled = shop.revise(2, "load")
    shop.meta.revisions.cancel("shop", cancelled.revision, "not needed", "test")
    assert looking.every(MINUTE, 3) == []
    revision = shop.revised(2, "ratio")
    found = looking.every(MINUTE, 5)
    assert kinds(found) == [("revised", 2, None)]
    assert found[0].summary == (
        f"revision {revision.revision} is published: readers have crm.ratio computed again from barrier 2 on: corrected"
    )


@pytest.fixture
def delivering(meta: MetaService) -> World:
    """Two barriers that a sink received six minutes after their commit."""
    world = World(meta)
    register(world)
    for number, position in ((1, B1), (2, B2)):
        world.committed(number)
        later(meta, 6 * MINUTE)
        delivered(world, position)
    return world


def test_a_sink_that_fails_is_told_at_the_first_failure_in_a_row(delivering: World) -> None:
    looking = Looking(delivering, "delivery_failing")

    def fails() -> None:
        delivering.meta.deliveries.failed(delivering.name, "prices", "no answer", "task 1")

    found = []
    for _ in range(3):
        fails()
        found += looking.every(MINUTE, 1)
    assert [(each.dag, each.summary) for each in found] == [("dag", "sink prices of shopping fails: no answer")]
    delivered(delivering, B3)
    fails()
    assert len(looking.every(MINUTE, 3)) == 1


def test_a_sink_that_is_behind_is_told_when_it_takes_long_and_when_nothing_is_held_any_more(delivering: World) -> None:
    looking = Looking(delivering, "delivery_failing")
    delivering.meta.deliveries.hold(delivering.name, "prices", 3600, "test")
    delivering.committed(3)
    found = looking.every(5 * MINUTE, 20)
    began = "sink prices of shopping lacks 1 committed barrier, for longer than the "
    assert [each.summary.removeprefix(began).partition(" that ")[0].partition(".")[0] for each in found] == [
        "12 min",
        "1 h",
    ]
    assert delivering.meta.deliveries.holding(delivering.name) == []


def test_of_a_paused_sink_only_the_end_of_its_hold_is_told(delivering: World) -> None:
    looking = Looking(delivering, "delivery_failing")
    delivering.meta.deliveries.hold(delivering.name, "prices", 3600, "test")
    delivering.meta.deliveries.pause(delivering.name, "prices", "test", "moving house")
    delivering.committed(3)
    assert ["held" in each.summary for each in looking.every(5 * MINUTE, 20)] == [True]


def test_a_sink_that_keeps_up_is_no_signal(delivering: World) -> None:
    register(delivering, SinkDeclaration("other", "crm", "files", {PRICE: "p"}, {"folder": "/x", "key": ["id"]}))
    looking = Looking(delivering, "delivery_failing")
    assert looking.every(30 * MINUTE, 4) == []
    assert PRICES.name == "prices"


@pytest.mark.parametrize("page", [1, 3, 10_000])
def test_all_pages_of_the_audit_are_read_back_to_the_beginning_of_the_interval(
    shop: World, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_PAGE", page)
    moments: list[datetime] = [shop.meta.now()]
    for number in range(4, 8):
        shop.abort(opened(shop, 4 * 365 * 10 + number))
        later(shop.meta, 5 * MINUTE)
    moments = [shop.meta.now() - 5 * MINUTE * back for back in (5, 4, 3, 2, 1, 0)]
    told = [[each.barrier_id for each in signals(shop.meta, "shop", *each)] for each in pairwise(moments)]
    assert [one for some in told for one in some] == [4, 5, 6, 7]
    assert max(map(len, told)) == 1


def test_a_look_reads_no_farther_back_than_to_its_beginning(shop: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4, 20):
        shop.abort(opened(shop, 4 * 365 * 10 + number))
    later(shop.meta, timedelta(days=1))
    shop.abort(opened(shop, 4 * 365 * 10 + 30))
    monkeypatch.setattr(audit, "_PAGE", 4)
    asked: list[object] = []
    record = audit.to_record

    def counted(*given: object) -> object:
        asked.append(given)
        return record(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(audit, "to_record", counted)
    now = shop.meta.now()
    assert kinds(signals(shop.meta, "shop", now - 5 * MINUTE, now + MINUTE, ["aborted"])) == [("aborted", 20, "shop")]
    assert len(asked) == 1


def test_what_nobody_wants_is_not_told_and_what_is_no_kind_is_refused(shop: World) -> None:
    since = shop.meta.now()
    shop.abort(opened(shop, 4 * 365 * 10))
    until = shop.meta.now() + MINUTE
    assert signals(shop.meta, "shop", since, until, ["late", "revised"]) == ()
    assert kinds(signals(shop.meta, "shop", since, until)) == [("aborted", 4, "shop")]
    with pytest.raises(UnknownTopologyError):
        signals(shop.meta, "nobody", since, until)
    with pytest.raises(ConfigurationError, match=r"expected some of failed, late, blocked, .* found 'lately'"):
        check_kinds(["late", "lately"])
