"""Tables whose metadata documents are written here, while a catalog keeps a pointer to each table's current one.

A table has one pointer for all its refs, so whoever stages the next barrier races with whoever publishes this one.
An edit therefore is a function of the document, which is asked again with the document that won.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Protocol

from airflow_barrier.protocol.errors import MissingTableError
from airflow_barrier.tables._catalog import Draft, Drafts, Edit
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._lost import newest_with
from airflow_barrier.tables._metadata import Document, edited, obsolete_files, require_editable, snapshots_of
from airflow_barrier.tables._retries import patiently


class Pointers(Protocol):
    def read(self, tables: Iterable[str]) -> dict[str, str]:
        """Table -> location of its metadata document. Raises :class:`MissingTableError`."""
        ...


class OwnDocuments(ABC):
    """Reads metadata documents, and writes those that follow them; how a pointer moves is the catalog's."""

    def __init__(self, pointers: Pointers, documents: Documents) -> None:
        self._pointers = pointers
        self._documents = documents

    def read(self, tables: Iterable[str]) -> dict[str, Document]:
        """The current document of each table, each read once."""
        tables = tuple(tables)
        if not tables:
            return {}
        return patiently()(self._read, tables)

    def current(self, table: str) -> tuple[str, Document]:
        """Return where the table's current document lies, and the document."""

        def look() -> tuple[str, Document]:
            return self._current(table, self._pointers.read([table])[table])

        return patiently()(look)

    def locations(self, tables: Iterable[str]) -> dict[str, str]:
        """Return where the current document of each table lies."""
        tables = tuple(tables)
        return patiently()(self._pointers.read, tables) if tables else {}

    def discard(self, drafts: Drafts) -> None:
        """Delete what was written for drafts that certainly no table points to."""
        self._documents.delete(file for draft in drafts.values() for file in draft.files)

    def _read(self, tables: tuple[str, ...]) -> dict[str, Document]:
        return self._documents.of_each(lambda table, at: self._current(table, at)[1], self._pointers.read(tables))

    def _draft(self, table: str, location: str, edit: Edit, *, trim: bool) -> tuple[Draft, Document, Document]:
        """Return the draft, the document that it is based on, and the document that was written for it."""
        location, document = self._current(table, location)
        changes = edit(document, location)
        after = edited(document, changes, location=location, now_ms=now_ms(), trim=trim)
        if after is None:
            return Draft(location, location), document, document
        files: tuple[str, ...] = ()
        if changes.snapshot is not None and changes.writes_list:
            self._documents.write_empty_manifest_list(changes.snapshot, document["format-version"])
            files = (changes.snapshot["manifest-list"],)
        following = self._documents.write(after, location)
        return Draft(location, following, (following, *files), obsolete_files(document, after)), document, after

    def _current(self, table: str, location: str) -> tuple[str, Document]:
        """The document at ``location``, or at where the pointer has gone since; and its location."""
        while True:
            try:
                document = self._documents.read(location)
            except FileNotFoundError as error:
                # A table can have its old metadata deleted after each commit, also between our look at the pointer
                # and at the file. If the pointer has not moved, the file is lost.
                now = self._pointers.read([table])[table]
                if now == location:
                    raise MissingTableError(
                        f"table {table}: expected its metadata document at {location}, found no such file; restore "
                        "the file, or drop the table from the catalog and register it from an older document"
                    ) from error
                location = now
            else:
                require_editable(table, document)
                return location, document

    # --- after a loss -----------------------------------------------------------------------------

    def reattach(self, tables: Mapping[str, tuple[str, int | None]]) -> list[str]:
        places = {table: metadata for table, (metadata, _) in tables.items()}
        done = self._documents.of_each(lambda table, at: self._reattach(table, at, tables[table][1]), places)
        return [table for table in tables if done[table]]

    def _reattach(self, table: str, metadata: str, snapshot_id: int | None) -> bool:
        location: str | None
        document: Document | None
        if row := self._row(table):
            self._documents.forget(row)  # it may be what the storage has lost
        try:
            location, document = self.current(table)
        except MissingTableError:
            location, document = self._row(table), None
        if document is not None and (snapshot_id is None or snapshot_id in snapshots_of(document)):
            return False
        has = (location, document) if location is not None and document is not None else None
        found = newest_with(self._documents, metadata.rpartition("/")[0], snapshot_id, has)
        if found is None or found[0] == location:
            return False
        self._attach(table, location, found[0])
        return True

    def _row(self, table: str) -> str | None:
        """Return where the table's row points to, though no document may be there any more; None: there is no such
        row.
        """
        try:
            return self.locations([table])[table]
        except MissingTableError:
            return None

    @abstractmethod
    def _attach(self, table: str, location: str | None, to: str) -> None:
        """Let the table point to the document at ``to``. ``location``: where it points to; None: it is not there."""


def now_ms() -> int:
    """Milliseconds since 1970, as Iceberg counts."""
    return time.time_ns() // 1_000_000
