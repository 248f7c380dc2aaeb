"""Drivers of two outlets that die by SIGKILL, and a Connect server that is lost: never is a half of it visible."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_barrier
from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Adopted, Asking, Ready, Waiting, begin, close, closing_uri, give_up
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.errors import NotClosedError, SparkUnavailableError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.submit import submit_conf
from demo.local_spark import PACKAGES, LocalConnectServer, catalog_conf
from tests.support.ports import free_port
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.spark import SparkServer
from tests.support.waiting import patience

if TYPE_CHECKING:
    from airflow_barrier.spark.epoch import Epoch

TABLES = ("dying.left", "dying.right")
FRAGMENT = Fragment("dying", "dag", (Job("both", "dag", outlets=TABLES),))
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass
class World:
    """One job with two outlets, over a MetaService of its own."""

    deployment: Deployment

    def open(self, day: int) -> Barrier:
        opened = open_barrier(
            self.deployment,
            FRAGMENT,
            START + timedelta(days=day),
            timestamp_from="test",
            run=run_of(f"dag/{day}"),
            actor="test",
        )
        assert isinstance(opened, Opened)
        return opened.barrier

    def begin(self, barrier: Barrier) -> Ready | Adopted | Waiting:
        """A try of one and the same task."""
        return begin(self.deployment, barrier, "both", Asking(request_key="task", generation="1/1", actor="test"))

    def ready(self, barrier: Barrier) -> Ready:
        ready = self.begin(barrier)
        assert isinstance(ready, Ready), ready
        return ready

    def states(self, barrier: Barrier) -> list[str]:
        return [one.state.value for one in self.deployment.meta.attempts.of("dying", barrier.barrier_id)]

    def commit(self, barrier: Barrier) -> None:
        assert isinstance(commit_barrier(self.deployment, "dying", barrier.barrier_id, actor="test"), Committed)

    def visible(self) -> list[list[int]]:
        """The values of both tables, as every reader sees them."""
        tables = [self.deployment.tables.load(table) for table in TABLES]
        return [sorted(table.scan().to_arrow()["n"].to_pylist()) for table in tables]

    def refs(self) -> list[set[str]]:
        return [set(self.deployment.tables.load(table).refs()) for table in TABLES]


def write_both(epoch: Epoch, between: Callable[[], None] = lambda: None) -> None:
    """What `jobs/two_sinks.py` writes."""
    row = f"VALUES ({epoch.barrier_id}, {10 ** (epoch.barrier_id - 1)})"
    epoch.spark.sql(f"INSERT INTO {epoch.target(TABLES[0])} {row}")
    between()
    epoch.spark.sql(f"INSERT INTO {epoch.target(TABLES[1])} {row}")


def make_world(server: SparkServer | LocalConnectServer, folder: Path) -> World:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    catalog = f"sqlite:///{server.catalog_db}"
    deployment = Deployment.connect(Settings(f"sqlite:///{folder}/meta.db", catalog, server.warehouse.as_uri()))
    deployment.tables.catalog.create_namespace_if_not_exists("dying")
    columns = Schema(NestedField(1, "k", LongType()), NestedField(2, "n", LongType()))
    for table in TABLES:
        deployment.tables.catalog.create_table(table, columns)
    return World(deployment)


@pytest.fixture
def world(spark_server: SparkServer, tmp_path: Path) -> Iterator[World]:
    world = make_world(spark_server, tmp_path)
    yield world
    for table in TABLES:
        world.deployment.tables.catalog.drop_table(table)
    # the next test has another MetaService, which may not lead what this one's journal says is led by this one
    shutil.rmtree(spark_server.warehouse / "_barrier" / FRAGMENT.topology)
    world.deployment.close()


@pytest.fixture
def submit(
    spark_server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Ready, str], None]]:
    """Submit an attempt's work as SparkSubmitOperator does, with a driver that dies somewhere."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    hooks: list[SparkSubmitHook] = []

    def run(ready: Ready, dies: str) -> None:
        conf = {
            **catalog_conf(spark_server.warehouse, spark_server.catalog_db),
            **submit_conf(ready.spec_uri, ready.digest),
            "spark.jars.ivy": str(spark_server.ivy),
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.sql.warehouse.dir": str(tmp_path / "spark-warehouse"),
        }
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(Path(airflow_barrier.__file__).parents[1]),
            "BARRIER_TEST_DIES": dies,
        }
        hook = SparkSubmitHook(
            conn_id="spark_here", packages=PACKAGES, driver_memory="700m", env_vars=environment, conf=conf
        )
        hooks.append(hook)
        hook.submit(str(Path(__file__).parent / "jobs" / "two_sinks.py"))

    yield run
    for hook in hooks:
        hook._submit_sp.stdout.close()  # the hook leaves it open


