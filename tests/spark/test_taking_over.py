"""A try whose worker is lost leaves its work on the Spark Connect server: the next try ends it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from airflow_barrier.coordinator.next import JobTask, Step, next_step
from airflow_barrier.coordinator.staging import Ready
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.spark.connect import connect_session, end_sessions
from tests.spark.test_connect import LONG, Monitor
from tests.support.scheduling import Scheduled, run_at
from tests.support.shop import FRAGMENT, JOBS, Shop
from tests.support.spark import SparkServer
from tests.support.waiting import patience, wait_for


def test_the_next_try_ends_what_a_lost_worker_left_running(
    shop: Shop, spark_server: SparkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(int(spark_server.ui.rpartition(":")[2]))
    barrier = shop.open(5)
    lost = shop.begin(barrier, "load", server="spark_connect_default")
    session = connect_session(spark_server.url, lost.attempt.session)
    with ThreadPoolExecutor() as pool:
        work = pool.submit(session.sql(LONG).collect)
        try:
            # Not earlier: Spark cancels no stage that it submits just then (docs/facts.md), and this one takes hours.
            wait_for("the long query to run", lambda: monitor.active_tasks(session.session_id))
            assert isinstance(_next_step(shop, barrier, spark_server, monkeypatch), Ready)
            assert work.exception(patience()) is not None
        finally:
            end_sessions(spark_server.url, session.session_id)
    wait_for("no task to be running", lambda: not monitor.active_tasks(session.session_id))
    assert shop.deployment.meta.attempts.get(lost.attempt.attempt_id).state is AttemptState.FENCED


def test_a_server_that_is_away_holds_up_no_try(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    barrier = shop.open(5)
    shop.begin(barrier, "load", server="spark_connect_default")
    monkeypatch.setattr(connect_session, "__defaults__", (None, 0.5, None))  # seconds, in place of half a minute
    with caplog.at_level("WARNING"):
        assert isinstance(_next_step(shop, barrier, None, monkeypatch), Ready)
    assert "left running could not be stopped" in caplog.text


def _next_step(shop: Shop, barrier: Barrier, server: SparkServer | None, monkeypatch: pytest.MonkeyPatch) -> Step:
    """What the next try of the job's task does, after a person cleared it."""
    address = "127.0.0.1:1" if server is None else server.url.removeprefix("sc://")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", f"spark-connect://{address}")
    operator = SparkEpochOperator(task_id="load", sql="SELECT 1")
    end = operator.epoch_work(cast("Any", {})).end
    task = JobTask(FRAGMENT, JOBS[0], "shopping_dag/scheduled__5/load/-1", "cleared", "test", sql="SELECT 1", end=end)
    return next_step(shop.deployment, run_at("shopping_dag", barrier.timestamp), task, Scheduled())
