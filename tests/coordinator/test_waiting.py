"""Every way to name what one waits for, and all that can become of that barrier: what somebody who waits is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_barrier.coordinator.waiting import (
    AnyCondition,
    Condition,
    Delivered,
    DelivererEnd,
    TopologyView,
    look,
)
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.deliveries import Counts, Position, SinkDeclaration
from airflow_barrier.protocol.errors import ConfigurationError, UnknownRevisionError, UnknownTableError
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Job
from tests.metaservice.world import World, day

#: What is waited for: the barrier of day 2, which is barrier 2 unless another day took its number; revision 1.
CONDITIONS: dict[str, Callable[[str], AnyCondition]] = {
    "number, opened": lambda name: Condition(None, barrier_id=2),
    "number, table": lambda name: Condition("PROCESSED", barrier_id=2, tables=(sums(name),)),
    "number": lambda name: Condition("COMMIT", barrier_id=2),
    "time, opened": lambda name: Condition(None, timestamp=day(2)),
    "time, table": lambda name: Condition("PROCESSED", timestamp=day(2), tables=(sums(name),)),
    "time": lambda name: Condition("COMMIT", timestamp=day(2)),
    "at least, staged": lambda name: Condition("PRECOMMIT", timestamp=day(2), tables=(sums(name),), or_newer=True),
    "at least": lambda name: Condition("COMMIT", timestamp=day(2), tables=(sums(name),), or_newer=True),
    "line": lambda name: Condition("PRECOMMIT", barrier_id=2, line=1),
    "sink, number": lambda name: Delivered("sums", barrier_id=2),
    "sink, time": lambda name: Delivered("sums", timestamp=day(2)),
}


def rows(name: str) -> str:
    return f"{name}.rows"


def sums(name: str) -> str:
    return f"{name}.sums"


class Waited(World):
    """A topology of two jobs and a sink, whose barrier of day 1 is committed."""

    def __init__(self, meta: MetaService, name: str) -> None:
        load = Job("load", "dag", outlets=(rows(name),))
        super().__init__(meta, name, [load, Job("sums", "other", inlets=load.outlets, outlets=(sums(name),))])
        self.committed(1)
        declared = SinkDeclaration("sums", "other", "files", {sums(name): "sums"})
        self.meta.deliveries.register(name, declared, "test")

    def declare(self, jobs: list[Job], owner: str = "dag") -> int:  # type: ignore[override]
        return max(self.meta.topologies.register(self.name, job.owner, [job], "test") for job in jobs)

    def told(self) -> dict[str, str]:
        """In a word for each condition, see `TABLE`."""
        return {how: self._told(condition(self.name)) for how, condition in CONDITIONS.items()}

    def _told(self, condition: AnyCondition) -> str:
        try:
            found = look(TopologyView(self.meta, self.name), condition)
        except UnknownTableError:
            return "no_table"
        except UnknownRevisionError:
            return "no_line"
        if found.waits_for is None:
            return "reached" if found.never is None else "look"
        if found.never is None:
            return "waits"
        assert ("was aborted" in found.never) != ("any more, since" in found.never)
        return "aborted" if "was aborted" in found.never else "passed"

    def deliver(self, barrier_id: int) -> None:
        self.meta.deliveries.delivered(
            self.name, "sums", Position(barrier_id, 0), counts=Counts(), seconds=1, actor="test"
        )

    # --- what becomes of the barrier --------------------------------------------------------------

    def give_up(self, number: int) -> None:
        self.meta.barriers.abort(self.name, number, "bad input", "test")

    def stage(self, number: int) -> None:
        self.process_all(self.open(number).barrier_id)

    def expire(self) -> None:
        self.committed(2)
        self.committed(3)
        assert self.meta.expiry.expire(self.name, [1, 2], "test") == [1, 2]

    def trim(self) -> None:
        self.expire()
        self._trim(1, 2)

    def trim_later(self) -> None:
        """What was aborted is trimmed with what was committed around it."""
        self.committed(3)
        self.committed(4)
        assert self.meta.expiry.expire(self.name, [1, 3], "test") == [1, 3]
        self._trim(1, 3)

    def _trim(self, *numbers: int) -> None:
        self.meta.expiry.expired(self.name, numbers, "test")
        assert (
            self.meta.expiry.trim(self.name, datetime.now(timezone.utc) + timedelta(days=1), "test")[-1] == numbers[-1]
        )

    def extend(self, first: int) -> None:
        """A revision begins at a barrier, and takes in those that were opened since the newest committed one."""
        self.meta.revisions.extend(self.name, self.revise(first, "load").revision, "test")

    def withdraw(self) -> None:
        self.meta.topologies.leave(self.name, "other", "sums", "done with it", "test")

    def go_on(self) -> None:
        """All that is open is committed or published, then day 2 runs unless it is over, then day 5."""
        revision = self.meta.revisions.under_way(self.name)
        if revision is not None:
            self.meta.revisions.extend(self.name, revision.revision, "test")
            self.replay(revision)
            self.begin_swap(revision)
            assert self.swap(revision)
        for barrier in self.meta.barriers.uncommitted(self.name):
            if barrier.state is not BarrierState.COMMITTING:
                self.process_all(barrier.barrier_id)
                self.begin_commit(barrier.barrier_id)
            assert self.publish(barrier.barrier_id)
        for number in (2, 5):
            head = self.meta.barriers.head(self.name)
            if head is None or head.timestamp < day(number):
                self.committed(number)
        self.deliver_newest()

    def end_all(self) -> None:
        """All that may be given up is, and the next day's barrier is committed."""
        revision = self.meta.revisions.under_way(self.name)
        if revision is not None:
            self.meta.revisions.cancel(self.name, revision.revision, "no", "test")
        open_now = self.meta.barriers.uncommitted(self.name)
        if open_now and open_now[0].state is BarrierState.COMMITTING:
            assert self.publish(open_now[0].barrier_id)
        elif open_now:
            self.give_up(open_now[0].barrier_id)
        self.committed(5)
        self.deliver_newest()

    def deliver_newest(self) -> None:
        self.deliver(self.meta.answers.readable(self.name)[-1].barrier_id)


