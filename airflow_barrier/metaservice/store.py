"""The MetaService: every step of the barrier protocol, durable, one transaction each.

This class is the interface; what each step does stands in the modules beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select

from airflow_barrier.metaservice import (
    announcing,
    attempts,
    barriers,
    commits,
    cuts,
    expiring,
    leases,
    listing,
    maintenance,
    metadata,
    reading,
    recovering,
    resolving,
    rows,
    schema,
    starts,
    topologies,
    trimming,
)
from airflow_barrier.metaservice.commits import Settled
from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.revision_store import Revisions
from airflow_barrier.metaservice.versions import EXPECTED
from airflow_barrier.protocol.journal import History
from airflow_barrier.protocol.leases import Hold, Lease, check_seconds
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.metadata import MetadataColumn
from airflow_barrier.protocol.reaching import Standing
from airflow_barrier.protocol.records import (
    Attempt,
    AuditEntry,
    Barrier,
    Cut,
    JobStart,
    Need,
    RunRef,
    StagedTable,
    TableProgress,
    Withdrawal,
)
from airflow_barrier.protocol.states import DECIDED_BARRIERS, BarrierState
from airflow_barrier.protocol.topology import Job, Topology, check_names

_R = TypeVar("_R")


class MetaService:
    """The store behind a deployment, for any number of processes and threads.

    ``url`` is an SQLAlchemy URL of an SQLite file (which is created and upgraded on first use) or of a PostgreSQL
    database (which ``airflow-barrier database migrate`` creates and upgrades). ``create`` overrides who may do that.
    ``new=False``: where there is no SQLite file, none is made, and calls raise MetaServiceMissingError (retryable).
    Nothing connects before the first call.

    All times are the database's, in UTC. ``actor`` is free text for the audit; it, ``request_key``, ``generation``
    and ``line`` are explained in ``docs/glossary.md``. Every method raises
    :class:`~airflow_barrier.protocol.errors.StoreUnavailableError` (retryable) when the database does not answer,
    :class:`~airflow_barrier.protocol.errors.SchemaVersionError` when it is of another version, and
    UnknownTopologyError or UnknownBarrierError for what is not there.

    >>> import tempfile
    >>> meta = MetaService(f"sqlite:///{tempfile.mkdtemp()}/barrier.db")
    >>> meta.register("shopping", "dag", [Job("load", "dag", outlets=("shop.a",))], actor="me")
    1
    """

    def __init__(self, url: str, *, create: bool | None = None, new: bool = True) -> None:
        self._db = Database(url, create, new)
        #: barriers computed again
        self.revisions = Revisions(self._db)

    @property
    def url(self) -> str:
        """Where the database is, without password and options."""
        return self._db.url

    def incarnation(self, topology: str) -> str:
        """Made up when the database was created or the topology recovered; it stands in the stamp of every snapshot
        that is staged for the topology, and in its journal.
        """
        return self._db.read(lambda c: rows.incarnation_of(c, topology))

    def check(self) -> str:
        """One sentence about what is there; raises if it cannot be used."""
        count = self._db.read(lambda c: c.execute(select(func.count()).select_from(schema.topology)).scalar_one())
        return f"MetaService {self.url}: schema version {EXPECTED}, {count} topologies."

    def now(self) -> datetime:
        """The database's clock (UTC), by which leases and retention go."""
        return self._db.read(lambda c: c.execute(select(schema.DatabaseNow())).scalar_one())

    def look(self, work: Callable[[Connection], _R]) -> _R:
        """What ``work`` finds in the database beside what is ours, in a read-only transaction."""
        return self._db.read(work)

    def open(self) -> None:
        """See that the database is there, and of this version."""
        self._db.open()

    def close(self) -> None:
        """Close what connections are kept."""
        self._db.close()

    # --- topology ---------------------------------------------------------------------------------

    def register(
        self, topology: str, owner_dag: str, jobs: Sequence[Job], actor: str, *, at: datetime | None = None
    ) -> int:
        """Replace what ``owner_dag`` declares; returns the topology's version, a new one if the union changed.

        No jobs: the DAG leaves. Barriers that are open keep the version they were opened with. ``at`` (UTC): the
        timestamp of the run that declares it. If a later barrier has been opened, aborted or not, the run may have the
        code of then, and changes nothing. Raises a
        :class:`~airflow_barrier.protocol.errors.TopologyError` of its own for each thing that is wrong with the
        union of all DAGs' jobs, TableClaimedError for a table of another topology.
        """
        check_names(topology, jobs)
        version = self._db.read(lambda c: topologies.registered_version(c, topology, owner_dag, jobs))
        if version is not None:
            return version
        return self._db.write(lambda c: topologies.register(c, topology, owner_dag, jobs, actor, at))

    def is_settled(self, topology: str, owner_dag: str, job: str, at: datetime) -> bool:
        """Whether a run at ``at`` (UTC) leaves a job as it is: a later barrier has been opened, aborted or not, and the
        job is or was a member.
        """
        return self._db.read(lambda c: topologies.is_settled(c, topology, owner_dag, job, at))

    def join(
        self,
        topology: str,
        owner_dag: str,
        job: str,
        declared: Sequence[Job],
        actor: str,
        *,
        at: datetime | None = None,
    ) -> int | tuple[str, ...]:
        """Register one job of ``owner_dag``, whose task has started, beside those that have before.

        Of ``declared``, all that the DAG declares, the others are not registered: a job that never runs would hold up
        every barrier. Jobs that are no longer declared leave. ``at`` (UTC): the timestamp of the run. If a
        later barrier has been opened, the run adds a job that has never been a member, and changes nothing else.
        Returns the topology's version, or the tables that the job reads and nobody writes yet, with nothing
        registered. Raises WithdrawnError for a job that was taken out, and what :meth:`register` does.
        """
        check_names(topology, declared)
        version = self._db.read(lambda c: topologies.joined_version(c, topology, owner_dag, job, declared))
        if version is not None:
            return version
        return self._db.write(lambda c: topologies.join(c, topology, owner_dag, job, declared, actor, at))

    def leave(self, topology: str, owner_dag: str, job: str | None, reason: str, actor: str) -> Withdrawal:
        """Take a job of ``owner_dag``, or all of them (None), out: from the next barrier on, and until :meth:`readmit`.

        Again changes nothing. Raises StillReadError for a table that others read, TopologyError if there is no such
        job.
        """
        return self._db.write(lambda c: topologies.leave(c, topology, owner_dag, job, reason, actor))

    def readmit(self, topology: str, owner_dag: str, job: str | None, actor: str) -> bool:
        """Let what left register again when it runs next; False: nothing has left. Raises TopologyError."""
        return self._db.write(lambda c: topologies.readmit(c, topology, owner_dag, job, actor))

    def withdrawal(self, topology: str, owner_dag: str, job: str) -> Withdrawal | None:
        """How a job of a DAG left, alone or with its whole DAG; None: it has not."""
        return self._db.read(lambda c: topologies.withdrawal(c, topology, owner_dag, job))

    def waiting(self, topology: str) -> tuple[Job, ...]:
        """The registered jobs that join once a revision has computed their tables over history."""
        return self._db.read(lambda c: tuple(topologies.waiting(c, topology)))

    def waits(self, topology: str, job: Job) -> bool:
        """Whether ``job``, registered or not, would be one of :meth:`waiting`."""
        return self._db.read(lambda c: topologies.waits(c, topology, job))

    def topology(self, name: str, version: int | None = None) -> Topology:
        """The topology as of a version; None: the current one."""

        def look(c: Connection) -> Topology:
            return rows.load_topology(c, name, rows.topology_version(c, name) if version is None else version)

        return self._db.read(look)

    def topology_version(self, name: str) -> int:
        """The current version, which the next barrier is opened with."""
        return self._db.read(lambda c: rows.topology_version(c, name))

    def topologies(self) -> list[str]:
        """The names of all topologies, in order."""
        names = select(schema.topology.c.name).order_by(schema.topology.c.name)
        return self._db.read(lambda c: list(c.execute(names).scalars()))

    # --- barriers ---------------------------------------------------------------------------------

    def open_barrier(
        self,
        topology: str,
        timestamp: datetime,
        *,
        topology_version: int,
        cuts: Sequence[Cut],
        predecessor: int,
        run: RunRef,
        timestamp_from: str,
        max_open: int,
        baseline: Mapping[str, int | None],
        starts: Sequence[JobStart],
        actor: str,
    ) -> Barrier:
        """Open the next barrier at ``timestamp`` (aware), with the cut of every source and all tables PENDING.

        ``topology_version`` and ``predecessor``, the head (0 before the first open), are those that the rest was found
        with; ``baseline`` is the `main` snapshot of each of :meth:`unjoined`, ``starts`` says what the tables of each
        job hold all of whose tables join. Raises HeadMovedError (look again) if head or topology changed meanwhile,
        BarrierOrderError for a timestamp that is not after the head's, TooManyOpenBarriersError when ``max_open`` are
        uncommitted, SourceDataError for an item that was read before.
        """
        opening = barriers.Opening(
            topology,
            topology_version,
            timestamp,
            tuple(cuts),
            predecessor,
            run,
            timestamp_from,
            max_open,
            dict(baseline),
            actor,
            tuple(starts),
        )
        return self._db.write(lambda c: barriers.open_barrier(c, opening))

    def open_maintenance(
        self,
        topology: str,
        tables: Sequence[str] | None,
        *,
        run: RunRef,
        request_key: str,
        generation: str,
        max_open: int,
        actor: str,
    ) -> Barrier | None:
        """Open a barrier on the head at which ``tables`` (None: all) get other files for the same rows, or return the
        one that is unfinished; None: there is nothing to maintain yet.

        An attempt of job ``compaction of <table>``, owned by the DAG of ``run``, is requested for each along with it.
        Raises TooManyOpenBarriersError when ``max_open`` are uncommitted, UnknownTableError.
        """
        upkeep = maintenance.Upkeep(topology, tables, run, request_key, generation, max_open, actor)
        return self._db.write(lambda c: maintenance.open_maintenance(c, upkeep))

    def carry(self, topology: str, barrier_id: int, actor: str) -> int:
        """Carry, at a maintenance barrier, the tables that no live attempt takes; returns how many were carried now.

        Tables that are not PROCESSED at the barrier before it are left for later.
        """
        return self._db.write(lambda c: maintenance.carry(c, topology, barrier_id, actor))

    def epoch_of(self, barrier: Barrier) -> Barrier:
        """``barrier`` or, if it is a maintenance barrier and so has no epoch, the newest below it that has one."""
        return self._db.read(lambda c: rows.epoch_of(c, barrier))

    def head(self, topology: str) -> Barrier | None:
        """The newest barrier that is not aborted, the baseline (0) included; None before the first open."""
        return self._db.read(lambda c: rows.head(c, topology))

    def barrier(self, topology: str, barrier_id: int, line: int = 0) -> Barrier:
        """The barrier of that number, aborted or not; ``line``: as revision ``line`` computes it again."""
        return self._db.read(lambda c: rows.load_barrier(c, topology, barrier_id, line))

    def barrier_at(self, topology: str, timestamp: datetime) -> Barrier | None:
        """The barrier of that timestamp that is not aborted."""
        return self._db.read(lambda c: barriers.barrier_at(c, topology, timestamp))

    def aborted_at(self, topology: str, timestamp: datetime) -> Barrier | None:
        """The newest barrier that was aborted at that timestamp, also if another one is there: :meth:`barrier_at`."""
        return self._db.read(lambda c: barriers.aborted_at(c, topology, timestamp))

    def barrier_of_run(self, topology: str, run: RunRef) -> Barrier | None:
        """The newest barrier that this run opened, aborted or not."""
        return self._db.read(lambda c: barriers.barrier_of_run(c, topology, run))

    def newest_decided(self, topology: str) -> Barrier | None:
        """The newest barrier that is COMMITTING, BLOCKED or COMMIT, the baseline included; None before it."""
        return self._db.read(lambda c: rows.newest(c, topology, DECIDED_BARRIERS))

    def open_barriers(self, topology: str) -> list[Barrier]:
        """All that are neither committed nor aborted, in order."""
        return self._db.read(lambda c: rows.uncommitted(c, topology))

    def barriers(
        self, topology: str, states: Sequence[BarrierState] = tuple(BarrierState), *, limit: int
    ) -> list[Barrier]:
        """The newest ``limit`` barriers in one of ``states``, the newest first; the baseline is one of them."""
        return self._db.read(lambda c: listing.barriers(c, topology, states, limit))

    def epochs(
        self, topology: str, *, first: int = 1, after: datetime | None = None, committed: bool = False, limit: int
    ) -> list[Barrier]:
        """The oldest ``limit`` barriers that have an epoch which counts, oldest first: neither aborted nor maintenance.

        From barrier ``first`` on, of a timestamp later than ``after`` (UTC); ``committed``: those that are COMMIT.
        """
        return self._db.read(
            lambda c: listing.epochs(c, topology, first=first, after=after, committed=committed, limit=limit)
        )

    def newest_epochs(self, topology: str, limit: int) -> list[Barrier]:
        """The newest ``limit`` barriers that are COMMIT and have an epoch, the newest first."""
        return self._db.read(lambda c: listing.newest_epochs(c, topology, limit))

    def oldest_readable_epoch(self, topology: str) -> Barrier | None:
        """The oldest barrier with an epoch that is COMMIT and does not expire."""
        return self._db.read(lambda c: listing.oldest_readable_epoch(c, topology))

    def count_epochs(self, topology: str, first: int) -> int:
        """How many barriers from ``first`` on have an epoch that counts. Reads them all, in the database."""
        return self._db.read(lambda c: listing.count_epochs(c, topology, first))

    def unjoined(self, topology: str) -> tuple[str, ...]:
        """The tables that join with the next barrier, which needs their baseline: the head does not have them."""

        def look(c: Connection) -> tuple[str, ...]:
            return barriers.unjoined(c, barriers.current_topology(c, topology), rows.head(c, topology))

        return self._db.read(look)

    def last_start(self, topology: str, job: str) -> tuple[Barrier, JobStart] | None:
        """How a job joined last, and the first barrier that had it, aborted or not; None: it never joined."""
        return self._db.read(lambda c: starts.last_start(c, topology, job))

    def starts_to_read(self, topology: str, revised_from: int | None) -> list[JobStart]:
        """How jobs joined with the barriers that are neither committed nor aborted, and with those from
        ``revised_from`` on: up to where they have read their inlets, which they are about to read on.
        """
        return self._db.read(lambda c: starts.starts_to_read(c, topology, revised_from))

    def last_progress(self, topology: str, table: str) -> TableProgress | None:
        """The table at the newest barrier whose epoch it has and that is not aborted; None: it was in none."""
        return self._db.read(lambda c: starts.last_progress(c, topology, table))

    def cuts(
        self, topology: str, barrier_id: int, line: int = 0, *, items_of: Collection[str] | None = None
    ) -> dict[str, Cut]:
        """The cut of every source, by name; ``line``: as in :meth:`barrier`.

        ``items_of``: the sources whose items are wanted (None: all), of which there may be many. An aborted barrier's
        have none any more.
        """
        return self._db.read(lambda c: cuts.cuts(c, topology, barrier_id, line, items_of))

    def last_cut(self, topology: str, source: str, before: int | None = None) -> tuple[Barrier, Cut] | None:
        """The newest cut of a source among barriers that are not aborted, and its barrier; None: it was never cut.
        ``before``: among barriers of lower numbers.
        """
        return self._db.read(lambda c: cuts.last_cut(c, topology, source, before))

    def cuts_up_to(self, topology: str, source: str, barrier_id: int) -> list[Cut]:
        """The cuts of a source at all barriers that are not aborted, oldest first; without items."""
        return self._db.read(lambda c: cuts.cuts_up_to(c, topology, source, barrier_id))

    def used_items(self, topology: str, source: str, items: Sequence[str]) -> set[str]:
        """Those of ``items`` that are in the cut of a barrier that is not aborted, or that the revision under way made
        anew.
        """
        return self._db.read(lambda c: cuts.used_items(c, topology, source, items))

    def repin_cut(self, topology: str, barrier_id: int, cut: Cut, actor: str) -> None:
        """Replace the cut of a source after a person mended what could not be read.

        Raises IllegalTransitionError once an attempt has closed over the old one.
        """
        self._db.write(lambda c: cuts.repin_cut(c, topology, barrier_id, cut, actor))

    def make_cut(self, topology: str, barrier_id: int, cut: Cut, actor: str) -> Cut:
        """Store a cut that was put off when its barrier opened, and return it, or the one that another job has made.

        Raises IllegalTransitionError if the barrier is not staged any more, SourceDataError for an item that was read.
        """
        return self._db.write(lambda c: cuts.make_cut(c, topology, barrier_id, cut, actor))

    def abort_barrier(self, topology: str, barrier_id: int, reason: str, actor: str) -> list[Barrier]:
        """Give up a barrier and all later ones, with their attempts; returns them, [] if it was aborted before.

        Raises AlreadyCommittedError from COMMITTING on.
        """
        return self._db.write(lambda c: barriers.abort_barrier(c, topology, barrier_id, reason, actor))

    # --- attempts ---------------------------------------------------------------------------------

    def request_attempt(
        self,
        topology: str,
        barrier_id: int,
        job: str,
        *,
        request_key: str,
        generation: str,
        actor: str,
        owner: str | None = None,
        line: int = 0,
        code: Mapping[str, str] | None = None,
    ) -> Attempt:
        """An attempt for this task: adopted from a try before it, or new.

        Of the same ``generation`` (a retry), REQUESTED, CLOSED and PROCESSED attempts are adopted; a RUNNING one is
        fenced and replaced. Another generation (a clear) stages anew: it fences the one before and, if that was
        PROCESSED, voids every attempt that consumed its output, at this barrier and later; their tables are PENDING
        and their barriers OPEN again. Raises AlreadyCommittedError from COMMITTING on, BarrierAbortedError, and
        NotOwnerError if ``owner``, the DAG that asks, is not the job's.

        ``code``: what the task runs, kept with the attempt.

        ``line``: for revision ``line``, which computes the barrier again. Raises RevisionEndedError once that is
        decided or cancelled.
        """
        request = attempts.Request(topology, barrier_id, job, request_key, generation, actor, owner, line, code or {})
        return self._db.write(lambda c: attempts.request_attempt(c, request))

    def lead_attempt(
        self,
        topology: str,
        barrier_id: int,
        job: str,
        *,
        request_key: str,
        generation: str,
        actor: str,
        owner: str | None,
        code: Mapping[str, str] | None = None,
        after_end: bool = False,
    ) -> Attempt | None:
        """For a task of another run: a new attempt at a barrier, unless somebody has begun it.

        Fences an attempt that was only waiting, and takes over its generation (else: ``generation``), so that the
        waiting task adopts the result. ``after_end``: leaves an attempt that waits alone, and takes a barrier where
        every attempt has ended. Returns None if another task has begun, or if the barrier is not OPEN. Raises
        NotOwnerError.
        """
        request = attempts.Request(
            topology, barrier_id, job, request_key, generation, actor, owner, code=dict(code or {})
        )
        return self._db.write(lambda c: attempts.lead_attempt(c, request, after_end))

    def needs(self, attempt: Attempt) -> tuple[Need, ...]:
        """What a REQUESTED attempt lacks before it can be started; empty for any other."""
        return self._db.read(lambda c: attempts.needs_of(c, attempt))

    def start_attempt(self, attempt_id: int) -> Attempt | tuple[Need, ...]:
        """RUNNING, with inputs, previous and bases pinned; or what it waits for (which is kept in ``waited_for``).

        Of several callers one starts it; the others get AttemptTakenError (request again, which fences). Raises
        FencedAttemptError, VoidedAttemptError, BarrierAbortedError.
        """

        def start(c: Connection) -> Attempt | tuple[Need, ...]:
            maintenance.pass_by(c, attempt_id)
            return attempts.start_attempt(c, attempt_id)

        return self._db.read(lambda c: attempts.still_waiting(c, attempt_id)) or self._db.write(start)

    def rebase_attempt(self, attempt_id: int, bases: Mapping[str, int | None]) -> Attempt:
        """Other bases for outlets of a RUNNING attempt, after a compaction.

        Raises FencedAttemptError, VoidedAttemptError.
        """
        return self._db.write(lambda c: attempts.rebase_attempt(c, attempt_id, bases))

    def close_attempt(
        self, attempt_id: int, staged: Mapping[str, StagedTable], actor: str, owner: str | None = None
    ) -> Attempt:
        """RUNNING -> CLOSED with what was staged in each of its outlets; the same again changes nothing.

        Raises SilentOutletError, UndeclaredTableError, FencedAttemptError, VoidedAttemptError, BarrierAbortedError,
        NotOwnerError.
        """
        return self._db.write(lambda c: attempts.close_attempt(c, attempt_id, staged, actor, owner))

    def report_processed(self, attempt_id: int, actor: str, owner: str | None = None) -> Barrier:
        """CLOSED -> PROCESSED, its tables too; the barrier is PRECOMMIT if these were the last. Again changes nothing.

        For callers that have checked the tables themselves. Raises FencedAttemptError, VoidedAttemptError,
        BarrierAbortedError, NotOwnerError.
        """
        return self._db.write(lambda c: attempts.report_processed(c, attempt_id, actor, owner))

    def abort_attempt(self, attempt_id: int, reason: str, actor: str) -> Attempt:
        """The task was killed or failed. An attempt that has ended or is PROCESSED stays as it is."""
        return self._db.write(lambda c: attempts.abort_attempt(c, attempt_id, reason, actor))

    def attempt(self, attempt_id: int) -> Attempt:
        """The attempt of that number. Raises UnknownBarrierError if there is none."""
        return self._db.read(lambda c: attempts.load_attempt(c, attempt_id))

    def attempts(self, topology: str, barrier_id: int, line: int = 0) -> list[Attempt]:
        """All attempts of a barrier, oldest first; ``line``: those of revision ``line``."""
        return self._db.read(lambda c: rows.attempts_of(c, topology, barrier_id, line))

    def current_attempt(self, topology: str, barrier_id: int, job: str, line: int = 0) -> Attempt | None:
        """The newest attempt of a job at a barrier, whatever became of it; ``line``: of revision ``line``."""
        return self._db.read(lambda c: attempts.current_attempt(c, topology, barrier_id, job, line))

    # --- commit -----------------------------------------------------------------------------------

    def begin_commit(
        self,
        topology: str,
        barrier_id: int,
        expected: Mapping[str, int | None],
        actor: str,
        thinned: Sequence[int] = (),
        revision: int | None = None,
    ) -> Barrier:
        """PRECOMMIT -> COMMITTING: from here on only forward. ``expected``: the `main` found in each of its tables,
        and ``revision``: whose work the barrier was at that look (None: it cannot have changed since).

        ``thinned``: the barriers that the tag policy keeps no longer once this one is published. They begin to expire
        in this step, with those that were held up before; what a lease holds, and the newest COMMIT, waits for a later
        commit.

        COMMITTING or COMMIT already: nothing changes. Raises NotPrecommitError (also while the barrier before is not
        COMMIT), HeadMovedError if a revision was published since the look, BarrierAbortedError, IllegalTransitionError
        when BLOCKED.
        """
        return self._db.write(
            lambda c: commits.begin_commit(c, topology, barrier_id, expected, thinned, actor, revision)
        )

    @contextmanager
    def publishing(
        self,
        topology: str,
        barrier_id: int,
        actor: str,
        expected: Mapping[str, int | None] | None = None,
        expired: Sequence[int] = (),
    ) -> Iterator[Connection | None]:
        """A write transaction for the swap of a COMMITTING barrier's tables: both are committed together, or neither.

        At the end of the block all tables are WRITTEN and the barrier is COMMIT. Yields None, without a transaction,
        if it is COMMIT already. Prepare files before: nobody else can write to the database during the block.
        ``expected``: the `main` that the swap goes by; HeadMovedError if a person has decided otherwise meanwhile.
        ``expired``: the barriers whose tags go along.

            with meta.publishing("shopping", 3, actor="me") as connection:
                if connection is not None:
                    tables.publish(publications, connection)
        """
        self._db.open()
        with self._db.transaction(write=True) as connection:
            barrier = commits.publishable(connection, topology, barrier_id)
            if barrier is not None:
                yield connection
                commits.finish_commit(connection, barrier, actor, expected, expired)
                return
        yield None

    def block(self, topology: str, barrier_id: int, reason: str, actor: str) -> Barrier:
        """COMMITTING -> BLOCKED: a table moved under us, readers stay at the barrier before."""
        return self._db.write(lambda c: commits.block(c, topology, barrier_id, reason, actor))

    def unblock(self, topology: str, barrier_id: int, reason: str, actor: str) -> Barrier:
        """BLOCKED -> COMMITTING: a person says that nothing is in the way any more."""
        return self._db.write(lambda c: commits.unblock(c, topology, barrier_id, reason, actor))

    def settle(self, topology: str, barrier_id: int, settled: Settled) -> tuple[Barrier, tuple[Attempt, ...]]:
        """BLOCKED -> COMMITTING with a person's decision about the table in the way.

        Returns the barrier and the attempts at later barriers that this voids, because they stand on what the person
        decided against. Raises IllegalTransitionError unless BLOCKED, UnknownTableError.
        """
        return self._db.write(lambda c: commits.settle(c, topology, barrier_id, settled))

    def announce(self, topology: str, barrier_ids: Sequence[int], actor: str) -> None:
        """Write down that the world outside was told of these barriers, by asset events."""
        self._db.write(lambda c: announcing.announce(c, topology, barrier_ids, actor))

    def unannounced(self, topology: str, barrier_id: int) -> dict[int, str]:
        """Of the hundred barriers before ``barrier_id`` those that were committed and not announced, and by whom."""
        return self._db.read(lambda c: announcing.unannounced(c, topology, barrier_id))

    # --- after a loss -----------------------------------------------------------------------------

    def recover(self, history: History, actor: str, reason: str) -> str:
        """Put back what the database has lost of a topology, give up what was in flight; returns its new incarnation.

        ``history`` begins after the newest barrier that is COMMIT here. Raises JournalError if it does not.
        """
        return self._db.write(lambda c: recovering.recover(c, history, actor, reason))

    # --- leases and expiry ------------------------------------------------------------------------

    def renew(self, lease_id: int, seconds: float) -> Lease:
        """Let a lease live for so many seconds from now; ``rolled_back`` of it says if the answer is out of date.

        Raises LeaseLostError once it has ended: then what it held has to be resolved anew.
        """
        check_seconds(seconds)
        return self._db.write(lambda c: leases.renew(c, lease_id, seconds))

    def release(self, lease_id: int) -> None:
        """The reader is done. Again is fine."""
        self._db.write(lambda c: leases.release(c, lease_id))

    def end_lease(self, topology: str, lease_id: int, actor: str) -> None:
        """End somebody else's lease before its time; its reader is told.

        Raises ConfigurationError if it holds nothing of ``topology``, or has ended.
        """
        self._db.write(lambda c: leases.end(c, topology, lease_id, actor))

    def leases(self, topology: str, barrier_id: int | None = None) -> list[Lease]:
        """The leases that live, oldest first: all, or those that hold ``barrier_id``."""
        return self._db.read(lambda c: leases.leases(c, topology, barrier_id))

    def held(self, topology: str) -> tuple[tuple[int, int], ...]:
        """The first and the last barrier of each range that readers hold, for who is about to delete.

        What is in none of them no reader gets hold of any more, unless it can still be resolved.
        """
        held = self._db.read(lambda c: leases.held_if_none_is_dead(c, topology))
        return held if held is not None else self._db.write(lambda c: leases.sweep_and_hold(c, topology))

    def expiring(self, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
        """Let those of ``barrier_ids`` expire that can be read, are not the newest, and no lease holds; returns these.

        From here on nobody gets them by :meth:`resolve`, so their tags and data may go; then call :meth:`expired`.
        """
        return self._db.write(lambda c: expiring.expire(c, topology, barrier_ids, actor))

    def expired(self, topology: str, barrier_ids: Sequence[int], actor: str) -> list[int]:
        """Write down that the tags of these are gone; returns those that this is new of. Again is fine.

        Raises IllegalTransitionError for one that can still be read.
        """
        return self._db.write(lambda c: expiring.expired(c, topology, barrier_ids, actor))

    def being_expired(self, topology: str) -> list[Barrier]:
        """The barriers between :meth:`expiring` and :meth:`expired`, oldest first: somebody may have died there."""
        return self._db.read(lambda c: expiring.being_expired(c, topology))

    def trim(self, topology: str, before: datetime, actor: str) -> list[int]:
        """Forget what there is per table and attempt of some barriers that expired, or were aborted, before a time.

        The oldest first, some twenty in a transaction; returns them, so call it until it returns none. Barriers, cuts,
        used items and the audit of barriers stay, and so does the newest row of each table.
        """
        return self._db.write(lambda c: trimming.trim(c, topology, before, actor))

    def trimmed(self, topology: str, first: int, last: int) -> list[Barrier]:
        """The barriers from ``first`` to ``last`` that were committed, oldest first, once all that are between are
        trimmed; until then none.
        """
        return self._db.read(lambda c: trimming.trimmed(c, topology, first, last))

    # --- reading ----------------------------------------------------------------------------------

    def progress(self, topology: str, barrier_id: int) -> list[TableProgress]:
        """Every table of a barrier, in the order of their names."""
        return self._db.read(lambda c: list(rows.progress(c, topology, barrier_id).values()))

    def resolve(
        self,
        topology: str,
        level: Level,
        tables: Sequence[str] | None = None,
        *,
        at: int | datetime | None = None,
        revision: int | None = None,
        hold: Hold | None = None,
    ) -> Resolution:
        """Which snapshot of each of ``tables`` (None: all of the barrier's) a reader at ``level`` gets.

        ``at``: a barrier's id; a time (aware), which means the newest barrier at or before it; None: the newest one.
        Each among those that are as far as the level wants; before any is, the newest is the baseline. With ``hold``
        the same transaction takes a lease on what is answered. ``revision``: as the barrier ``at`` was in that
        revision (0: as it was computed first), though another one stands since; at repeatable read.

        Raises UnknownRevisionError; UnknownTableError for a table that the barrier does not have, naming the first that
        has it; UnknownBarrierError before the first open, for a barrier that is not there, and for a time before the
        first one; BarrierAbortedError; NotReadableYetError (retryable) for a barrier that is not so far;
        ExpiredBarrierError, naming the oldest that can be read.

        >>> meta.resolve("shopping", Level.REPEATABLE_READ, at=3, hold=Hold("report", seconds=60))  # doctest: +SKIP
        """
        asked = resolving.Asked(topology, level, tables, at, revision)
        resolving.check_asked(asked)
        if hold is None:
            return self._db.read(lambda c: resolving.resolve(c, asked, None))
        return self._db.write(lambda c: resolving.resolve(c, asked, hold))

    def readable(self, topology: str) -> list[Barrier]:
        """The barriers that can be read at repeatable read by their id, oldest first; the baseline is none."""
        return self._db.read(lambda c: resolving.readable(c, topology))

    def metadata(
        self, name: str, topology: str | None = None
    ) -> tuple[Sequence[MetadataColumn], list[tuple[Any, ...]]]:
        """Columns and rows of a metadata table, such as `__META_TABLE_VERSION`; ``topology``: of this one only.

        Times are aware, in UTC. In the database itself it is a view of the same name. Raises ConfigurationError for a
        name that is none.
        """
        return self._db.read(lambda c: metadata.metadata(c, name, topology))

    def changes(self, topology: str) -> int:
        """How many changes there were: as long as it is the same, nothing has become of what somebody waits for.

        0 of a topology that nobody has registered yet. One query, of one row.
        """
        return self._db.read(lambda c: rows.changes_of(c, topology))

    def stands(self, topology: str, barrier_id: int, line: int = 0) -> Standing:
        """Where each table of a barrier stands; ``line``: in revision ``line``. For those who wait: two queries."""
        return self._db.read(lambda c: reading.stands(c, topology, barrier_id, line))

    def audit(self, topology: str, barrier_id: int | None = None, limit: int = 100) -> list[AuditEntry]:
        """The newest ``limit`` changes of a topology or of one barrier, in the order they happened."""
        return self._db.read(lambda c: reading.audit(c, topology, barrier_id, limit))
