"""A session's conf, set in one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def set_conf(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Set all of ``conf``, in one request if the session is Spark Connect's, for which pyspark has no public call."""
    together = getattr(spark.conf, "_set_all", None)
    if together is not None:
        together(dict(conf), silent=False)
        return
    for key, value in conf.items():
        spark.conf.set(key, value)
