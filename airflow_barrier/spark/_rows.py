"""Rows of given data files of an Iceberg table, without the rows that a snapshot's deletes take away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_barrier.protocol.changes import WEIGHT
from airflow_barrier.protocol.errors import InexactChangesError
from airflow_barrier.protocol.snapshots import Snapshot, Stretch
from airflow_barrier.sources.files.listing import literally
from airflow_barrier.spark._conf import set_conf
from airflow_barrier.spark._fields import column_types, nested, parquet_schema, places, require_widened
from airflow_barrier.spark._iceberg import IcebergTable, by_path
from airflow_barrier.spark._touched import positions, touched
from airflow_barrier.spark.identifiers import quoted
from airflow_barrier.systems.spark_versions import runs_before

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# Iceberg and Spark write the same path differently: scheme and authority may be missing, slashes doubled.
_SCHEME = r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?"
#: Characters that Spark does not encode, in a name that it does not take for hidden.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.parquet")

#: Looked at only where a schema has field ids.
BY_FIELD_ID = {
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
}


class RowReader:
    """Rows of given data files, in the columns of the table as of ``end``, called by their place."""

    def __init__(self, table: IcebergTable, end: Snapshot) -> None:
        self._table = table
        self._fields = table.fields(end)
        self._schema: StructType = parquet_schema(table.name, self._fields)
        self._types = column_types(table.name, self._fields)
        self.columns = places(self._fields)

    def changed(self, stretch: Stretch) -> list[tuple[DataFrame, int]]:
        """Frames of :attr:`columns` and a weight, each with the sign of all its weights, 0 if they are mixed."""
        from pyspark.sql import functions as F  # noqa: N812

        for snapshot in (stretch.start, stretch.end):
            require_widened(self._table.name, self._table.fields(snapshot), self._fields)
        files = touched(self._table, stretch)
        set_conf(self._table.spark, BY_FIELD_ID)
        parts: list[tuple[DataFrame, int]] = []
        had_deletes = stretch.start.delete_files != 0 and not stretch.only_appends
        for paths, snapshot, sign, have_deletes in (
            (files.added, stretch.end, 1, files.added_have_deletes),
            (files.removed, stretch.start, -1, had_deletes),
        ):
            if paths:
                rows = self._rows(paths, snapshot, files.sure)
                if have_deletes:
                    rows = rows.join(self._deleted(snapshot, paths), ["file", "pos"], "left_anti")
                parts.append((rows.withColumn(WEIGHT, F.lit(sign)), sign))
        if files.kept:
            # Deleted at the start but not at the end: the row came back. The other way round: it went.
            # (max: a table upgraded to deletion vectors may name a position twice.)
            back = self._deleted(stretch.start, files.kept).select("*", F.lit(1).alias("back"), F.lit(0).alias("gone"))
            gone = self._deleted(stretch.end, files.kept).select("*", F.lit(0).alias("back"), F.lit(1).alias("gone"))
            weight = (F.max("back") - F.max("gone")).alias(WEIGHT)
            moved = back.union(gone).groupBy("file", "pos").agg(weight).where(f"{WEIGHT} <> 0")
            parts.append((self._rows(files.kept, stretch.end, files.sure).join(moved, ["file", "pos"]), 0))
        return [(part.select(*self.columns, F.col(WEIGHT).cast("int").alias(WEIGHT)), sign) for part, sign in parts]

    def _rows(self, paths: Sequence[str], snapshot: Snapshot, sure: bool) -> DataFrame:
        """All rows of the files at ``snapshot``, deleted ones too, with ``file`` (as in :meth:`_deleted`) and ``pos``.

        ``sure``: the files themselves hold all their columns.
        """
        rows = self._rows_in_files(paths)
        return rows if sure else self._with_partition_values(rows, paths, snapshot)

    def _rows_in_files(self, paths: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        spark = self._table.spark
        frame: DataFrame = (
            by_path(spark, "parquet")
            .option("datetimeRebaseMode", "CORRECTED")  # Iceberg never wrote the old calendar
            .option("int96RebaseMode", "CORRECTED")
            .schema(self._schema)
            .load(list(map(literally, paths)))
        )
        if not _names_tell(paths):
            self._check_same_files(paths, frame.inputFiles())
        if self._table.maps_names:
            self._check_field_ids(frame)
        metadata = _metadata_of(frame)
        if _names_tell(paths):
            file = metadata["file_name"]
        else:
            # Spark encodes the path, but a plus in it stands for itself.
            file = _path_in_storage(F.url_decode(F.replace(metadata["file_path"], F.lit("+"), F.lit("%2B"))))
        # The cast gives nested fields their own names back.
        columns = [
            F.col(field.name).cast(kind).alias(name)
            for field, kind, name in zip(self._schema.fields, self._types, self.columns, strict=True)
        ]
        return frame.select(*columns, file.alias("file"), metadata["row_index"].alias("pos"))

    def _with_partition_values(self, rows: DataFrame, paths: Sequence[str], snapshot: Snapshot) -> DataFrame:
        """``rows`` with the columns that are partition values taken from the table's metadata, as Iceberg does."""
        from pyspark.sql import functions as F  # noqa: N812

        values = self._table.partition_values()
        there = {field["id"]: place for field, place in zip(self._fields, self.columns, strict=True)}
        self._check_partitioned_by_columns(values)
        taken = {there[source]: specs for source, specs in values.items() if source in there}
        if not taken:
            return rows
        listed = self._table.spark.sql(
            f"SELECT file_path, spec_id, partition FROM {self._table.part('files')} VERSION AS OF {snapshot.id:d} "
            "WHERE content = 0"
        ).where(F.col("file_path").isin(list(paths)))
        files = F.broadcast(listed.select(_file_of(F.col("file_path"), paths).alias("file"), "spec_id", "partition"))
        return rows.join(files, "file").select(
            *(_partition_value(place, taken[place]) if place in taken else F.col(place) for place in self.columns),
            "file",
            "pos",
        )

    def _deleted(self, snapshot: Snapshot, paths: Sequence[str]) -> DataFrame:
        """``file`` and ``pos`` of the rows of these files that are deleted as of ``snapshot``."""
        from pyspark.sql import functions as F  # noqa: N812

        about = positions(self._table, snapshot).where(F.col("file_path").isin(list(paths)))
        return about.select(_file_of(F.col("file_path"), paths).alias("file"), "pos")

    def _check_partitioned_by_columns(self, sources: Iterable[int]) -> None:
        within = sorted(set(sources) & nested(self._fields))
        if within:
            raise InexactChangesError(  # safety: partition-values-of-columns
                f"{self._table.name}: expected partitions by columns, found one by field {within[0]}, which is within "
                "a column, and files that may not hold it; rewrite them once (rewrite_data_files, with rewrite-all)"
            )

    def _check_field_ids(self, frame: DataFrame) -> None:
        """Spark looks for field ids when it opens a file; that no row is wanted keeps it from reading further."""
        try:
            frame.select(frame.columns[0]).where(f"{frame.columns[0]} IS NULL").count()
        except Exception as error:  # which of Spark's it is, its versions say differently
            if without_field_ids(error) is None:
                raise
            raise InexactChangesError(  # safety: files-have-field-ids
                f"{self._table.name}: expected data files with field ids, as Iceberg writes them, found some that were "
                "added as they were (add_files, migrate): of those changes are told only while no deletes by position "
                "are in the table, and not back in time; rewrite them once (rewrite_data_files, with rewrite-all), or "
                "read the table whole at both snapshots"
            ) from None

    def _check_same_files(self, paths: Sequence[str], found: Sequence[str]) -> None:
        """Deletes are matched by path: if Spark had other paths in mind than Iceberg, they would silently not apply."""

        def in_storage(path: str) -> str:
            return re.sub("/+", "/", re.sub(_SCHEME, "", path))

        wanted, seen = {in_storage(path) for path in paths}, {in_storage(unquote(path)) for path in found}
        if wanted != seen or len(wanted) != len(paths):
            odd = sorted(wanted ^ seen) or sorted(paths)
            raise InexactChangesError(  # safety: same-files-by-path
                f"{self._table.name}: expected Spark to read the {len(paths)} changed files that Iceberg names, found "
                f"that it reads {len(found)} others, for instance {odd[0]}; names that start with a dot or an "
                "underscore are hidden to Spark: rewrite such files (rewrite_data_files)"
            )


