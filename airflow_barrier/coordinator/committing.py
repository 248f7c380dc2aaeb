"""Committing barriers: decide once, publish all tables, and be repeatable by anyone after any crash."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_barrier.coordinator.blocking import IN_THE_WAY, block
from airflow_barrier.coordinator.cuts import cuts_to_release, release_cuts
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import current_mains, entry_of, led_look, write_entry
from airflow_barrier.coordinator.publishing import LOOKS, looks_ran_out, publish
from airflow_barrier.coordinator.revisions.publish import publish_revision
from airflow_barrier.coordinator.staging import delete_attempt_files
from airflow_barrier.protocol.errors import (
    BarrierAbortedError,
    BarrierBlockedError,
    BarrierError,
    ConfigurationError,
    ForeignWriteError,
    HeadMovedError,
    NotPrecommitError,
)
from airflow_barrier.protocol.names import set_aside_tag
from airflow_barrier.protocol.records import Barrier, TableProgress
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import DECIDED_BARRIERS, BarrierState, TableState
from airflow_barrier.tables.port import Publication

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Committed:
    """``barrier`` is COMMIT; ``published`` are the barriers that this call committed, in order (maybe none)."""

    barrier: Barrier
    published: tuple[Barrier, ...]


@dataclass(frozen=True)
class NotYet:
    """``barrier`` (the asked one, or one before it) is not PRECOMMIT; ``missing`` are its tables that are PENDING."""

    barrier: Barrier
    missing: tuple[TableProgress, ...]

    @property
    def reason(self) -> str:
        tables = ", ".join(f"{progress.table} (job {progress.job})" for progress in self.missing)
        return f"{self.barrier} is {self.barrier.state.value}; not PROCESSED: {tables}"


def commit_barrier(deployment: Deployment, topology: str, barrier_id: int, *, actor: str) -> Committed | NotYet:
    """Commit ``barrier_id`` and, before it and in order, every earlier barrier that is PRECOMMIT.

    Calling it again after a crash rolls forward; calling it for a barrier that is COMMIT changes nothing. Raises
    BarrierAbortedError; ForeignWriteError, SnapshotMissingError or MissingTableError when somebody else changed a table
    before the decision: then nothing has happened; BarrierBlockedError (a ForeignWriteError too) when that was after
    it: then the barrier is BLOCKED, readers stay at the one before, and the error says how a person leads it out.
    """
    with deployment.meta.look():
        found = in_flight(deployment, deployment.meta.barriers.get(topology, barrier_id))
    return commit_found(deployment, found, actor=actor)


@dataclass(frozen=True)
class InFlight:
    """A barrier that is to be committed, what is not committed yet, and a revision that is to be published first."""

    barrier: Barrier
    uncommitted: Sequence[Barrier]
    decided: Revision | None


def in_flight(deployment: Deployment, barrier: Barrier) -> InFlight:
    """Look for what a commit of ``barrier`` goes by, in the caller's look."""
    meta = deployment.meta
    revision = meta.revisions.under_way(barrier.topology)
    decided = revision if revision is not None and revision.state is RevisionState.COMMITTING else None
    return InFlight(barrier, meta.barriers.uncommitted(barrier.topology), decided)


def commit_found(deployment: Deployment, found: InFlight, *, actor: str) -> Committed | NotYet:
    """Commit as :func:`commit_barrier` does, for who has looked already."""
    meta, barrier = deployment.meta, found.barrier
    topology, barrier_id = barrier.topology, barrier.barrier_id
    if found.decided is not None:
        log.info("%s is COMMITTING: rolled forward first", found.decided)
        publish_revision(deployment, topology, found.decided.revision, actor=actor)
        return commit_barrier(deployment, topology, barrier_id, actor=actor)
    check_not_aborted(barrier)  # safety: aborted-is-told
    if barrier.state is BarrierState.COMMIT:
        _tidy(deployment, barrier)  # whoever committed it may have died before that
        return Committed(barrier, ())
    published: list[Barrier] = []
    for candidate in found.uncommitted:
        if candidate.barrier_id > barrier_id:  # safety: commits-no-further
            break
        if candidate.is_maintenance and deployment.meta.maintenance.carry(topology, candidate.barrier_id, actor):
            candidate = deployment.meta.barriers.get(topology, candidate.barrier_id)
        try:
            barrier = _commit_one(deployment, candidate, actor)
            published.append(barrier)
        except NotPrecommitError:
            now = deployment.meta.barriers.get(topology, candidate.barrier_id)
            missing = [
                progress
                for progress in deployment.meta.barriers.progress(topology, candidate.barrier_id)
                if progress.state is TableState.PENDING
            ]
            return NotYet(now, tuple(missing))
    if barrier.barrier_id != barrier_id or barrier.state is not BarrierState.COMMIT:
        barrier = meta.barriers.get(topology, barrier_id)
    # since our first look: then it was not among the open ones
    check_not_aborted(barrier)  # safety: aborted-is-told
    return Committed(barrier, tuple(published))


