"""What the DAGs of the latency figure and the figure itself both know: jobs, due times, where data lands."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: job -> its file, inlets and outlets, as in dags/shopping.py
JOBS: dict[str, tuple[str, Sequence[str], Sequence[str]]] = {
    "load": ("load.py", ["shopping"], ["shop.shopping"]),
    "products": ("products.py", ["products"], ["shop.products"]),
    "amount": ("amount.py", ["shop.shopping"], ["shop.user_item_amount"]),
    "price": ("price.sql", ["shop.shopping"], ["shop.user_item_price"]),
    "category_spend": ("category_spend.py", ["shop.shopping", "shop.products"], ["shop.user_category_spend"]),
    "avg_price": ("avg_price.py", ["shop.user_item_amount", "shop.user_item_price"], ["shop.user_item_avg_price"]),
}
#: Of all DAGs.
OPTIONS: dict[str, Any] = {
    "max_active_runs": 1,
    # a machine that is busy with something else makes Airflow lose a task now and then
    "default_args": {"retries": 2, "retry_delay": timedelta(seconds=1)},
}
#: Spark conf of drivers that are submitted
SUBMIT_CONF: dict[str, str] = json.loads(os.environ.get("BENCHMARK_SUBMIT_CONF", "{}"))


@dataclass(frozen=True)
class Schedule:
    """``count`` barriers, one every ``period`` seconds, the first at ``start``."""

    start: datetime
    period: float
    count: int

    @classmethod
    def of_environment(cls) -> Schedule:
        start, period, count = json.loads(os.environ["BENCHMARK_SCHEDULE"])
        return cls(datetime.fromtimestamp(start, timezone.utc), period, count)

    def text(self) -> str:
        return json.dumps([self.start.timestamp(), self.period, self.count])

    def at(self, number: int) -> datetime:
        return self.start + timedelta(seconds=number * self.period)


def landing(dag: str) -> str:
    """Where a DAG's files land."""
    return f"{os.environ['BENCHMARK_LANDING']}/{dag}"


def landed(folder: str, source: str, number: int) -> Path:
    """The file of a source for one barrier; most have none of the products."""
    return Path(folder, source, f"{number:03}.parquet")


def run_plain(job: Path, number: int) -> None:
    """A job for one period, on `main`, as :mod:`shopping_jobs.plain` does it; what landed lies in numbered files."""
    from shopping_jobs.landing import PRODUCTS, SHOPPING
    from shopping_jobs.plain import CONF, PlainEpoch

    from airflow_barrier.spark.connect import connect_session, stop_session
    from airflow_barrier.spark.job import load_job
    from airflow_barrier.spark.sql import SqlJob

    schemas = {source.name: source.schema for source in (SHOPPING, PRODUCTS)}
    folder = landing("barriers")

    class Numbered(PlainEpoch):  # type: ignore[misc]
        def source(self, name: str) -> DataFrame:
            file = landed(folder, name, number)
            if not file.exists():
                return self.spark.createDataFrame([], schemas[name])
            return self.spark.read.schema(schemas[name]).parquet(file.as_uri())

    spark: Any = connect_session(os.environ["SPARK_REMOTE_URL"])
    try:
        for key, value in CONF.items():
            spark.conf.set(key, value)
        memory = Path(os.environ["PLAIN_MEMORY"], f"{job.stem}.json")
        epoch = Numbered(spark, folder, datetime(2026, 1, 1, tzinfo=timezone.utc), schemas, memory)
        run: Any = SqlJob(job.read_text()) if job.suffix == ".sql" else load_job(str(job))
        run(epoch)
        epoch.remember()
    finally:
        stop_session(spark)
