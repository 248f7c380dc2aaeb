"""What a table's metadata document says about a publish or a staged snapshot: decisions only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import (
    ForeignWriteError,
    RefTakenError,
    SnapshotMissingError,
    StagedTableError,
)
from airflow_barrier.protocol.names import Stamp, parse_branch
from airflow_barrier.protocol.states import Decision
from airflow_barrier.tables._metadata import (
    EMPTY_ROOT,
    MAIN,
    Changes,
    Document,
    Snapshot,
    lineage,
    ref_of,
    refs_of,
    republished,
    snapshots_of,
    was_main,
)

if TYPE_CHECKING:
    from airflow_barrier.tables.port import Publication

_STAMP_PREFIX = "barrier."


# --- main -----------------------------------------------------------------------------------------


def keeps_rows_of(document: Document, expected: int | None) -> bool:
    """Whether `main` is at ``expected``, or has only `replace` snapshots (compactions, which keep the rows) on it."""
    main = ref_of(document, MAIN)
    if main is None or expected is None:
        return main == expected
    if main == expected:
        return True
    for snapshot in lineage(document, main):
        if snapshot["snapshot-id"] == expected:
            return True
        if snapshot["summary"]["operation"] != "replace":  # safety: only-compactions-are-absorbed
            return False
        # The parent may have been expired since, but its id is still named by its child.
        if snapshot.get("parent-snapshot-id") == expected:
            return True
    return False


def require_main(table: str, document: Document, expected: int | None) -> int | None:
    """What `main` is at, if that keeps the rows of ``expected``. Raises :class:`ForeignWriteError`."""
    if not keeps_rows_of(document, expected):
        raise _moved(
            table, document, expected, f". {_ONLY_ITS_JOB}, and {_way_back(table, document, expected)}"
        )  # safety: foreign-write
    return ref_of(document, MAIN)


def publication_changes(document: Document, publication: Publication, new_id: int, now_ms: int) -> Changes:
    """What is left to do for ``publication``; nothing if it has been done.

    ``new_id`` and ``now_ms`` are for a snapshot that is published anew.

    Raises ForeignWriteError, SnapshotMissingError, StagedTableError.
    """
    table, new = publication.table, _still_there(document, publication.new)
    attempts = attempt_branches(document, publication.topology, publication.held, publication.barrier_id)
    # of a table that was dropped and made again, what is set aside went with the old one
    aside = {name: each for name, each in publication.set_aside.items() if each in snapshots_of(document)}
    for name, each in aside.items():
        _check_ref(table, document, name, each, "tag")  # safety: set-aside-is-ours
    if new is None:
        _require_expected(document, publication)  # safety: foreign-write-on-empty
        return Changes(tags=aside, drop=attempts)
    branches: dict[str, int] = {}
    snapshot: Snapshot | None = None
    if not keeps_rows_of(document, new) and not _was_published(document, publication, new):
        has_been_main = _check_move(document, publication, new)
        if has_been_main:  # safety: published-anew
            snapshot = republished(document, new, new_id, now_ms)
        branches[MAIN] = new if snapshot is None else snapshot["snapshot-id"]
    refs = refs_of(document)
    _check_ref(
        table, document, publication.tag, new, "tag", or_at=frozenset(publication.set_aside.values())
    )  # safety: tag-is-ours
    if new not in snapshots_of(document):
        raise _missing(table, new)  # safety: published-snapshot-is-there
    thinned = {name for name in publication.drop_tags if name in refs and refs[name]["type"] == "tag"}
    tags = {publication.tag: new, **aside}
    return Changes(branches, tags, attempts | thinned - tags.keys(), snapshot=snapshot)


def _still_there(document: Document, new: int | None) -> int | None:
    """``new``, or what `main` is at where that is a compaction of it and somebody has expired ``new`` since."""
    return new if new in snapshots_of(document) or not keeps_rows_of(document, new) else ref_of(document, MAIN)


def _was_published(document: Document, publication: Publication, new: int) -> bool:
    """Whether a publish has set the tag and moved `main` already, and somebody wrote on top of it since.

    That is then the next barrier's to refuse. A publisher may have died before it could write down that it was done.
    """
    main = ref_of(document, MAIN)
    if main is None or ref_of(document, publication.tag) != new:
        return False
    return any(snapshot["snapshot-id"] == new for snapshot in lineage(document, main))


def _check_move(document: Document, publication: Publication, new: int) -> bool:
    """May `main` go to ``new``? And whether it has been there before."""
    table, expected = publication.table, publication.expected
    main = _require_expected(document, publication)
    keep_ours = publication.decision is Decision.KEEP_OURS
    left = any(snapshot["snapshot-id"] == new for snapshot in lineage(document, main)) if main is not None else False
    has_been_main = (
        left  # safety: never-back
        or was_main(document, new)  # safety: never-back
    )
    if has_been_main and not keep_ours:
        # Otherwise a publisher that was suspended before a rollback would undo the rollback when it wakes.
        raise ForeignWriteError(  # safety: never-back
            f"table {table}: main has been at snapshot {new} and has left it, found {_described(document, main)}. Main "
            "never returns to a snapshot that it left: find out who set it back"
        )
    if new not in snapshots_of(document):
        raise _missing(table, new)  # safety: new-snapshot-is-there
    if expected is not None and not keep_ours and not _builds_on(document, new, expected):
        raise StagedTableError(  # safety: builds-on-expected
            f"table {table}: expected staged snapshot {new} to descend from snapshot {expected}, found it does not; "
            "it was built on another state of the table: clear the job, which stages it anew"
        )
    return has_been_main


def _require_expected(document: Document, publication: Publication) -> int | None:
    """What `main` is at, if a publish may begin there. Raises :class:`ForeignWriteError`."""
    table, expected = publication.table, publication.expected
    main = ref_of(document, MAIN)
    # what a person has decided about is one snapshot exactly, and nothing that came on top of it
    exact = publication.decision is Decision.KEEP_OURS
    if main != expected if exact else not keeps_rows_of(document, expected):
        raise _moved(table, document, expected, f". {_ONLY_ITS_JOB}")  # safety: foreign-write
    return main


def pin_changes(table: str, document: Document, ref: str, snapshot_id: int, ancestors: int) -> Changes:
    """Raises SnapshotMissingError, and ForeignWriteError if the name is taken."""
    _check_ref(table, document, ref, snapshot_id, "branch" if ancestors else "tag")  # safety: pin-is-ours
    if snapshot_id not in snapshots_of(document):
        raise _missing(table, snapshot_id)  # safety: pinned-snapshot-is-there
    if ancestors == 0:
        return Changes(tags={ref: snapshot_id})
    # a tag holds one snapshot only; of a branch, expiry leaves as many as the branch says
    return Changes(branches={ref: snapshot_id}, keep={ref: ancestors + 1})


def is_pin(name: str, ref: Mapping[str, Any]) -> bool:
    """Whether :func:`pin_changes` makes such refs."""
    return (
        name != MAIN  # safety: unpin-leaves-main
        and (ref["type"] == "tag" or "min-snapshots-to-keep" in ref)  # safety: unpin-leaves-branches
    )


def _check_ref(
    table: str, document: Document, name: str, snapshot_id: int, kind: str, or_at: frozenset[int] = frozenset()
) -> None:
    """Raise unless the name is free, or the ref is at the snapshot already (or at one of ``or_at``, to be moved)."""
    found = refs_of(document).get(name)
    if found is not None and (found["type"] != kind or found["snapshot-id"] not in {snapshot_id, *or_at}):
        raise RefTakenError(  # safety: ref-is-ours
            f"table {table}: expected no ref {name}, or a {kind} at snapshot {snapshot_id}; found a {found['type']} at "
            f"{_at(found['snapshot-id'])}. Refs of this name are airflow_barrier's: find out who made it, and drop it "
            f"(ALTER TABLE {table} DROP {found['type'].upper()} `{name}`)"
        )


def attempt_branches(
    document: Document, topology: str, held: Sequence[tuple[int, int]], through: int | None = None
) -> frozenset[str]:
    """The branches of attempts of a topology that nobody reads; ``through``: up to this barrier only."""
    parsed = ((name, parse_branch(name)) for name, ref in refs_of(document).items() if ref["type"] == "branch")
    return frozenset(
        name
        for name, branch in parsed
        if branch is not None
        and branch.topology == topology  # safety: branches-of-others-stay
        and (through is None or branch.barrier_id <= through)  # safety: branches-of-later-barriers-stay
        and not any(first <= branch.barrier_id <= last for first, last in held)  # safety: branches-of-readers-stay
    )


# --- attempt branches -----------------------------------------------------------------------------


def branch_is_ready(table: str, document: Document, stamp: Stamp, base: int | None) -> bool:
    """Whether the attempt branch stands at ``base``; False if it is yet to be made.

    Raises SnapshotMissingError, and StagedTableError if the branch stands elsewhere.
    """
    head = ref_of(document, stamp.branch)
    if head is None:
        if base is not None and base not in snapshots_of(document):
            raise _missing(table, base)  # safety: base-is-there
        return False
    at_base = head == base if base is not None else _is_empty_root(snapshots_of(document)[head], stamp)
    if not at_base:
        raise StagedTableError(  # safety: branch-at-base
            f"table {table}: expected branch {stamp.branch} at {_at(base)}, found {_described(document, head)}; an "
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
            f"table {table}: expected branch {stamp.branch} to descend from {_at(base)}, found "
            f"{_described(document, head)}, which does not; the branch was moved or made anew by something other than "
            "this attempt: retry the task, which begins a new attempt"
        )
    for snapshot in added:
        _check_stamp(table, snapshot, stamp)
    return head if added else None


def staged_summaries(document: Document, stamp: Stamp, base: int | None) -> list[Mapping[str, str]]:
    """Of every snapshot on the attempt branch that was added to ``base``, newest first."""
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


# --- words ----------------------------------------------------------------------------------------

_ONLY_ITS_JOB = (
    "Somebody else wrote to the table, and that is not overwritten: see to it that only the job which declares the "
    "table as its sink writes to it"
)


def _moved(table: str, document: Document, expected: int | None, advice: str) -> ForeignWriteError:
    found = _described(document, ref_of(document, MAIN))
    return ForeignWriteError(f"table {table}: expected main at {_at(expected)}, found {found}{advice}")


def _way_back(table: str, document: Document, expected: int | None) -> str:
    """How a person brings `main` to where it is expected, by Spark's own procedures."""
    if expected is None or expected not in snapshots_of(document):
        return (
            "let the table leave the topology and join it again, which takes what main is at as its baseline (its "
            f"job's start_from says what of its sources is in that): {_at(expected)} cannot come back"
        )
    main = ref_of(document, MAIN)
    below = main is not None and any(each["snapshot-id"] == expected for each in lineage(document, main))
    procedure = "rollback_to_snapshot" if below else "set_current_snapshot"
    return f"set main back: CALL <catalog>.system.{procedure}('{table}', {expected})"


