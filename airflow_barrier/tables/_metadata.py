"""Editing an Iceberg table's metadata document: plain JSON in, plain JSON out, no I/O.

The document is edited as it stands instead of being parsed into a model and written anew: a field that this package
has never heard of (encryption keys, statistics, whatever a newer engine adds) comes out as it went in, and tables of
format version 3, which the Python library reads but cannot commit, take the same path as those of version 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_barrier.protocol.errors import ConfigurationError

Document = dict[str, Any]
Snapshot = dict[str, Any]

MAIN = "main"
#: Marks the empty snapshot that an attempt branch starts with on a table that has none.
EMPTY_ROOT = "barrier.empty-root"

#: Whether the session conf `spark.wap.branch` counts for the table.
_WAP_ENABLED = "write.wap.enabled"
#: It is there if we switched that on, so that we switch off no more than that.
_WAP_SWITCHED_ON = "barrier.wap-switched-on"
_FOREVER = 2**63 - 1
_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_DELETE_SWITCHED_ON = "barrier.delete-after-commit-switched-on"
#: Before the name of a property that a catalog wants: we have set it.
_SET = "barrier.set."


@dataclass(frozen=True)
class Changes:
    """The changes of one commit: branches and tags to set (name -> snapshot id), refs to drop, a snapshot to add, table
    properties to set and to remove.

    ``keep``: how many of a new branch's snapshots no expiry takes. ``writes_list``: the snapshot is an empty root,
    whose (empty) list of manifests is yet to be written; without it, the list is another snapshot's.
    """

    branches: Mapping[str, int] = field(default_factory=dict)
    tags: Mapping[str, int] = field(default_factory=dict)
    drop: frozenset[str] = field(default_factory=frozenset)
    keep: Mapping[str, int] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    writes_list: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    drop_properties: frozenset[str] = frozenset()


def require_editable(table: str, document: Document) -> None:
    """Raises :class:`ConfigurationError` unless this is a table of format version 2 or 3."""
    if "view-uuid" in document:
        raise ConfigurationError(f"table {table}: expected a table, found a view; declare the table behind it")
    version = document.get("format-version")
    if version not in (2, 3):
        raise ConfigurationError(
            f"table {table}: expected Iceberg format version 2 or 3, found {version}; "
            "set the table property 'format-version' to '2' or '3', which rewrites no data"
        )


# --- reading --------------------------------------------------------------------------------------


def refs_of(document: Document) -> dict[str, dict[str, Any]]:
    """Ref name -> ref. A document without a `refs` field has `main` at its current snapshot."""
    refs: dict[str, dict[str, Any]] | None = document.get("refs")
    if refs is not None:
        return refs
    current = document.get("current-snapshot-id")
    return {} if current in (None, -1) else {MAIN: {"snapshot-id": current, "type": "branch"}}


def ref_of(document: Document, name: str) -> int | None:
    """The snapshot that a branch or tag is at, or None if it is not there."""
    ref = refs_of(document).get(name)
    return None if ref is None else int(ref["snapshot-id"])


def snapshots_of(document: Document) -> dict[int, Snapshot]:
    return {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots") or ()}


def size_at(document: Document, snapshot_id: int | None) -> int | None:
    """Return how many bytes the files have that are at a snapshot (None: at none); None: its writer did not say."""
    if snapshot_id is None:
        return 0
    said = snapshots_of(document).get(snapshot_id, {}).get("summary", {}).get("total-files-size")
    return None if said is None else int(said)


def lineage(document: Document, snapshot_id: int) -> Iterator[Snapshot]:
    """The snapshot, its parent and so on, as far as they have not been expired."""
    snapshots = snapshots_of(document)
    current: int | None = snapshot_id
    while current is not None and (snapshot := snapshots.get(current)) is not None:
        yield snapshot
        current = snapshot.get("parent-snapshot-id")


def has_no_rows(document: Document, snapshot_id: int | None) -> bool:
    """Return whether this is no snapshot, or an empty one that an attempt began with or a revision left."""
    if snapshot_id is None:
        return True
    snapshot = snapshots_of(document).get(snapshot_id)
    return (
        snapshot is not None
        and "parent-snapshot-id" not in snapshot
        and snapshot["summary"].get(EMPTY_ROOT) == "true"
        and snapshot["summary"].get("total-records") == "0"
    )


def was_main(document: Document, snapshot_id: int) -> bool:
    """Return whether `main` has been at this snapshot, as far as the table remembers."""
    return any(entry["snapshot-id"] == snapshot_id for entry in document.get("snapshot-log") or ())


def is_wap_enabled(document: Document) -> bool:
    return str(document.get("properties", {}).get(_WAP_ENABLED, "false")).lower() == "true"


def deletes_old_documents(document: Document) -> bool | None:
    """Return whether those go that the table's log of metadata no longer lists; None: nobody has said, so they stay."""
    said = (document.get("properties") or {}).get(_DELETE_AFTER_COMMIT)
    return None if said is None else str(said).lower() == "true"


