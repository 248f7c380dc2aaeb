"""What the protocol asks of a table format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from airflow_barrier.protocol.compaction import Reading
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.protocol.snapshots import Told
from airflow_barrier.protocol.states import Decision

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from airflow_barrier.protocol.table import Table


@dataclass(frozen=True)
class Revised:
    """The part of a publication that swaps a table to what a revision computed aside.

    ``base``: the snapshot that the revision began on, which the predecessor of its first barrier has; None: an empty
    root, since that has none, or since all is computed anew. ``tags``: of the earlier barriers that the revision
    computed too (name -> snapshot).

    >>> Revised(base=4711, tags={"barrier_shop_b3_r7": 4712}).tags
    {'barrier_shop_b3_r7': 4712}
    """

    base: int | None
    tags: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Publication:
    """One table's part of a publish: ``main`` goes from exactly ``expected`` to exactly ``new``.

    ``expected`` None: the table has no `main` yet. ``new`` equal to ``expected``, or what ``expected`` is a compaction
    of: a carried table, which only gets its tag. ``new`` None: a table without any snapshot, which gets no tag.
    ``drop_tags`` are tags of barriers that nobody reads any more. Attempt branches of ``topology`` up to and including
    ``barrier_id`` are dropped along, except those of barriers within ``held`` (first and last of each range): readers
    may hold what was staged there before it was staged anew.

    ``kept_revisions``: numbers of revisions that are being staged, of which every attempt branch stays.

    ``revised``: `main` goes to a revision's snapshot at ``barrier_id``, the newest of its barriers. ``new`` is built on
    the revision's base, and so on another line than ``expected``; where `main` has been at ``new`` before (the revision
    added nothing to an old base), its content is published in a snapshot of its own. ``new`` None: the revision left
    no rows, and an empty snapshot is published, which is as good as none from then on.

    ``decision``: a person looked at ``expected``, which is somebody else's, and said what becomes of it. KEEP_OURS:
    `main` leaves exactly ``expected``, on which ``new`` need not be built; where `main` has been at ``new`` before, its
    content is published in a snapshot of its own, since `main` never returns to an id that it left. ADOPT_THEIRS:
    ``new`` equals ``expected``. ``set_aside``: tags (name -> snapshot) that keep what does not stand.
    """

    table: str
    topology: str
    barrier_id: int
    expected: int | None
    new: int | None
    tag: str
    drop_tags: tuple[str, ...] = ()
    held: tuple[tuple[int, int], ...] = ()
    decision: Decision | None = None
    set_aside: Mapping[str, int] = field(default_factory=dict)
    revised: Revised | None = None
    kept_revisions: frozenset[int] = frozenset()


@dataclass(frozen=True)
class SnapshotVerdict:
    """The fate of one snapshot of a table, and why."""

    snapshot_id: int
    keep: bool
    reason: str


@dataclass(frozen=True)
class Traces:
    """The traces of a topology in a table: the barriers whose tags it has, as (barrier, revision), and the highest
    numbers of an attempt that left a branch or a snapshot, and of a revision that left any of these (0: none).
    """

    tags: frozenset[tuple[int, int]]
    newest_attempt: int
    newest_revision: int

    @property
    def tagged(self) -> frozenset[int]:
        """The barriers that published it, whatever their revisions."""
        return frozenset(barrier_id for barrier_id, _ in self.tags)

    @property
    def published(self) -> int:
        """The newest barrier that published it; 0: none, or its tags are gone."""
        return max(self.tagged, default=0)


class Look(Protocol):
    """A look at tables: it says what they hold."""

    def staged(self, table: str, stamp: Stamp, base: int | None) -> int | None:
        """The checked head of the attempt branch: the staged snapshot, or None if nothing was added to the base.

        Raises :class:`~airflow_barrier.protocol.errors.StagedTableError` if the branch is gone, its head does not
        descend from exactly ``base``, or a snapshot after ``base`` bears another stamp.
        """
        ...

    def staged_summaries(self, table: str, stamp: Stamp, base: int | None) -> Sequence[Mapping[str, str]]:
        """Return what the summaries of the snapshots on the attempt branch say, newest first; nothing of it is
        checked.
        """
        ...

    def check_snapshot(self, table: str, snapshot_id: int, stamp: Stamp, base: int | None) -> None:
        """The checks of :meth:`staged` for one snapshot that a closing record names, which must be the branch head."""
        ...

    def require_main_without(self, table: str, stamp: Stamp) -> None:
        """See that an attempt which is not published yet has put nothing on `main`. Raises ForeignWriteError."""
        ...

    def snapshot_verdicts(
        self, table: str, window_tag: str | None, dropped: Sequence[str] = (), since: Collection[int] = ()
    ) -> Sequence[SnapshotVerdict]:
        """Return which snapshots an expiry may take, oldest first, each with the reason; changes nothing.

        ``window_tag``: the tag of the barrier with which the recent window begins, of which every step of `main` is
        kept; where the table has no such tag, or `main` does not lead there (it is another revision's), all of `main`
        is. ``dropped``: tags that are as good as gone.
        ``since``: snapshots from which on a job is about to read `main`, step by step.
        """
        ...

    def has_steps_since(self, table: str, snapshot_id: int) -> bool:
        """Return whether what came into `main` since a snapshot can still be told: no expiry has taken a step of it."""
        ...

    def origin(self, table: str) -> Stamp | None:
        """The stamp of the snapshot that `main` is at; None if there is none, or it is not an attempt's."""
        ...

    def traces(self, table: str, topology: str) -> Traces:
        """Return what the table still tells of a topology whose MetaService was lost."""
        ...


class TableFormat(Look, Protocol):
    """A catalog of versioned tables. Table names are ``namespace.table``, without the catalog.

    Every method raises :class:`~airflow_barrier.protocol.errors.MissingTableError` for a table that is not there and
    :class:`~airflow_barrier.protocol.errors.CatalogUnavailableError` (retryable) when the catalog does not answer.
    """

    @property
    def atomic(self) -> bool:
        """Return whether :meth:`publish` makes all tables visible in one step; else it goes table by table."""
        ...

    @property
    def database_url(self) -> str | None:
        """URL (without password) of the database that :meth:`publish` can join a transaction of, or None."""
        ...

    def can_be_moved_by(self, connection: Connection) -> bool:
        """Return whether :meth:`publish` can join a transaction of ``connection``, to PostgreSQL: it has come to the
        very table of pointers that the catalog's own connections come to, and may change it.
        """
        ...

    def prove(self) -> None:
        """Raise :class:`~airflow_barrier.protocol.errors.ConfigurationError` unless the catalog does what the protocol
        needs of it (it keeps branches and tags) and what was declared of it (:attr:`atomic`). Costs once a deployment.
        """
        ...

    def seen(self, tables: Iterable[str]) -> Look:
        """Look at these tables, all at once: what is asked of the answer is as of now, and costs nothing more.

        >>> tables.seen(["shop.shopping"]).origin("shop.shopping").barrier_id  # doctest: +SKIP
        4
        """
        ...

    def mains(self, tables: Sequence[str]) -> dict[str, int | None]:
        """The snapshot that `main` of each table is at; None where it has none."""
        ...

    def documents_at(self, snapshots: Mapping[str, int | None]) -> Mapping[str, Mapping[str, Any]]:
        """Table -> a metadata document by which an engine reads it at that snapshot (None: no rows yet), at no other.

        It goes on to be good when the table's own documents are gone, as long as the snapshot is held. Raises
        :class:`~airflow_barrier.protocol.errors.SnapshotMissingError`.
        """
        ...

    def wap_enabled(self, tables: Sequence[str]) -> Mapping[str, bool]:
        """Return whether unchanged jobs can be sent to a branch of each table: its property `write.wap.enabled`."""
        ...

    def deletes_old_metadata(self, tables: Sequence[str]) -> Mapping[str, bool | None]:
        """Return whether commits delete what describes older and older states of each table; None: nobody has said, so
        that all of it stays.
        """
        ...

    def readings(self, tables: Sequence[str], target: int | None = None) -> Mapping[str, Reading]:
        """Return what a read of each table's `main` takes, and what of it in vain; nothing of those without snapshots.

        ``target``: how large files are to be, in bytes; None: as each table says.

        >>> tables.readings(["shop.shopping"])  # doctest: +SKIP
        {'shop.shopping': Reading(files=12, needed=1, deletes=11, bytes=40211, dead=811)}
        """
        ...

    def create(self, table: Table) -> bool:
        """Make a declared table, and its namespace where that is missing. False: it is there already, as it may be by
        another one who makes it at the same time.

        >>> tables.create(Table("shop.amount", "itemId BIGINT, amount BIGINT"))  # doctest: +SKIP
        True
        """
        ...

    def differences(self, table: Table) -> Sequence[str]:
        """Return how the columns of a table that is there differ from what is declared, a phrase each. Further columns
        that may be NULL are no difference.
        """
        ...

    def take_in(self, tables: Sequence[str]) -> None:
        """Let unchanged jobs be sent to a branch of each table, and old metadata go where nobody has said that it
        stays. Neither changes anything for who reads or writes the table. Again is fine.
        """
        ...

    def give_back(
        self,
        tables: Sequence[str],
        topology: str,
        held: Sequence[tuple[int, int]],
        kept_revisions: Collection[int] = (),
    ) -> None:
        """Leave each table to others: its attempt branches of ``topology`` are dropped, but for those of barriers that
        readers hold and of revisions that are being staged (both as in :class:`Publication`), and the properties go
        that :meth:`take_in` set. `main` and tags stay; again is fine.

        For a caller that knows that no open barrier needs them.
        """
        ...

    def drop_revision(self, tables: Sequence[str], topology: str, revision: int) -> None:
        """Drop every attempt branch of a revision that was cancelled, whatever its barrier; again is fine.

        >>> tables.drop_revision(["shop.shopping"], "shopping", revision=7)  # doctest: +SKIP
        """
        ...

    def prepare(
        self, bases: Mapping[str, int | None], stamp: Stamp, since: Mapping[str, int | None] = MappingProxyType({})
    ) -> Told:
        """Make the attempt branch on each table at its base; again is fine.

        Without a base (the table has no snapshots, or all is computed anew) the branch starts with an empty snapshot
        of its own, so that engines can read and merge into it; `main` stays as it is, or absent.

        Return what metadata tell: of each table in ``since`` the changes from that snapshot to its base, and the sizes
        of all tables at their bases. Of changes about which they do not tell Spark has to be asked.
        """
        ...

    def heads(self, tables: Sequence[str], branch: str) -> dict[str, int]:
        """Return at which snapshot each table's branch of that name is; nothing of tables that have none.

        >>> tables.heads(["shop.shopping"], stamp.branch)  # doctest: +SKIP
        {'shop.shopping': 4711}
        """
        ...

    def currents(self, expected: Mapping[str, int | None]) -> dict[str, int | None]:
        """Return what `main` of each table is at, if that is as expected or only has `replace` snapshots (compactions)
        on top.

        Raises :class:`~airflow_barrier.protocol.errors.ForeignWriteError` naming the table, what was expected and
        what was found.
        """
        ...

    def look(self, publications: Sequence[Publication]) -> None:
        """Raise what :meth:`publish` would raise, and change nothing."""
        ...

    def findings(self, publications: Sequence[Publication]) -> Mapping[str, BarrierError]:
        """Table -> what :meth:`publish` would raise about it; nothing of those that can be published."""
        ...

    def publish(
        self,
        publications: Sequence[Publication],
        connection: Connection | None = None,
        staging: Any = None,
    ) -> Mapping[str, str]:
        """Publish all, in one step where the catalog can; what is published already is left alone.

        ``connection``: a transaction under way on the same database, which this joins (it does not commit it);
        ``staging``: what :meth:`staging` gave for the same publications, which keeps that transaction short.
        Returns table -> metadata location that now counts. With nothing published (unless, with a catalog that is not
        :attr:`atomic`, it came about while the tables were published one after the other) it raises

        - ForeignWriteError if some `main` is neither at ``expected`` (or absorbed `replace` snapshots on top of it)
          nor at ``new``, if it has been at ``new`` and left it (a revision's: if it was published, and somebody set
          `main` back); RefTakenError if a tag's name is taken;
        - SnapshotMissingError if ``new`` or what is to be tagged is gone, StagedTableError if ``new`` does not descend
          from ``expected``, or a revision's not from its base.
        """
        ...

    def staging(self, publications: Sequence[Publication]) -> AbstractContextManager[Any]:
        """Prepare a publish outside the transaction that it will join, while nobody waits for its locks.

        Optional: what another commit overtakes in the meantime is prepared again by :meth:`publish`, within the
        transaction. Raises what :meth:`publish` does. What no publish used is cleaned up on leaving.

        >>> with tables.staging(publications) as staging:  # doctest: +SKIP
        ...     with meta.publishing.swapping(topology, barrier_id, actor) as connection:
        ...         tables.publish(publications, connection, staging)
        """
        ...

    # --- revisions --------------------------------------------------------------------------------

    def schema_faults(self, table: str, snapshots: Sequence[int | None]) -> Sequence[str]:
        """Return what keeps epochs of ``table`` from being computed again, a sentence each: columns that are not what
        they were at one of ``snapshots`` (None: no rows yet). Columns that were added since and may be NULL are none.

        :func:`~airflow_barrier.tables.schemas.check_schema` makes an error of them. Raises
        :class:`~airflow_barrier.protocol.errors.SnapshotMissingError`.
        """
        ...

    # --- expiry -----------------------------------------------------------------------------------

    def drop_tags(self, tables: Sequence[str], tags: Sequence[str]) -> None:
        """Take these tags away where they are: from then on nobody reads by them. Again is fine."""
        ...

    # --- after a loss -----------------------------------------------------------------------------

    def metadata_locations(self, tables: Sequence[str]) -> dict[str, str]:
        """Return where each table's metadata document lies now."""
        ...

    def reattach(self, tables: Mapping[str, tuple[str, int | None]]) -> list[str]:
        """Let a catalog that was lost or restored from an older backup point to the newest state of tables again.

        Of each table: where one of its documents lay, beside which the newest is looked for, and the snapshot that it
        has to contain. Returns those that it was done for; of others there is nothing to do, or no such state.
        """
        ...
