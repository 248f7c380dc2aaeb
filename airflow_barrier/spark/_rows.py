"""Rows of given data files of an Iceberg table, without the rows that a snapshot's deletes take away."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_barrier.protocol.errors import InexactChangesError
from airflow_barrier.sources.listing import literally
from airflow_barrier.spark._fields import column_types, parquet_schema
from airflow_barrier.spark._iceberg import IcebergTable, Snapshot, by_path
from airflow_barrier.spark._touched import Stretch, positions, touched
from airflow_barrier.spark._weights import WEIGHT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# Iceberg and Spark write the same path differently: scheme and authority may be missing, slashes doubled.
_SCHEME = r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?"
#: Characters that Spark does not encode.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")


class RowReader:
    """Rows of given data files, in the columns of the table as of ``end``, called by their place."""

    def __init__(self, table: IcebergTable, end: Snapshot) -> None:
        self._table = table
        fields = table.fields(end)
        self._schema: StructType = parquet_schema(table.name, fields)
        self._types = column_types(table.name, fields)
        self.columns = [f"c{index}" for index in range(len(fields))]  # so that no name needs quoting or clashes

    def changed(self, stretch: Stretch) -> list[tuple[DataFrame, int]]:
        """Frames of :attr:`columns` and a weight, each with the sign of all its weights, 0 if they are mixed."""
        from pyspark.sql import functions as F  # noqa: N812

        files = touched(self._table, stretch)
        parts: list[tuple[DataFrame, int]] = []
        for paths, snapshot, sign in ((files.added, stretch.end, 1), (files.removed, stretch.start, -1)):
            if paths:
                rows = self.rows(paths)
                if snapshot.delete_files != 0 and not stretch.only_appends:
                    rows = rows.join(self._deleted(snapshot, paths), ["file", "pos"], "left_anti")
                parts.append((rows.withColumn(WEIGHT, F.lit(sign)), sign))
        if files.kept:
            # Deleted at the start but not at the end: the row came back. The other way round: it went.
            # (max: a table upgraded to deletion vectors may name a position twice.)
            back = self._deleted(stretch.start, files.kept).select("*", F.lit(1).alias("back"), F.lit(0).alias("gone"))
            gone = self._deleted(stretch.end, files.kept).select("*", F.lit(0).alias("back"), F.lit(1).alias("gone"))
            weight = (F.max("back") - F.max("gone")).alias(WEIGHT)
            moved = back.union(gone).groupBy("file", "pos").agg(weight).where(f"{WEIGHT} <> 0")
            parts.append((self.rows(files.kept).join(moved, ["file", "pos"]), 0))
        return [(part.select(*self.columns, F.col(WEIGHT).cast("int").alias(WEIGHT)), sign) for part, sign in parts]

    def rows(self, paths: Sequence[str]) -> DataFrame:
        """All rows of the files, deleted ones too, with ``file`` (as in :meth:`_deleted`) and ``pos`` in it."""
        from pyspark.sql import functions as F  # noqa: N812

        spark = self._table.spark
        spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")  # looked at only where a schema has field ids
        spark.conf.set("spark.sql.parquet.fieldId.read.ignoreMissing", "false")
        frame: DataFrame = (
            by_path(spark, "parquet")
            .option("datetimeRebaseMode", "CORRECTED")  # Iceberg never wrote the old calendar
            .option("int96RebaseMode", "CORRECTED")
            .schema(self._schema)
            .load(list(map(literally, paths)))
        )
        self._check_same_files(paths, frame.inputFiles())
        metadata = frame.metadataColumn("_metadata")
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

    def _deleted(self, snapshot: Snapshot, paths: Sequence[str]) -> DataFrame:
        """``file`` and ``pos`` of the rows of these files that are deleted as of ``snapshot``."""
        from pyspark.sql import functions as F  # noqa: N812

        about = positions(self._table, snapshot).where(F.col("file_path").isin(list(paths)))
        path = F.col("file_path")
        file = F.substring_index(path, "/", -1) if _names_tell(paths) else _path_in_storage(path)
        return about.select(file.alias("file"), "pos")

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


def _names_tell(paths: Sequence[str]) -> bool:
    """Whether the files' own names tell them apart, which costs nothing a row, while a whole path has to be rewritten.

    They do wherever Iceberg's writers chose them: a UUID is part of each.
    """
    names = {path.rpartition("/")[2] for path in paths}
    return len(names) == len(paths) and all(map(_PLAIN_NAME.fullmatch, names))


def _path_in_storage(path: Column) -> Column:
    """The path without scheme and authority, the same from Iceberg and from Spark."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.regexp_replace(F.regexp_replace(path, _SCHEME, ""), "/+", "/")
