"""A compaction by hand, without Spark: the same files in a snapshot of their own, whose operation is `replace`."""

from __future__ import annotations

import uuid

from airflow_barrier.tables._commit import now_ms
from airflow_barrier.tables._metadata import Changes, edited, ref_of, snapshots_of
from airflow_barrier.tables.iceberg import IcebergTables


def replace_files(tables: IcebergTables, table: str, branch: str) -> int:
    """Put such a snapshot on ``branch`` of a table in an SQL catalog; its id."""
    with tables._committer._pointers.transaction() as connection:
        at = tables._committer._pointers.lock(connection, [table])[table]
        document = tables._documents.read(at)
        at_head = ref_of(document, branch)
        assert at_head is not None
        head = snapshots_of(document)[at_head]
        snapshot = {
            **head,
            "snapshot-id": uuid.uuid4().int >> 65,
            "parent-snapshot-id": head["snapshot-id"],
            "sequence-number": document["last-sequence-number"] + 1,
            "summary": {
                "operation": "replace",
                **{key: value for key, value in head["summary"].items() if key.startswith("total-")},
            },
        }
        changes = Changes(branches={branch: snapshot["snapshot-id"]}, snapshot=snapshot)
        after = edited(document, changes, location=at, now_ms=now_ms(), trim=False)
        assert after is not None
        tables._committer._pointers.move(connection, table, at, tables._documents.write(after, at))
        return int(snapshot["snapshot-id"])
