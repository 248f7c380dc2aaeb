"""Deliveries whose rows are taken by spark-submit: a task's own code, with real drivers, each a JVM of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.operators.deliver import DeliverOperator, sink_asset
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.errors import SparkUnavailableError
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.spark.extracting import EXTRACT_APPLICATION
from demo.local_spark import PACKAGES, catalog_conf
from tests.delivering.feed import AMOUNT, PRICE, Feed, Reporting
from tests.support.spark import IVY
from tests.support.waiting import patience, wait_for

TARGETS = {AMOUNT: "amount", PRICE: "price"}


@pytest.fixture
def delivering(
    feed: Feed, reporting: Reporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeliverOperator]:
    """Both tables to PostgreSQL, by their users alone."""
    settings, at = feed.settings, urlsplit(reporting.url)
    extra = {name: getattr(settings, name) for name in ("metaservice_url", "catalog_uri", "warehouse")}
    connections: dict[str, dict[str, Any]] = {
        "BARRIER_DEFAULT": {"conn_type": "barrier", "extra": extra},
        "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[2]"},
        "REPORTING": {
            "conn_type": "postgres",
            "host": at.hostname,
            "port": at.port,
            "login": at.username,
            "password": unquote(at.password or ""),
            "schema": at.path.strip("/"),
        },
    }
    for name, connection in connections.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    # a process that has had a session of Spark Connect says so to its children
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    for target in TARGETS.values():
        reporting.run(f'CREATE UNIQUE INDEX ON {target} ("userId")')
    conf = {
        **catalog_conf(Path(settings.warehouse), Path(settings.catalog_uri.removeprefix("sqlite:///"))),
        "spark.jars.packages": PACKAGES,
        "spark.jars.ivy": str(IVY),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "700m",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "spark-warehouse"),
    }
    yield DeliverOperator(
        task_id="deliver",
        topology="shopping",
        tables=TARGETS,
        to=PostgreSQLSink("reporting", name="pair", key={target: ["userId"] for target in TARGETS.values()}),
        via="submit",
        conf=conf,
    )
    BarrierHook().get_deployment().close()


def run(operator: DeliverOperator) -> list[str]:
    """A run that a person has triggered; returns the events that it leaves."""
    now, events = datetime.now(timezone.utc) + timedelta(days=1000), OutletEventAccessors()
    task = SimpleNamespace(
        dag_id="shopping_dag",
        run_id="today",
        task_id="deliver",
        try_number=1,
        map_index=-1,
        max_tries=0,
        start_date=now,
    )
    dag_run = SimpleNamespace(
        run_type=SimpleNamespace(value="manual"),
        logical_date=None,
        data_interval_end=None,
        run_after=now,
        conf={},
        clear_number=0,
    )
    try:
        operator.execute({"ti": task, "task": operator, "dag_run": dag_run, "outlet_events": events})  # type: ignore[arg-type]
    finally:
        hook = operator._extracts.submission.hook  # type: ignore[union-attr]
        if hook is not None:
            hook._submit_sp.stdout.close()  # the hook leaves it open
    return sorted(events[sink_asset("shopping", "pair")].partition_keys)


def check(feed: Feed, reporting: Reporting, barrier: int) -> None:
    for target in TARGETS.values():
        assert reporting.rows(target) == feed.states.get(barrier, {}), target


def kill_when_it_writes(feed: Feed) -> None:
    """SIGKILL the driver as soon as it has begun to write the first of the extracts."""
    folder = Path(feed.deployment.tables.location("_barrier", "shopping", "deliveries").removeprefix("file://"))
    wait_for("the first extract", lambda: any(folder.glob("*/*/*/0")))
    for process in driver():
        process.kill()


def driver() -> list[psutil.Process]:
    """Its JVM, and its Python; none before that has started."""
    found = [each for each in psutil.Process().children(recursive=True) if is_ours(each)]
    return found if any("python" in each.name() for each in found) else []


def is_ours(process: psutil.Process) -> bool:
    try:
        return any(EXTRACT_APPLICATION in argument for argument in process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return False


@pytest.mark.timeout(600)  # JVMs start, which on a busy machine takes its time
@pytest.mark.drawn("drivers of their own")
@pytest.mark.touches("operators/_extracts.py", "spark/extracting.py", "spark/delivering.py")
def test_tables_are_delivered_by_spark_submit(delivering: DeliverOperator, feed: Feed, reporting: Reporting) -> None:
    feed.commit({(1, 1): 10, (2, 1): 20, (3, 1): 30})
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_when_it_writes, feed)
        with pytest.raises(SparkUnavailableError, match="found that it ended without one; the log of the task has"):
            run(delivering)
        killing.result(patience())
    check(feed, reporting, 0)

    assert run(delivering) == ["b1.r0"]
    check(feed, reporting, 1)

    feed.commit({(1, 1): 11, (3, 1): 30, (4, 1): 40})
    assert run(delivering) == ["b1.r0", "b2.r0"], "for all that Airflow knows the task of this run has told nobody"
    check(feed, reporting, 2)

    feed.commit({(1, 1): 11, (3, 1): 30, (5, 1): 50, (5, 2): 51})
    said = r'table shop\.amount: expected one row of each key \(userId\), found two of \{"userId":5\}; nothing was'
    with pytest.raises(AirflowFailException, match=f"^{said}"):
        run(delivering)
    check(feed, reporting, 2)
    error = feed.deployment.meta.deliveries.get("shopping", "pair").error
    assert error is not None
    assert error.startswith("table shop.amount: expected one row of each key")
    warehouse = Path(feed.settings.warehouse)
    password = urlsplit(reporting.url).password
    assert password
    for file in warehouse.rglob("_barrier/*/deliveries/**/*.json"):
        assert password not in file.read_text()


@pytest.mark.timeout(600)
@pytest.mark.drawn("drivers of their own")
def test_who_kills_the_task_kills_the_driver(delivering: DeliverOperator, feed: Feed, reporting: Reporting) -> None:
    feed.commit({(1, 1): 10})
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_by_the_task, delivering)
        with pytest.raises(AirflowException, match=r"^task deliver was killed$"):
            run(delivering)
        _, alive = psutil.wait_procs(killing.result(patience()), timeout=patience())
    assert alive == []
    with pytest.raises(AirflowException, match=r"^task deliver was killed$"):
        run(delivering)
    check(feed, reporting, 0)


def kill_by_the_task(delivering: DeliverOperator) -> list[psutil.Process]:
    processes = wait_for("the driver", driver)
    delivering.on_kill()
    return processes
