"""The MetaService's interface for revisions, one transaction each. What each step does stands in the modules beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection

from airflow_barrier.metaservice import cuts, revisions, rows, swapping
from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.protocol.records import Barrier, Cut, TableProgress
from airflow_barrier.protocol.revisions import Revision, RevisionRun


@dataclass(frozen=True)
class SwapRows:
    """What a revision publishes. ``barriers``: of each readable COMMIT barrier from its first to its head, what all
    its tables are at once the revision stands (table -> snapshot). ``before``: what the revision's tables were at just
    before its first barrier.
    """

    barriers: Mapping[int, Mapping[str, int | None]]
    before: Mapping[str, int | None]


@dataclass(frozen=True)
class Revised:
    """A barrier as it stands once a revision is published, and each of its tables."""

    barrier: Barrier
    rows: tuple[TableProgress, ...]


class Revisions:
    """Made by :attr:`~airflow_barrier.metaservice.store.MetaService.revisions`.

    >>> meta.revisions.under_way("shopping") is None  # doctest: +SKIP
    True
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    # --- looking ----------------------------------------------------------------------------------

    def get(self, topology: str, number: int) -> Revision:
        """Raises UnknownRevisionError."""
        return self._db.read(lambda c: revisions.load_revision(c, topology, number))

    def under_way(self, topology: str) -> Revision | None:
        """The one that is STAGING or COMMITTING; a topology has one at a time."""
        return self._db.read(lambda c: revisions.under_way(c, topology))

    def newest(self, topology: str, limit: int) -> list[Revision]:
        """The newest ``limit``, the newest first."""
        return self._db.read(lambda c: revisions.revisions(c, topology, limit))

    def barriers(self, topology: str, number: int) -> list[Barrier]:
        """Those of its barriers that count, in order, while it is under way."""
        return self._db.read(lambda c: revisions.barriers_of(c, revisions.load_revision(c, topology, number)))

    def progress(self, topology: str, number: int, barrier_id: int) -> list[TableProgress]:
        """The tables that it computes again at a barrier, in the order of their names."""
        return self._db.read(lambda c: list(rows.progress(c, topology, barrier_id, number).values()))

    def unstaged(self, topology: str, number: int) -> list[str]:
        """What is missing before it can be published, a phrase each; nothing once it can."""
        return self._db.read(lambda c: swapping.unstaged(c, revisions.load_revision(c, topology, number)))

    def newest_decided(self, topology: str) -> int:
        """The number of the newest revision that is COMMITTING or COMMIT; 0: none."""
        return self._db.read(lambda c: revisions.newest_decided(c, topology))

    def as_revised(self, barrier: Barrier, number: int) -> Revised:
        """A COMMIT barrier that stands, as revision ``number`` leaves it. Maintenance then carries what is revised."""
        return self._db.read(lambda c: Revised(*swapping.as_revised(c, barrier, number)))

    def swap_rows(self, topology: str, number: int) -> SwapRows:
        """What a publish of it consists of, or would consist of now."""

        def look(c: Connection) -> SwapRows:
            return SwapRows(*swapping.publication_rows(c, revisions.load_revision(c, topology, number)))

        return self._db.read(look)

    # --- staging ----------------------------------------------------------------------------------

    def begin(self, new: NewRevision) -> Revision:
        """A new one, STAGING, with the barriers from its first one to the head, and the cuts that were made anew.

        Raises RevisionRefusedError while another one is under way, and if somebody took what joins by a cut.
        """

        def begin(c: Connection) -> Revision:
            revision = revisions.begin(c, new)
            cuts.begin_recut(c, revision, new.cuts, new.actor)
            return revision

        return self._db.write(begin)

    def extend(self, topology: str, number: int, actor: str) -> list[Barrier]:
        """Add the barriers that were opened since; returns these. Raises RevisionEndedError."""

        def extend(c: Connection) -> list[Barrier]:
            return revisions.extend(c, revisions.load_revision(c, topology, number), actor)

        return self._db.write(extend)

    def recut(self, topology: str, number: int, barrier_id: int, cut: Cut, actor: str) -> None:
        """Another cut of a source for a barrier of the revision. Raises RevisionEndedError, SourceDataError."""
        self._db.write(lambda c: cuts.recut(c, topology, number, barrier_id, cut, actor))

    def bind_run(
        self, topology: str, number: int, barrier_id: int, dag_id: str, run_id: str, clear_number: int | None
    ) -> bool:
        """A DAG's run computes a barrier of the revision. ``clear_number`` None: it was woken, and has yet to come.

        Returns whether nobody had bound it before.
        """

        def bind(c: Connection) -> bool:
            revision = revisions.load_revision(c, topology, number)
            return revisions.bind_run(c, revision, barrier_id, dag_id, run_id, clear_number)

        return self._db.write(bind)

    def unbind_run(self, topology: str, number: int, dag_id: str, run_id: str) -> None:
        """A run that was bound, and could not be woken. Again is fine."""

        def unbind(c: Connection) -> None:
            revisions.unbind_run(c, revisions.load_revision(c, topology, number), dag_id, run_id)

        self._db.write(unbind)

    def runs(self, topology: str, number: int) -> list[RevisionRun]:
        """The runs that compute its barriers, by barrier."""
        return self._db.read(lambda c: revisions.runs_of(c, revisions.load_revision(c, topology, number)))

    def run_binding(self, topology: str, dag_id: str, run_id: str) -> RevisionRun | None:
        """The newest revision that a run was bound to; None: none."""
        return self._db.read(lambda c: revisions.run_binding(c, topology, dag_id, run_id))

    def gate(self, topology: str, number: int, *, closed: bool, actor: str) -> Revision:
        """Let no barrier open until it is published, or let them open again. Raises RevisionEndedError."""
        return self._db.write(lambda c: revisions.gate(c, topology, number, closed, actor))

    def gatekeeper(self, topology: str) -> Revision | None:
        """The revision for which no barrier opens now."""
        return self._db.read(lambda c: revisions.gatekeeper(c, topology))

    def cancel(self, topology: str, number: int, reason: str, actor: str) -> Revision:
        """STAGING -> CANCELLED. Again changes nothing. Raises RevisionEndedError once it is decided."""
        return self._db.write(lambda c: swapping.cancel(c, topology, number, reason, actor))

    # --- publishing -------------------------------------------------------------------------------

    def begin_swap(
        self, topology: str, number: int, head: int, expected: Mapping[str, int | None], actor: str
    ) -> Revision:
        """STAGING -> COMMITTING: from here on only forward. ``expected``: the `main` found of each table of barrier
        ``head``, the newest COMMIT.

        Again changes nothing. Raises RevisionNotStagedError (retryable), HeadMovedError if a barrier was committed
        since the look, RevisionEndedError.
        """
        return self._db.write(lambda c: swapping.begin_swap(c, topology, number, head, expected, actor))

    @contextmanager
    def swapping(self, topology: str, number: int, actor: str) -> Iterator[Connection | None]:
        """A write transaction for the publish of a COMMITTING revision's tables: both are committed, or neither.

        At the end of the block what it computed stands, and it is COMMIT. Yields None if it is COMMIT already.
        """
        self._db.open()
        with self._db.transaction(write=True) as connection:
            revision = swapping.swappable(connection, topology, number)
            if revision is not None:
                yield connection
                swapping.finish_swap(connection, revision, actor)
                return
        yield None
