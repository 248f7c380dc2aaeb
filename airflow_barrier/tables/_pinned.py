"""A table as of one snapshot, as a metadata document of its own."""

from __future__ import annotations

from airflow_barrier.protocol.errors import SnapshotMissingError
from airflow_barrier.tables._metadata import MAIN, Document, snapshots_of


def pinned(table: str, document: Document, snapshot_id: int | None) -> Document:
    """The document that the table would have had with ``snapshot_id`` (None: no rows yet) as its newest state.

    It has one snapshot or none, and that snapshot's schema, so that whoever reads it can read nothing else; the files
    are the table's. Raises SnapshotMissingError.
    """
    alone: Document = {
        **{key: value for key, value in document.items() if key not in ("statistics", "partition-statistics")},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
        "current-snapshot-id": None,
    }
    if snapshot_id is None:
        return alone
    snapshot = snapshots_of(document).get(snapshot_id)
    if snapshot is None:
        raise SnapshotMissingError(  # safety: snapshot-of-an-answer-is-there
            f"table {table}: expected snapshot {snapshot_id}, which the answer says, in the table's metadata, found it "
            "is not there; was it expired? Resolve anew, and hold the answer for as long as it is used"
        )
    return {
        **alone,
        "snapshots": [snapshot],
        "refs": {MAIN: {"snapshot-id": snapshot_id, "type": "branch"}},
        "current-snapshot-id": snapshot_id,
        "current-schema-id": snapshot.get("schema-id", document["current-schema-id"]),
    }
