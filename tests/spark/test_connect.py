"""Work on a Spark Connect server: sessions of their own, killed for good, and a server that goes away."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.errors import ConfigurationError, SparkUnavailableError
from airflow_barrier.spark.connect import ConnectRun, connect_session, end_sessions, stop_session
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import load_job
from airflow_barrier.spark.spec import ClosingRecord
from demo.local_spark import LocalConnectServer
from tests.support.epochs import AMOUNT, SHOPPING, Barriers, recomputed_amount, shop_for_a_day, shopping_barriers
from tests.support.ports import free_port
from tests.support.spark import IVY
from tests.support.waiting import patience, wait_for

JOB_FILE = str(Path(__file__).parent / "jobs" / "amount.py")
# Two tasks of hours of work, in which Spark looks at the kill flag often.
LONG = "SELECT count(*) FROM range(0, 10000000000000, 1, 2) WHERE sin(id) > 2"


class Monitor:
    """What the server itself says that it runs (Spark's REST API)."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/applications"

    def running(self, tag: str) -> list[int]:
        """Jobs that bear the tag, such as a session's id or an attempt's branch."""
        return [job["jobId"] for job in self._jobs(tag) if job["status"] == "RUNNING"]

    def active_tasks(self, tag: str) -> int:
        """Of jobs that bear the tag, also of those that have ended."""
        return sum(int(job["numActiveTasks"]) for job in self._jobs(tag))

    def _jobs(self, tag: str) -> list[dict[str, Any]]:
        (application,) = self._get(self._url)
        jobs = self._get(f"{self._url}/{application['id']}/jobs")
        return [job for job in jobs if any(tag in found for found in job.get("jobTags", []))]

    def _get(self, url: str) -> Any:
        with urllib.request.urlopen(url, timeout=patience()) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def monitor_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, monitor_port: int) -> Iterator[LocalConnectServer]:
    """A server that tests may kill, with a monitor."""
    folder = tmp_path_factory.mktemp("connect")
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.master": "local[2]",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(monitor_port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    with LocalConnectServer(
        folder / "warehouse", folder / "catalog.db", IVY, free_port(), conf, timeout=patience()
    ) as server:
        yield server


@pytest.fixture
def monitor(server: LocalConnectServer, monitor_port: int) -> Monitor:
    return Monitor(monitor_port)


@pytest.fixture
def spark(server: LocalConnectServer) -> Iterator[SparkSession]:
    session = connect_session(server.url)
    yield session
    stop_session(session)


@pytest.fixture
def barriers(spark: SparkSession, tmp_path: Path) -> Barriers:
    return shopping_barriers(spark, tmp_path)


#: Runs a job in a thread of its own.
Background = Callable[[ConnectRun, Callable[[Epoch], None]], Future[ClosingRecord]]


@pytest.fixture
def background() -> Iterator[Background]:
    """Where a test fails before it has ended the job, it is ended here: hours of work would hold up the whole run."""
    begun: list[tuple[ConnectRun, Future[ClosingRecord]]] = []

    def begin(run: ConnectRun, job: Callable[[Epoch], None]) -> Future[ClosingRecord]:
        begun.append((run, pool.submit(run.run, job)))
        return begun[-1][1]

    with ThreadPoolExecutor(1) as pool:
        yield begin
        for run, work in begun:
            if not work.done():
                run.interrupt()


def writes_half_then_works_for_hours(epoch: Epoch) -> None:
    epoch.spark.sql(f"INSERT INTO {epoch.target(AMOUNT)} VALUES (1, 1, 1)")
    epoch.spark.sql(LONG).collect()
    raise AssertionError("the long query ended by itself")


def goes_on_after_being_interrupted(epoch: Epoch) -> None:
    try:
        epoch.spark.sql(LONG).collect()
    except Exception:
        epoch.spark.sql(f"INSERT INTO {epoch.target(AMOUNT)} VALUES (1, 1, 1)")


def test_the_job_of_a_file_runs_in_a_session_of_its_own(server: LocalConnectServer, barriers: Barriers) -> None:
    shop_for_a_day(barriers, 1)
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    record = ConnectRun(server.url, spec).run(load_job(JOB_FILE))
    text = record.dumps(spec.nonce)
    barriers.publish(spec, ClosingRecord.loads(text, spec.attempt_id, spec.nonce, "the record"))
    assert barriers.rows(AMOUNT) == recomputed_amount(barriers)
    assert barriers.spark.conf.get("spark.sql.iceberg.snapshot-property.barrier.attempt", "none") == "none"


