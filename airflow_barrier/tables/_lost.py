"""Finding a table's newest metadata document when the catalog that pointed to it was lost or is an older backup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._metadata import Document, snapshots_of

_DOCUMENT = re.compile(r"v?(?P<version>\d+)[^/]*\.metadata\.json$")


def newest_with(
    documents: Documents, folder: str, snapshot_id: int | None, after: Document | None
) -> tuple[str, Document] | None:
    """The newest document in ``folder`` that has ``snapshot_id`` (None: any) and follows ``after``; None: no such.

    ``after`` is what the catalog has, if it has the table: only a later state of that very table can replace it, never
    an earlier table of the same name. Of two documents of one version, which a lost race leaves, either will do:
    they differ in what was in flight, and that is lost anyhow.
    """
    for location in _newest_first(documents, folder):
        document = documents.read(location)
        if after is not None and document["table-uuid"] != after["table-uuid"]:
            continue
        if after is not None and document["last-updated-ms"] < after["last-updated-ms"]:
            return None
        if snapshot_id is None or snapshot_id in snapshots_of(document):
            return location, document
    return None


def _newest_first(documents: Documents, folder: str) -> Iterator[str]:
    versions = [(int(match["version"]), name) for name in documents.names(folder) if (match := _DOCUMENT.match(name))]
    for _, name in sorted(versions, reverse=True):
        yield f"{folder}/{name}"
