"""What a barrier costs after many barriers, Spark included: with the default upkeep, and with none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from typing import Any

from airflow_barrier.coordinator.compacting import Compactor, compact, open_compaction, worth_compacting
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.compacting import RewrittenFiles, rewrite_files
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.job import load_job
from airflow_barrier.spark.sql import SqlJob
from benchmarks.latency import purchases
from benchmarks.report import Measured
from benchmarks.steady import JOBS
from demo.landing import LINES, PRODUCTS, published, write
from demo.local_spark import CATALOG, LocalConnectServer, catalog_conf
from demo.places import CHECKOUT, Places
from demo.steps import commit, open_at, process
from tests.support.runs import run_of

#: Barriers; of which so many around a number stand for it; rows of each; and those that warm the server before.
_BARRIERS, _AROUND, _ROWS, _WARM = 60, 5, 2_000, 6
_TOPOLOGY = "shopping"
_FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
#: The jobs that run at once, one group after the other.
_LEVELS = (("load", "products"), ("amount", "price", "category_spend"), ("avg_price",))
#: Catalogs, which are the sides.
_UPKEEP, _NONE, _BEFORE = "upkeep", CATALOG, "warming"


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    """``quick`` leaves Spark out, and all of it: there is nothing to see then but that this module loads."""
    if quick:
        return []
    folder = folder.resolve()
    _land(folder / "landing")
    with _spark(folder) as server:
        sides = {name: Side(folder, name, server.url) for name in (_UPKEEP, _NONE, _BEFORE)}
        try:
            for number in range(_WARM):
                sides[_BEFORE].barrier(number)
            for number in range(_BARRIERS):
                for name in (_UPKEEP, _NONE):
                    sides[name].barrier(number)
                sides[_UPKEEP].keep_up(number)
            return [_measured(sides[_UPKEEP], sides[_NONE])]
        finally:
            for side in sides.values():
                side.deployment.close()


class Side:
    """The shopping topology in a catalog of its own: ``seconds`` of each barrier, and of each compaction."""

    def __init__(self, folder: Path, name: str, url: str) -> None:
        self.deployment = Deployment.connect(
            Settings.embedded(str(folder / name), catalog_name=name, spark_catalog=name)
        )
        self.url = url
        self.seconds: list[float] = []
        self.compactions: list[float] = []
        schemas = _schemas()
        files = {one: Files(f"{folder}/landing/{one}", name=one, schema=schemas[one]).declare() for one in schemas}
        self.fragment = Fragment(
            _TOPOLOGY,
            "shopping_dag",
            tuple(
                Job(
                    name,
                    "shopping_dag",
                    inlets=tuple(inlet for inlet in inlets if inlet not in files),
                    outlets=tuple(outlets),
                    externals=tuple(files[inlet] for inlet in inlets if inlet in files),
                )
                for name, (_, inlets, outlets) in JOBS.items()
            ),
        )

    def barrier(self, number: int) -> None:
        """From the opening to readable."""
        began = time.perf_counter()
        barrier = open_at(self.deployment, self.fragment, _due(number))
        for level in _LEVELS:
            with ThreadPoolExecutor(len(level)) as pool:
                list(pool.map(lambda job: process(self.deployment, self.url, barrier, job, _job(job)), level))
        commit(self.deployment, barrier)
        self.seconds.append(time.perf_counter() - began)

    def keep_up(self, number: int) -> None:
        """What `CompactTablesOperator` does by default."""
        began = time.perf_counter()
        tables = worth_compacting(self.deployment, _TOPOLOGY)
        if not tables:
            return
        compactor = Compactor(run_of(f"upkeep/{number}"), f"upkeep/{number}", "g", "benchmark")
        barrier = open_compaction(self.deployment, _TOPOLOGY, tables, compactor)
        assert isinstance(barrier, Barrier), barrier
        session = connect_session(self.url)

        def rewrite(table: str, branch: str) -> RewrittenFiles:
            return rewrite_files(session, self.deployment.spark_catalog, table, branch, {})

        try:
            assert compact(self.deployment, barrier, rewrite, compactor).over
        finally:
            stop_session(session)
        self.compactions.append(time.perf_counter() - began)

    def around(self, number: int) -> float:
        """The median of the barriers around one of that number, or of the last ones."""
        first = min(number - 1 - _AROUND // 2, len(self.seconds) - _AROUND)
        return median(self.seconds[first : first + _AROUND])

    def files(self) -> str:
        tables = [table for _, _, outlets in JOBS.values() for table in outlets]
        readings = self.deployment.tables.readings(tables).values()
        return f"{sum(one.files for one in readings)} + {sum(one.deletes for one in readings)}"


def _job(name: str) -> Any:
    file = CHECKOUT / "dags" / "shopping_jobs" / JOBS[name][0]
    return SqlJob(file.read_text()) if file.suffix == ".sql" else load_job(str(file))


def _measured(upkeep: Side, none: Side) -> Measured:
    at = (5, _BARRIERS // 2, _BARRIERS)
    rows = [
        [what, *(f"{side.around(number):.2f}" for number in at), f"{side.around(at[-1]) / side.around(5):.2f}", files]
        for what, side, files in (("with", upkeep, upkeep.files()), ("without", none, none.files()))
    ]
    spent = sum(upkeep.compactions)
    return Measured(
        "A barrier after many barriers, with Spark and upkeep",
        f"The jobs of `dags/shopping.py`, {_ROWS:,} rows a barrier, by their steps (no Airflow), on one Spark "
        "Connect server (two cores), from the opening to readable. Two catalogs in turns, a "
        "barrier here and a barrier there: in one of them `CompactTablesOperator`'s default follows each barrier, "
        f"which is not part of the seconds. {_WARM} barriers in a third one came first. Medians of {_AROUND} barriers "
        "around each number.",
        [
            "upkeep, seconds a barrier",
            *(f"around {number}" for number in at[:-1]),
            f"last of {at[-1]}",
            "last / 5",
            "data + delete files",
        ],
        rows,
        [
            "goal: at most 1.1 with upkeep; found " + rows[0][4],
            f"{len(upkeep.compactions)} compactions in {_BARRIERS} barriers, {spent:.1f} s together, which is "
            f"{spent / sum(upkeep.seconds):.0%} of what the barriers took",
        ],
    )


def _land(landing: Path) -> None:
    lines, products = published()
    for number in range(max(_BARRIERS, _WARM)):
        _write(landing / "shopping" / f"{number:03}.parquet", purchases(lines, number, _ROWS), LINES, number)
    _write(landing / "products" / "000.parquet", products, PRODUCTS, 0)


def _write(file: Path, rows: Any, schema: Any, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write(rows, schema, file)
    landed = _due(number).timestamp() - 1
    os.utime(file, (landed, landed))


def _due(number: int) -> datetime:
    return _FIRST + timedelta(hours=number)


def _schemas() -> dict[str, str]:
    sys.path.append(str(CHECKOUT / "dags"))
    from shopping_jobs import landing

    return {one.name: one.schema for one in (landing.SHOPPING, landing.PRODUCTS)}


@contextmanager
def _spark(folder: Path) -> Iterator[LocalConnectServer]:
    """A server with all three catalogs, and their tables."""
    conf = {
        "spark.default.parallelism": "2",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
    }
    for name in (_UPKEEP, _BEFORE):
        (folder / name).mkdir()
        own = catalog_conf(folder / name, folder / name / "barrier.db")
        conf |= {key.replace(f".catalog.{CATALOG}", f".catalog.{name}"): value for key, value in own.items()}
    sys.path.append(str(CHECKOUT / "dags"))
    from shopping_jobs.tables import create_tables

    (folder / _NONE).mkdir()
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    with LocalConnectServer(folder / _NONE, folder / _NONE / "barrier.db", ivy, conf=conf) as server:
        session = connect_session(server.url)
        try:
            for name in (_UPKEEP, _NONE, _BEFORE):
                create_tables(session, name, "shop")
        finally:
            stop_session(session)
        yield server
