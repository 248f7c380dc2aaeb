"""What the drivers that spark-submit starts have in common: their session, how they end, files beside the warehouse."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def submitted(work: str) -> Iterator[SparkSession]:
    """The driver's session, for as long as it works.

    If anything fails, the process ends with exit code 1 and one readable last line that begins with ``work``.
    """
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    try:
        yield spark
    except Exception as error:
        traceback.print_exc()
        # Spark's messages go on for pages: what happened is in the first line
        sys.exit(f"{work} failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    finally:
        spark.stop()


def read_file(spark: SparkSession, uri: str) -> str | None:
    """None: it is not there."""
    path, files = hadoop(spark, uri)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return str(spark._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))  # type: ignore[union-attr]
    finally:
        stream.close()


def read_told(spark: SparkSession, uri: str, what: str) -> str:
    """Return what the driver is told to do; ``what`` names the file in errors. Raises SpecError."""
    text = read_file(spark, uri)
    if text is None:
        raise SpecError(  # safety: spec-is-there
            f"expected the {what} at {uri}, found nothing; can the Spark driver read the warehouse under this URI?"
        )
    return text


def write_file(spark: SparkSession, uri: str, text: str) -> bool:
    """Write a file whole or not at all, and only once; False: one is there."""
    path, files = hadoop(spark, uri)
    partial, _ = hadoop(spark, f"{uri}.partial")
    stream = files.create(partial, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
    return not files.exists(path) and bool(files.rename(partial, path))


def hadoop(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """A Hadoop path and its file system: whatever storage Spark can write tables to."""
    path = spark._jvm.org.apache.hadoop.fs.Path(uri)  # type: ignore[union-attr]
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())
