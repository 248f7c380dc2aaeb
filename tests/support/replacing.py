"""A compaction by hand, without Spark: the same files in a snapshot of their own, whose operation is `replace`."""

from __future__ import annotations

import uuid

from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate

from airflow_barrier.tables.iceberg import IcebergTables


def replace_files(tables: IcebergTables, table: str, branch: str) -> int:
    """Put such a snapshot on ``branch`` of a table in any catalog; its id."""
    iceberg = tables.load(table)
    head = iceberg.snapshot_by_name(branch)
    assert head is not None
    assert head.summary is not None
    totals = {key: value for key, value in head.summary.additional_properties.items() if key.startswith("total-")}
    snapshot = head.model_copy(
        update={
            "snapshot_id": uuid.uuid4().int >> 65,
            "parent_snapshot_id": head.snapshot_id,
            "sequence_number": iceberg.metadata.last_sequence_number + 1,
            "summary": Summary(Operation.REPLACE, **totals),
        }
    )
    iceberg.catalog.commit_table(
        iceberg,
        (AssertRefSnapshotId(ref=branch, snapshot_id=head.snapshot_id),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(ref_name=branch, type="branch", snapshot_id=snapshot.snapshot_id),
        ),
    )
    return snapshot.snapshot_id
