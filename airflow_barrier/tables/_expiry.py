"""Which snapshots of a table may go: decisions on its metadata document only, no I/O.

Kept are the snapshots that a ref names; of `main`, every step down to where the recent window begins, since a replay
reads the steps between two barriers; and of every other branch what it has that `main` has not, with the snapshot that
it left `main` at, since whoever publishes the branch is checked against that base. Native expiry keeps the head of a
branch only (apache/iceberg, `RemoveSnapshots`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_barrier.tables._metadata import MAIN, Document, lineage, ref_of, refs_of, snapshots_of
from airflow_barrier.tables.port import SnapshotVerdict

Refs = Mapping[str, Mapping[str, Any]]


def snapshot_verdicts(
    document: Document, window_tag: str | None, dropped: Collection[str] = (), since: Collection[int] = ()
) -> list[SnapshotVerdict]:
    """A verdict on each snapshot, oldest first. ``window_tag``: the tag of the barrier with which the recent window
    begins; where the table has no such tag, all of `main` stays. ``dropped``: tags that are as good as gone.
    ``since``: snapshots from which on a job is about to read `main`."""
    refs = {name: ref for name, ref in refs_of(document).items() if name not in dropped}
    reasons = _kept(document, refs, window_tag, since)
    return [
        SnapshotVerdict(snapshot_id, snapshot_id in reasons, reasons.get(snapshot_id, "no ref needs it any more"))
        for snapshot_id in snapshots_of(document)
    ]


def has_steps_since(document: Document, snapshot_id: int) -> bool:
    """Return whether the snapshot is there and, if it is one of `main`'s steps, every step since."""
    if snapshot_id not in snapshots_of(document):
        return False
    main = ref_of(document, MAIN)
    steps = list(lineage(document, main)) if main is not None else []
    is_step = any(step["snapshot-id"] == snapshot_id for step in steps)
    return is_step or not steps or steps[-1].get("parent-snapshot-id") is None


def _kept(document: Document, refs: Refs, window_tag: str | None, since: Collection[int]) -> dict[int, str]:
    """Snapshot -> why it stays."""
    reasons: dict[int, str] = {}
    for name, ref in refs.items():
        if name != MAIN:
            reasons.setdefault(ref["snapshot-id"], f"{ref['type']} {name}")
    for snapshot_id in since:
        reasons.setdefault(snapshot_id, "a job of an open barrier reads from here on")
    for snapshot_id in _window(document, window_tag, since):
        reasons.setdefault(snapshot_id, "a step of main in the recent window")
    for name, snapshot_id in _branch_steps(document, refs):
        reasons.setdefault(snapshot_id, f"a step of branch {name}, or its base")
    return reasons


def _window(document: Document, window_tag: str | None, since: Collection[int]) -> Iterator[int]:
    """The steps of `main`, newest first, down to where the window begins and to all of ``since``."""
    main = ref_of(document, MAIN)
    start = ref_of(document, window_tag) if window_tag is not None else None
    if main is None:
        return
    ahead = {start, *since}
    for snapshot in lineage(document, main):
        yield snapshot["snapshot-id"]
        ahead.discard(snapshot["snapshot-id"])
        if not ahead:
            return


def _branch_steps(document: Document, refs: Refs) -> Iterator[tuple[str, int]]:
    """Yield what branches have beside `main`, each down to the snapshot at which it left `main`."""
    main = ref_of(document, MAIN)
    of_main = {snapshot["snapshot-id"] for snapshot in lineage(document, main)} if main is not None else set()
    for name, ref in refs.items():
        if name == MAIN or ref["type"] != "branch":
            continue
        for snapshot in lineage(document, ref["snapshot-id"]):
            yield name, snapshot["snapshot-id"]
            if snapshot["snapshot-id"] in of_main:
                break
