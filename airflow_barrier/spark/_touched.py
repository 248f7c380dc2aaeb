"""Which files of an Iceberg table differ between two snapshots. Reads metadata only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import InexactChangesError
from airflow_barrier.protocol.snapshots import ChangedFile, ChangedFiles, Snapshot, Stretch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from airflow_barrier.spark._iceberg import IcebergTable

_DATA, _POSITION_DELETES, _EQUALITY_DELETES = 0, 1, 2


@dataclass(frozen=True)
class Touched:
    """Paths of data files: new at the end, gone at the end, and there at both with other deletes on them.

    ``sure``: all are known to have within them each column that is a partition value. ``added_have_deletes``: as in
    :class:`~airflow_barrier.protocol.snapshots.ChangedFiles`.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: tuple[str, ...]
    sure: bool
    added_have_deletes: bool


def touched(table: IcebergTable, stretch: Stretch) -> Touched:
    """Raises :class:`InexactChangesError` if a file's rows cannot be told exactly by reading it by path."""
    files = table.told(stretch) or _asked(table, stretch)
    for file in [*files.moved, *files.kept]:
        _check(table, file)
    return Touched(
        tuple(sorted(file.file_path for file in files.moved if file.weight > 0)),
        tuple(sorted(file.file_path for file in files.moved if file.weight < 0)),
        tuple(sorted(file.file_path for file in files.kept)),
        sure=not table.maps_names and all(file.sure for file in [*files.moved, *files.kept]),
        added_have_deletes=files.added_have_deletes,
    )


def _asked(table: IcebergTable, stretch: Stretch) -> ChangedFiles:
    """The files that differ, by queries of Spark's. Raises :class:`InexactChangesError` for equality deletes."""
    files = _differing_files(table, stretch)
    if not stretch.only_appends and any(file.content == _EQUALITY_DELETES for file in files):
        # They name values, not rows: which rows they hit can only be told by reading every older file.
        raise InexactChangesError(  # safety: no-equality-deletes
            f"{table.name}: expected deletes by position between snapshots {stretch.start.id} and {stretch.end.id}, "
            "found equality deletes (written by Flink and some others); compact the table before each barrier, or read "
            "it whole"
        )
    moved = [file for file in files if file.content == _DATA]
    deletes = [file for file in files if file.content == _POSITION_DELETES]
    kept = _kept(table, stretch, deletes, {file.file_path for file in moved})
    return ChangedFiles(
        stretch.start.id,
        stretch.end.id,
        tuple(map(_changed_file, moved)),
        tuple(map(_changed_file, kept)),
        added_have_deletes=stretch.end.delete_files != 0 and not stretch.only_appends,
    )


def _changed_file(row: Row) -> ChangedFile:
    return ChangedFile(row.file_path, row.file_format, row.weight, row.sure)


def _differing_files(table: IcebergTable, stretch: Stretch) -> list[Row]:
    """Files at one of the snapshots but not at the other, and all equality deletes."""
    columns = "content, file_path, file_format, referenced_data_file, content_offset"
    files = table.part("files")
    return table.spark.sql(
        f"""
        SELECT {columns}, sum(side) AS weight, bool_and(sure) AS sure FROM (
            SELECT {columns}, -1 AS side, {_sure(table)} FROM {files} VERSION AS OF {stretch.start.id:d}
            UNION ALL SELECT {columns}, 1 AS side, {_sure(table)} FROM {files} VERSION AS OF {stretch.end.id:d})
        GROUP BY {columns} HAVING sum(side) <> 0 OR content = {_EQUALITY_DELETES:d}
        """
    ).collect()


def _sure(table: IcebergTable) -> str:
    """Return whether a file's metrics show that it holds all columns that are partition values, as SQL."""
    held = [f"coalesce(map_contains_key(column_sizes, {field_id:d}), false)" for field_id in table.partition_sources]
    return f"{' AND '.join(held) or 'true'} AS sure"


def _kept(table: IcebergTable, stretch: Stretch, deletes: list[Row], moved: set[str]) -> list[Row]:
    """Data files that are at both snapshots and that one of the changed ``deletes`` is about."""
    from pyspark.sql import functions as F  # noqa: N812

    named = {file.referenced_data_file for file in deletes if file.referenced_data_file is not None}
    for snapshot, sign in ((stretch.start, -1), (stretch.end, 1)):
        # A delete file for a whole partition does not say in metadata which data files it is about.
        whole = [f.file_path for f in deletes if f.referenced_data_file is None and f.weight == sign]
        if whole:
            about = positions(table, snapshot).where(F.col("delete_file_path").isin(whole))
            named |= {row.file_path for row in about.select("file_path").distinct().collect()}
    candidates = sorted(named - moved)
    if not candidates:
        return []
    # Deletes outlive the files they are about, and those may be gone from the storage too.
    files = f"{table.part('files')} VERSION AS OF {stretch.end.id:d}"
    live = table.spark.sql(f"SELECT content, file_path, file_format, 1L AS weight, {_sure(table)} FROM {files}")
    return live.where(F.col("file_path").isin(candidates) & (F.col("content") == _DATA)).collect()


def positions(table: IcebergTable, snapshot: Snapshot) -> DataFrame:
    """Deleted positions as of ``snapshot``: ``file_path``, ``pos``, ``delete_file_path``."""
    return table.spark.sql(
        f"SELECT file_path, pos, delete_file_path FROM {table.part('position_deletes')} VERSION AS OF {snapshot.id:d}"
    )


def _check(table: IcebergTable, file: ChangedFile) -> None:
    if file.file_format.upper() != "PARQUET":
        raise InexactChangesError(  # safety: only-parquet
            f"{table.name}: expected Parquet files, found {file.file_path} ({file.file_format}), whose columns Spark "
            "cannot find by field id; set write.format.default to parquet and rewrite the table (rewrite_data_files), "
            "or read it whole at both snapshots"
        )
    if abs(file.weight) != 1:
        raise InexactChangesError(  # safety: each-file-once
            f"{table.name}: expected each data file once, found {file.file_path} listed {abs(file.weight)} times more "
            "at one snapshot than at the other; a writer added it twice: repair the table (rewrite_data_files)"
        )