@pytest.mark.timeout(600)  # JVMs start, which on a busy machine takes its time
@pytest.mark.drawn("drivers of their own")
def test_a_driver_that_dies_at_each_of_its_steps(
    world: World, submit: Callable[[Ready, str], None], spark_server: SparkServer
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    def dies(ready: Ready, where: str) -> None:
        with pytest.raises(AirflowException, match="Error code is"):
            submit(ready, where)
        recorded = world.deployment.tables.exists(closing_uri(world.deployment, ready.attempt))
        assert recorded == (where == "after its closing record")

    first = world.open(1)
    # its worker lives and gives the attempt up
    half = world.ready(first)
    dies(half, "between its writes")
    staged = [world.deployment.tables.staged(table, half.attempt.stamp, None) for table in TABLES]
    assert [snapshot is None for snapshot in staged] == [False, True]
    with pytest.raises(NotClosedError, match="died before its last write"):
        close(world.deployment, half.attempt, actor="test")
    # its worker dies as well, so the retry finds an attempt that runs; all is written, and nobody said so
    silent = world.ready(first)
    dies(silent, "after its last write")
    assert world.states(first) == ["ABORTED", "RUNNING"]
    # again, and this time the driver has closed: the retry adopts its work
    closed = world.ready(first)
    assert world.states(first) == ["ABORTED", "FENCED", "RUNNING"]
    dies(closed, "after its closing record")
    assert world.visible() == [[], []]
    adopted = world.begin(first)
    assert isinstance(adopted, Adopted)
    assert adopted.attempt.attempt_id == closed.attempt.attempt_id
    world.commit(first)
    assert world.visible() == [[1], [1]]
    assert world.refs() == [{"main", first.tag}] * 2

    # a driver that died after it had closed, and a worker that gives the attempt up for it: another one does the work
    second = world.open(2)
    lost = world.ready(second)
    dies(lost, "after its closing record")
    give_up(world.deployment, lost.attempt.attempt_id, reason="AirflowException: Error code is: 137", actor="test")
    assert world.visible() == [[1], [1]]
    again = world.ready(second)
    record = ConnectRun(spark_server.url, again.spec).run(write_both)
    close(world.deployment, again.attempt, record=record, actor="test")
    world.commit(second)
    assert world.visible() == [[1, 10], [1, 10]]
    assert world.states(second) == ["ABORTED", "PROCESSED"]
    assert world.refs() == [{"main", first.tag, second.tag}] * 2
    report("Spark drivers of a job with two outlets killed in 4 ways: no half was visible, nothing came twice")


def test_an_orphan_that_goes_on_after_the_commit(world: World, spark_server: SparkServer) -> None:
    """It was fenced between its two writes; its branch is dropped by then, and Spark does not make it anew."""

    def process(barrier: Barrier) -> None:
        ready = world.ready(barrier)
        record = ConnectRun(spark_server.url, ready.spec).run(write_both)
        close(world.deployment, ready.attempt, record=record, actor="test")
        world.commit(barrier)

    first = world.open(1)
    orphan = world.ready(first)
    with pytest.raises(Exception, match=f"Cannot use branch .*{orphan.spec.branch}"):
        ConnectRun(spark_server.url, orphan.spec).run(lambda epoch: write_both(epoch, between=lambda: process(first)))
    assert world.states(first) == ["FENCED", "PROCESSED"]
    assert world.refs() == [{"main", first.tag}] * 2
    assert world.visible() == [[1], [1]]
    second = world.open(2)
    process(second)
    assert world.visible() == [[1, 10], [1, 10]]
    assert world.refs() == [{"main", first.tag, second.tag}] * 2


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED:UserWarning")
@pytest.mark.drawn("drivers of their own")
def test_a_connect_server_that_dies_between_two_writes(
    spark_server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server of its own, killed by the job itself, and started again on the same port for the retry."""
    monkeypatch.setattr("airflow_barrier.spark.connect._RETRIES", 3)
    small = {"spark.driver.memory": "700m", "spark.driver.extraJavaOptions": QUICK_JAVA}
    server = LocalConnectServer(
        tmp_path / "warehouse", tmp_path / "catalog.db", spark_server.ivy, free_port(), small, timeout=patience()
    )
    world = make_world(server, tmp_path)

    def lose_the_server() -> None:
        assert server._process is not None
        os.killpg(server._process.pid, signal.SIGKILL)
        server._process.wait(patience())

    barrier = world.open(1)
    with server:
        half = world.ready(barrier)
        with pytest.raises(SparkUnavailableError) as lost:
            ConnectRun(server.url, half.spec).run(lambda epoch: write_both(epoch, between=lose_the_server))
        assert lost.value.retryable
        server.stop()
        staged = [world.deployment.tables.staged(table, half.attempt.stamp, None) for table in TABLES]
        assert [snapshot is None for snapshot in staged] == [False, True]
        assert world.visible() == [[], []]
        server.start()
        again = world.ready(barrier)
        record = ConnectRun(server.url, again.spec).run(write_both)
    close(world.deployment, again.attempt, record=record, actor="test")
    world.commit(barrier)
    assert world.states(barrier) == ["FENCED", "PROCESSED"]
    assert world.visible() == [[1], [1]]
    assert world.refs() == [{"main", barrier.tag}] * 2
    world.deployment.close()
