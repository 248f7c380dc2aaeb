"""The same jobs without barriers, as pipelines are written today: each reads what is there now and writes to `main`.

Each job remembers which snapshots of its inlets it has processed and takes the changes since then. So every table by
itself is right; what is missing is only that the tables move together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_barrier.spark.changes import appends, changes
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.delta_join import delta_join
from airflow_barrier.spark.identifiers import table_name
from airflow_barrier.spark.job import load_job
from airflow_barrier.spark.sql import SqlJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG = "lake"
#: What a barrier's epoch of that size is given by its profile: a comparison is about barriers, not about conf.
CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}


class PlainEpoch:
    """What :class:`airflow_barrier.spark.epoch.Epoch` offers to jobs, over `main` of the tables in `plain`."""

    def __init__(
        self, spark: SparkSession, landing: str, timestamp: datetime, schemas: dict[str, str], memory: Path
    ) -> None:
        self.spark = spark
        self.timestamp, self.previous_timestamp = timestamp, timestamp - timedelta(days=1)
        self.seed = timestamp.toordinal()
        self._landing, self._schemas, self._memory = landing, schemas, memory
        remembered: dict[str, Any] = json.loads(memory.read_text()) if memory.exists() else {"days": 0, "snapshots": {}}
        self._days: int = remembered["days"]
        self._before: dict[str, int | None] = remembered["snapshots"]
        self._now: dict[str, int | None] = {}

    def source(self, name: str) -> DataFrame:
        """What landed on the day before ``timestamp``."""
        folder = Path(self._landing, name, f"date={self.previous_timestamp:%Y-%m-%d}")
        if not folder.exists():
            return self.spark.createDataFrame([], self._schemas[name])
        return self.spark.read.schema(self._schemas[name]).parquet(f"file:{folder}")

    def changes(self, table: str) -> DataFrame:
        return changes(self.spark, _plain(table), self._before.get(table), self._current(table))

    def appends(self, table: str) -> DataFrame:
        return appends(self.spark, _plain(table), self._before.get(table), self._current(table))

    def read(self, table: str) -> DataFrame:
        return self._at(table, self._current(table))

    def previous(self, table: str) -> DataFrame:
        return self._at(table, self._before.get(table))

    def delta_join(self, left: str, right: str, on: str | list[str], how: str = "inner") -> DataFrame:
        return delta_join(
            self.previous(left), self.changes(left), self.previous(right), self.changes(right), on=on, how=how
        )

    def target(self, table: str) -> str:
        return _plain(table)

    def unchanged(self, table: str) -> None:
        """Nothing is written, and nobody asks."""

    def remember(self) -> None:
        """The next run of the job takes the changes from here on."""
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"days": self._days + 1, "snapshots": {**self._before, **self._now}})
        self._memory.with_suffix(".new").write_text(text)
        self._memory.with_suffix(".new").replace(self._memory)

    def _current(self, table: str) -> int | None:
        if table not in self._now:
            refs = table_name(CATALOG, _named(table), "refs")
            rows = self.spark.sql(f"SELECT snapshot_id FROM {refs} WHERE name = 'main'").collect()
            self._now[table] = rows[0].snapshot_id if rows else None
        return self._now[table]

    def _at(self, table: str, snapshot_id: int | None) -> DataFrame:
        if snapshot_id is None:
            return self.spark.table(_plain(table)).limit(0)
        return self.spark.read.option("versionAsOf", snapshot_id).table(_plain(table))


def run_plain(job: Path, landing: str, timestamp: datetime, schemas: dict[str, str]) -> None:
    """Run the job in a file for the day that ends at ``timestamp``; PLAIN_MEMORY and SPARK_REMOTE_URL say where.

    With SHOPPING_VIA=submit the session is of this process, by Spark's own conf.
    """
    with _session() as spark:
        for key, value in CONF.items():
            spark.conf.set(key, value)
        memory = Path(os.environ["PLAIN_MEMORY"], f"{job.stem}.json")
        epoch = PlainEpoch(spark, landing, timestamp, schemas, memory)
        run = SqlJob(job.read_text()) if job.suffix == ".sql" else load_job(str(job))
        run(epoch)  # type: ignore[arg-type]  # the same methods, over other tables
        epoch.remember()


@contextmanager
def _session() -> Iterator[SparkSession]:
    if os.environ.get("SHOPPING_VIA") == "submit":
        from pyspark.sql import SparkSession

        with SparkSession.builder.getOrCreate() as spark:
            yield spark
        return
    spark = connect_session(os.environ["SPARK_REMOTE_URL"])
    try:
        yield spark
    finally:
        stop_session(spark)


def _named(table: str) -> str:
    return f"plain.{table.partition('.')[2]}"


def _plain(table: str) -> str:
    return table_name(CATALOG, _named(table))
