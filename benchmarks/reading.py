"""What it costs to read one barrier by unchanged SQL: against the same snapshots, named in the query by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from airflow_barrier.api.server import Served, create_server
from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment, nobody_gets_in
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.spark_conf import reader_conf
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.reading.session import ConsistentSession, consistent_session
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.identifiers import table_name
from airflow_barrier.spark.spec import ClosingRecord
from benchmarks.report import Measured
from demo.local_spark import CATALOG, LocalConnectServer
from demo.places import Places
from tests.api.live import Live
from tests.support.runs import run_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What Spark calls the catalog at a barrier, which it enters by its address.
_ENTERED = "entered"
_ORDERS, _ITEMS = "sales.orders", "sales.items"
_JOB = Job("load", "sales_dag", outlets=(_ORDERS, _ITEMS))
_FRAGMENT = Fragment("sales", "sales_dag", (_JOB,))
#: Rows of the orders, and how many of them there are to an item.
_ROWS, _TO_AN_ITEM = 300_000, 30
#: Rounds that warm up, and rounds that count.
_WARM, _ROUNDS = 30, 100
#: Sessions whose median is what opening one costs.
_SESSIONS = 20
_QUERY = """
SELECT i.category, count(*) AS orders, sum(o.quantity * i.price) AS spent, max(o.sent_at) AS newest
FROM {orders} o JOIN {items} i ON o.item_id = i.item_id
WHERE o.quantity > 1
GROUP BY i.category ORDER BY spent DESC
"""


@dataclass
class Side:
    """One way of running the query: milliseconds of handing it in, and until the rows are there."""

    sql: Callable[[], object]
    handed_in: list[float]
    done: list[float]


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    rows, warm, rounds, sessions = (30_000, 1, 2, 2) if quick else (_ROWS, _WARM, _ROUNDS, _SESSIONS)
    deployment = Deployment.connect(Settings.embedded(str(folder)))
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    if quick:
        conf["spark.driver.extraJavaOptions"] = QUICK_JAVA
    with LocalConnectServer(folder, folder / "barrier.db", ivy, conf=conf) as server, _session(server) as spark:
        _load(deployment, spark, rows)
        with consistent_session(deployment, "sales") as session:
            first = _first(session, spark)
            with _entered(deployment, server) as entered:
                plain, ours, by_address = _in_turns(session, spark, entered, warm, rounds)
        opened = [_opened(deployment) for _ in range(sessions)]
    deployment.close()
    return [
        Measured(
            "A pinned read against the plain read of the same snapshots",
            f"A join of two Iceberg tables ({rows:,} and {rows // _TO_AN_ITEM:,} rows) with an aggregate, on the "
            "demo's Spark Connect server, until its rows are with the client: unchanged SQL by a consistent session's "
            "`spark(...).sql(...)`; unchanged SQL in a session that has entered the catalog at this barrier by its "
            "address, as `spark-conf --reader` says it, which asks for each table in each query; and the same SQL with "
            f"`VERSION AS OF` written into it. In turns, {rounds} rounds after {warm} that warm up.",
            ["milliseconds, median", "plain", "by a session", "session - plain", "by address", "address - plain"],
            [
                _row("handing the query in", plain.handed_in, ours.handed_in, by_address.handed_in),
                _row("until its rows are there", plain.done, ours.done, by_address.done),
            ],
            [
                f"goal: ratio of the medians at most 1.02; found {_ratios(ours, plain)}",
                f"by address: goal at most 1.1; found {_ratios(by_address, plain)}",
                f"once a session: resolved and leased in {median(opened):.1f} ms (median of {sessions}); the first "
                f"query of a process is handed in in {first:.0f} ms, since the parser is imported then",
            ],
        )
    ]


def _row(what: str, plain: Sequence[float], *others: Sequence[float]) -> list[str]:
    pairs = [(median(each), median(each) - median(plain)) for each in others]
    return [what, f"{median(plain):.1f}", *(f"{number:.1f}" for pair in pairs for number in pair)]


def _ratios(side: Side, plain: Side) -> str:
    ratios = sorted(one / other for one, other in zip(side.done, plain.done, strict=True))
    quarter = len(ratios) // 4
    return (
        f"{median(side.done) / median(plain.done):.3f}; median of the rounds' ratios {median(ratios):.3f}, of them a "
        f"half between {ratios[quarter]:.3f} and {ratios[3 * quarter]:.3f}"
    )


@contextmanager
def _entered(deployment: Deployment, server: LocalConnectServer) -> Iterator[SparkSession]:
    """A session that reads by address."""
    settings = Settings.embedded("/not asked", spark_catalog=_ENTERED)
    app = create_server(Served("sales", deployment.meta, nobody_gets_in, deployment), None)
    with Live(app) as live, _session(server) as spark:
        uri = live.url.replace("/v1/deployments", "/iceberg/sales")
        for name, value in reader_conf(settings, uri, "sales").conf.items():
            if name.startswith("spark.sql."):
                spark.conf.set(name, value)
        yield spark


def _in_turns(
    session: ConsistentSession, spark: SparkSession, entered: SparkSession, warm: int, rounds: int
) -> tuple[Side, Side, Side]:
    at = {
        table: f"{table_name(CATALOG, table)} VERSION AS OF {snapshot}" for table, snapshot in session.snapshots.items()
    }
    pinned = _QUERY.format(orders=at[_ORDERS], items=at[_ITEMS])
    plain = Side(lambda: spark.sql(pinned), [], [])
    ours = Side(lambda: session.spark(spark).sql(_unchanged()), [], [])
    by_address = Side(lambda: entered.sql(_unchanged(_ENTERED)), [], [])
    sides = [plain, ours, by_address]
    for number in range(warm + rounds):
        first = number % 3
        answers = [_run(side, counts=number >= warm) for side in sides[first:] + sides[:first]]
        assert answers[0] == answers[1] == answers[2] != []
    return plain, ours, by_address


def _run(side: Side, *, counts: bool) -> list[object]:
    began = time.perf_counter()
    frame = side.sql()
    handed_in = time.perf_counter()
    rows: list[object] = frame.collect()  # type: ignore[attr-defined]
    done = time.perf_counter()
    if counts:
        side.handed_in.append(1000 * (handed_in - began))
        side.done.append(1000 * (done - began))
    return rows


def _first(session: ConsistentSession, spark: SparkSession) -> float:
    began = time.perf_counter()
    session.spark(spark).sql(_unchanged())
    return 1000 * (time.perf_counter() - began)


def _opened(deployment: Deployment) -> float:
    began = time.perf_counter()
    with consistent_session(deployment, "sales"):
        return 1000 * (time.perf_counter() - began)


def _unchanged(catalog: str = CATALOG) -> str:
    return _QUERY.format(orders=f"{catalog}.{_ORDERS}", items=f"{catalog}.{_ITEMS}")


def _load(deployment: Deployment, spark: SparkSession, rows: int) -> None:
    """One barrier, COMMIT, with these tables."""
    columns = {
        _ORDERS: "order_id BIGINT, item_id BIGINT, quantity INT, sent_at TIMESTAMP",
        _ITEMS: "item_id BIGINT, category STRING, price DECIMAL(10, 2)",
    }
    items = rows // _TO_AN_ITEM
    contents = {
        _ORDERS: f"SELECT id AS order_id, (id * 7919) % {items} AS item_id, CAST(id % 5 AS INT) AS quantity, "
        f"timestamp_seconds(1700000000 + id) AS sent_at FROM range({rows})",
        _ITEMS: "SELECT id AS item_id, concat('category ', id % 40) AS category, "
        f"CAST(id % 900 + 1 AS DECIMAL(10, 2)) AS price FROM range({items})",
    }
    spark.sql(f"CREATE NAMESPACE {CATALOG}.sales")
    for table, definition in columns.items():
        spark.sql(f"CREATE TABLE {CATALOG}.{table} ({definition}) USING iceberg")
    opened = open_barrier(
        deployment,
        _FRAGMENT,
        datetime(2026, 1, 1, tzinfo=timezone.utc),
        timestamp_from="benchmark",
        run=run_of("sales_dag/1"),
        actor="benchmark",
    )
    assert isinstance(opened, Opened), opened
    ready = begin(deployment, opened.barrier, _JOB.name, Asking(request_key="task", generation="g", actor="benchmark"))
    assert isinstance(ready, Ready), ready
    staged = {}
    for table, content in contents.items():
        writer = spark.sql(content).writeTo(table_name(CATALOG, table, f"branch_{ready.attempt.branch}"))
        for name, value in ready.attempt.stamp.properties().items():
            writer = writer.option(f"snapshot-property.{name}", value)
        writer.append()
        head = deployment.tables.load(table).snapshot_by_name(ready.attempt.branch)
        assert head is not None
        staged[table] = StagedTable(table, head.snapshot_id)
    record = ClosingRecord(ready.attempt.attempt_id, staged)
    close(deployment, ready.attempt, actor="benchmark", record=record)
    committed = commit_barrier(deployment, "sales", opened.barrier.barrier_id, actor="benchmark")
    assert isinstance(committed, Committed), committed


@contextmanager
def _session(server: LocalConnectServer) -> Iterator[SparkSession]:
    session = connect_session(server.url)
    try:
        yield session
    finally:
        stop_session(session)
