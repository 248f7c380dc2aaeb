"""Packages that Spark needs for some sources, beside what it brings, and what it says where one is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.systems.spark_versions import installed_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A frame of each format, for whose columns Spark asks nobody.
_FRAMES: Mapping[str, Callable[[SparkSession], DataFrame]] = {
    "avro": lambda spark: spark.read.format("avro").schema("nothing INT").load(),
    "kafka": lambda spark: (
        spark.read.format("kafka").options(**{"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "nothing"}).load()
    ),
}
_MISSING = re.compile(r"Failed to find data source: (?P<format>\w+)|\[(?P<avro>AVRO_NOT_LOADED_\w+)\]")


def look_for_package(spark: SparkSession, name: str) -> None:
    """Raises ConfigurationError if Spark lacks the package of the format of this name."""
    try:
        _ = _FRAMES[name](spark).schema
    except Exception as error:
        raise package_error(error) or error from error


def package_error(error: BaseException) -> ConfigurationError | None:
    """The error of a Spark that lacks a source's package; None: another."""
    found = _MISSING.search(str(error))
    if found is None:
        return None
    name = "avro" if found["avro"] else found["format"]
    package = installed_spark().source_packages.get(name)
    if package is None:
        return None
    return ConfigurationError(
        f"expected the package of Spark's format {name}, {package}, among Spark's jars, found none; add it to "
        f"spark.jars.packages (`airflow-barrier spark-conf --with {name}` prints the line), and start Spark again"
    )
