"""What a table's metadata document says about a publish: decisions only, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import (
    ForeignWriteError,
    RefTakenError,
    StagedTableError,
)
from airflow_barrier.protocol.names import BranchName, Stamp, parse_branch
from airflow_barrier.protocol.states import Decision
from airflow_barrier.tables._metadata import (
    MAIN,
    Changes,
    Document,
    Snapshot,
    empty_root,
    has_no_rows,
    lineage,
    ref_of,
    refs_of,
    republished,
    snapshots_of,
    was_main,
)
from airflow_barrier.tables._words import at, described, missing

if TYPE_CHECKING:
    from airflow_barrier.tables.port import Publication


# --- main -----------------------------------------------------------------------------------------


def keeps_rows_of(document: Document, expected: int | None) -> bool:
    """Return whether `main` is at ``expected``, or has only `replace` snapshots (compactions, which keep the rows) on
    it.
    """
    main = ref_of(document, MAIN)
    if expected is None:
        return has_no_rows(document, main)
    if main is None:
        return False
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
    """Return what `main` is at, if that keeps the rows of ``expected``. Raises :class:`ForeignWriteError`."""
    if not keeps_rows_of(document, expected):
        raise _moved(
            table, document, expected, f". {_ONLY_ITS_JOB}, and {_way_back(table, document, expected)}"
        )  # safety: foreign-write
    return ref_of(document, MAIN)


def require_main_without(table: str, document: Document, stamp: Stamp) -> None:
    """Nothing of an attempt that is not published yet may be on `main`. Raises :class:`ForeignWriteError`."""
    main = ref_of(document, MAIN)
    line = lineage(document, main) if main is not None else ()
    written = [snapshot for snapshot in line if Stamp.of(snapshot["summary"]) == stamp]
    if written:
        before = written[-1].get("parent-snapshot-id")
        raise ForeignWriteError(  # safety: attempt-is-not-on-main
            f"table {table}: expected nothing of attempt {stamp.attempt_id} on main, found "
            f"{described(document, written[0]['snapshot-id'])} with its stamp: the job, or somebody else, wrote past "
            f"its branch {stamp.branch} of {table}, and readers see that already. Let the job name its tables alone "
            f"and leave spark.wap.branch as it is, {_way_back(table, document, before)}, and clear the task"
        )


def publication_changes(
    document: Document, publication: Publication, new_id: int, manifest_list: str, now_ms: int
) -> Changes:
    """Return what is left to do for ``publication``; nothing if it has been done.

    ``new_id`` and ``now_ms`` are for a snapshot that is published anew, or that is empty, whose list of manifests is
    at ``manifest_list``.

    Raises ForeignWriteError, SnapshotMissingError, StagedTableError.
    """
    table, new, tag = publication.table, _to_publish(document, publication), publication.tag
    refs = refs_of(document)
    attempts = attempt_branches(
        document, publication.topology, publication.held, publication.kept_revisions, publication.barrier_id
    )
    thinned = {name for name in publication.drop_tags if name in refs and refs[name]["type"] == "tag"}
    # of a table that was dropped and made again, what is set aside went with the old one
    aside = {name: each for name, each in publication.set_aside.items() if each in snapshots_of(document)}
    for name, each in aside.items():
        _check_ref(table, document, name, each, "tag")  # safety: set-aside-is-ours
    tags = {**_earlier_tags(document, publication, new), **aside}
    if new is None and (publication.revised is None or keeps_rows_of(document, None)):
        if publication.revised is None:
            _require_expected(document, publication)  # safety: foreign-write-on-empty
        return Changes(tags=tags, drop=attempts | thinned - tags.keys())
    branches: dict[str, int] = {}
    snapshot: Snapshot | None = None
    if new is None:
        # `main` cannot go back to no snapshot, so it goes to an empty one
        _require_expected(document, publication)  # safety: foreign-write-on-emptied
        snapshot = empty_root(document, new_id, manifest_list, {"barrier.topology": publication.topology}, now_ms)
        branches[MAIN] = new_id
    elif not keeps_rows_of(document, new) and not _was_published(document, publication, new):
        has_been_main = _check_move(document, publication, new)
        if has_been_main:  # safety: published-anew
            snapshot = republished(document, new, new_id, now_ms)
        branches[MAIN] = new if snapshot is None else snapshot["snapshot-id"]
    tagged = new_id if new is None else new
    _check_ref(
        table, document, tag, tagged, "tag", or_at=frozenset(publication.set_aside.values())
    )  # safety: tag-is-ours
    if new is not None and new not in snapshots_of(document):
        raise missing(table, new)  # safety: published-snapshot-is-there
    tags = {tag: tagged, **tags}
    return Changes(branches, tags, attempts | thinned - tags.keys(), snapshot=snapshot, writes_list=new is None)


def _to_publish(document: Document, publication: Publication) -> int | None:
    """``new``, as far as it is there; where a revision left no rows, the empty snapshot if that has been published."""
    if publication.new is not None:
        return _still_there(document, publication.new)
    found = ref_of(document, publication.tag)
    return found if publication.revised is not None and has_no_rows(document, found) else None


def _still_there(document: Document, snapshot_id: int) -> int:
    """The snapshot, or what `main` is at where that is a compaction of it and somebody has expired it since."""
    if snapshot_id in snapshots_of(document) or not keeps_rows_of(document, snapshot_id):
        return snapshot_id
    main = ref_of(document, MAIN)
    return snapshot_id if main is None else main


def _earlier_tags(document: Document, publication: Publication, new: int | None) -> dict[str, int]:
    """The tags of the earlier barriers of a revision; none if they were set, and may have expired since."""
    revised = publication.revised
    if revised is None or _is_tagged(document, publication, new):
        return {}
    tags = {name: _still_there(document, each) for name, each in revised.tags.items()}
    for name, each in tags.items():
        _check_ref(publication.table, document, name, each, "tag")  # safety: revised-tags-are-ours
        if each not in snapshots_of(document):
            raise missing(publication.table, each)  # safety: revised-snapshots-are-there
    return tags


def _is_tagged(document: Document, publication: Publication, new: int | None) -> bool:
    """Return whether the publication was carried out: its tag comes along with all the rest."""
    return new is not None and ref_of(document, publication.tag) == new


def _was_published(document: Document, publication: Publication, new: int) -> bool:
    """Return whether a publish has set the tag and moved `main` already, and somebody wrote on top of it since.

    That is then the next barrier's to refuse. A publisher may have died before it could write down that it was done.
    """
    main = ref_of(document, MAIN)
    if main is None or not _is_tagged(document, publication, new):
        return False
    # What a revision began on stands below the old line as well, to which somebody may have set `main` back.
    if publication.revised is not None and keeps_rows_of(document, publication.expected):
        return False  # safety: set-back-is-no-publish
    # What is staged on a table without rows begins with a root of its own.
    return has_no_rows(document, new) or any(each["snapshot-id"] == new for each in lineage(document, main))


def _check_move(document: Document, publication: Publication, new: int) -> bool:
    """May `main` go to ``new``? And whether it has been there before."""
    table = publication.table
    main = _require_expected(document, publication)
    keep_ours = publication.decision is Decision.KEEP_OURS
    swaps = (
        publication.revised is not None
        # once: its tag says that it was published, and `main` set back since
        and not _is_tagged(document, publication, new)  # safety: set-back-is-no-publish
    )
    left = any(snapshot["snapshot-id"] == new for snapshot in lineage(document, main)) if main is not None else False
    has_been_main = (
        left  # safety: never-back
        or was_main(document, new)  # safety: never-back
    )
    if has_been_main and not keep_ours and not swaps:
        # Otherwise a publisher that was suspended before a rollback would undo the rollback when it wakes.
        raise ForeignWriteError(  # safety: never-back
            f"table {table}: main has been at snapshot {new} and has left it, found {described(document, main)}. Main "
            "never returns to a snapshot that it left: find out who set it back; before the decision, clearing the "
            "job stages the table anew"
        )
    if new not in snapshots_of(document):
        raise missing(table, new)  # safety: new-snapshot-is-there
    _check_descent(document, publication, new)
    return has_been_main


def _check_descent(document: Document, publication: Publication, new: int) -> None:
    table, expected, revised = publication.table, publication.expected, publication.revised
    if revised is not None:
        if not _is_of_revision(document, new, revised.base, publication.topology):
            raise StagedTableError(  # safety: builds-on-the-revisions-base
                f"table {table}: expected the revision's snapshot {new} to descend from {at(revised.base)}, where the "
                "revision began, found it does not; it was built on another state of the table: cancel the revision "
                "and begin another one"
            )
        return
    keep_ours = publication.decision is Decision.KEEP_OURS
    if expected is None or keep_ours or has_no_rows(document, expected):
        return
    if not _builds_on(document, new, expected):
        raise StagedTableError(  # safety: builds-on-expected
            f"table {table}: expected staged snapshot {new} to descend from snapshot {expected}, found it does not; "
            "it was built on another state of the table: clear the job, which stages it anew"
        )


def _is_of_revision(document: Document, new: int, base: int | None, topology: str) -> bool:
    """Return whether a revision that began on ``base`` (None: on an empty root) can have come to ``new``."""
    if base is not None:
        return new in _same_rows(document, base) or _builds_on(document, new, base)
    *_, root = lineage(document, new)
    main = ref_of(document, MAIN)
    of_main = () if main is None else lineage(document, main)
    return (
        has_no_rows(document, root["snapshot-id"])  # safety: revision-from-an-empty-root
        and root["summary"].get("barrier.topology") == topology  # safety: root-is-of-the-topology
        and all(each["snapshot-id"] != root["snapshot-id"] for each in of_main)  # safety: root-is-not-the-old-lines
    )


def _require_expected(document: Document, publication: Publication) -> int | None:
    """Return what `main` is at, if a publish may begin there. Raises :class:`ForeignWriteError`."""
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
        raise missing(table, snapshot_id)  # safety: pinned-snapshot-is-there
    if ancestors == 0:
        return Changes(tags={ref: snapshot_id})
    # a tag holds one snapshot only; of a branch, expiry leaves as many as the branch says
    return Changes(branches={ref: snapshot_id}, keep={ref: ancestors + 1})


def is_pin(name: str, ref: Mapping[str, Any]) -> bool:
    """Return whether :func:`pin_changes` makes such refs."""
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
            f"{at(found['snapshot-id'])}. Refs of this name are airflow_barrier's: find out who made it, and drop it "
            f"(ALTER TABLE {table} DROP {found['type'].upper()} `{name}`)"
        )


def attempt_branches(
    document: Document,
    topology: str,
    held: Sequence[tuple[int, int]],
    kept_revisions: Collection[int],
    through: int | None = None,
) -> frozenset[str]:
    """The branches of attempts of a topology that nobody reads or builds on; ``through``: up to this barrier only."""
    return frozenset(
        name
        for name, branch in _attempts_of(document, topology)
        if (through is None or branch.barrier_id <= through)  # safety: branches-of-later-barriers-stay
        and branch.revision not in kept_revisions  # safety: branches-of-revisions-stay
        and not any(first <= branch.barrier_id <= last for first, last in held)  # safety: branches-of-readers-stay
    )


def revision_branches(document: Document, topology: str, revision: int) -> frozenset[str]:
    """The branches of attempts of one revision, whatever their barriers."""
    return frozenset(
        name
        for name, branch in _attempts_of(document, topology)
        if branch.revision == revision  # safety: branches-of-other-revisions-stay
    )


def _attempts_of(document: Document, topology: str) -> Iterator[tuple[str, BranchName]]:
    for name, ref in refs_of(document).items():
        branch = parse_branch(name) if ref["type"] == "branch" else None
        if (
            branch is not None and branch.topology == topology  # safety: branches-of-others-stay
        ):
            yield name, branch


# --- words ----------------------------------------------------------------------------------------

_ONLY_ITS_JOB = (
    "Somebody else wrote to the table, and that is not overwritten: see to it that only the job which declares the "
    "table as its outlet writes to it"
)


def _moved(table: str, document: Document, expected: int | None, advice: str) -> ForeignWriteError:
    found = described(document, ref_of(document, MAIN))
    return ForeignWriteError(f"table {table}: expected main at {at(expected)}, found {found}{advice}")


def _way_back(table: str, document: Document, expected: int | None) -> str:
    """Return the statements of Spark's own by which a person brings `main` to where it is expected."""
    if expected is None or expected not in snapshots_of(document):
        return (
            "let the table leave the topology and join it again, which takes what main is at as its baseline (its "
            f"job's start_from says what of its inlets is in that): {at(expected)} cannot come back"
        )
    main = ref_of(document, MAIN)
    below = main is not None and any(each["snapshot-id"] == expected for each in lineage(document, main))
    procedure = "rollback_to_snapshot" if below else "set_current_snapshot"
    return f"set main back: CALL <catalog>.system.{procedure}('{table}', {expected})"


def _builds_on(document: Document, snapshot_id: int, expected: int) -> bool:
    """Return whether the snapshot descends from ``expected``, or from what ``expected`` is a compaction of."""
    same_rows = _same_rows(document, expected)
    return any(snapshot.get("parent-snapshot-id") in same_rows for snapshot in lineage(document, snapshot_id))


def _same_rows(document: Document, expected: int) -> set[int]:
    """``expected`` and what it is a compaction of."""
    same_rows = {expected}
    for snapshot in lineage(document, expected):
        if (
            snapshot["summary"]["operation"] != "replace"  # safety: same-rows-by-compaction-only
            or "parent-snapshot-id" not in snapshot
        ):
            break
        same_rows.add(snapshot["parent-snapshot-id"])
    return same_rows
