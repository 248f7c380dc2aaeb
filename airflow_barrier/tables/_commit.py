"""Committing edits of metadata documents in an SQL catalog: optimistic first, and by those who lose a race again under
the lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_barrier.tables._catalog import Drafts, Edit
from airflow_barrier.tables._drafts import OwnDocuments
from airflow_barrier.tables._retries import patiently
from airflow_barrier.tables._sql_swap import SqlPointers

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Committer(OwnDocuments):
    """Commits to the tables of one SQL catalog, all in one transaction."""

    _pointers: SqlPointers

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
            drafts[table], _, _ = self._draft(table, location, edits[table], trim=trim)

        self._documents.of_each(draft, self._pointers.read(edits))

    def _settle(self, connection: Connection, edits: Mapping[str, Edit], drafts: Drafts, *, trim: bool) -> None:
        """Lock the pointers, and make those drafts anew that another commit has overtaken.

        Under the lock nobody can overtake again: however many tables, one more round is enough.
        """
        left: list[str] = []

        def settle(table: str, location: str) -> None:
            overtaken = drafts.get(table)
            if overtaken is None or overtaken.based_on != location:  # safety: overtaken-is-made-anew
                drafts[table], _, _ = self._draft(table, location, edits[table], trim=trim)
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
