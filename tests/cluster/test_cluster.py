"""Jobs on a real standalone cluster: what a driver needs travels with the job, and the workers do the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.job import as_job
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from demo.local_spark import PACKAGES, catalog_conf
from tests.support.cluster import Cluster
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.spark import IVY

pytestmark = pytest.mark.timeout(600)  # JVMs start, which on a busy machine takes its time

JOBS = Path(__file__).parent / "jobs"
EVENTS, TOTALS = "clustered.events", "clustered.totals"
FRAGMENT = Fragment(
    "clustered",
    "dag",
    (Job("load", "dag", outlets=(EVENTS,)), Job("total", "dag", inlets=(EVENTS,), outlets=(TOTALS,))),
)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass
class Lake:
    """A deployment in files of its own, and the conf with which Spark finds it."""

    deployment: Deployment
    conf: dict[str, str]

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

    def process(self, barrier: Barrier, job: str, operator: Any) -> Ready:
        """As the task does it."""
        as_job(operator)
        operator._steps = SimpleNamespace(done=[])  # of a task that has worked off no earlier barrier
        work = operator.epoch_work({})
        asked = {"request_key": job, "generation": "1/1", "actor": "test"}
        ready = begin(self.deployment, barrier, job, Asking(sql=work.sql, by_branch=work.by_branch, **asked))
        assert isinstance(ready, Ready)
        assert work.run(ready) is None
        hook = operator._submission.hook if isinstance(operator, SparkEpochOperator) else operator._hook
        hook._submit_sp.stdout.close()  # the hook leaves it open
        close(self.deployment, ready.attempt, actor="test", by_branch=work.by_branch)
        return ready

    def rows(self, table: str) -> list[tuple[object, ...]]:
        return sorted(tuple(row.values()) for row in self.deployment.tables.load(table).scan().to_arrow().to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    warehouse, catalog_db = tmp_path / "warehouse", tmp_path / "catalog.db"
    deployment = Deployment.connect(
        Settings(f"sqlite:///{tmp_path}/meta.db", f"sqlite:///{catalog_db}", warehouse.as_uri())
    )
    deployment.tables.catalog.create_namespace("clustered")
    fields = (NestedField(1, "k", LongType()), NestedField(2, "n", LongType()), NestedField(3, "origin", StringType()))
    for table, columns in ((EVENTS, fields), (TOTALS, fields[:2])):
        deployment.tables.catalog.create_table(table, Schema(*columns), properties={"write.wap.enabled": "true"})
    conf = {
        **catalog_conf(warehouse, catalog_db),
        "spark.jars.packages": PACKAGES,
        "spark.jars.ivy": str(IVY),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        # no task starts before both workers have an executor
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "spark-warehouse"),
        "spark.pyspark.driver.python": str(bare_python(tmp_path)),
        "spark.pyspark.python": str(bare_python(tmp_path)),
    }
    yield Lake(deployment, conf)
    deployment.close()


def bare_python(folder: Path) -> Path:
    """A Python that has what Spark gives it and nothing else."""
    launcher = folder / "bare-python"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    launcher.chmod(0o755)
    return launcher


@pytest.fixture(autouse=True)
def connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CLUSTER", json.dumps({"conn_type": "spark", "host": cluster.url}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    # this process may talk to Spark Connect; the driver that it starts does not
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.mark.drawn("drivers of their own")
def test_what_a_driver_needs_travels_with_the_job_and_both_workers_work(lake: Lake, cluster: Cluster) -> None:
    barrier = lake.open(1)
    epoch_job = SparkEpochOperator(
        task_id="load", application=f"{JOBS}/load.py", via="submit", spark_conn_id="spark_cluster", conf=lake.conf
    )
    load = lake.process(barrier, "load", epoch_job)
    unchanged_job = SparkSubmitOperator(
        task_id="total", application=f"{JOBS}/unchanged.py", conn_id="spark_cluster", conf=lake.conf, name="unchanged"
    )
    lake.process(barrier, "total", unchanged_job)
    assert lake.rows(EVENTS) == lake.rows(TOTALS) == []
    assert isinstance(commit_barrier(lake.deployment, "clustered", barrier.barrier_id, actor="test"), Committed)

    assert lake.rows(TOTALS) == [(k, 1) for k in range(8)]
    events = lake.rows(EVENTS)
    assert [row[:2] for row in events] == [(k, 1) for k in range(8)]
    # Python on the workers, too, had our package from the job
    assert {str(row[2]).startswith("airflow_barrier_driver-") for row in events} == {True}
    applications = [cluster.application(name) for name in (load.attempt.branch, "unchanged")]
    for application in applications:
        assert application["state"] == "FINISHED"
        assert cluster.workers_of(application["id"]) == {"worker1", "worker2"}
    tasks = tasks_by_executor(Path(lake.conf["spark.eventLog.dir"].removeprefix("file://")), applications[0]["id"])
    assert len(tasks) == 2
    report(f"standalone cluster: tasks of one epoch by executor {tasks}, and nothing but Spark in the drivers' Python")


def tasks_by_executor(folder: Path, application_id: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for log in sorted(folder.glob(f"*{application_id}*/events*")):
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                executor = event["Task Info"]["Executor ID"]
                counts[executor] = counts.get(executor, 0) + 1
    return counts
