"""Finding a table's newest metadata document when the catalog that pointed to it was lost or is an older backup."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._metadata import Document, snapshots_of

_DOCUMENT = re.compile(r"v?(?P<version>\d+)[^/]*\.metadata\.json$")


def newest_with(
    documents: Documents, folder: str, snapshot_id: int | None, after: tuple[str, Document] | None
) -> tuple[str, Document] | None:
    """The newest document in ``folder`` that has ``snapshot_id`` (None: any) and follows ``after``; None: no such.

    ``after`` is where the catalog points to and the document there, if the catalog has the table: only a later state
    of that very table can replace it, never an earlier table of the same name. What is later is told by the version in
    a document's name, which each commit counts up, and not by its date: writers' clocks differ. Of two documents of one
    version, which a lost race leaves, either will do: they differ in what was in flight, and that is lost anyhow.
    """
    oldest = -1 if after is None else _version(after[0])
    for version, location in _newest_first(documents, folder):
        if version <= oldest:
            return None
        document = documents.read(location)
        if after is not None and document["table-uuid"] != after[1]["table-uuid"]:
            continue
        if snapshot_id is None or snapshot_id in snapshots_of(document):
            return location, document
    return None


def _newest_first(documents: Documents, folder: str) -> Iterator[tuple[int, str]]:
    named = ((_version(name), name) for name in documents.names(folder))
    for version, name in sorted((each for each in named if each[0] >= 0), reverse=True):
        yield version, f"{folder}/{name}"


def _version(location: str) -> int:
    """-1 of a name that tells none."""
    match = _DOCUMENT.match(location.rpartition("/")[2])
    return int(match["version"]) if match else -1