def _builds_on(document: Document, snapshot_id: int, expected: int) -> bool:
    """Whether the snapshot descends from ``expected``, or from what ``expected`` is a compaction of."""
    same_rows = {expected}
    for snapshot in lineage(document, expected):
        if (
            snapshot["summary"]["operation"] != "replace"  # safety: same-rows-by-compaction-only
            or "parent-snapshot-id" not in snapshot
        ):
            break
        same_rows.add(snapshot["parent-snapshot-id"])
    return any(snapshot.get("parent-snapshot-id") in same_rows for snapshot in lineage(document, snapshot_id))


def _missing(table: str, snapshot_id: int) -> SnapshotMissingError:
    return SnapshotMissingError(
        f"table {table}: expected snapshot {snapshot_id} in the table's metadata, found it is not there; was it "
        "expired, or the table dropped and made again? Clear the job, which stages the table anew"
    )


def _at(snapshot_id: int | None) -> str:
    return "no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"


def _described(document: Document, snapshot_id: int | None) -> str:
    snapshot = None if snapshot_id is None else snapshots_of(document).get(snapshot_id)
    if snapshot is None:
        return _at(snapshot_id)
    summary = snapshot["summary"]
    made = datetime.fromtimestamp(snapshot["timestamp-ms"] / 1000, tz=timezone.utc)
    writer = summary.get("app-name") or summary.get("engine-name")
    by = f" by {writer}" if writer else ""
    return f"snapshot {snapshot_id} ({summary['operation']}{by}, {made:%Y-%m-%d %H:%M:%S} UTC)"
