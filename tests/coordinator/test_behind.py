"""A member's task works off the open barriers before its own that lack its job: runs of its DAG were missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_barrier.coordinator.next import (
    JobTask,
    Nothing,
    Published,
    Skip,
    Step,
    next_commit,
    next_opening,
    next_step,
)
from airflow_barrier.coordinator.opening import Opened
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.staging import Adopted, Ready
from airflow_barrier.coordinator.status import status
from airflow_barrier.coordinator.waiting import (
    AnyCondition,
    Condition,
    TopologyView,
    Wait,
    look,
)
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import NotProcessedError, TriggeredRunError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from tests.support.scheduling import Scheduled, run_at
from tests.support.shop import AMOUNT, JOBS, MONDAY, PRICE, SHOPPING, Shop

#: The opening DAG, and the one of a member that reads its table.
OWN = Fragment("shopping", "shopping_dag", JOBS[:1])
PRICES = Fragment("shopping", "price_dag", (Job("price", "price_dag", inlets=(SHOPPING,), outlets=(PRICE,)),))
ROWS = [{"amount": 1, "price": 1}]


def midnight_of(day: float) -> datetime:
    return MONDAY + timedelta(days=day)


class Member:
    """The member's DAG: what the task of its job does in its runs."""

    def __init__(self, shop: Shop, templated: Sequence[str] = ()) -> None:
        self.shop = shop
        self.templated = tuple(templated)
        self.scheduler = Scheduled()

    def task(self, run: Run, done: Sequence[int] = ()) -> JobTask:
        return JobTask(
            PRICES,
            PRICES.jobs[0],
            request_key=f"{run.ref}/price/-1",
            generation="2/2",
            actor="test",
            member=True,
            templated=self.templated,
            done=tuple(done),
        )

    def step(self, day: float, kind: str = "scheduled", done: Sequence[int] = (), **of_run: int) -> Step:
        run = replace(run_at("price_dag", midnight_of(day), kind), **of_run)
        return next_step(self.shop.deployment, run, self.task(run, done), self.scheduler)

    def work(
        self, day: float, kind: str = "scheduled", rows: list[dict[str, int]] = ROWS, **of_run: int
    ) -> tuple[list[int], Step]:
        """As the operator goes on: the barriers that it worked at, and what it was told in the end."""
        done: list[int] = []
        while True:
            step = self.step(day, kind, done, **of_run)
            if not isinstance(step, Ready | Adopted):
                return done, step
            if isinstance(step, Ready):
                self.shop.close(step, self.shop.write(step, rows))
            done.append(step.attempt.barrier_id)
            if not step.earlier:
                return done, step

    def waits(self, step: Step) -> str | None:
        """What its deferred task waits for, as the triggerer looks at it; None: it goes on."""
        assert isinstance(step, Wait)
        view = TopologyView(self.shop.deployment.meta, "shopping")
        again = [decode(AnyCondition, encode(condition)) for condition in step.conditions]
        return "; ".join(filter(None, (look(view, condition).waits_for for condition in again))) or None


@pytest.fixture
def shop(embedded: Shop) -> Shop:
    """The member has joined, and has its part in barrier 2, which is open as all that come after it."""
    embedded.commit(embedded.process(embedded.open(1, OWN), "load", ROWS))
    assert isinstance(Member(embedded).step(2), Wait)
    opened(embedded, 2)
    return embedded


def opened(shop: Shop, *days: int) -> list[Barrier]:
    """The opening DAG's runs of these days, with its own part done."""
    return [shop.process(shop.open(day, OWN), "load", ROWS) for day in days]


def states(shop: Shop) -> list[str]:
    return [each.state.value for each in shop.deployment.meta.barriers.uncommitted("shopping")]


def test_after_a_weekends_pause_the_next_run_does_what_was_missed(shop: Shop) -> None:
    """Airflow's default is catchup=False: the pause's runs are never made."""
    opened(shop, 3, 4, 5)
    oldest = status(shop.deployment.meta, "shopping").open[0]
    assert [job.summary for job in oldest.jobs] == ["processed", "no run of DAG price_dag has asked for it yet"]
    done, last = Member(shop).work(5)
    assert done == [2, 3, 4, 5]
    assert isinstance(last, Ready)
    assert states(shop) == ["PRECOMMIT"] * 4
    shop.commit(shop.deployment.meta.barriers.get("shopping", 5))
    assert shop.main_totals()[PRICE] == 4


