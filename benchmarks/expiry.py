"""Expiry: what it takes to let go of many barriers, and whether that follows what goes or what stays."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.expiring import expire, plan_expiry
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.project.local import QUICK_JAVA
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.expiring import ExpiredFiles, expire_snapshots
from benchmarks.history import LIVE, make_history
from benchmarks.report import Measured
from demo.local_spark import CATALOG, LocalConnectServer, catalog_conf
from demo.places import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The catalog of the second topology.
_OTHER = "apart"
_TABLES, _EXPIRED, _LEASES, _KEPT = 10, 1_000, 20, 31
#: One expiry after the other on the same tables: barriers that are removed, that stay, and whether it is shown; the
#: others only lead to the next one.
_STEPS = (
    (500, 1_000, True),
    (100, 900, True),
    (300, 600, False),
    (100, 500, True),
    (200, 300, False),
    (100, 200, True),
    (69, 131, False),
    (100, 31, True),
)
_SWEPT = 3


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    tables, expired, leases, kept, steps, swept = (
        (2, 4, 2, 2, ((3, 4, True), (1, 3, False), (1, 2, True)), 2)
        if quick
        else (_TABLES, _EXPIRED, _LEASES, _KEPT, _STEPS, _SWEPT)
    )
    many, sweep = _Lake(folder / "many", CATALOG), _Lake(folder / "sweep", _OTHER)
    many.make(tables, expired + leases + kept)
    sweep.make(swept, sum(steps[0][:2]))
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    other = {
        key.replace(f".catalog.{CATALOG}", f".catalog.{_OTHER}"): value
        for key, value in catalog_conf(sweep.folder, sweep.folder / "barrier.db").items()
    }
    conf = {**other, "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    if quick:
        conf["spark.driver.extraJavaOptions"] = QUICK_JAVA
    with (
        LocalConnectServer(many.folder, many.folder / "barrier.db", ivy, conf=conf) as server,
        _session(server) as spark,
    ):
        _warm(spark)
        # spread over what goes: every one of them stands alone
        many.lease([number * (expired // leases) + 1 for number in range(leases)])
        found = [_of_many(many, spark, expired, leases, kept), _of_sweep(sweep, spark, steps)]
    for lake in (many, sweep):
        lake.deployment.close()
    return found


def _of_many(lake: _Lake, spark: SparkSession, expired: int, leases: int, kept: int) -> Measured:
    planning, plan = _timed(lambda: plan_expiry(lake.deployment, lake.name, Retention(kept)))
    assert (len(plan.expiring), plan.snapshots) == (expired, expired * len(lake.tables))
    before = lake.files()
    done = lake.expire(spark, kept)
    after = lake.files()
    # the next expiry forgets the details of these
    again = lake.expire(spark, kept)
    rows = [
        ["a plan, as a dry run makes it", f"{planning:.2f}"],
        ["an expiry", f"{done.seconds:.2f}"],
        *([f"of it: {part}", f"{seconds:.2f}"] for part, seconds in done.parts.items()),
        ["the next expiry, which finds nothing to expire", f"{again.seconds:.2f}"],
        *([f"of it: {part}", f"{seconds:.2f}"] for part, seconds in again.parts.items() if seconds),
    ]
    return Measured(
        f"Expiry of {expired:,} barriers of {len(lake.tables)} tables",
        f"`coordinator.expiring.expire` with Iceberg's `expire_snapshots` on the demo's Spark Connect server, warm. "
        f"{expired + leases + kept:,} barriers, all tagged, of which the newest {kept} stay and {leases} that readers "
        "have leased, spread over the others, so that each stands alone. Each barrier adds a data file to each table "
        f"and takes the one of {LIVE} barriers before away. All files are real ones on a local disk.",
        ["seconds", "all tables"],
        rows,
        [
            f"deleted: {done.words}; files before {before:,}, after {after:,}",
            f"Spark, a table: {median(done.spark):.1f} s, {min(done.spark):.1f} to {max(done.spark):.1f}",
        ],
    )


def _of_sweep(lake: _Lake, spark: SparkSession, steps: Sequence[tuple[int, int, bool]]) -> Measured:
    rows = []
    for removed, stay, shown in steps:
        done = lake.expire(spark, stay)
        assert done.barriers == removed
        if shown:
            ours = done.seconds - sum(done.spark)
            each = 1000 / len(lake.tables)
            cells = (ours * each, 1000 * median(done.spark), done.seconds * each / removed)
            rows.append([f"{removed:,}", f"{stay:,}", *(f"{cell:,.0f}" for cell in cells[:2]), f"{cells[2]:.1f}"])
    return Measured(
        "What the cost of an expiry follows",
        f"The same with {len(lake.tables)} tables and no leases: one expiry after the other on the same history. Times "
        "are a table's: ours the mean, Spark's the median.",
        ["barriers removed", "barriers that stay", "ours, ms", "Spark, ms", "ms a barrier removed"],
        rows,
    )


@dataclass
class _Done:
    """An expiry: its seconds, what they went into, and of Spark's those of each table."""

    barriers: int
    seconds: float
    parts: dict[str, float]
    spark: list[float]
    words: str