def without_field_ids(error: BaseException) -> InexactChangesError | None:
    """The error, if it is that a table of which it was not to be seen has files without field ids; else None.

    Where a table has a name mapping, that is seen before any row is read.
    """
    if "contain any field Ids" not in str(error):
        return None
    return InexactChangesError(
        "expected data files with field ids in the tables whose changes are read, found some without, and no name "
        "mapping (schema.name-mapping.default) that says which column is which; rewrite them once "
        "(rewrite_data_files, with rewrite-all), and read the table whole at both snapshots until then"
    )


def _metadata_of(frame: DataFrame) -> Column:
    """Return what Spark knows of the file that a row is in."""
    from pyspark.sql import functions as F  # noqa: N812

    if runs_before("4.0"):  # a column of the table that is called so is in the way, which is an error there
        return F.col("_metadata")
    return frame.metadataColumn("_metadata")


def _names_tell(paths: Sequence[str]) -> bool:
    """Return whether the files' own names tell them apart, for Spark as for Iceberg. That costs nothing a row, while a
    whole path has to be rewritten.

    They do wherever Iceberg's writers chose them: a UUID is part of each. Then a deleted row is found by the file's
    name, and Spark has no name to hide, so there is no need to ask it which files it reads.
    """
    names = {path.rpartition("/")[2] for path in paths}
    return len(names) == len(paths) and all(map(_PLAIN_NAME.fullmatch, names))


def _file_of(path: Column, paths: Sequence[str]) -> Column:
    """Return what tells the file at ``path`` from the others of ``paths``, the same from Iceberg and from Spark."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.substring_index(path, "/", -1) if _names_tell(paths) else _path_in_storage(path)


def _partition_value(column: str, called: Mapping[int, str]) -> Column:
    """``column`` of a file, or what its partition is called by in ``called`` where the file's spec is there."""
    from pyspark.sql import functions as F  # noqa: N812

    value = F.col(column)
    for spec, name in called.items():
        value = F.when(F.col("spec_id") == spec, F.col(f"partition.{quoted(name)}")).otherwise(value)
    return value.alias(column)


def _path_in_storage(path: Column) -> Column:
    """The path without scheme and authority, the same from Iceberg and from Spark."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.regexp_replace(F.regexp_replace(path, _SCHEME, ""), "/+", "/")