def test_what_another_run_of_the_dag_is_at_is_left_to_it(shop: Shop) -> None:
    opened(shop, 3, 4, 5)
    member = Member(shop)
    member.scheduler.before = midnight_of(3)  # an earlier run has not ended, and does what comes before it
    step = member.step(5)
    assert isinstance(step, Wait), "its own table is missing at barrier 3"
    assert [each.barrier_id for each in step.conditions if isinstance(each, Condition)] == [3]
    assert states(shop) == ["OPEN"] * 4
    member.scheduler.before = None
    assert member.work(3)[0] == [2, 3]
    assert member.work(5)[0] == [4, 5]


def test_a_task_of_the_barriers_own_run_adopts_what_a_later_run_did(shop: Shop) -> None:
    opened(shop, 3)
    member = Member(shop)
    member.work(3)
    step = member.step(2)
    assert isinstance(step, Adopted)
    assert not step.earlier


def test_it_waits_while_the_later_run_is_at_its_barrier(shop: Shop) -> None:
    """Else it would fence the other, which fails, tries again, and both do it twice."""
    opened(shop, 3)
    member = Member(shop)
    ahead = member.step(3)
    assert isinstance(ahead, Ready)
    assert (ahead.attempt.barrier_id, ahead.earlier) == (2, True)
    member.scheduler.running = {ahead.attempt.request_key}
    step = member.step(2)
    assert isinstance(step, Wait)
    assert step.look_again == 60
    assert "leads" in (member.waits(step) or "")
    shop.close(ahead, shop.write(ahead, ROWS))
    assert member.waits(step) is None
    assert isinstance(member.step(2), Adopted)
    # it has died instead: then its work is done again
    opened(shop, 4)
    lost = member.step(4)
    assert isinstance(lost, Ready)
    member.scheduler.running = set()
    assert member.work(3)[0] == [3]


def test_the_next_try_goes_on_where_the_last_one_died(shop: Shop) -> None:
    opened(shop, 3, 4)
    member = Member(shop)
    lost = member.step(4)
    assert isinstance(lost, Ready)
    assert member.work(4)[0] == [2, 3, 4]
    assert [each.state.value for each in shop.deployment.meta.attempts.of("shopping", 2) if each.job == "price"] == [
        "FENCED",
        "PROCESSED",
    ]


def test_what_failed_in_an_earlier_run_is_tried_again(shop: Shop) -> None:
    member = Member(shop)
    failed = member.step(2)
    assert isinstance(failed, Ready)
    shop.deployment.meta.attempts.abort(failed.attempt.attempt_id, "the table was away", "test")
    opened(shop, 3)
    assert member.work(3)[0] == [2, 3]


def test_a_rarer_schedule_keeps_up_although_no_barrier_may_open_meanwhile(shop: Shop) -> None:
    """Its run waits for a barrier that only opens once it has made room."""
    limit = shop.deployment.max_open_barriers
    opened(shop, *range(3, 2 + limit))
    member, week = Member(shop), 2 + limit + 2
    done, step = member.work(week)
    assert done == list(range(2, 2 + limit))
    assert isinstance(step, Wait)
    assert "to be opened" in (member.waits(step) or "")
    shop.commit(shop.deployment.meta.barriers.get("shopping", 1 + limit))
    opened(shop, 2 + limit)
    assert member.waits(step) is None, "there is another one before its own"
    done, step = member.work(week)
    assert done == [2 + limit]
    opened(shop, week - 1, week)
    assert member.work(week)[0] == [3 + limit, 4 + limit]


def test_a_schedule_at_other_times_follows(shop: Shop) -> None:
    """No barrier ever has the timestamp of its run."""
    member = Member(shop)
    done, step = member.work(2.25)
    assert done == [2]
    assert member.waits(step) is not None
    opened(shop, 3)
    ended = member.step(2.25, done=done)
    assert isinstance(ended, Nothing)
    assert ended.reason.startswith("did job price at barriers 2; no barrier of shopping opens at")
    assert isinstance(member.step(2.25), Skip), "one that has done nothing is skipped"
    assert member.work(3.25)[0] == [3]


@pytest.mark.kills("triggered-run-of-nothing")
def test_a_click_does_what_is_missing_and_is_done(shop: Shop) -> None:
    member = Member(shop)
    done, step = member.work(2.4, "manual")
    assert done == [2]
    assert isinstance(step, Nothing), "it waits for no barrier at the moment of the click"
    opened(shop, 3)
    member.work(3)
    with pytest.raises(TriggeredRunError, match="trigger the DAG with the logical date of a barrier"):
        member.work(2.5, "manual")