def obsolete_files(before: Document, after: Document) -> tuple[str, ...]:
    """Metadata files that ``after`` no longer lists, where the table asks for such files to be deleted."""
    if not deletes_old_documents(before):
        return ()
    kept = {entry["metadata-file"] for entry in after["metadata-log"]}
    return tuple(
        entry["metadata-file"] for entry in before.get("metadata-log") or () if entry["metadata-file"] not in kept
    )


# --- editing --------------------------------------------------------------------------------------


def edited(document: Document, changes: Changes, *, location: str, now_ms: int, trim: bool) -> Document | None:
    """The document after ``changes``, or None if they change nothing; ``document`` itself stays as it is.

    ``location`` is where ``document`` was read from, which goes into the metadata log; ``now_ms`` is milliseconds
    since 1970. With ``trim`` the metadata log is cut to the length that the table asks for.
    """
    refs = edited_refs(refs_of(document), changes)
    properties = document.get("properties") or {}
    is_new = any(properties.get(name) != value for name, value in changes.properties.items()) or any(
        name in properties for name in changes.drop_properties
    )
    if changes.snapshot is None and refs == refs_of(document) and not is_new:
        return None
    # Clocks of several machines meet here, and Iceberg refuses a document whose logs go back in time.
    now = max(now_ms, document["last-updated-ms"])
    after: Document = {**document, "last-updated-ms": now, "refs": refs}
    if is_new:
        kept = {name: value for name, value in properties.items() if name not in changes.drop_properties}
        after["properties"] = {**kept, **changes.properties}
    if changes.snapshot is not None:
        _add_snapshot(after, changes.snapshot)
    main = ref_of(after, MAIN)
    if main != ref_of(document, MAIN):
        after["current-snapshot-id"] = main
        entry = {"timestamp-ms": now, "snapshot-id": main}
        after["snapshot-log"] = [*(document.get("snapshot-log") or ()), entry]
    log = [
        *(document.get("metadata-log") or ()),
        {"timestamp-ms": document["last-updated-ms"], "metadata-file": location},
    ]
    after["metadata-log"] = log[-_log_length(document) :] if trim else log
    return after


def taken_in(document: Document) -> Changes:
    """Return what lets the session conf `spark.wap.branch` count for the table, and old documents go; nothing if that
    is so.

    Who has said that old documents stay is left alone.
    """
    properties: dict[str, str] = {}
    if not is_wap_enabled(document):
        properties |= {_WAP_ENABLED: "true", _WAP_SWITCHED_ON: "true"}
    if deletes_old_documents(document) is None:
        properties |= {_DELETE_AFTER_COMMIT: "true", _DELETE_SWITCHED_ON: "true"}
    return Changes(properties=properties)


