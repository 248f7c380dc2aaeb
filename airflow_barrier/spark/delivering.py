"""What a delivery takes of a table, as Parquet files beside the warehouse, from which it is sent on in batches.

The rows go from Spark's executors to storage and from there to the sink: neither a driver's memory nor a task's has to
hold them, and a sink's credentials never come near Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.changes import CHANGE_TYPE, WEIGHT
from airflow_barrier.protocol.deliveries import CHANGE, DELETE, INSERT, UPDATE, Rows
from airflow_barrier.protocol.errors import RowRefusedError
from airflow_barrier.sources.spark_errors import RAISED
from airflow_barrier.spark._conf import set_conf
from airflow_barrier.spark._iceberg import rows_at
from airflow_barrier.spark.changes import appends, changes
from airflow_barrier.spark.identifiers import quoted, table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What an error begins with that Spark raises for us.
#: Spark's own choice, INT96, has no time zone and ends in 2262; before Spark 4.0 it refuses dates of the old calendar.
_AS_IT_IS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_TWICE = "airflow_barrier: two rows of one key: "


@dataclass(frozen=True)
class Extract:
    """The part of ``table`` (``namespace.table``) that is delivered: its rows at snapshot ``end``, or those that came
    and went since ``start``; None: before its first snapshot. ``whole``: all of them, whatever ``rows`` says. ``key``:
    the
    columns by which changed rows are told apart; ``only_key``: these columns alone.
    """

    table: str
    start: int | None
    end: int | None
    rows: Rows
    whole: bool
    key: tuple[str, ...] = ()
    only_key: bool = False


def write_extracts(spark: SparkSession, catalog: str, extracts: Sequence[Extract], folder: str) -> list[list[str]]:
    """Write the rows of each into a folder of its own in ``folder``; returns what :func:`write_extract` says of each.

    Raises what that raises.
    """
    return [write_extract(spark, catalog, extract, f"{folder}/{number}") for number, extract in enumerate(extracts)]


def write_extract(spark: SparkSession, catalog: str, extract: Extract, folder: str) -> list[str]:
    """Write the rows into ``folder``; returns the URIs of the files, in the order of their rows.

    Raises RowRefusedError if two rows have the same key, NotAppendOnlyError, and what
    :func:`~airflow_barrier.spark.changes.changes` raises.
    """
    set_conf(spark, _AS_IT_IS)
    frame = _frame(spark, table_name(catalog, extract.table), extract)
    if extract.whole and not extract.only_key:
        _check_key(frame, extract)
    try:
        frame.write.mode("overwrite").parquet(folder)
    except Exception as error:
        twice = re.search(RAISED + re.escape(_TWICE) + r"(?P<key>[^}]*\})", str(error))
        if twice is None:
            raise
        raise _refused(extract, twice["key"]) from None
    return sorted(spark.read.parquet(folder).inputFiles())


def _check_key(rows: DataFrame, extract: Extract) -> None:
    """All rows of a table are told apart by its key. A sink that is no database would take two of one key."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = [F.col(quoted(name)) for name in extract.key]
    if not keys:
        return
    counted = rows.groupBy(*keys).agg(F.count(F.lit(1)).alias("_rows")).where("_rows > 1")
    if twice := counted.select(F.to_json(F.struct(*keys))).head():
        raise _refused(extract, twice[0])  # safety: whole-tables-have-their-key


def _refused(extract: Extract, key: str) -> RowRefusedError:
    return RowRefusedError(
        f"table {extract.table}: expected one row of each key ({', '.join(extract.key)}), found two of {key}; nothing "
        "was delivered. Name a key that tells rows apart, or correct the job and its rows by a revision"
    )


def _frame(spark: SparkSession, table: str, extract: Extract) -> DataFrame:
    if extract.whole:
        rows = rows_at(spark, table, extract.end)
        return rows.select(*map(quoted, extract.key)) if extract.only_key else rows
    if extract.rows is Rows.APPENDS:
        return appends(spark, table, extract.start, extract.end)
    return _by_key(changes(spark, table, extract.start, extract.end), extract.key)


def _by_key(delta: DataFrame, key: Sequence[str]) -> DataFrame:
    """One row for each key that changed: what it is now, or, of one that went, the key alone."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = [F.col(quoted(name)) for name in key]
    others = [name for name in delta.columns if name not in {*key, CHANGE_TYPE, WEIGHT}]
    came = F.col(WEIGHT) > 0
    values = F.struct(F.lit(True).alias("_"), *(F.col(quoted(name)) for name in others))
    grouped = delta.groupBy(*keys).agg(
        F.count_if(came).alias("_came"),
        F.count_if(~came).alias("_went"),
        F.first(F.when(came, values), ignorenulls=True).alias("_now"),
    )
    twice = F.raise_error(F.concat(F.lit(_TWICE), F.to_json(F.struct(*keys))))
    change = (
        F.when((F.col("_came") > 1) | (F.col("_went") > 1), twice.cast("string"))
        .when(F.col("_came") == 0, F.lit(DELETE))
        .when(F.col("_went") == 0, F.lit(INSERT))
        .otherwise(F.lit(UPDATE))
    )
    columns = [
        F.col(quoted(name)) if name in key else F.col(f"_now.{quoted(name)}").alias(name)
        for name in delta.columns
        if name not in (CHANGE_TYPE, WEIGHT)
    ]
    return grouped.select(change.alias(CHANGE), *columns)