def fate(*steps: Callable[[Waited], object]) -> Callable[[Waited], None]:
    def happen(world: Waited) -> None:
        for step in steps:
            step(world)

    return happen


FATES: dict[str, Callable[[Waited], None]] = {
    "not_yet": fate(),
    "opened": fate(lambda w: w.open(2)),
    "staged": fate(lambda w: w.stage(2)),
    "decided": fate(lambda w: w.stage(2), lambda w: w.begin_commit(2)),
    "committed": fate(lambda w: w.committed(2)),
    "delivered": fate(lambda w: w.committed(2), lambda w: w.deliver(2)),
    "delivered_before": fate(lambda w: w.committed(2), lambda w: w.deliver(1)),
    "delivered_later": fate(lambda w: w.committed(2), lambda w: w.committed(3), lambda w: w.deliver(3)),
    "aborted": fate(lambda w: w.stage(2), lambda w: w.give_up(2)),
    "reopened": fate(lambda w: w.open(2), lambda w: w.give_up(2), lambda w: w.open(2)),
    "reopened_committed": fate(lambda w: w.open(2), lambda w: w.give_up(2), lambda w: w.committed(2)),
    # numbers count up: the one that passes by is barrier 2
    "passed_by": fate(lambda w: w.open(3)),
    "passed_by_for_a_while": fate(lambda w: w.open(3), lambda w: w.give_up(2)),
    "aborted_passed_by": fate(lambda w: w.open(2), lambda w: w.give_up(2), lambda w: w.open(3)),
    "aborted_newer": fate(lambda w: w.open(2), lambda w: w.give_up(2), lambda w: w.committed(3)),
    "expired": fate(Waited.expire),
    "trimmed": fate(Waited.trim),
    "aborted_trimmed": fate(lambda w: w.stage(2), lambda w: w.give_up(2), Waited.trim_later),
    "left_before": fate(Waited.withdraw, lambda w: w.open(2)),
    "left_since": fate(lambda w: w.open(2), Waited.withdraw),
    "in_revision": fate(lambda w: w.committed(2), lambda w: w.revise(2, "load")),
    "in_revision_staged": fate(lambda w: w.committed(2), lambda w: w.replay(w.revise(2, "load"))),
    "in_revision_open": fate(lambda w: w.open(2), lambda w: w.extend(1)),
    "in_revision_aborted": fate(lambda w: w.open(2), lambda w: w.extend(1), lambda w: w.give_up(2)),
    "not_in_revision_yet": fate(lambda w: w.revise(1, "load"), lambda w: w.open(2)),
    "aborted_before_in_revision": fate(lambda w: w.revise(1, "load"), lambda w: w.open(2), lambda w: w.give_up(2)),
    "revised": fate(lambda w: w.committed(2), lambda w: w.revised(2, "load")),
    "revision_cancelled": fate(
        lambda w: w.committed(2), lambda w: w.meta.revisions.cancel(w.name, w.revise(2, "load").revision, "no", "test")
    ),
}