def test_a_session_has_the_id_that_it_is_given(server: LocalConnectServer) -> None:
    given = str(uuid.uuid4())
    one, two = connect_session(server.url), connect_session(server.url, given)
    try:
        one.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        assert two.conf.get("spark.sql.session.timeZone") != "Europe/Berlin"
        assert two.session_id == given
    finally:
        stop_session(one)
        stop_session(two)


def test_interrupted_work_no_longer_runs_on_the_server(
    server: LocalConnectServer, monitor: Monitor, barriers: Barriers, background: Background
) -> None:
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    run = ConnectRun(server.url, spec)
    work = background(run, writes_half_then_works_for_hours)
    wait_for("the long query to start", lambda: monitor.running(spec.branch) and monitor.active_tasks(spec.branch))
    run.interrupt()
    assert not isinstance(work.exception(patience()), AssertionError | None)
    wait_for("no task to be running", lambda: not (monitor.running(spec.branch) or monitor.active_tasks(spec.branch)))


def test_a_job_that_swallows_the_interruption_cannot_go_on(
    server: LocalConnectServer, monitor: Monitor, barriers: Barriers, background: Background
) -> None:
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    session = str(uuid.uuid4())
    work = background(ConnectRun(server.url, spec, session_id=session), goes_on_after_being_interrupted)
    wait_for("the long query to start", lambda: monitor.running(spec.branch))
    end_sessions(server.url, session)
    assert work.exception(patience()) is not None
    branch = barriers.spark.sql(f"SELECT * FROM lake.shop.user_item_amount.`branch_{spec.branch}`")
    assert branch.collect() == []


def test_another_process_can_stop_the_work_and_a_signal_handler_too(
    server: LocalConnectServer, monitor: Monitor, barriers: Barriers, tmp_path: Path
) -> None:
    """Like an Airflow worker: the main thread waits for Spark when the signal comes, and the handler calls on_kill."""
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    (tmp_path / "spec.json").write_text(spec.dumps())
    session = str(uuid.uuid4())
    program = str(Path(__file__).parent / "jobs" / "worker.py")
    worker = subprocess.Popen(
        [sys.executable, "-W", "error", program, server.url, str(tmp_path), session],
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for("the long query to start", lambda: monitor.running(spec.branch))
        worker.terminate()
        _, errors = worker.communicate(timeout=patience())
        assert worker.returncode == 3, errors
        wait_for(
            "no task to be running", lambda: not (monitor.running(spec.branch) or monitor.active_tasks(spec.branch))
        )
    finally:
        worker.kill()
        worker.wait()
        end_sessions(server.url, session)  # where the worker has done it, nothing is running, and that is fine


def test_the_end_of_a_session_takes_no_lock_of_another_one(server: LocalConnectServer, spark: SparkSession) -> None:
    """The garbage collector and signal handlers end sessions while their thread holds the lock of pyspark's pool."""
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

    stopped: Any = connect_session(server.url)
    assert stopped.sql("SELECT 1").count() == 1
    stop_session(stopped)
    assert spark.sql("SELECT 1").count() == 1  # has the pool made anew
    pool = ExecutePlanResponseReattachableIterator._release_thread_pool_instance
    assert pool is not None
    with ThreadPoolExecutor() as threads:
        with pool._shutdown_lock:
            collected = threads.submit(stopped.__del__)
            interrupted = threads.submit(end_sessions, server.url, str(uuid.uuid4()))
            assert not wait([collected, interrupted], patience()).not_done
        interrupted.result()


def test_a_server_that_is_not_there() -> None:
    url = f"sc://127.0.0.1:{free_port()}/;token=very-secret"
    with pytest.raises(SparkUnavailableError, match=r"127\.0\.0\.1.*found none") as caught:
        connect_session(url, timeout=0.5)
    assert caught.value.retryable
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="expected sc://host:port") as refused:
        connect_session("spark://host/;token=very-secret")
    assert "secret" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED:UserWarning")
def test_a_server_that_goes_away_in_the_middle_is_worth_a_retry(
    server: LocalConnectServer,
    monitor: Monitor,
    spark: SparkSession,
    tmp_path: Path,
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last test of this file: it takes the server along."""
    monkeypatch.setattr("airflow_barrier.spark.connect._RETRIES", 3)
    barriers = shopping_barriers(spark, tmp_path)
    spec = barriers.begin(1, inlets=[SHOPPING], outlets=[AMOUNT])
    work = background(ConnectRun(server.url, spec), writes_half_then_works_for_hours)
    wait_for("the long query to start", lambda: monitor.running(spec.branch))
    server.stop()
    with pytest.raises(SparkUnavailableError, match="it went away, was restarted") as caught:
        work.result(patience())
    assert caught.value.retryable
