"""Committing edits of metadata documents in an SQL catalog: optimistic first, and by those who lose a race again under
the lock.

A table has one pointer for all its refs, so whoever stages the next barrier races with whoever publishes this one.
An edit therefore is a function of the document, which is asked again with the document that won.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import CatalogUnavailableError, MissingTableError
from airflow_barrier.tables._catalog import Draft, Drafts, Edit
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._metadata import Document, edited, obsolete_files, require_editable
from airflow_barrier.tables._sql_swap import SqlPointers

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from tenacity import Retrying

TRIES = 4


class Committer:
    """Reads and commits metadata documents of the tables of one SQL catalog."""

    def __init__(self, pointers: SqlPointers, documents: Documents) -> None:
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

    def commit(self, edits: Mapping[str, Edit]) -> dict[str, str]:
        """Make all edits visible in one transaction. Returns table -> location of the document that now counts."""
        if not edits:
            return {}
        return patiently()(self._commit_once, edits)

    def draft(self, edits: Mapping[str, Edit]) -> Drafts:
        """Write the documents for :meth:`join` before its transaction begins, so that it holds its locks briefly."""
        drafts: Drafts = {}
        try:
            self._draft_optimistically(edits, drafts, trim=False)
        except BaseException:
            # Documents of the tables before the one that is refused would lie there as the newest ones, for `recover`.
            self.discard(drafts)
            raise
        return drafts

    def join(self, connection: Connection, edits: Mapping[str, Edit], drafts: Drafts) -> dict[str, str]:
        """Move the pointers within a transaction that somebody else commits or rolls back."""
        if not edits:
            return {}
        settled = False
        try:
            # Whether the transaction will be committed is not known here, so nothing may be deleted that the table
            # of before it lists: the log is left one entry longer, and the next commit cuts it and deletes.
            self._settle(connection, edits, drafts, trim=False)
            settled = True
        finally:
            if not settled:  # safety: files-of-a-moved-pointer
                # No pointer has moved yet, so whatever becomes of the transaction, no table will name these files.
                # Once one has moved the answer lies with the transaction's owner, and the files stay.
                self.discard(drafts)
        return self._move(connection, drafts)

    def discard(self, drafts: Drafts) -> None:
        """Delete what was written for drafts that certainly no table points to."""
        self._documents.delete(file for draft in drafts.values() for file in draft.files)

    def _read(self, tables: tuple[str, ...]) -> dict[str, Document]:
        return self._documents.of_each(lambda table, at: self._current(table, at)[1], self._pointers.read(tables))

    def _commit_once(self, edits: Mapping[str, Edit]) -> dict[str, str]:
        drafts: Drafts = {}
        decided = False
        try:
            self._draft_optimistically(edits, drafts, trim=True)
            if all(draft.location == draft.based_on for draft in drafts.values()):
                return {table: draft.location for table, draft in drafts.items()}
            with self._pointers.transaction() as connection:
                self._settle(connection, edits, drafts, trim=True)
                locations = self._move(connection, drafts)
                decided = True
        finally:
            if not decided:  # safety: files-of-an-unknown-commit
                # The database was not asked to commit, so it cannot have. When the commit itself fails it may have
                # happened all the same: deleting then could take away a document that a table points to. The next
                # try finds out from the tables.
                self.discard(drafts)
        self._documents.delete(file for draft in drafts.values() for file in draft.obsolete)
        return locations

    def _draft_optimistically(self, edits: Mapping[str, Edit], drafts: Drafts, *, trim: bool) -> None:
        def draft(table: str, location: str) -> None:
            drafts[table] = self._draft(table, location, edits[table], trim=trim)

        self._documents.of_each(draft, self._pointers.read(edits))

    def _settle(self, connection: Connection, edits: Mapping[str, Edit], drafts: Drafts, *, trim: bool) -> None:
        """Lock the pointers, and make those drafts anew that another commit has overtaken.

        Under the lock nobody can overtake again: however many tables, one more round is enough.
        """
        left: list[str] = []

        def settle(table: str, location: str) -> None:
            overtaken = drafts.get(table)
            if overtaken is None or overtaken.based_on != location:  # safety: overtaken-is-made-anew
                drafts[table] = self._draft(table, location, edits[table], trim=trim)
                if overtaken is not None:
                    left.extend(overtaken.files)

        try:
            self._documents.of_each(settle, self._pointers.lock(connection, edits))
        finally:
            self._documents.delete(left)

    def _move(self, connection: Connection, drafts: Drafts) -> dict[str, str]:
        moves = {t: (draft.based_on, draft.location) for t, draft in drafts.items() if draft.location != draft.based_on}
        self._pointers.move(connection, moves)
        return {table: draft.location for table, draft in drafts.items()}

    def _draft(self, table: str, location: str, edit: Edit, *, trim: bool) -> Draft:
        location, document = self._current(table, location)
        changes = edit(document, location)
        after = edited(document, changes, location=location, now_ms=now_ms(), trim=trim)
        if after is None:
            return Draft(location, location)
        files: tuple[str, ...] = ()
        if changes.snapshot is not None and changes.writes_list:
            self._documents.write_empty_manifest_list(changes.snapshot, document["format-version"])
            files = (changes.snapshot["manifest-list"],)
        following = self._documents.write(after, location)
        return Draft(location, following, (following, *files), obsolete_files(document, after))

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


def now_ms() -> int:
    """Milliseconds since 1970, as Iceberg counts."""
    return time.time_ns() // 1_000_000


def patiently() -> Retrying:
    """Lost connections and busy databases pass: a few tries within seconds, then the error itself."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    return Retrying(
        retry=retry_if_exception_type(CatalogUnavailableError),
        stop=stop_after_attempt(TRIES),
        wait=wait_random_exponential(multiplier=0.2, max=2),
        reraise=True,
    )