#: What is told. "look": the wait is over, and its task has to see what came of it; "aborted", "passed": over, and the
#: task fails; "no_table", "no_line": refused. The columns are those of `CONDITIONS`.
TABLE = """
                            number,                  time,                    at least,                  sink,
                            opened  table    number  opened  table    time    staged    at least line    number  time
not_yet                     waits   waits    waits   waits   waits    waits   waits     waits    no_line waits   waits
opened                      reached waits    waits   reached waits    waits   waits     waits    no_line waits   waits
staged                      reached reached  waits   reached reached  waits   reached   waits    no_line waits   waits
decided                     reached reached  waits   reached reached  waits   reached   waits    no_line waits   waits
committed                   reached reached  reached reached reached  reached reached   reached  no_line waits   waits
delivered                   reached reached  reached reached reached  reached reached   reached  no_line reached reached
delivered_before            reached reached  reached reached reached  reached reached   reached  no_line waits   waits
delivered_later             reached reached  reached reached reached  reached reached   reached  no_line reached reached
aborted                     reached aborted  aborted waits   aborted  aborted waits     waits    no_line aborted aborted
reopened                    reached aborted  aborted reached waits    waits   waits     waits    no_line aborted waits
reopened_committed          reached aborted  aborted reached reached  reached reached   reached  no_line aborted waits
passed_by                   reached waits    waits   look    passed   passed  waits     waits    no_line waits   passed
passed_by_for_a_while       reached aborted  aborted waits   waits    waits   waits     waits    no_line aborted waits
aborted_passed_by           reached aborted  aborted look    aborted  aborted waits     waits    no_line aborted aborted
aborted_newer               reached aborted  aborted look    aborted  aborted reached   reached  no_line aborted aborted
expired                     reached reached  reached reached reached  reached reached   reached  no_line waits   waits
trimmed                     reached reached  reached reached reached  reached reached   reached  no_line waits   waits
aborted_trimmed             reached aborted  aborted look    aborted  aborted reached   reached  no_line aborted aborted
left_before                 reached no_table waits   reached no_table waits   waits     waits    no_line waits   waits
left_since                  reached waits    waits   reached waits    waits   waits     waits    no_line waits   waits
in_revision                 reached reached  reached reached reached  reached reached   reached  waits   waits   waits
in_revision_staged          reached reached  reached reached reached  reached reached   reached  reached waits   waits
in_revision_open            reached waits    waits   reached waits    waits   waits     waits    waits   waits   waits
in_revision_aborted         reached aborted  aborted waits   aborted  aborted waits     waits    aborted aborted aborted
not_in_revision_yet         reached waits    waits   reached waits    waits   waits     waits    waits   waits   waits
aborted_before_in_revision  reached aborted  aborted waits   aborted  aborted waits     waits    waits   aborted aborted
revised                     reached reached  reached reached reached  reached reached   reached  reached waits   waits
revision_cancelled          reached reached  reached reached reached  reached reached   reached  reached waits   waits
"""
EXPECTED = {
    name: dict(zip(CONDITIONS, cells, strict=True))
    for name, *cells in (line.split() for line in TABLE.strip().splitlines()[2:])
}


