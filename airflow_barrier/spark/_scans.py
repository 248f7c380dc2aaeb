"""What changed in an Iceberg table as Iceberg's own scans tell it.

They know every kind of data file: its format, its columns by name, its partition's values, columns' defaults. But they
know no rows that were deleted within a file, no way back, and read each file that was there for one snapshot only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.changes import WEIGHT
from airflow_barrier.protocol.errors import InexactChangesError
from airflow_barrier.protocol.snapshots import Snapshot, Stretch
from airflow_barrier.spark._fields import column_types, places
from airflow_barrier.spark._iceberg import IcebergTable
from airflow_barrier.spark._weights import has_variant
from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def scan(table: IcebergTable, end: Snapshot, stretch: Stretch) -> tuple[DataFrame, int] | None:
    """The rows that changed in ``stretch`` and their weight, with the sign of all weights, 0 if they are mixed.

    The columns are those of the table as of ``end``, called by their place. None where Iceberg's scans cannot tell.
    """
    from pyspark.sql import functions as F  # noqa: N812

    columns = _columns(table, end)
    if not stretch.chain or columns is None:
        return None
    between = table.spark.read.option("start-snapshot-id", stretch.start.id).option("end-snapshot-id", stretch.end.id)
    if stretch.only_appends:
        return between.table(quoted(*table.parts)).select(*columns, F.lit(1).alias(WEIGHT)), 1
    if _has_deletes(table, stretch):  # safety: scans-know-no-deletes
        return None
    weight = F.expr("CASE _change_type WHEN 'INSERT' THEN 1 WHEN 'DELETE' THEN -1 END").alias(WEIGHT)
    frame = between.table(table.part("changes")).select(*columns, weight)
    return None if has_variant(frame.schema) else (frame, 0)  # Spark cannot compare them


def _columns(table: IcebergTable, end: Snapshot) -> list[Column] | None:
    """The columns as of ``end`` from those of now, which Iceberg's scans give; None if one is there no more."""
    from pyspark.sql import functions as F  # noqa: N812

    now = {field["id"]: field for field in table.fields(None)}
    fields = table.fields(end)
    columns: list[Column] = []
    for place, field in zip(places(fields), fields, strict=True):
        present = now.get(field["id"])
        if present is None:  # safety: scans-give-columns-of-now
            return None
        column = F.col(quoted(present["name"]))
        if present["type"] != field["type"]:
            if not _simple(present) or not _simple(field):
                return None
            try:
                [kind] = column_types(table.name, [field])
            except InexactChangesError:
                return None
            column = column.cast(kind)
        columns.append(column.alias(place))
    return columns


def _simple(field: dict[str, Any]) -> bool:
    return isinstance(field["type"], str)


def _has_deletes(table: IcebergTable, stretch: Stretch) -> bool:
    """Return whether a snapshot of the stretch knows of deletes within files, its own or older ones."""
    ids = ", ".join(f"{snapshot.id:d}" for snapshot in stretch.chain)
    found = table.spark.sql(
        f"SELECT 1 FROM {table.part('all_manifests')} WHERE content = 1 AND reference_snapshot_id IN ({ids}) LIMIT 1"
    )
    return bool(found.collect())
