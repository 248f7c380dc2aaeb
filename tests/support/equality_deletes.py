"""Delete files as other engines commit them. Neither Spark nor pyiceberg writes equality deletes, as Flink does: "all
older rows with this value".
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record, TableVersion

from demo.local_spark import CATALOG
from tests.support.history import History
from tests.support.spark import SparkServer


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """pyiceberg 0.12 declares field ids of equality deletes as long; the format, and Java, want int."""
        declared = super()._with_partition(format_version).model_dump_json()
        return Schema.model_validate_json(
            declared.replace('"element-id":136,"element":"long"', '"element-id":136,"element":"int"')
        )


def commit_equality_delete(server: SparkServer, history: History, column: str, value: int) -> None:
    """Commit a snapshot to ``main`` that deletes all rows whose ``column`` (a BIGINT) is ``value``."""
    with closing(SqlCatalog(CATALOG, uri=f"sqlite:///{server.catalog_db}")) as catalog:
        table = catalog.load_table(history.name.replace("`", "").removeprefix(f"{CATALOG}."))
        io = table.io
        field_id = table.schema().find_field(column).field_id
        path = f"{table.metadata.location}/data/{uuid.uuid4()}-deletes.parquet"
        field = pa.field(column, pa.int64(), metadata={"PARQUET:field_id": str(field_id)})
        with io.new_output(path).create() as file:
            pq.write_table(pa.table([[value]], schema=pa.schema([field])), file)
        deletes = DataFile.from_args(
            content=DataFileContent.EQUALITY_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=len(io.new_input(path)),
            equality_ids=[field_id],
        )
        commit_deletes(catalog, table, deletes, {"total-delete-files": "1", "total-equality-deletes": "1"})


def commit_deletes(catalog: SqlCatalog, table: Table, deletes: DataFile, totals: Mapping[str, str]) -> int:
    """Commit a snapshot to ``main`` with a delete file that is there; its summary says ``totals``."""
    io, metadata, parent = table.io, table.metadata, table.metadata.current_snapshot()
    assert parent is not None
    folder, snapshot_id, sequence = metadata.location, metadata.new_snapshot_id(), metadata.next_sequence_number()
    deletes.spec_id = 0
    manifest = io.new_output(f"{folder}/metadata/{uuid.uuid4()}-m0.avro")
    with _DeleteManifestWriter(table.spec(), table.schema(), manifest, snapshot_id, "gzip") as writer:
        writer.add(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, data_file=deletes
            )
        )
    listed = io.new_output(f"{folder}/metadata/snap-{snapshot_id}-{uuid.uuid4()}.avro")
    with write_manifest_list(2, listed, snapshot_id, parent.snapshot_id, sequence, "gzip") as manifests:
        manifests.add_manifests([*parent.manifests(io), writer.to_manifest_file()])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=sequence,
        manifest_list=listed.location,
        summary=Summary(Operation.DELETE, **totals),
        schema_id=metadata.current_schema_id,
    )
    head = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id)
    catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), head))
    return snapshot_id
