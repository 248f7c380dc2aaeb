"""Workers die by SIGKILL, and what they had started runs on; Airflow's retry repairs it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import psutil
import pytest

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import closing_uri
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.counting import Counting
from tests.support.reporting import report
from tests.support.spark import IN_AIRFLOW
from tests.support.waiting import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer


TABLES = ("events", "mirror")


@pytest.fixture
def apart(airflow: AirflowUnderTest, spark_server: SparkServer) -> Iterator[Deployment]:
    """Connection ``crashes``: the MetaService in a file of its own, so that a catalog can be held up alone."""
    folder = spark_server.warehouse.parent / IN_AIRFLOW
    meta, catalog = f"sqlite:///{airflow.folder}/crashes.db", f"sqlite:///{folder}/catalog.db"
    deployment = Deployment.connect(
        Settings(meta, catalog, folder.as_uri(), catalog_name=IN_AIRFLOW, spark_catalog=IN_AIRFLOW)
    )
    yield deployment
    deployment.close()


@pytest.mark.every_landing
@pytest.mark.timeout(LONG)
def test_workers_that_are_killed(
    airflow: AirflowUnderTest, apart: Deployment, spark: SparkSession, spark_server: SparkServer
) -> None:
    """Two topologies at once, since Airflow takes half a minute to miss a worker."""
    submitting = Counting("crashes", airflow, apart)
    committing = Counting("crashing_commit", airflow, apart)
    for counting in (submitting, committing):
        counting.create_by(spark, *TABLES)
        airflow.unpause(counting.name)

    # one dies while its driver has written half of its outlets
    submitted = airflow.trigger("crashes")
    airflow.until((airflow.folder / "crashes-first").exists, "the first driver to stand between its writes")
    orphan = drivers()
    assert orphan
    kill_worker_of(airflow, "crashes", submitted, submitting.task("load"))
    assert set(drivers()) == set(orphan)

    # another in the middle of its commit: decided, and not published
    held = committing.tell("hold", "load", 1)
    committed = airflow.trigger("crashing_commit")
    airflow.wait_for_task("crashing_commit", committed, committing.task("load"), "running")
    # paused, so that the commit begins when the catalog is locked
    airflow.pause("crashing_commit")
    held.unlink()
    airflow.wait_for_task("crashing_commit", committed, committing.task("load"), "success")
    with closing(
        sqlite3.connect(spark_server.warehouse.parent / IN_AIRFLOW / "catalog.db", isolation_level=None, timeout=30)
    ) as lock:
        lock.execute("BEGIN IMMEDIATE")
        airflow.unpause("crashing_commit")
        airflow.until(lambda: committing.states() == {1: "COMMITTING"}, "the commit to be decided")
        kill_worker_of(airflow, "crashing_commit", committed, committing.task("commit"))
        lock.execute("ROLLBACK")
    assert committing.states() == {1: "COMMITTING"}
    assert [committing.published(table) for table in TABLES] == [0, 0]
    airflow.wait_for_run("crashing_commit", committed)
    assert committing.states() == {1: "COMMIT"}
    assert [committing.published(table) for table in TABLES] == [1, 1]
    assert airflow.tasks("crashing_commit", committed)[committing.task("commit")]["try_number"] == 2

    # the first one's retry fences it, and while that works the orphan finishes
    airflow.until((airflow.folder / "crashes-second").exists, "the retry's driver to stand between its writes")
    assert submitting.attempts(1, "load") == ["FENCED", "RUNNING"]
    (airflow.folder / "crashes-first-goes-on").touch()
    airflow.until(lambda: not set(orphan) & set(drivers()), "the orphan to finish")
    first, second = apart.meta.attempts.of("crashes", 1)
    assert apart.tables.exists(closing_uri(apart, first)), "the orphan has done all its work"
    orphaned = [heads(apart, table)[first.branch] for table in TABLES]
    assert submitting.states() == {1: "OPEN"}
    (airflow.folder / "crashes-second-goes-on").touch()
    airflow.wait_for_run("crashes", submitted)
    assert submitting.states() == {1: "COMMIT"}
    assert submitting.attempts(1, "load") == ["FENCED", "PROCESSED"]
    assert [submitting.published(table) for table in TABLES] == [1, 1]
    retried = apart.meta.attempts.get(second.attempt_id)
    for table, snapshot in zip(TABLES, orphaned, strict=True):
        left = heads(apart, table)
        assert set(left) == {"main", apart.meta.barriers.get("crashes", 1).tag}
        assert snapshot not in left.values()
        assert left["main"] == retried.staged[f"crashes.{table}"].snapshot_id
    assert airflow.tasks("crashes", submitted)[submitting.task("load")]["try_number"] == 2
    report(
        "workers killed through Airflow: 1 while its driver worked on as an orphan, 1 inside a commit; both repaired"
    )


def heads(deployment: Deployment, table: str) -> dict[str, int]:
    refs = deployment.tables.load(f"crashes.{table}").refs()
    return {name: ref.snapshot_id for name, ref in refs.items()}


def drivers() -> list[psutil.Process]:
    """The processes of submitted applications: the JVMs and their Pythons."""
    return [process for process in psutil.process_iter() if "jobs/crashes.py" in " ".join(command_of(process))]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def kill_worker_of(airflow: AirflowUnderTest, dag_id: str, run_id: str, task_id: str) -> None:
    """SIGKILL for the process that runs the task and for the one that supervises it; not for what the task started."""
    instance = airflow.tasks(dag_id, run_id)[task_id]["id"]
    found = [process for process in psutil.process_iter() if instance in " ".join(command_of(process))]
    supervisor = next(process for process in found if "LocalExecutor" in " ".join(command_of(process)))
    assert {process.ppid() for process in found if process != supervisor} == {supervisor.pid}
    for process in sorted(found, key=lambda process: process != supervisor):  # who is left would tell Airflow
        process.kill()
    psutil.wait_procs(found, timeout=patience())
