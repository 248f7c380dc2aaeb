"""Runs that somebody triggered: each opens a barrier that can be completed, or fails and says why."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG
from airflow.utils.types import DagRunType

from airflow_barrier.coordinator.joining import take_part
from airflow_barrier.operators.start import StartBarrierOperator
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from tests.support.shop import JOBS, MONDAY, PRICE, SHOPPING, Shop

OWN = Fragment("shopping", "shopping_dag", JOBS[:2])
PRICES = Fragment("shopping", "price_dag", (Job("price", "price_dag", inlets=(SHOPPING,), outlets=(PRICE,)),))
ROWS = [{"amount": 10, "price": 20}]


@pytest.fixture
def shop(embedded: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    settings = {
        "warehouse": embedded.deployment.tables.location().removesuffix("/"),
        "metaservice_url": str(embedded.deployment.meta.url),
    }
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_HERE", json.dumps({"conn_type": "barrier", "extra": settings}))
    return embedded


def start(day: int, run_type: DagRunType = DagRunType.MANUAL, run_id: str | None = None, **given: Any) -> int:
    """What the start task of a run of the opening DAG returns."""
    with DAG("shopping_dag", schedule="@daily", start_date=MONDAY, catchup=given.pop("catchup", False)):
        task = StartBarrierOperator(
            task_id="start", topology="shopping", jobs=OWN.jobs, barrier_conn_id="barrier_here", **given
        )
    timestamp = MONDAY + timedelta(days=day)
    ti = SimpleNamespace(dag_id="shopping_dag", run_id=run_id or f"{run_type.value}__{day}", task_id="start")
    ti.task, ti.try_number = task, 1
    run = SimpleNamespace(
        logical_date=timestamp,
        data_interval_start=timestamp,
        data_interval_end=timestamp,
        run_after=timestamp,
        run_type=run_type,
        conf={},
        clear_number=0,
    )
    context: Any = {"ti": ti, "task": task, "dag_run": run}
    return task.execute(context)


def member_joins(shop: Shop, day: int) -> None:
    take_part(shop.deployment, PRICES, PRICES.jobs[0], MONDAY + timedelta(days=day), "member")


def commit(shop: Shop, barrier: Barrier, *jobs: str) -> None:
    for job in jobs:
        shop.process(barrier, job, ROWS)
    shop.commit(barrier)


def test_a_click_opens_whoever_has_jobs(shop: Shop) -> None:
    """What members have no run for they do in their next one."""
    commit(shop, shop.open(1, OWN), "load", "amount")
    member_joins(shop, 2)
    assert start(2, DagRunType.MANUAL) == 2
    assert start(2, DagRunType.MANUAL) == 2, "cleared, it observes the barrier that it opened"
    assert start(3, DagRunType.OPERATOR_TRIGGERED) == 3
    assert start(4, DagRunType.SCHEDULED) == 4


def test_a_click_opens_where_the_dag_catches_up_if_its_author_says_so(shop: Shop) -> None:
    with pytest.raises(AirflowFailException, match="since the DAG catches up"):
        start(1, catchup=True)
    assert start(1, open_manual_runs=True, catchup=True) == 1


def test_runs_that_follow_from_the_schedule_open_whoever_has_jobs(shop: Shop) -> None:
    """Members that are scheduled by assets follow the runs of an opening DAG that is."""
    shop.open(1, OWN)
    member_joins(shop, 2)
    kinds = (DagRunType.SCHEDULED, DagRunType.BACKFILL_JOB, DagRunType.ASSET_TRIGGERED)
    assert [start(day, kind) for day, kind in enumerate(kinds, start=2)] == [2, 3, 4]


@pytest.mark.kills("triggered-run-of-a-done-barrier")
@pytest.mark.parametrize("open_manual_runs", [False, True])
def test_a_click_at_a_timestamp_that_is_done_says_so(shop: Shop, open_manual_runs: bool) -> None:
    """A timetable with intervals gives a triggered run the last scheduled interval."""
    assert start(1, DagRunType.SCHEDULED) == 1
    barrier = shop.deployment.meta.barriers.get("shopping", 1)
    assert start(1, open_manual_runs=open_manual_runs) == 1, "what is unfinished, it may finish"
    commit(shop, barrier, "load", "amount")
    with pytest.raises(AirflowFailException) as failed:
        start(1, open_manual_runs=open_manual_runs)
    for part in (
        "shopping_dag/manual__1", "barrier 1", "COMMIT", "opened by run shopping_dag/scheduled__1",
        "delete this run", "airflow-barrier revision plan shopping --from 1",
    ):  # fmt: skip
        assert part in str(failed.value)
    assert start(1, DagRunType.BACKFILL_JOB) == 1, "a backfill clears and says so elsewhere"
    assert shop.deployment.meta.barriers.get("shopping", 1).state is BarrierState.COMMIT