def test_a_run_that_an_asset_timetable_missed_is_made_up_for(shop: Shop) -> None:
    """Such runs have no logical date, by which Airflow could say whether another one is at work."""
    opened(shop, 3)
    assert Member(shop).work(3.1, "asset_triggered", barrier_id=3)[0] == [2, 3]


def test_a_click_in_the_opening_dag_holds_nobody_up(shop: Shop) -> None:
    member = Member(shop)
    member.work(2)
    run = run_at("shopping_dag", midnight_of(2.4), "manual")
    clicked = next_opening(shop.deployment, run, OWN, Scheduled(), actor="person", triggered=True)
    assert isinstance(clicked, Opened)
    shop.process(clicked.barrier, "load", ROWS)
    opened(shop, 3)
    assert member.work(3)[0] == [3, 4]
    assert states(shop) == ["PRECOMMIT"] * 3


@pytest.mark.kills("rendered-for-its-run")
def test_what_is_rendered_for_one_run_is_no_other_barriers(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    opened(shop, 3)
    member = Member(shop, templated=["sql"])
    done, step = member.work(3)
    assert done == []
    assert isinstance(step, Wait)
    assert "lacks job price, and this run cannot do it: Airflow has rendered sql for this run alone" in caplog.text
    assert isinstance(member.step(2), Ready)


def test_a_barrier_of_before_the_job_joined_is_none_of_its_own(embedded: Shop) -> None:
    embedded.open(1, OWN)
    member = Member(embedded)
    assert isinstance(member.step(2), Wait)
    embedded.open(2, OWN)
    (own,) = [each for each in embedded.deployment.meta.barriers.uncommitted("shopping") if each.barrier_id == 2]
    assert own.state is BarrierState.OPEN
    step = member.step(2)
    assert isinstance(step, Wait)
    assert not embedded.deployment.meta.attempts.of("shopping", 1)


@pytest.mark.kills("input-never-comes")
def test_a_second_job_of_the_dag_follows_the_first(embedded: Shop) -> None:
    """The first one's task comes before in the same run: what it did not do is not waited for."""
    amounts = Job("amount", "price_dag", inlets=(SHOPPING,), outlets=(AMOUNT,))
    prices = Job("price", "price_dag", inlets=(AMOUNT,), outlets=(PRICE,))
    fragment = Fragment("shopping", "price_dag", (amounts, prices))

    def step(job: Job, day: int) -> Step:
        at = midnight_of(day)
        task = JobTask(fragment, job, f"price_dag/{day}/{job.name}/-1", "2/2", "test", member=True)
        return next_step(embedded.deployment, run_at("price_dag", at), task, Scheduled())

    embedded.commit(embedded.process(embedded.open(1, OWN), "load", ROWS))
    assert isinstance(step(amounts, 2), Wait)
    assert isinstance(step(prices, 2), Wait)
    opened(embedded, 2, 3)
    with pytest.raises(NotProcessedError, match="the task before it has ended"):
        step(prices, 3)
    for job in (amounts, prices):
        for barrier_id in (2, 3):
            ready = step(job, 3)
            assert isinstance(ready, Ready)
            assert (ready.attempt.barrier_id, ready.earlier) == (barrier_id, barrier_id == 2)
            embedded.close(ready, embedded.write(ready, ROWS))
    assert states(embedded) == ["PRECOMMIT", "PRECOMMIT"]


def test_a_revision_is_computed_by_the_run_that_did_it_then(shop: Shop) -> None:
    """Barrier 2 has no run of the member's DAG: the run of barrier 3, which worked it off, does so again."""
    deployment = shop.deployment
    opened(shop, 3)
    member = Member(shop)
    assert member.work(3)[0] == [2, 3]
    shop.commit(deployment.meta.barriers.get("shopping", 3))
    plan = plan_revision(deployment, Wanted("shopping", 2, changed=["price"]))
    revision = begin_revision(deployment, plan, reason="corrected", actor="person")
    of_the_opener = {f"shopping_dag/day-{day}": "success" for day in (2, 3)}
    member.scheduler.states = of_the_opener
    assert member.work(3, token=revision.revision, rows=[{"amount": 1, "price": 7}])[0] == [2, 3]
    assert member.scheduler.woken == ["shopping_dag/day-3"]
    commit = replace(run_at("shopping_dag", midnight_of(3)), token=revision.revision)
    published = next_commit(deployment, commit, "shopping", Scheduled(of_the_opener), actor="test")
    assert isinstance(published, Published)
    assert shop.main_totals()[PRICE] == 14
