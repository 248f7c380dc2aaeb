"""Adds rows that say which Python made them, and where it had our package from."""

import importlib.util
import os

from pyspark.sql import functions as F  # noqa: N812

import airflow_barrier
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.job import epoch_job


@epoch_job
def load(epoch: Epoch) -> None:
    for absent in ("airflow", "sqlalchemy", "pyiceberg"):
        assert importlib.util.find_spec(absent) is None, f"{absent} is importable in the driver"
    assert ".zip" in str(airflow_barrier.__file__), airflow_barrier.__file__

    @F.udf("string")
    def origin(_: int) -> str:
        from airflow_barrier.protocol import names

        return os.path.basename(os.path.dirname(os.path.dirname(os.path.dirname(str(names.__file__)))))

    rows = epoch.spark.range(0, 8, 1, 4).select("id", F.lit(epoch.barrier_id).alias("barrier"), origin("id"))
    rows.toDF("k", "n", "origin").writeTo(epoch.target("clustered.events")).append()


if __name__ == "__main__":
    load.main()
