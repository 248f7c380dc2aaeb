"""What a table's metadata document says about an attempt's branch: decisions only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile

from airflow_barrier.protocol.errors import StagedTableError
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.tables._metadata import EMPTY_ROOT, Document, Snapshot, lineage, ref_of, snapshots_of
from airflow_barrier.tables._words import at, described, missing

_STAMP_PREFIX = "barrier."


def branch_is_ready(table: str, document: Document, stamp: Stamp, base: int | None) -> bool:
    """Return whether the attempt branch stands at ``base``; False if it is yet to be made.

    Raises SnapshotMissingError, and StagedTableError if the branch stands elsewhere.
    """
    head = ref_of(document, stamp.branch)
    if head is None:
        if base is not None and base not in snapshots_of(document):
            raise missing(table, base)  # safety: base-is-there
        return False
    at_base = head == base if base is not None else _is_empty_root(snapshots_of(document)[head], stamp)
    if not at_base:
        raise StagedTableError(  # safety: branch-at-base
            f"table {table}: expected branch {stamp.branch} at {at(base)}, found {described(document, head)}; an "
            "earlier start of this attempt has written to it already: retry the task, which begins a new attempt"
        )
    return True


def staged_head(table: str, document: Document, stamp: Stamp, base: int | None) -> int | None:
    """The checked head of the attempt branch, None if nothing was added to ``base``. Raises StagedTableError."""
    head = ref_of(document, stamp.branch)
    if head is None:
        raise StagedTableError(  # safety: branch-is-there
            f"table {table}: expected branch {stamp.branch}, found none; it was dropped while the attempt was "
            "running: retry the task, which begins a new attempt"
        )
    if head == base:
        return None
    added: list[Snapshot] = []
    for snapshot in lineage(document, head):
        if base is None and _is_empty_root(snapshot, stamp):
            break
        added.append(snapshot)
        if base is not None and snapshot.get("parent-snapshot-id") == base:
            break
    else:
        raise StagedTableError(  # safety: ancestry
            f"table {table}: expected branch {stamp.branch} to descend from {at(base)}, found "
            f"{described(document, head)}, which does not; the branch was moved or made anew by something other than "
            "this attempt: retry the task, which begins a new attempt"
        )
    for snapshot in added:
        _check_stamp(table, snapshot, stamp)
    return head if added else None


def staged_summaries(document: Document, stamp: Stamp, base: int | None) -> list[Mapping[str, str]]:
    """Return the summary of every snapshot that the attempt branch adds to ``base``, newest first."""
    head = ref_of(document, stamp.branch)
    if head is None:
        return []
    added = takewhile(
        lambda each: each["snapshot-id"] != base and not _is_empty_root(each, stamp), lineage(document, head)
    )
    return [snapshot["summary"] for snapshot in added]


def _check_stamp(table: str, snapshot: Snapshot, stamp: Stamp) -> None:
    summary = snapshot["summary"]
    found = {key: value for key, value in summary.items() if key.startswith(_STAMP_PREFIX)}
    if found == stamp.properties():
        return
    # Spark puts no snapshot properties on a DELETE that drops whole files, nor on a compaction (seen with Iceberg 1.12,
    # v2 and v3). They were written on the attempt's own branch, whose name nobody else is told, and can only have taken
    # rows away, or none.
    if (
        not found  # safety: another-stamp-on-a-delete
        and summary["operation"] in ("delete", "replace")  # safety: only-deletes-without-stamp
    ):
        return
    raise StagedTableError(  # safety: stamp
        f"table {table}: expected snapshot {snapshot['snapshot-id']} ({summary['operation']}) on branch "
        f"{stamp.branch} to bear the stamp {stamp.properties()}, found {found or 'none'}; something other than this "
        "attempt wrote to the branch: retry the task, which begins a new attempt"
    )


def _is_empty_root(snapshot: Snapshot, stamp: Stamp) -> bool:
    expected = {**stamp.properties(), EMPTY_ROOT: "true"}
    return (
        snapshot.get("parent-snapshot-id") is None  # safety: root-has-no-parent
        and expected.items() <= snapshot["summary"].items()  # safety: root-is-the-attempts
    )
