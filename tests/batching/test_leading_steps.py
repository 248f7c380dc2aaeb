"""The steps of tasks that lead and of tasks that are led; hands for Spark, and a context as Airflow gives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowException, TaskDeferred
from airflow.sdk import DAG

from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.waiting import TopologyView
from airflow_barrier.operators._binding import Binding, SparkWork
from airflow_barrier.operators._leading import LeadingSteps
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.processed import processed_asset
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.triggers._watcher import Outcome
from airflow_barrier.triggers.barrier import BarrierTrigger
from tests.support.batches import Rows
from tests.support.shop import FRAGMENT, JOBS, Shop

ROWS: dict[int, Rows] = {n: [{"amount": 10**n, "price": n}] for n in range(1, 7)}


class Tasks:
    """The task `load` in the runs of all barriers. ``running``: what Airflow says of them."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.running: set[str] = set()
        self.fails_at: int | None = None
        self.in_epoch: Callable[[int], None] = lambda barrier_id: None

    def of(self, barrier: Barrier) -> LeadingSteps:
        sql = "INSERT INTO {target:shop.shopping} SELECT 1"
        operator = SparkEpochOperator(task_id="load", sql=sql, retries=1, dag=DAG("shopping_dag", schedule=None))
        ti = SimpleNamespace(
            dag_id="shopping_dag",
            run_id=f"day-{barrier.timestamp.day - 5}",
            task_id="load",
            start_date=datetime.now(timezone.utc),
            map_index=-1,
            max_tries=1,
            try_number=1,
            get_task_states=self._states,
        )
        run = SimpleNamespace(
            logical_date=barrier.timestamp,
            data_interval_start=barrier.timestamp,
            data_interval_end=barrier.timestamp,
            run_type=SimpleNamespace(value="scheduled"),
            conf={},
            clear_number=0,
        )
        binding = Binding(JOBS[0], FRAGMENT, False, None, "barrier_here", timedelta(1), batch_barriers=9)
        work = SparkWork(run=lambda ready: None, stop=lambda: None, run_batch=self._run)
        context: Any = {"ti": ti, "task": operator, "dag_run": run}
        return LeadingSteps(operator, binding, work, context)

    def _run(self, batch: Batch) -> None:
        ready = batch.under_way
        while ready is not None:
            record = self.shop.write(ready, ROWS[ready.attempt.barrier_id])
            self.in_epoch(ready.attempt.barrier_id)
            if ready.attempt.barrier_id == self.fails_at:
                raise AirflowException("spark-submit failed\nand went on about it")
            batch.close(record)
            ready = batch.following()

    def _states(self, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str]]:
        assert (dag_id, task_ids) == ("shopping_dag", ["load"])
        return {run_id: {"load": "running" if run_id in self.running else "failed"} for run_id in run_ids}

    def states(self, barrier_id: int) -> list[str]:
        return [attempt.state.value for attempt in self.shop.deployment.meta.attempts.of("shopping", barrier_id)]


@pytest.fixture
def tasks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    settings = {"warehouse": shop.deployment.tables.location().removesuffix("/")}
    settings["metaservice_url"] = str(shop.deployment.meta.url)
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_HERE", json.dumps({"conn_type": "barrier", "extra": settings}))
    return Tasks(shop)


def test_a_leader_whose_later_epoch_fails_has_done_its_own(shop: Shop, tasks: Tasks) -> None:
    first, _, _ = (shop.open(day) for day in (1, 2, 3))
    tasks.fails_at = 2
    assert tasks.of(first).execute() == 1
    assert [tasks.states(n) for n in (1, 2, 3)] == [["PROCESSED"], ["ABORTED"], []]
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 2)
    assert attempt.reason == "AirflowException: spark-submit failed"


def test_a_leader_whose_own_epoch_fails_fails(shop: Shop, tasks: Tasks) -> None:
    first, _ = shop.open(1), shop.open(2)
    tasks.fails_at = 1
    with pytest.raises(AirflowException, match="spark-submit failed"):
        tasks.of(first).execute()
    assert [tasks.states(n) for n in (1, 2)] == [["ABORTED"], []]


def test_a_leader_that_is_killed_gives_up_what_is_under_way(shop: Shop, tasks: Tasks) -> None:
    first, _ = shop.open(1), shop.open(2)
    leader = tasks.of(first)
    tasks.in_epoch = lambda barrier_id: leader.kill() if barrier_id == 2 else None
    tasks.fails_at = 2
    with pytest.raises(AirflowException):
        leader.execute()
    assert [tasks.states(n) for n in (1, 2)] == [["PROCESSED"], ["ABORTED"]]


def test_a_task_waits_while_its_leader_runs_and_adopts_its_work(shop: Shop, tasks: Tasks) -> None:
    first, second = shop.open(1), shop.open(2)
    with pytest.raises(TaskDeferred) as waits:  # for the first barrier
        tasks.of(second).execute()
    tasks.running = {"day-1"}

    def looks(trigger: BarrierTrigger) -> Outcome:
        return trigger._look(TopologyView(shop.deployment.meta, "shopping"))

    def resumed_too_early(barrier_id: int) -> None:
        if barrier_id == 2:
            with pytest.raises(TaskDeferred) as led:
                tasks.of(second).resume({"status": "reached"}, cast("BarrierTrigger", waits.value.trigger).kept["done"])
            trigger = led.value.trigger
            assert isinstance(trigger, BarrierTrigger)
            assert looks(trigger).event is None
            self_ended.append(trigger)

    self_ended: list[BarrierTrigger] = []
    tasks.in_epoch = resumed_too_early
    assert tasks.of(first).execute() == 1
    assert looks(self_ended[0]).event == {"status": "reached"}
    assert tasks.of(second).resume({"status": "reached"}, []) == 2
    assert tasks.states(2) == ["FENCED", "PROCESSED"]


def test_a_task_whose_leader_runs_no_more_does_its_work_itself(shop: Shop, tasks: Tasks) -> None:
    first, second = shop.open(1), shop.open(2)

    def lose_the_leader(barrier_id: int) -> None:
        if tasks.states(2) == ["RUNNING"]:
            assert tasks.of(second).execute() == 2

    tasks.in_epoch = lose_the_leader
    assert tasks.of(first).execute() == 1
    assert tasks.states(2) == ["FENCED", "PROCESSED"]
    (table,) = [each for each in shop.deployment.meta.barriers.progress("shopping", 2) if each.table == "shop.shopping"]
    assert shop.total("shop.shopping", table.snapshot_id) == 3


def test_a_task_that_has_nothing_to_do_emits_no_events(shop: Shop, tasks: Tasks) -> None:
    """Airflow emits one for each of a task's outlets when it ends well, whatever it did."""
    first = shop.open(1)
    shop.process_all(first, ROWS[1])
    shop.commit(first)
    steps = tasks.of(first)
    steps.task.add_outlets([processed_asset("shopping", outlet) for outlet in JOBS[0].outlets])
    assert steps.execute() == 1
    assert steps.task.outlets == []
