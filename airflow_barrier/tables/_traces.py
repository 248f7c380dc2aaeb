"""What a table's metadata document tells about barriers after the fact: decisions only, no I/O."""

from __future__ import annotations

from airflow_barrier.protocol.names import Stamp, parse_branch, parse_tag
from airflow_barrier.tables._metadata import MAIN, Document, Snapshot, ref_of, refs_of, snapshots_of
from airflow_barrier.tables.port import Traces


def main_origin(document: Document) -> Stamp | None:
    """Return which attempt staged what `main` is at; None if that is nobody's attempt, or nothing."""
    main = ref_of(document, MAIN)
    snapshot = snapshots_of(document).get(main) if main is not None else None
    return None if snapshot is None else _stamp(snapshot)


def traces_of(document: Document, topology: str) -> Traces:
    """Return what tags, branches and snapshots are there still."""
    refs = refs_of(document)
    names = (parse_tag(name) for name, ref in refs.items() if ref["type"] == "tag")
    tags = frozenset((tag.barrier_id, tag.revision) for tag in names if tag is not None and tag.topology == topology)
    stamps = (_stamp(snapshot) for snapshot in snapshots_of(document).values())
    branches = (parse_branch(name) for name in refs)
    attempts = [trace for trace in (*stamps, *branches) if trace is not None and trace.topology == topology]
    return Traces(
        tags,
        newest_attempt=max((trace.attempt_id for trace in attempts), default=0),
        newest_revision=max((*(trace.revision for trace in attempts), *(revision for _, revision in tags)), default=0),
    )


def _stamp(snapshot: Snapshot) -> Stamp | None:
    return Stamp.of(snapshot["summary"])