@dataclass
class _Lake:
    """A deployment with one topology of the name of its catalog."""

    folder: Path
    name: str
    tables: tuple[str, ...] = ()
    deployment: Deployment = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        settings = Settings.embedded(
            str(self.folder), catalog_name=self.name, spark_catalog=self.name, tag_policy="every=1"
        )
        self.deployment = Deployment.connect(settings)

    def make(self, tables: int, barriers: int) -> None:
        self.tables = tuple(f"history.t{number:02}" for number in range(tables))
        make_history(self.deployment, self.name, self.tables, barriers)

    def lease(self, barriers: Sequence[int]) -> None:
        for barrier in barriers:
            hold = Hold("benchmark", 24 * 3600)
            self.deployment.meta.answers.resolve(self.name, Level.REPEATABLE_READ, at=barrier, hold=hold)

    def files(self) -> int:
        return sum(path.is_file() for path in (self.folder / "history").rglob("*"))

    def expire(self, spark: SparkSession, keep: int) -> _Done:
        clock: defaultdict[str, float] = defaultdict(float)
        deployment = replace(
            self.deployment,
            meta=_Timed(self.deployment.meta, clock, _META),  # type: ignore[arg-type]
            tables=_Timed(self.deployment.tables, clock, _LAKE),  # type: ignore[arg-type]
        )
        on_each: list[float] = []
        counts = ExpiredFiles(0, 0, 0)

        def take_out(table: str, snapshots: Sequence[int]) -> ExpiredFiles:
            nonlocal counts
            seconds, files = _timed(lambda: expire_snapshots(spark, self.name, table, snapshots))
            on_each.append(seconds)
            counts = ExpiredFiles(
                counts.data + files.data, counts.deletes + files.deletes, counts.manifests + files.manifests
            )
            return files

        seconds, done = _timed(lambda: expire(deployment, self.name, Retention(keep), take_out, actor="benchmark"))
        parts = {part: clock[part] for part in dict.fromkeys([*_META.values(), *_LAKE.values()])}
        parts["Spark takes the snapshots and files out"] = sum(on_each)
        return _Done(len(done.barriers), seconds, parts, on_each, str(counts))


_MOVING = "MetaService: what may go, no lease is granted any more, gone"
#: method -> the part that its time belongs to
_META = {"trim": "MetaService: details of what had expired before are forgotten", "": _MOVING}
_LAKE = {"drop_tags": "tags are dropped", "snapshot_verdicts": "tables are looked at"}


class _Timed:
    """Whose methods add their seconds to a clock."""

    def __init__(self, timed: object, clock: defaultdict[str, float], parts: dict[str, str]) -> None:
        self._timed, self._clock, self._parts = timed, clock, parts

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._timed, name)
        if not callable(method):  # a group of methods
            return _Timed(method, self._clock, self._parts)

        def call(*args: Any, **kwargs: Any) -> Any:
            seconds, answer = _timed(lambda: method(*args, **kwargs))
            self._clock[self._parts.get(name, self._parts.get("", name))] += seconds
            return answer

        return call


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    answer = work()
    return time.perf_counter() - began, answer


def _warm(spark: SparkSession) -> None:
    """Spark has run such an expiry before."""
    spark.sql(f"CREATE NAMESPACE {_OTHER}.warm")
    name = f"{_OTHER}.warm.t"
    spark.sql(f"CREATE TABLE {name} (n BIGINT) USING iceberg")
    for number in range(3):
        spark.sql(f"INSERT OVERWRITE {name} VALUES ({number})")
    ids = [row[0] for row in spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()]
    for snapshot in ids[:-1]:
        expire_snapshots(spark, _OTHER, "warm.t", [snapshot])


@contextmanager
def _session(server: LocalConnectServer) -> Iterator[SparkSession]:
    session = connect_session(server.url)
    try:
        yield session
    finally:
        stop_session(session)
