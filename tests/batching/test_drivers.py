"""Batches in Spark itself: a driver that is killed between two epochs, and a session that goes on with the rest."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Adopted, Asking, Ready, begin, give_up
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from demo.local_spark import PACKAGES, catalog_conf
from tests.support.reporting import report
from tests.support.runs import run_of
from tests.support.spark import IN_THIS_PROCESS

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

JOB = str(Path(__file__).parent / "jobs" / "dying.py")
EVENTS, TOTALS = "batched.events", "batched.totals"
FRAGMENT = Fragment(
    "batched", "dag", (Job("load", "dag", outlets=(EVENTS,)), Job("total", "dag", inlets=(EVENTS,), outlets=(TOTALS,)))
)
TOTAL = f"""INSERT INTO {{target:{TOTALS}}} SELECT k, n FROM {{appends:{EVENTS}}}"""
START = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def deployment(spark_server: SparkServer, tmp_path: Path) -> Iterator[Deployment]:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    catalog = f"sqlite:///{spark_server.catalog_db}"
    deployment = Deployment.connect(Settings(f"sqlite:///{tmp_path}/meta.db", catalog, spark_server.warehouse.as_uri()))
    deployment.tables.catalog.create_namespace_if_not_exists("batched")
    for table in (EVENTS, TOTALS):
        deployment.tables.catalog.create_table(
            table, Schema(NestedField(1, "k", LongType()), NestedField(2, "n", LongType()))
        )
    yield deployment
    for table in (EVENTS, TOTALS):
        deployment.tables.catalog.drop_table(table)
    shutil.rmtree(spark_server.warehouse / "_barrier" / FRAGMENT.topology)
    deployment.close()


@pytest.fixture
def operators(
    spark_server: SparkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, SparkEpochOperator]:
    host, _, port = spark_server.url.removeprefix("sc://").partition(":")
    connect = {"conn_type": "spark_connect", "host": host, "port": int(port)}
    monkeypatch.setenv("AIRFLOW_CONN_CONNECT_HERE", json.dumps(connect))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    monkeypatch.setenv("BARRIER_TEST_DIES_AT", "3")
    conf = {
        **catalog_conf(spark_server.warehouse, spark_server.catalog_db),
        "spark.jars.packages": PACKAGES,
        "spark.jars.ivy": str(spark_server.ivy),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "700m",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.warehouse.dir": str(tmp_path / "spark-warehouse"),
        # as a driver of its own has it by default: the branches of the next epoch come after it was filled
        "spark.sql.catalog.lake.cache-enabled": "true",
    }
    of_its_own: dict[str, Any] = {"via": "submit", "conf": conf, "spark_conn_id": "spark_here"}
    options = of_its_own if IN_THIS_PROCESS else {"spark_conn_id": "connect_here"}
    return {
        "submit": SparkEpochOperator(task_id="submit", application=JOB, **of_its_own),
        "connect": SparkEpochOperator(task_id="connect", application=JOB, **options),
        "sql": SparkEpochOperator(task_id="sql", sql=TOTAL, **options),
    }


def lead(deployment: Deployment, barrier: Barrier, job: str, operator: SparkEpochOperator) -> Batch:
    """As the task of that barrier does it."""
    work = operator.epoch_work({})  # type: ignore[arg-type]
    ready = ask(deployment, barrier, job, work.sql)
    assert isinstance(ready, Ready), ready
    leader = Asking(f"task {barrier.barrier_id}", "1/1", "test", "dag", work.sql)
    batch = Batch(deployment, leader, ready, limit=9)
    assert work.run_batch is not None
    try:
        work.run_batch(batch)
    except Exception as error:
        assert batch.under_way is not None
        give_up(deployment, batch.under_way.attempt.attempt_id, reason=str(error), actor="test")
    finally:
        if operator._submission is not None and operator._submission.hook is not None:
            operator._submission.hook._submit_sp.stdout.close()  # the hook leaves it open
    return batch


def ask(deployment: Deployment, barrier: Barrier, job: str, sql: str | None = None) -> Any:
    return begin(
        deployment,
        barrier,
        job,
        Asking(request_key=f"task {barrier.barrier_id}", generation="1/1", actor="test", owner="dag", sql=sql),
    )


@pytest.mark.timeout(600)  # a JVM starts, which on a busy machine takes its time
@pytest.mark.drawn("drivers of their own")
def test_a_driver_that_is_killed_in_its_third_epoch(
    deployment: Deployment, operators: dict[str, SparkEpochOperator], monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers = []
    for day in range(1, 5):
        opened = open_barrier(
            deployment,
            FRAGMENT,
            START + timedelta(days=day),
            timestamp_from="test",
            run=run_of(f"dag/{day}"),
            actor="test",
        )
        assert isinstance(opened, Opened)
        barriers.append(opened.barrier)

    killed = lead(deployment, barriers[0], "load", operators["submit"])
    assert [attempt.barrier_id for attempt in killed.done] == [1, 2]
    states = {
        b.barrier_id: [a.state.value for a in deployment.meta.attempts.of("batched", b.barrier_id)] for b in barriers
    }
    assert states == {1: ["PROCESSED"], 2: ["PROCESSED"], 3: ["ABORTED"], 4: []}
    assert isinstance(ask(deployment, barriers[1], "load"), Adopted)

    # the third barrier's own task, in a session on the server, to the end
    monkeypatch.delenv("BARRIER_TEST_DIES_AT")
    rest = lead(deployment, barriers[2], "load", operators["connect"])
    assert [attempt.barrier_id for attempt in rest.done] == [3, 4]
    totals = lead(deployment, barriers[0], "total", operators["sql"])
    assert [attempt.barrier_id for attempt in totals.done] == [1, 2, 3, 4]

    for barrier in barriers:
        committed = commit_barrier(deployment, "batched", barrier.barrier_id, actor="test")
        assert isinstance(committed, Committed)
        for table in (EVENTS, TOTALS):
            rows = deployment.tables.load(table).scan().to_arrow()["n"].to_pylist()
            assert sorted(rows) == [10**n for n in range(barrier.barrier_id)]
    report("a driver killed in its third epoch: the first two counted, the rest was staged anew, nothing came twice")