def commit_by_hand(deployment: Deployment, topology: str, barrier_id: int, *, reason: str, actor: str) -> Committed:
    """Commit as :func:`commit_barrier` does, for a person: a barrier that is not PRECOMMIT raises NotPrecommitError."""
    outcome = commit_barrier(deployment, topology, barrier_id, actor=f"{actor}: {reason}")
    if isinstance(outcome, NotYet):
        raise NotPrecommitError(  # safety: open-is-told
            f"expected PRECOMMIT of every barrier up to {barrier_id} of {topology}, found: {outcome.reason}; run or "
            "repair these jobs, or abort the barrier"
        )
    return outcome


def check_not_aborted(barrier: Barrier) -> None:
    """Raise BarrierAbortedError if it is."""
    if barrier.state is BarrierState.ABORTED:
        raise BarrierAbortedError(
            f"{barrier} was aborted ({barrier.reason}); its epoch is part of the next barrier"
        )  # safety: aborted-is-told


def _commit_one(deployment: Deployment, barrier: Barrier, actor: str) -> Barrier:
    decided = _decided(deployment, barrier, actor)
    _roll_forward(deployment, decided, actor)
    return _tidy(deployment, decided)


def _decided(deployment: Deployment, barrier: Barrier, actor: str) -> Barrier:
    """The barrier as it was when its commit was decided, by this committer or by another one."""
    met: HeadMovedError | None = None
    for _ in range(LOOKS):
        if barrier.state is BarrierState.BLOCKED:
            raise BarrierBlockedError(f"{barrier} is BLOCKED: {barrier.reason}")  # safety: blocked-is-told
        if barrier.state is BarrierState.OPEN:
            raise NotPrecommitError(f"{barrier} is OPEN")  # safety: open-is-told
        if barrier.state is not BarrierState.PRECOMMIT:
            return barrier
        try:
            _decide(deployment, barrier, actor)
            return barrier
        except HeadMovedError as error:
            met = error
            log.info("%s", error)
            barrier = deployment.meta.barriers.get(barrier.topology, barrier.barrier_id)
    raise HeadMovedError(  # safety: looks-run-out
        f"{barrier}: expected its snapshots to stay as they are until its commit is decided, found that they changed "
        f"at each of {LOOKS} looks ({met}); try again"
    ) from met


def _tidy(deployment: Deployment, barrier: Barrier) -> Barrier:
    """Let go of what nobody needs once ``barrier`` is COMMIT, and return it as it is now.

    Again is fine: a commit may die before it gets here.
    """
    meta, topology = deployment.meta, barrier.topology
    with meta.look():
        now = meta.barriers.get(topology, barrier.barrier_id)
        # This epoch is published, so the pins that the cut before it holds are not needed any more. Maintenance
        # barriers have no cuts.
        before = meta.barriers.epoch_of(meta.barriers.get(topology, barrier.predecessor or 0))
        cuts = cuts_to_release(deployment, barrier, before.barrier_id)
        # nor does anybody read the epoch specs of a committed barrier any more, and they would pile up
        attempts = meta.attempts.of(topology, barrier.barrier_id)
    release_cuts(deployment, cuts)
    delete_attempt_files(deployment, attempts)
    return now


def _decide(deployment: Deployment, barrier: Barrier, actor: str) -> None:
    """PRECOMMIT -> COMMITTING, unless another committer of the same barrier was faster.

    Raises HeadMovedError if a revision was published meanwhile: the barrier consists of other snapshots then.
    """
    meta = deployment.meta
    around = {0, barrier.predecessor or 0, barrier.barrier_id}
    with led_look(deployment, barrier.topology):
        rows = meta.barriers.progress_at(barrier.topology, around)
    try:
        # the last look before the decision: from here on a foreign write can only block, not refuse
        expected = current_mains(deployment, barrier.topology, _published_before(barrier, rows))
        deployment.tables.look(_publications(barrier, rows[barrier.barrier_id], expected))  # safety: last-look
    except ForeignWriteError:
        # while nobody has decided, no committer moves a table; afterwards it was one of us who did
        now = meta.barriers.get(barrier.topology, barrier.barrier_id)
        if now.state in DECIDED_BARRIERS:  # safety: decided-by-another
            return
        if now.computed_in != barrier.computed_in:
            raise HeadMovedError(  # safety: revised-by-another
                f"{barrier}: expected it as in revision {barrier.computed_in}, found that revision {now.computed_in} "
                "was published: look again"
            ) from None
        raise
    thinned = deployment.tag_policy.dropped(barrier.predecessor or 0, barrier.barrier_id)
    meta.publishing.begin(barrier.topology, barrier.barrier_id, expected, actor, thinned, barrier.computed_in)
    log.info("%s is COMMITTING", barrier)


