"""A delivery to files beside Spark's own writer: the same table of the lake, the same server, in turns."""

from __future__ import annotations

import os
import shutil
import statistics
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.delivering import ParquetRows
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sinks.ledger import Deliverer
from airflow_barrier.sinks.port import Delivery
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.delivering import Extract, write_extract
from benchmarks.report import Measured
from demo.local_spark import CATALOG, LocalConnectServer
from demo.places import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIZES, _QUICK = (1_000, 100_000, 1_000_000), (1_000,)
_WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    warehouse, database = folder / "warehouse", folder / "barrier.db"
    warehouse.mkdir(parents=True)
    url = f"sqlite:///{database}"
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    rows = []
    with LocalConnectServer(warehouse, database, ivy, conf=conf) as server:
        deployment = Deployment.connect(Settings(url, url, warehouse.as_uri(), spark_catalog=CATALOG))
        spark = connect_session(server.url)
        try:
            spark.sql(f"CREATE NAMESPACE {CATALOG}.bench")
            _Ways(folder, deployment, spark, 1_000).once()  # Java is warm
            for size in _QUICK if quick else _SIZES:
                rows.append(_at(_Ways(folder, deployment, spark, size), size, 1 if quick else 5))
        finally:
            stop_session(spark)
            deployment.close()
    return [
        Measured(
            "Delivering to files, in seconds",
            "A whole table of four columns to Parquet on a local disk. Ours is all of it: Spark writes beside the "
            "warehouse, and the task streams that into the sink's files (that part alone: files), each on the disk "
            "(fsync) before its barrier is there, with the ledger. Spark's own writer writes the table into a folder "
            "and knows of no barriers. Median of 5 in turns.",
            ["rows", "ours", "of it files", "Spark's own writer", "files against Spark", "ours against Spark"],
            rows,
        )
    ]


class _Ways:
    """A table of so many rows, and two ways to have it in files."""

    def __init__(self, folder: Path, deployment: Deployment, spark: SparkSession, size: int) -> None:
        self._deployment, self._spark = deployment, spark
        self._table = f"bench.prices_{size}_{uuid.uuid4().hex[:6]}"
        self._out = folder / "out" / self._table
        name = f"{CATALOG}.{self._table}"
        spark.sql(
            f"CREATE TABLE {name} USING iceberg AS SELECT id AS userId, CAST(id % 1000 AS INT) AS itemId, "
            f"CAST(id % 100000 / 100 AS DECIMAL(10, 2)) AS price, concat('first ', id) AS note FROM range({size})"
        )
        self._snapshot = spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").collect()[0][0]

    def once(self) -> tuple[float, float, float]:
        """Seconds: of ours, of its second part alone, of Spark's."""
        shutil.rmtree(self._out, ignore_errors=True)
        began = time.perf_counter()
        extract = Extract(self._table, None, self._snapshot, Rows.TABLE, whole=True)
        uris = write_extract(self._spark, CATALOG, extract, (self._out / "extract").as_uri())
        written = time.perf_counter()
        self._deliver(uris)
        ended = time.perf_counter()
        frame = self._spark.read.option("versionAsOf", self._snapshot).table(f"{CATALOG}.{self._table}")
        frame.write.parquet((self._out / "plain").as_uri())
        return ended - began, ended - written, time.perf_counter() - ended

    def _deliver(self, uris: list[str]) -> None:
        schema = self._deployment.tables.schema_at(self._table, self._snapshot)
        sink = FileSink(str(self._out / "sink"))
        declared = sink.declare({self._table: "prices"}, Rows.TABLE, "benchmark")
        with sink.connect(declared, None) as channel:
            channel.validate({self._table: schema})
            after = channel.open(Deliverer("bench", "one", "sink", "benchmark")).position
            rows = {self._table: ParquetRows(self._deployment, schema, uris)}
            channel.deliver(Delivery(1, 0, _WHEN, after, Rows.TABLE, rows, rows))


def _at(ways: _Ways, size: int, repeats: int) -> list[str]:
    ours, files, plain = (statistics.median(each) for each in zip(*(ways.once() for _ in range(repeats)), strict=True))
    return [f"{size:,}", f"{ours:.3f}", f"{files:.3f}", f"{plain:.3f}", f"{plain / files:.2f}", f"{plain / ours:.2f}"]
