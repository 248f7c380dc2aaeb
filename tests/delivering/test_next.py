"""What a delivery's task does next: wait, deliver, or nothing; whatever run it is in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from airflow_barrier.coordinator import delivering
from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.delivering import Receipt
from airflow_barrier.coordinator.next import Due, Nothing, Skip, next_delivery
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.waiting import Condition, Delivered, DelivererEnd, TopologyView, Wait, look
from airflow_barrier.protocol.deliveries import Counts, Position, Remedy, Rows
from airflow_barrier.protocol.errors import SinkRefusedError
from airflow_barrier.protocol.records import RunRef
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from tests.delivering.feed import AMOUNT, FRAGMENT, MONDAY, Feed, Reporting
from tests.support.runs import run_of

DECLARED = PostgreSQLSink("reporting", table="amount").declare(AMOUNT, Rows.CHANGES, "shopping_dag")


@dataclass
class Runs:
    """A scheduler that knows which tasks run."""

    running: set[str] = field(default_factory=set)

    def state(self, dag_id: str, run_id: str) -> str | None:
        return "running"

    def wake(self, dag_id: str, run_id: str) -> None:
        raise AssertionError("nothing is woken for a delivery")

    def is_running(self, request_key: str) -> bool:
        return request_key in self.running

    def has_passed(self, run_id: str) -> bool:
        raise AssertionError("a delivery is no check")

    def at_work_until(self) -> datetime | None:
        return None


def run_at(day: int, kind: str = "scheduled") -> Run:
    timestamp = MONDAY + timedelta(days=day)
    ref = RunRef("shopping_dag" if kind == "scheduled" else "other", f"{timestamp:%F}", kind, timestamp)
    return Run(ref, timestamp, "test")


def ask(feed: Feed, run: Run, *, who: str = "task#1", runs: Runs | None = None) -> Due | Wait | Nothing | Skip:
    return next_delivery(feed.deployment, run, "shopping", DECLARED, runs or Runs(), request_key=who, actor="test")


def waits_for(feed: Feed, step: object) -> str | None:
    assert isinstance(step, Wait)
    assert step.any_of or len(step.conditions) == 1
    missing = [look(TopologyView(feed.deployment.meta, "shopping"), each).waits_for for each in step.conditions]
    return None if None in missing else "; ".join(map(str, missing))


def deliver(feed: Feed, barrier_id: int) -> None:
    position = Position(barrier_id, 0)
    feed.deployment.meta.deliveries.delivered(
        "shopping", "amount", position, counts=Counts(), seconds=1.0, actor="test"
    )


def deliver_due(feed: Feed, reporting: Reporting, due: Due) -> list[Receipt]:
    return delivering.deliver(
        feed.deployment,
        due.sink,
        due.through,
        reporting.credentials(),
        feed.write_extracts,
        request_key=str(due.sink.deliverer),
        actor="test",
    )


def test_a_barrier_is_waited_for_until_it_is_committed(feed: Feed) -> None:
    assert isinstance(ask(feed, run_at(0)), Wait), "nothing is registered yet"
    feed.commit({(1, 1): 1})
    due = ask(feed, run_at(0))
    assert isinstance(due, Due)
    assert (due.through.barrier_id, due.sink.deliverer) == (1, "task#1")
    later = ask(feed, run_at(1))
    assert waits_for(feed, later) is not None
    opened = open_barrier(
        feed.deployment,
        FRAGMENT,
        MONDAY + timedelta(days=1),
        timestamp_from="test",
        run=run_of("shopping_dag/open"),
        actor="test",
    )
    assert isinstance(opened, Opened)
    still = ask(feed, run_at(1))
    assert isinstance(still, Wait)
    assert still.conditions == (Condition("COMMIT", barrier_id=2),)


def test_what_was_delivered_is_not_delivered_again_unless_a_person_says_so(feed: Feed) -> None:
    for _ in range(2):
        feed.commit({(1, 1): 1})
    assert isinstance(ask(feed, run_at(0)), Due)
    deliver(feed, 2)
    for day in (0, 1):
        done = ask(feed, run_at(day))
        assert isinstance(done, Nothing)
        assert "was delivered to sink amount of shopping already, which is at b2.r0" in done.reason
    feed.deployment.meta.deliveries.decide("shopping", "amount", Remedy.REDELIVER, "person", "odd")
    assert isinstance(ask(feed, run_at(1)), Due)


def test_a_click_delivers_up_to_the_newest_committed_barrier(feed: Feed) -> None:
    for _ in range(2):
        feed.commit({(1, 1): 1})
    due = ask(feed, run_at(40, "manual"))
    assert isinstance(due, Due)
    assert due.through.barrier_id == 2
    assert isinstance(ask(feed, replace(run_at(0, "manual"), timestamp=MONDAY - timedelta(hours=1))), Nothing)
    before = ask(feed, replace(run_at(0, "manual"), timestamp=MONDAY + timedelta(hours=1)))
    assert isinstance(before, Due)
    assert before.through.barrier_id == 1


def test_an_event_that_names_no_barrier_delivers_up_to_the_newest_committed_one(feed: Feed) -> None:
    """As runs of `schedule=[table_asset(...)]` in Airflow 3.1. Such a run of the DAG that opens barriers has one."""
    feed.commit({(1, 1): 1})
    due = ask(feed, run_at(40, "asset_triggered"))
    assert isinstance(due, Due)
    assert due.through.barrier_id == 1
    opener = run_at(40, "asset_triggered")
    own = replace(opener, ref=replace(opener.ref, dag_id="shopping_dag"))
    assert isinstance(ask(feed, own), Wait)


def test_an_aborted_barriers_run_delivers_what_is_there(feed: Feed) -> None:
    feed.commit({(1, 1): 1})
    opened = open_barrier(
        feed.deployment,
        FRAGMENT,
        MONDAY + timedelta(days=1),
        timestamp_from="test",
        run=run_of("shopping_dag/open"),
        actor="test",
    )
    assert isinstance(opened, Opened)
    abort_barrier(feed.deployment, "shopping", 2, reason="no", actor="test")
    for kind in ("scheduled", "manual"):
        due = ask(feed, run_at(1, kind))
        assert isinstance(due, Due)
        assert due.through.barrier_id == 1


def test_one_task_delivers_at_a_time(feed: Feed) -> None:
    for _ in range(2):
        feed.commit({(1, 1): 1})
    assert isinstance(ask(feed, run_at(0), who="first#1"), Due)
    retried = ask(feed, run_at(0), who="first#2", runs=Runs({"first"}))
    assert isinstance(retried, Due), "no task waits for an earlier try of its own"
    assert retried.sink.deliverer == "first#2"
    waiting = ask(feed, run_at(1), who="second#1", runs=Runs({"first"}))
    assert isinstance(waiting, Wait)
    assert waiting.conditions == (Delivered("amount", barrier_id=2), DelivererEnd("amount", "first#2"))
    said = waits_for(feed, waiting)
    assert said is not None
    assert "first#2 to end its delivery to sink amount" in said
    deliver(feed, 2)
    assert waits_for(feed, waiting) is None
    feed.commit({})
    due = ask(feed, run_at(2), who="second#1")
    assert isinstance(due, Due), "the first has ended"
    assert due.sink.deliverer == "second#1"


def test_who_waits_for_anothers_delivery_goes_on_when_that_ends(feed: Feed, reporting: Reporting) -> None:
    for _ in range(3):
        feed.commit({(1, 1): 1})
    first = ask(feed, run_at(0), who="first#1")
    assert isinstance(first, Due)
    waiting = [ask(feed, run_at(day), who=f"{day}#1", runs=Runs({"first"})) for day in (1, 2)]
    assert None not in [waits_for(feed, each) for each in waiting]
    assert [each.barrier.barrier_id for each in deliver_due(feed, reporting, first)] == [1]
    assert [waits_for(feed, each) for each in waiting] == [None, None]
    # both wake at once; the scheduler still has the first one, whose process is ending
    runs = Runs({"first", "1", "2"})
    second = ask(feed, run_at(1), who="1#1", runs=runs)
    assert isinstance(second, Due)
    still = ask(feed, run_at(2), who="2#1", runs=runs)
    assert waits_for(feed, still) is not None
    reporting.run("DROP TABLE amount")
    with pytest.raises(SinkRefusedError):
        deliver_due(feed, reporting, second)
    assert waits_for(feed, still) is None, "whatever it ends with"


def test_of_those_who_wake_at_once_one_delivers_and_the_others_wait(feed: Feed) -> None:
    """None of them fails, and loses a try, since another one was first."""
    feed.commit({(1, 1): 1})
    keys = [f"{number}#1" for number in range(4)]
    runs = Runs({key.removesuffix("#1") for key in keys})
    with ThreadPoolExecutor(len(keys)) as threads:
        steps = [*threads.map(lambda key: ask(feed, run_at(0), who=key, runs=runs), keys)]
    (due,) = (step for step in steps if isinstance(step, Due))
    rest = [step for step in steps if isinstance(step, Wait)]
    assert len(rest) == len(keys) - 1
    assert {step.conditions[-1] for step in rest} == {DelivererEnd("amount", str(due.sink.deliverer))}


def test_a_paused_sink_is_left_alone(feed: Feed) -> None:
    feed.commit({(1, 1): 1})
    assert isinstance(ask(feed, run_at(0)), Due)
    feed.deployment.meta.deliveries.pause("shopping", "amount", "person", "moves")
    paused = ask(feed, run_at(0))
    assert isinstance(paused, Skip)
    assert "airflow-barrier sink resume shopping amount --reason ..." in paused.reason
