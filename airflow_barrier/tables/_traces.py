"""What a table's metadata document tells about barriers after the fact: decisions only, no I/O."""

from __future__ import annotations

from airflow_barrier.protocol.names import Stamp, parse_branch, parse_tag
from airflow_barrier.tables._metadata import MAIN, Document, Snapshot, ref_of, refs_of, snapshots_of


def main_origin(document: Document) -> Stamp | None:
    """Which attempt staged what `main` is at; None if that is nobody's attempt, or nothing."""
    main = ref_of(document, MAIN)
    snapshot = snapshots_of(document).get(main) if main is not None else None
    return None if snapshot is None else _stamp(snapshot)


def tagged(document: Document, topology: str) -> frozenset[int]:
    """The barriers that have published the table and whose tags are there still."""
    tags = (parse_tag(name) for name, ref in refs_of(document).items() if ref["type"] == "tag")
    return frozenset(tag.barrier_id for tag in tags if tag is not None and tag.topology == topology)


def newest_attempt(document: Document, topology: str) -> int:
    """The highest number of an attempt that left a branch or a snapshot; 0 if none has."""
    stamps = (_stamp(snapshot) for snapshot in snapshots_of(document).values())
    branches = (parse_branch(name) for name in refs_of(document))
    traces = [trace for trace in (*stamps, *branches) if trace is not None and trace.topology == topology]
    return max((trace.attempt_id for trace in traces), default=0)


def _stamp(snapshot: Snapshot) -> Stamp | None:
    return Stamp.of(snapshot["summary"])
