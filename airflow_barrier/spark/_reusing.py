"""The changes of an old epoch, once more on another snapshot: as multisets, exactly or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_barrier.protocol.changes import WEIGHT
from airflow_barrier.protocol.errors import InexactChangesError, NotAppendOnlyError
from airflow_barrier.spark._iceberg import IcebergTable
from airflow_barrier.spark._weights import comparable
from airflow_barrier.spark.changes import appends, changes
from airflow_barrier.spark.corrections import ReuseRows
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.identifiers import quoted, table_name
from airflow_barrier.spark.views import view_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def apply_again(epoch: Epoch, correction: ReuseRows, catalog: str) -> None:
    """Rows that came are appended. Of the rows that went, as many copies as went are deleted, wherever they lie.

    An epoch that only appended costs what it appended; for others the table is read through. Raises
    :class:`~airflow_barrier.protocol.errors.InexactChangesError` if a row that went is not there as it was.
    """
    table = correction.table
    name = table_name(catalog, table)
    try:
        came: DataFrame = appends(epoch.spark, name, correction.start, correction.end)
    except NotAppendOnlyError:
        delta = changes(epoch.spark, name, correction.start, correction.end)
        _delete(epoch, correction, _aligned(epoch, table, name, delta.where(f"{WEIGHT} < 0")))
        came = delta.where(f"{WEIGHT} > 0")
    _aligned(epoch, table, name, came).writeTo(epoch.target(table)).append()


def _aligned(epoch: Epoch, table: str, name: str, rows: DataFrame) -> DataFrame:
    """The columns that the table has by now: those that were added since are NULL in older rows."""
    from pyspark.sql import functions as F  # noqa: N812

    fields = epoch.spark.table(epoch.target(table)).schema.fields
    there = {name.lower() for name in rows.columns}
    _check_defaults(epoch, table, name, {field.name for field in fields if field.name.lower() not in there})
    return rows.select(
        *(
            F.col(quoted(field.name)) if field.name.lower() in there else F.lit(None).cast(field.dataType)
            for field in fields
        )
    ).toDF(*(field.name for field in fields))


def _check_defaults(epoch: Epoch, table: str, name: str, since: set[str]) -> None:
    if not since:
        return
    fields = IcebergTable(epoch.spark, name).fields(None)
    for field in fields:
        if field["name"] in since and field.get("initial-default") is not None:
            raise InexactChangesError(  # safety: reused-rows-have-no-defaults
                f"correction of {table}: expected columns that were added since the reused epoch to be NULL in older "
                f"rows, found that {field['name']} has a default there; let the job process the epoch again, or say "
                "what its rows are by SQL or a file"
            )


def _delete(epoch: Epoch, correction: ReuseRows, went: DataFrame) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    expected = went.count()
    if not expected:
        return
    target = epoch.target(correction.table)
    gone = went.select(_row(went)).groupBy("row").agg(F.count("*").alias("copies")).alias("gone")
    now = epoch.spark.table(target)
    # Which of several equal rows is all the same, but each look has to choose the same ones.
    each = Window.partitionBy("now.row").orderBy("_file", "_pos")
    chosen = (
        now.select(_row(now), "_file", "_pos")
        .alias("now")
        .join(gone, F.expr("now.row <=> gone.row"))
        .select("_file", "_pos", "copies", F.row_number().over(each).alias("number"))
        .where("number <= copies")
        .selectExpr("_file AS file", "_pos AS pos")
    )
    found = chosen.count()
    if found != expected:
        raise InexactChangesError(  # safety: reused-deletes-are-exact
            f"correction of {correction.table}: expected the {expected} rows that went between its old snapshots "
            f"{correction.start} and {correction.end} in the table as it is revised, found {found} of them: what was "
            "corrected before is what this epoch updated or deleted; let the job process the epoch again, or say what "
            "its rows are by SQL or a file"
        )
    view = view_of(chosen, f"went_{correction.table}")
    epoch.spark.sql(
        f"DELETE FROM {target} AS t WHERE EXISTS (SELECT 1 FROM {view} AS v WHERE v.file = t._file AND v.pos = t._pos)"
    )


def _row(frame: DataFrame) -> Column:
    """All values of a row as one, to compare it by.

    As single columns Iceberg would be asked for those that are NULL, and Iceberg 1.12 fails if the branch is older than
    such a column.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = comparable(frame, frame.columns)
    return F.struct(*(column.alias(f"c{number}") for number, column in enumerate(columns))).alias("row")
