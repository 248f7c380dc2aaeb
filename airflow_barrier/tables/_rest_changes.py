"""An edit of a metadata document, said as the updates and requirements of Iceberg's REST protocol: no I/O."""

from __future__ import annotations

from typing import Any

from airflow_barrier.tables._metadata import MAIN, Changes, Document, edited_refs, ref_of, refs_of


def table_change(document: Document, changes: Changes) -> dict[str, Any] | None:
    """Return what to send so that a server makes of ``document`` what :func:`._metadata.edited` would; None: nothing
    to do.

    It holds only while the table is the same one, and `main` and every ref that is touched are where they were.

    >>> table_change({"table-uuid": "u", "refs": {}}, Changes())
    """
    before = refs_of(document)
    after = edited_refs(before, changes)
    touched = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    properties = {
        name: value
        for name, value in changes.properties.items()
        if (document.get("properties") or {}).get(name) != value
    }
    updates: list[dict[str, Any]] = []
    if changes.snapshot is not None:
        updates.append({"action": "add-snapshot", "snapshot": changes.snapshot})
    for name in sorted(touched):
        if name in after:
            updates.append({"action": "set-snapshot-ref", "ref-name": name, **after[name]})
        else:
            updates.append({"action": "remove-snapshot-ref", "ref-name": name})
    if properties:
        updates.append({"action": "set-properties", "updates": properties})
    if removals := sorted(changes.drop_properties.intersection(document.get("properties") or {})):
        updates.append({"action": "remove-properties", "removals": removals})
    if not updates:
        return None
    requirements: list[dict[str, Any]] = []
    requirements.append({"type": "assert-table-uuid", "uuid": document["table-uuid"]})  # safety: table-is-the-same
    requirements.extend(  # safety: refs-are-where-they-were
        {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": ref_of(document, name)}
        for name in sorted({MAIN, *touched})
    )
    return {"requirements": requirements, "updates": updates}
