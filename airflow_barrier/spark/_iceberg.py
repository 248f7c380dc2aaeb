"""An Iceberg table's own metadata, read through Spark: snapshots with their parents, schemas with their field ids.

Spark SQL shows no field ids, and without them a renamed column cannot be told from another one.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import InexactChangesError, MissingTableError, SnapshotMissingError
from airflow_barrier.protocol.snapshots import ChangedFiles, Snapshot, Stretch, TableDelta, chain_of, partition_sources
from airflow_barrier.sources.files.listing import literally
from airflow_barrier.sources.spark_errors import condition_of
from airflow_barrier.spark.identifiers import quoted
from airflow_barrier.systems.spark_versions import runs_before

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession


class IcebergTable:
    """``name`` as Spark SQL takes it, quoted or not; read once, so that all questions are about one state of it.

    ``told``: what the worker has read of it for a job's epoch; without it Spark is asked.
    """

    def __init__(self, spark: SparkSession, name: str, told: TableDelta | None = None) -> None:
        self.spark = spark
        self.name = name
        self.parts = _parts(name)
        self._metadata: Mapping[str, Any] = (
            told.document if told else _metadata(spark, name, self.part("metadata_log_entries"))
        )
        self._told = told.stretches if told else ()
        self._snapshots = {snapshot.id: snapshot for snapshot in map(Snapshot.of, self._metadata.get("snapshots", ()))}

    def asked(self) -> IcebergTable:
        """The table as it is now, by asking Spark."""
        return IcebergTable(self.spark, self.name)

    def told(self, stretch: Stretch) -> ChangedFiles | None:
        """The files that differ, if the worker has told them."""
        ends = stretch.start.id, stretch.end.id
        return next((files for files in self._told if (files.start, files.end) == ends), None)

    def part(self, name: str) -> str:
        """The quoted name of a metadata table of this table."""
        return quoted(*self.parts, name)

    def read_at(self, snapshot: Snapshot) -> DataFrame:
        """All rows as of ``snapshot``, in its schema."""
        return rows_at(self.spark, quoted(*self.parts), snapshot.id)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Raises :class:`SnapshotMissingError`."""
        if snapshot_id not in self._snapshots:
            raise SnapshotMissingError(  # safety: snapshot-to-read-is-there
                f"{self.name}: expected snapshot {snapshot_id}, found only {len(self._snapshots)} others: it was "
                "expired or never was in this table; hold snapshots that are still needed by a branch or a tag"
            )
        return self._snapshots[snapshot_id]

    def chain(self, start: Snapshot | None, end: Snapshot) -> list[Snapshot] | None:
        """See :func:`~airflow_barrier.protocol.snapshots.chain_of`."""
        return chain_of(self._snapshots, start, end)

    def fields(self, snapshot: Snapshot | None) -> list[dict[str, Any]]:
        """The columns as of ``snapshot`` (None: now), as Iceberg writes them down."""
        schema_id = None if snapshot is None else snapshot.schema_id
        if schema_id is None:
            schema_id = self._metadata.get("current-schema-id", 0)
        schemas = self._metadata.get("schemas") or [self._metadata["schema"]]
        fields: list[dict[str, Any]] = next(s["fields"] for s in schemas if s.get("schema-id", 0) == schema_id)
        return fields

    @property
    def maps_names(self) -> bool:
        """Return whether there may be files without field ids, whose columns Iceberg finds by name: ``add_files`` sees
        to it.

        Without a mapping Iceberg takes such a file's columns by their place.
        """
        return "schema.name-mapping.default" in self._metadata.get("properties", {})

    @property
    def partition_sources(self) -> list[int]:
        """The ids of the columns that are themselves partition values."""
        return sorted(partition_sources(self._metadata.get("partition-specs", ())))

    def partition_values(self) -> dict[int, dict[int, str]]:
        """Map columns that are themselves partition values: field id, then partition spec, then the value's name in the
        column ``partition`` of the metadata tables.

        Iceberg takes these columns from there, whether the file has them or not.
        """
        specs = sorted(self._metadata.get("partition-specs", ()), key=lambda spec: int(spec["spec-id"]))
        called = {field["field-id"]: field["name"] for spec in specs for field in spec["fields"]}  # the newest spec's
        values: dict[int, dict[int, str]] = {}
        for spec in specs:
            for field in spec["fields"]:
                if field["transform"] == "identity":
                    values.setdefault(field["source-id"], {})[spec["spec-id"]] = called[field["field-id"]]
        return values


def rows_at(spark: SparkSession, name: str, snapshot_id: int | None) -> DataFrame:
    """All rows of table ``name``, quoted, as of a snapshot, in its schema; none without one."""
    if snapshot_id is None:  # the table has none yet, but `main` may get one meanwhile
        return spark.table(name).limit(0)
    if runs_before("4.0"):  # the reader of a table ignores the option there, and reads what is now
        return spark.sql(f"SELECT * FROM {name} VERSION AS OF {snapshot_id:d}")
    return spark.read.option("versionAsOf", snapshot_id).table(name)


def _parts(name: str) -> list[str]:
    """``lake.db.t`` or ```lake`.`db`.`t``` to its parts."""
    return [
        part[1:-1].replace("``", "`") if part.startswith("`") else part
        for part in re.findall(r"`(?:[^`]|``)+`|[^.`]+", name)
    ]


def _metadata(spark: SparkSession, name: str, log: str) -> dict[str, Any]:
    from pyspark.errors import AnalysisException

    try:
        location = spark.sql(f"SELECT file FROM {log}").collect()[-1][0]  # oldest first
    except AnalysisException as error:
        if condition_of(error) == "TABLE_OR_VIEW_NOT_FOUND":
            raise MissingTableError(
                f"{name}: expected an Iceberg table, found none of that name in Spark's catalog; check its name and "
                "the conf spark.sql.catalog.*"
            ) from error
        raise
    try:
        content = by_path(spark, "binaryFile").load([literally(location)]).select("content").collect()[0][0]
    except Exception as error:  # which of Spark's it is, its versions say differently
        if "No FileSystem for scheme" not in str(error):
            raise
        raise InexactChangesError(
            f"{name}: expected to read the table's files by path, found that Spark has no Hadoop file system for "
            f"{location}; changes need one (for object stores: the hadoop-aws, -azure or -gcp jar and its settings)"
        ) from error
    data = bytes(content)
    metadata: dict[str, Any] = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return metadata


def by_path(spark: SparkSession, format_name: str) -> DataFrameReader:
    """A reader of exactly the files it is given, :func:`literally`: none skipped, no columns from folders."""
    return (
        spark.read.format(format_name)
        .option("recursiveFileLookup", "true")
        .option("ignoreMissingFiles", "false")
        .option("ignoreCorruptFiles", "false")
    )
