"""What changed in an Iceberg table between two snapshots, exactly, at a cost that follows what changed.

Iceberg's own incremental scan skips updates and deletes without a word, and its changelog refuses merge-on-read. So
this compares the lists of files of both snapshots and reads, by path, only data files that were added, removed, or have
other deletes on them. It needs a Hadoop file system for where they lie. Files that Spark cannot read as Iceberg does
(without field ids, ORC, Avro) are left to these two scans, each asked only for what it tells right. A plan made of it
works wherever a DataFrame does, also as a temporary view in SQL ``MERGE INTO``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from airflow_barrier.protocol.changes import CHANGE_TYPE, WEIGHT
from airflow_barrier.protocol.errors import InexactChangesError, NotAppendOnlyError
from airflow_barrier.protocol.snapshots import Snapshot, Stretch, TableDelta, stretches
from airflow_barrier.spark._fields import column_types, places
from airflow_barrier.spark._iceberg import IcebergTable
from airflow_barrier.spark._rows import RowReader
from airflow_barrier.spark._scans import scan
from airflow_barrier.spark._weights import kinds_of, labelled, netted
from airflow_barrier.spark.identifiers import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType


def changes(
    spark: SparkSession, table: str, start: int | None, end: int | None, told: TableDelta | None = None
) -> DataFrame:
    """The rows that came and went between snapshot ``start`` (exclusive) and ``end`` (inclusive).

    ``start`` None: from nothing; ``end`` None: the table has no snapshot, so nothing. Columns: those of the table as of
    ``end``, then ``_change_type`` (``insert``, ``delete``) and ``_weight`` (+1, -1). As multisets, the rows as of
    ``start`` plus these are the rows as of ``end``, and no row is both inserted and deleted. An update is the old row
    deleted and the new one inserted. ``end`` need not descend from ``start``. ``told``: what the worker has read of the
    table's metadata for these two; without it Spark is asked.

        changes(spark, "lake.shop.shopping", 8123, 8124).groupBy("userId").agg(F.sum(F.expr("amount * _weight")))

    ``table`` is a dotted name, quoted or not. Raises :class:`~airflow_barrier.protocol.errors.SnapshotMissingError`,
    :class:`~airflow_barrier.protocol.errors.MissingTableError`, and
    :class:`~airflow_barrier.protocol.errors.InexactChangesError` where the changes cannot be told exactly:

    - equality deletes;
    - a column whose type is not the old one or a wider one, as in a table that was replaced;
    - rows deleted by position, snapshots that were expired, or an ``end`` that does not descend from ``start``, where
      there are files other than Parquet, files without field ids (``add_files``, ``migrate``), types that Spark cannot
      read from a file, or columns with an initial default. Without any of the former all of the latter are right.
    """
    source = IcebergTable(spark, table, told)
    until = _end(source, start, end)
    names = [field["name"] for field in source.fields(until)]
    for reserved in (CHANGE_TYPE, WEIGHT):
        if reserved in names:
            raise InexactChangesError(
                f"{table}: expected no column of the name {reserved}, found one; rename it"
            )  # safety: reserved-columns
    if until is None or start == end:
        return _constant(_nothing(source, until), names, 0)
    if start is None:
        return _constant(source.read_at(until), names, 1)
    since = source.snapshot(start)
    parts = _changed(source, until, stretches(source.chain(since, until), since, until))
    if not parts:
        return _constant(_nothing(source, until), names, 0)
    frame = _together(parts)
    if len({sign for _, sign in parts}) > 1 or 0 in {sign for _, sign in parts}:
        frame = netted(frame, _kinds(source, until, frame))
    return labelled(frame.toDF(*names, WEIGHT), names)


def appends(
    spark: SparkSession, table: str, start: int | None, end: int | None, told: TableDelta | None = None
) -> DataFrame:
    """The rows that were appended between snapshot ``start`` (exclusive) and ``end`` (inclusive), and nothing else.

    Arguments and further errors are those of :func:`changes`. Raises
    :class:`~airflow_barrier.protocol.errors.NotAppendOnlyError` if any snapshot between them did anything but append
    rows or compact files.
    """
    source = IcebergTable(spark, table, told)
    until = _end(source, start, end)
    if until is None:
        return _nothing(source, None)
    since = None if start is None else source.snapshot(start)
    chain = source.chain(since, until)
    if chain is None:
        raise NotAppendOnlyError(  # safety: appends-know-their-chain
            f"{table}: expected snapshots that only append between {start} and {end}, found that {end} does not "
            f"descend from {start}, or that a snapshot between them was expired; use epoch.changes"
        )
    for snapshot in chain:
        if not (snapshot.only_appends or snapshot.keeps_rows):
            raise NotAppendOnlyError(  # safety: appends-only
                f"{table}: expected snapshots that only append between {start} and {end}, found snapshot {snapshot.id} "
                f"with operation {snapshot.operation!r}; use epoch.changes, which also tells updated and deleted rows"
            )
    if since is None:
        return source.read_at(until)
    parts = _changed(source, until, stretches(chain, since, until))
    if not parts:
        return _nothing(source, until)
    return _together(parts).drop(WEIGHT).toDF(*(field["name"] for field in source.fields(until)))


def _changed(source: IcebergTable, until: Snapshot, among: Sequence[Stretch]) -> list[tuple[DataFrame, int]]:
    """The rows that changed in each stretch, from as few files as can be: see :meth:`RowReader.changed`.

    Files that cannot be read by path are left to Iceberg's scans. Those go snapshot by snapshot, so a stretch is cut
    first, lest deletes in one part of it, which they refuse, stand in the way of another.
    """
    parts: list[tuple[DataFrame, int]] = []
    for stretch in among:
        try:
            parts += RowReader(source, until).changed(stretch)
        except InexactChangesError:
            runs = stretch.runs()
            if len(runs) > 1:
                parts += _changed(source, until, runs)
                continue
            scanned = scan(source.asked(), until, stretch)  # by names, which are those of this moment
            if scanned is None:
                raise
            parts.append(scanned)
    return parts


def _together(parts: Sequence[tuple[DataFrame, int]]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), (part for part, _ in parts))


def _kinds(source: IcebergTable, until: Snapshot, frame: DataFrame) -> dict[str, DataType]:
    """The types of the columns as of ``until``, which ``frame`` calls by their place, before its weight."""
    fields = source.fields(until)
    try:
        return dict(zip(places(fields), column_types(source.name, fields), strict=True))
    except InexactChangesError:  # a type that only Iceberg's scans give
        return {name: kind for name, kind in kinds_of(frame).items() if name != WEIGHT}


def _end(source: IcebergTable, start: int | None, end: int | None) -> Snapshot | None:
    if end is not None:
        return source.snapshot(end)
    if start is not None:
        raise InexactChangesError(  # safety: changes-have-an-end
            f"{source.name}: expected a snapshot to end at, found none although it starts at {start}; pass both "
            "from the same barriers"
        )
    return None


def _nothing(source: IcebergTable, snapshot: Snapshot | None) -> DataFrame:
    """No rows, in the right columns."""
    frame = source.spark.table(quoted(*source.parts)) if snapshot is None else source.read_at(snapshot)
    return frame.where("false")


def _constant(frame: DataFrame, names: Sequence[str], weight: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return labelled(frame.withColumn(WEIGHT, F.lit(weight)), names)