def asked_for(document: Document, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the properties to set, of those that a catalog wants where nobody has set them."""
    missing = wanted.keys() - (document.get("properties") or {}).keys()
    return {name: value for each in missing for name, value in ((each, wanted[each]), (f"{_SET}{each}", "true"))}


def given_back(document: Document) -> frozenset[str]:
    """The properties to remove, so that it is as before we took it in."""
    pairs = ((_WAP_ENABLED, _WAP_SWITCHED_ON), (_DELETE_AFTER_COMMIT, _DELETE_SWITCHED_ON))
    ours = document.get("properties") or {}
    further = ((name.removeprefix(_SET), name) for name in ours if name.startswith(_SET))
    return frozenset(name for pair in (*pairs, *further) if pair[1] in ours for name in pair)


def empty_root(
    document: Document, snapshot_id: int, manifest_list: str, summary: Mapping[str, str], now_ms: int
) -> Snapshot:
    """A snapshot without parent and without rows, to be added to ``document``. ``now_ms`` as for :func:`edited`."""
    totals = ("records", "files-size", "data-files", "delete-files", "position-deletes", "equality-deletes")
    snapshot: Snapshot = {
        "sequence-number": document["last-sequence-number"] + 1,
        "snapshot-id": snapshot_id,
        "timestamp-ms": max(now_ms, document["last-updated-ms"]),
        "summary": {
            "operation": "append",
            **{f"total-{total}": "0" for total in totals},
            **summary,
            EMPTY_ROOT: "true",
        },
        "manifest-list": manifest_list,
        "schema-id": document["current-schema-id"],
    }
    if document["format-version"] >= 3:
        # Row lineage: the range of row ids that this snapshot takes up, which is empty.
        snapshot |= {"first-row-id": document["next-row-id"], "added-rows": 0}
    return snapshot


def republished(document: Document, snapshot_id: int, new_id: int, now_ms: int) -> Snapshot:
    """A snapshot ``new_id`` with exactly the rows of one that is there, as its child; to be added to ``document``.

    It names the same list of manifests, whose sequence numbers and row ids stand in the list itself; and it is a
    `replace`, since rows neither come nor go. ``now_ms`` as for :func:`edited`.
    """
    original = snapshots_of(document)[snapshot_id]
    kept = {
        key: value
        for key, value in original["summary"].items()
        if key.startswith(("total-", "barrier.")) and key != EMPTY_ROOT
    }
    snapshot: Snapshot = {
        "sequence-number": document["last-sequence-number"] + 1,
        "snapshot-id": new_id,
        "parent-snapshot-id": snapshot_id,
        "timestamp-ms": max(now_ms, document["last-updated-ms"]),
        "summary": {"operation": "replace", **kept},
        "manifest-list": original["manifest-list"],
        "schema-id": original.get("schema-id", document["current-schema-id"]),
    }
    if document["format-version"] >= 3:
        snapshot |= {"first-row-id": document["next-row-id"], "added-rows": 0}
        if "key-id" in original:  # the list of manifests is encrypted with it
            snapshot["key-id"] = original["key-id"]
    return snapshot


def edited_refs(refs: Mapping[str, dict[str, Any]], changes: Changes) -> dict[str, dict[str, Any]]:
    after = {name: ref for name, ref in refs.items() if name not in changes.drop}
    for kind, wanted in (("branch", changes.branches), ("tag", changes.tags)):
        for name, snapshot_id in wanted.items():
            if name in after:
                after[name] = {**after[name], "snapshot-id": snapshot_id}
                continue
            after[name] = {"snapshot-id": snapshot_id, "type": kind}
            if name != MAIN:
                # A table may set an age for its refs, by which another team's expiry would take ours away.
                after[name]["max-ref-age-ms"] = _FOREVER
            if name in changes.keep:
                after[name]["min-snapshots-to-keep"] = changes.keep[name]
    return after


def _add_snapshot(after: Document, snapshot: Snapshot) -> None:
    after["snapshots"] = [*(after.get("snapshots") or ()), snapshot]
    after["last-sequence-number"] = snapshot["sequence-number"]
    if "first-row-id" in snapshot:
        after["next-row-id"] = snapshot["first-row-id"] + snapshot["added-rows"]


def _log_length(document: Document) -> int:
    return max(1, int(document.get("properties", {}).get(_PREVIOUS_VERSIONS_MAX, 100)))