def _roll_forward(deployment: Deployment, barrier: Barrier, actor: str) -> None:
    """Publish a decided barrier, or let it be BLOCKED where somebody else changed a table."""
    met: BarrierError | None = None
    for _ in range(LOOKS):
        with deployment.meta.look():
            readers = _readers(deployment, barrier)
            publications = publications_of(deployment, barrier, readers)
            entry, members = entry_of(deployment, barrier)
        try:
            write_entry(deployment, entry, members)  # safety: journal-before-publish
            _publish(deployment, barrier, publications, readers, actor)
            return
        except HeadMovedError as error:
            met = error
            log.info("%s", error)
        except IN_THE_WAY as error:
            if block(deployment, barrier, publications_of(deployment, barrier), error, actor):
                return  # another committer has published it, and main may have gone on to a later barrier meanwhile
            met = error
    if isinstance(met, ConfigurationError):
        raise met  # of the catalog as a whole: the tables were looked at, and nothing is in the way in any of them
    raise looks_ran_out(barrier, met, "Commit") from met  # safety: looks-run-out


def _publish(
    deployment: Deployment, barrier: Barrier, publications: Sequence[Publication], readers: Readers, actor: str
) -> None:
    expected = {publication.table: publication.expected for publication in publications}
    gone = [each.barrier_id for each in readers.gone]
    swapping = deployment.meta.publishing.swapping
    publish(deployment, publications, lambda: swapping(barrier.topology, barrier.barrier_id, actor, expected, gone))
    log.info("%s is COMMIT: published %s", barrier, ", ".join(p.table for p in publications if p.new != p.expected))


@dataclass(frozen=True)
class Readers:
    """Readers' needs at a publish: the barriers that are ``gone`` for all, and the ranges that are ``held``.

    ``staged_revisions``: the revisions whose attempt branches are still needed.
    """

    gone: tuple[Barrier, ...] = ()
    held: tuple[tuple[int, int], ...] = ()
    staged_revisions: frozenset[int] = frozenset()


def _readers(deployment: Deployment, barrier: Barrier) -> Readers:
    """Asked after the decision: from then on nobody gets what an earlier attempt at these barriers has staged."""
    meta = deployment.meta
    revision = meta.revisions.under_way(barrier.topology)
    staged = frozenset({revision.revision} if revision is not None else ())
    return Readers(tuple(meta.expiry.pending(barrier.topology)), meta.leases.held(barrier.topology), staged)


def publications_of(deployment: Deployment, barrier: Barrier, readers: Readers = Readers()) -> list[Publication]:
    """Return the publication of each table of a decided barrier. Without ``readers`` it is for looking only."""
    return _publications(
        barrier, deployment.meta.barriers.progress(barrier.topology, barrier.barrier_id), None, readers
    )


def _publications(
    barrier: Barrier,
    rows: Sequence[TableProgress],
    expected: Mapping[str, int | None] | None,
    readers: Readers = Readers(),
) -> list[Publication]:
    """``expected``: what `main` was found at, before that is decided; None: it is, and stands in the rows."""
    drop_tags = tuple(tag for each in readers.gone for tag in each.tags)
    return [
        Publication(
            table=progress.table,
            topology=barrier.topology,
            barrier_id=barrier.barrier_id,
            expected=main,
            # also of a carried table of which main is at a compaction by now: readers are given this one
            new=progress.snapshot_id,
            tag=barrier.tag,
            drop_tags=drop_tags,
            held=readers.held,
            kept_revisions=readers.staged_revisions,
            decision=progress.decision,
            set_aside=set_aside(barrier, progress.set_aside),
        )
        for progress in rows
        for main in [progress.expected_snapshot if expected is None else expected[progress.table]]
    ]


def set_aside(barrier: Barrier, snapshot_id: int | None) -> dict[str, int]:
    """The tag that keeps the snapshot against which a person decided."""
    return (
        {set_aside_tag(barrier.topology, barrier.barrier_id, barrier.computed_in): snapshot_id} if snapshot_id else {}
    )


def _published_before(barrier: Barrier, rows: Mapping[int, Sequence[TableProgress]]) -> dict[str, int | None]:
    """Return the snapshot that each table's `main` must be at for the barrier: the predecessor's, or its baseline.

    ``rows``: of the barrier, the one before it, and barrier 0.
    """
    baseline = {row.table: row.snapshot_id for row in rows[0]}
    before = {row.table: row.snapshot_id for row in rows[barrier.predecessor or 0]}
    return {row.table: before.get(row.table, baseline.get(row.table)) for row in rows[barrier.barrier_id]}
