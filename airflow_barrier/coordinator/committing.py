"""Committing barriers: decide once, publish all tables, and be repeatable by anyone after any crash."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_barrier.coordinator.blocking import IN_THE_WAY, block
from airflow_barrier.coordinator.cuts import release_sources
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import check_lead, current_mains, write_entry
from airflow_barrier.coordinator.publishing import LOOKS, looks_ran_out, publish
from airflow_barrier.coordinator.revisions.publish import finish_decided
from airflow_barrier.coordinator.staging import delete_files
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
    finish_decided(deployment, topology, actor=actor)
    barrier = deployment.meta.barriers.get(topology, barrier_id)
    check_not_aborted(barrier)  # safety: aborted-is-told
    if barrier.state is BarrierState.COMMIT:
        _tidy(deployment, barrier)  # whoever committed it may have died before that
        return Committed(barrier, ())
    published: list[Barrier] = []
    for candidate in deployment.meta.barriers.uncommitted(topology):
        if candidate.barrier_id > barrier_id:  # safety: commits-no-further
            break
        if candidate.is_maintenance and deployment.meta.maintenance.carry(topology, candidate.barrier_id, actor):
            candidate = deployment.meta.barriers.get(topology, candidate.barrier_id)
        try:
            published.append(_commit_one(deployment, candidate, actor))
        except NotPrecommitError:
            now = deployment.meta.barriers.get(topology, candidate.barrier_id)
            missing = [
                progress
                for progress in deployment.meta.barriers.progress(topology, candidate.barrier_id)
                if progress.state is TableState.PENDING
            ]
            return NotYet(now, tuple(missing))
    barrier = deployment.meta.barriers.get(topology, barrier_id)
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
    _tidy(deployment, decided)
    return deployment.meta.barriers.get(barrier.topology, barrier.barrier_id)


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
        check_lead(deployment, barrier.topology)  # safety: lead-before-deciding
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


def _tidy(deployment: Deployment, barrier: Barrier) -> None:
    """Let go of what nobody needs once ``barrier`` is COMMIT. Again is fine: a commit may die before it gets here."""
    # This epoch is published, so the pins that the cut before it holds are not needed any more. Maintenance barriers
    # have no cuts.
    before = deployment.meta.barriers.epoch_of(deployment.meta.barriers.get(barrier.topology, barrier.predecessor or 0))
    release_sources(deployment, barrier, before.barrier_id)
    # nor does anybody read the epoch specs of a committed barrier any more, and they would pile up
    delete_files(deployment, barrier.topology, [barrier.barrier_id])


def _decide(deployment: Deployment, barrier: Barrier, actor: str) -> None:
    """PRECOMMIT -> COMMITTING, unless another committer of the same barrier was faster.

    Raises HeadMovedError if a revision was published meanwhile: the barrier consists of other snapshots then.
    """
    meta = deployment.meta
    try:
        # the last look before the decision: from here on a foreign write can only block, not refuse
        expected = current_mains(deployment, barrier.topology, _published_before(deployment, barrier))
        deployment.tables.look(publications_of(deployment, barrier, expected))  # safety: last-look
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
        readers = _readers(deployment, barrier)
        publications = publications_of(deployment, barrier, readers=readers)
        try:
            write_entry(deployment, barrier)  # safety: journal-before-publish
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


def publications_of(
    deployment: Deployment,
    barrier: Barrier,
    expected: Mapping[str, int | None] | None = None,
    readers: Readers = Readers(),
) -> list[Publication]:
    """Return the publication of each table; ``expected``: what `main` was found at, before that is decided.

    Without ``readers`` it is for looking only.
    """
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
        for progress in deployment.meta.barriers.progress(barrier.topology, barrier.barrier_id)
        for main in [progress.expected_snapshot if expected is None else expected[progress.table]]
    ]


def set_aside(barrier: Barrier, snapshot_id: int | None) -> dict[str, int]:
    """The tag that keeps the snapshot against which a person decided."""
    return (
        {set_aside_tag(barrier.topology, barrier.barrier_id, barrier.computed_in): snapshot_id} if snapshot_id else {}
    )


def _published_before(deployment: Deployment, barrier: Barrier) -> Mapping[str, int | None]:
    """Return the snapshot that each table's `main` must be at for the barrier: the predecessor's, or its baseline."""
    meta = deployment.meta
    baseline = {p.table: p.snapshot_id for p in meta.barriers.progress(barrier.topology, 0)}
    before = {p.table: p.snapshot_id for p in meta.barriers.progress(barrier.topology, barrier.predecessor or 0)}
    tables = [progress.table for progress in meta.barriers.progress(barrier.topology, barrier.barrier_id)]
    return {table: before.get(table, baseline.get(table)) for table in tables}
