"""What the server of catalogs carries: engines' questions at few and many tables, and many catalogs at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import quantiles

import httpx
import psutil

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.spark.spec import ClosingRecord
from benchmarks.lake import make_tables, stage
from benchmarks.overview import served
from benchmarks.report import Measured
from tests.support.postgresql import PASSWORD, PostgreSQL, without_password
from tests.support.runs import run_of

#: tables -> barriers that they have
_SIZES = {10: 20, 1_000: 2}
_QUESTIONS = 300
_CATALOGS, _THEIR_TABLES, _CLIENTS = 200, 20, 8
_CONN_ID = "barrier_bench"
_FIRST = datetime(2020, 1, 1, tzinfo=timezone.utc)


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    sizes, questions, catalogs, their_tables = (
        ({2: 2, 4: 1}, 20, 4, 2) if quick else (_SIZES, _QUESTIONS, _CATALOGS, _THEIR_TABLES)
    )
    rows, many = [], []
    with PostgreSQL(fsync="on", full_page_writes="on") as server, server.database() as url:
        at = without_password(url)
        for kind, settings, password in (
            ("SQLite", Settings.embedded(str(folder)), None),
            (
                "PostgreSQL",
                Settings(at, at, str(folder / "lake"), metaservice_password=PASSWORD, catalog_password=PASSWORD),
                PASSWORD,
            ),
        ):
            for size, barriers in sizes.items():
                _make(settings, size, barriers)
            with _served(settings, password) as (client, pid):
                for size in sizes:
                    found = _asked(client, size, questions)
                    rows += [[f"{what}, {size:,} tables", kind, *numbers] for what, numbers in found]
                many.append([kind, *_at_once(client, psutil.Process(pid), max(sizes), catalogs, their_tables)])
    return [
        Measured(
            "Engines ask for tables at a barrier",
            "`airflow-barrier serve --iceberg`, one client on the same machine, no engine: answers as they come, "
            f"{questions} times each, the first time included. Each question renews the catalog's lease. Barriers: "
            + ", ".join(f"{barriers} (of {size:,} tables)" for size, barriers in sizes.items())
            + "; files are local. PostgreSQL with fsync, over loopback.",
            ["question", "MetaService and catalog", "median, ms", "p99, ms", "kB"],
            rows,
            ["goal: LoadTable at most 20 ms at the median, and at most 60 ms at the 99th percentile"],
        ),
        Measured(
            "Many catalogs at once",
            f"{catalogs} catalogs connect and load {their_tables} tables each, by {_CLIENTS} clients at a time; the "
            "CPU of the server's process.",
            ["MetaService and catalog", "questions", "seconds", "a second", "server's CPU, s", "ms CPU a question"],
            many,
        ),
    ]


def _make(settings: Settings, size: int, barriers: int) -> None:
    """A topology of so many tables, which one job writes, and so many barriers of it."""
    topology = f"of{size}"
    tables = [f"{topology}.t{number:04}" for number in range(size)]
    job = Job("load", f"{topology}_dag", outlets=tuple(tables))
    deployment = Deployment.connect(settings)
    make_tables(deployment.tables, tables)
    for number in range(1, barriers + 1):
        opened = open_barrier(
            deployment,
            Fragment(topology, job.owner, (job,)),
            _FIRST + timedelta(hours=number),
            timestamp_from="benchmark",
            run=run_of(f"{job.owner}/{number}"),
            actor="benchmark",
        )
        assert isinstance(opened, Opened), opened
        ready = begin(deployment, opened.barrier, job.name, Asking(request_key="task", generation="g", actor="b"))
        assert isinstance(ready, Ready), ready
        heads = stage(deployment.tables, dict.fromkeys(tables, ready.attempt.stamp))
        staged = {table: StagedTable(table, head) for table, head in heads.items()}
        record = ClosingRecord(ready.attempt.attempt_id, staged)
        close(deployment, ready.attempt, actor="benchmark", record=record)
        committed = commit_barrier(deployment, topology, opened.barrier.barrier_id, actor="benchmark")
        assert isinstance(committed, Committed), committed
    deployment.close()


def _served(settings: Settings, password: str | None) -> AbstractContextManager[tuple[httpx.Client, int]]:
    extra = {"metaservice_url": settings.metaservice_url, "warehouse": settings.warehouse}
    connection = {"conn_type": "barrier", "extra": extra, "password": password}
    return served(
        *("--iceberg", "--conn-id", _CONN_ID),
        below=f"iceberg/{_CONN_ID}/v1",
        environment={f"AIRFLOW_CONN_{_CONN_ID.upper()}": json.dumps(connection)},
    )


def _asked(client: httpx.Client, size: int, questions: int) -> Iterator[tuple[str, list[str]]]:
    topology = f"of{size}"
    prefix = _connected(client, topology)
    for what, paths in (
        ("config", [f"config?warehouse={topology}"]),
        ("all tables' names", [f"{prefix}/namespaces/{topology}/tables"]),
        ("LoadTable", [f"{prefix}/namespaces/{topology}/tables/t{number:04}" for number in range(size)]),
    ):
        times = []
        for number in range(questions):
            began = time.perf_counter()
            answer = client.get(paths[number % len(paths)])
            times.append(1000 * (time.perf_counter() - began))
            answer.raise_for_status()
        cuts = quantiles(times, n=100, method="inclusive")
        yield what, [f"{cuts[49]:.1f}", f"{cuts[98]:.1f}", f"{len(answer.content) / 1e3:,.1f}"]


def _connected(client: httpx.Client, topology: str) -> str:
    answer = client.get("config", params={"warehouse": topology})
    answer.raise_for_status()
    return str(answer.json()["overrides"]["prefix"])


def _at_once(
    client: httpx.Client, process: psutil.Process, size: int, catalogs: int, their_tables: int
) -> Sequence[str]:
    def read(number: int) -> None:
        prefix = _connected(client, f"of{size}")
        for each in range(their_tables):
            at = (number * their_tables + each) % size
            client.get(f"{prefix}/namespaces/of{size}/tables/t{at:04}").raise_for_status()

    before, began = process.cpu_times(), time.perf_counter()
    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(read, range(catalogs)))
    seconds = time.perf_counter() - began
    after = process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    asked = catalogs * (their_tables + 1)
    return [f"{asked:,}", f"{seconds:.1f}", f"{asked / seconds:,.0f}", f"{cpu:.1f}", f"{1000 * cpu / asked:.1f}"]
