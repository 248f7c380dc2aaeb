"""How errors speak of snapshots."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow_barrier.protocol.errors import SnapshotMissingError
from airflow_barrier.tables._metadata import Document, snapshots_of


def missing(table: str, snapshot_id: int) -> SnapshotMissingError:
    return SnapshotMissingError(
        f"table {table}: expected snapshot {snapshot_id} in the table's metadata, found it is not there; was it "
        "expired, or the table dropped and made again? Clear the job, which stages the table anew"
    )


def at(snapshot_id: int | None) -> str:
    return "no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"


def described(document: Document, snapshot_id: int | None) -> str:
    snapshot = None if snapshot_id is None else snapshots_of(document).get(snapshot_id)
    if snapshot is None:
        return at(snapshot_id)
    summary = snapshot["summary"]
    made = datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, tz=timezone.utc)
    writer = summary.get("app-name") or summary.get("engine-name")
    by = f" by {writer}" if writer else ""
    return f"snapshot {snapshot_id} ({summary['operation']}{by}, {made:%Y-%m-%d %H:%M:%S} UTC)"