@pytest.fixture(scope="module")
def meta(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaService]:
    """One for all: each fate is a topology of its own."""
    meta = MetaService(f"sqlite:///{tmp_path_factory.mktemp('waiting')}/barrier.db", create=True)
    meta.check()
    yield meta
    meta.close()


def test_the_table_is_whole() -> None:
    assert EXPECTED.keys() == FATES.keys()


@pytest.mark.parametrize("name", FATES)
def test_what_somebody_who_waits_is_told(meta: MetaService, name: str) -> None:
    """And that every wait has an end, if all goes on and if all that can be given up is."""
    worlds = [Waited(meta, f"{name}_{end}") for end in ("goes_on", "ends")]
    for world, on in zip(worlds, (Waited.go_on, Waited.end_all), strict=True):
        FATES[name](world)
        told = world.told()
        assert told == EXPECTED[name]
        if "waits" not in told.values():
            return
        on(world)
        then = world.told()
        assert "waits" not in then.values(), f"{name}, then {on.__name__}: {then}"


def test_nobody_has_registered_yet(meta: MetaService) -> None:
    """Whoever waits may come before who registers and opens."""
    view = TopologyView(meta, "tomorrow")
    for how, condition in CONDITIONS.items():
        if how != "line":  # who waits in a revision has found it
            assert look(view, condition("tomorrow")).waits_for is not None


def test_in_a_revision_there_is_a_barrier_by_its_number_and_a_state() -> None:
    for given in ({"target": None, "barrier_id": 2}, {"target": "COMMIT", "timestamp": day(2)}):
        with pytest.raises(ConfigurationError, match="in a revision"):
            Condition(**given, line=1)


def test_who_waits_for_a_sink_is_told_what_is_in_its_way(meta: MetaService) -> None:
    world, deliveries = Waited(meta, "sinks"), meta.deliveries
    world.committed(2)
    wanted, unknown = Delivered("sums", timestamp=day(2)), Delivered("total", barrier_id=2)
    for each in (wanted, unknown, DelivererEnd("sums", "task#1")):
        assert decode(AnyCondition, json.loads(json.dumps(encode(each)))) == each

    def waits_for(condition: Delivered = wanted) -> str | None:
        found = look(TopologyView(meta, "sinks"), condition)
        assert (found.barrier_id, found.never) == (2, None)
        return found.waits_for

    assert waits_for(unknown) == "sink total of sinks to be declared"
    barrier = world.barrier(2)
    assert waits_for() == f"{barrier} in sink sums of sinks, which has received nothing"
    world.deliver(1)
    deliveries.pause("sinks", "sums", "test", "moves")
    deliveries.failed("sinks", "sums", "no answer", "test")
    said = f"{barrier} in sink sums of sinks, which has received b1.r0, and is PAUSED; the last try failed: no answer"
    assert waits_for() == said
    before = meta.topologies.change_count("sinks")
    world.deliver(2)
    assert meta.topologies.change_count("sinks") > before, "who waits looks again"
    assert waits_for() is None


@pytest.mark.parametrize("given", [{}, {"barrier_id": 1, "timestamp": day(1)}])
def test_of_a_sink_one_barrier_is_waited_for(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="expected a barrier by its id or by its timestamp, found id"):
        Delivered("sums", **given)
