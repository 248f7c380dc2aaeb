"""Publishing a revision: decide once, swap all tables, and be repeatable by anyone after any crash."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import check_lead, current_mains, entry_of, write_entry, write_revision
from airflow_barrier.coordinator.publishing import LOOKS, looks_ran_out, publish
from airflow_barrier.coordinator.revisions.checks import check_sinks
from airflow_barrier.coordinator.staging import delete_files
from airflow_barrier.metaservice.swapping import SwapRows
from airflow_barrier.protocol.errors import (
    BarrierError,
    ForeignWriteError,
    HeadMovedError,
    MissingTableError,
    RevisionEndedError,
    RevisionNotStagedError,
    SnapshotMissingError,
    UnknownBarrierError,
)
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionState
from airflow_barrier.protocol.states import DECIDED_BARRIERS, BarrierState
from airflow_barrier.tables.port import Publication, Revised

log = logging.getLogger(__name__)

#: What a publisher meets where another one has been faster: the revision has ended, and its line is gone.
_OVERTAKEN = (RevisionEndedError, UnknownBarrierError)


@dataclass(frozen=True)
class Swapped:
    """``revision`` is COMMIT; ``barriers`` are those that it computed and that are COMMIT, in order. ``now``: whether
    this call published it.
    """

    revision: Revision
    barriers: tuple[Barrier, ...]
    now: bool


@dataclass(frozen=True)
class NotStaged:
    """``revision`` cannot be published yet; ``missing`` says why, a phrase each."""

    revision: Revision
    missing: tuple[str, ...]

    @property
    def reason(self) -> str:
        more = f" and {len(self.missing) - 3} more" if len(self.missing) > 3 else ""
        return f"{self.revision} is STAGING: {'; '.join(self.missing[:3])}{more}"


def publish_revision(deployment: Deployment, topology: str, number: int, *, actor: str) -> Swapped | NotStaged:
    """Swap the tables of a revision that has been staged up to the head: readers see all of it from then on.

    Calling it again after a crash rolls forward; once it is COMMIT nothing changes. Raises RevisionEndedError if it was
    cancelled; HeadMovedError (retryable) while barriers keep being committed; ForeignWriteError, SnapshotMissingError
    or MissingTableError when somebody else changed a table; RevisionRefusedError if a sink that cannot take corrections
    has received since what they are of. Before the decision nothing has happened then; after it the
    revision stays COMMITTING, and the next call goes on once the table is as it was.

    >>> publish_revision(deployment, "shopping", 7, actor="me")  # doctest: +SKIP
    """
    meta = deployment.meta
    revision = meta.revisions.get(topology, number)
    now = revision.state is not RevisionState.COMMIT
    if now:
        try:
            missing = _publish_staged(deployment, revision, actor)
        except (RevisionEndedError, UnknownBarrierError):
            # another publisher was faster: what was staged is not in a line of its own any more
            if meta.revisions.get(topology, number).state is not RevisionState.COMMIT:  # safety: swapped-by-another
                raise
        else:
            if missing is not None and meta.revisions.get(topology, number).state is not RevisionState.COMMIT:
                return missing
    revision = meta.revisions.get(topology, number)
    _tidy(deployment, revision)
    return Swapped(revision, tuple(_barriers(deployment, revision)), now)


def cancel_revision(deployment: Deployment, topology: str, number: int, *, reason: str, actor: str) -> Revision:
    """Give a revision up while it is STAGING: readers have seen nothing of it. Again is fine.

    Raises RevisionEndedError once it is decided.
    """
    meta = deployment.meta
    revision = meta.revisions.cancel(topology, number, reason, actor)
    newest = meta.barriers.head(topology)
    assert newest is not None
    barrier_ids = range(revision.first_barrier, newest.barrier_id + 1)
    delete_files(deployment, topology, barrier_ids, number)
    deployment.tables.drop_revision(_all_tables(deployment, revision, barrier_ids), topology, number)
    log.info("%s is CANCELLED: %s", revision, reason)
    return revision


def publications_of(
    deployment: Deployment, revision: Revision, head: int, rows: SwapRows, expected: Mapping[str, int | None]
) -> list[Publication]:
    """Return the swap's publication of each table that the newest COMMIT barrier has: the revision's go over to its
    line, and all get tags of its number, so that each barrier can be read whole by name.
    """
    number, topology = revision.revision, revision.topology
    held = deployment.meta.leases.held(topology)
    return [
        Publication(
            table=table,
            topology=topology,
            barrier_id=head,
            expected=expected[table],
            new=snapshot,
            tag=tag_name(topology, head, number),
            held=held,
            revised=Revised(
                base=rows.before.get(table),
                tags={
                    tag_name(topology, barrier_id, number): then
                    for barrier_id, tables in rows.barriers.items()
                    if barrier_id < head and (then := tables.get(table)) is not None
                },
            ),
        )
        for table, snapshot in sorted(rows.barriers[head].items())
    ]


def _decided(deployment: Deployment, revision: Revision, actor: str) -> Revision | NotStaged:
    """Looks again when something is published under its hands: a barrier, or this revision by another publisher."""
    meta, topology, number = deployment.meta, revision.topology, revision.revision
    check_lead(deployment, topology)  # safety: lead-before-deciding
    met: BarrierError | None = None
    for _ in range(LOOKS):
        try:
            meta.revisions.extend(topology, number, actor)
            missing = meta.revisions.unstaged(topology, number)
            if not missing:
                return _decide(deployment, revision, actor)
        except RevisionNotStagedError as error:  # since that look
            missing = [str(error)]
        except (HeadMovedError, *_OVERTAKEN) as error:
            met, missing = error, []
            log.info("%s", error)
        now = meta.revisions.get(topology, number)
        if now.state in (RevisionState.COMMITTING, RevisionState.COMMIT):  # safety: decided-by-another
            return now
        if isinstance(met, RevisionEndedError):
            raise met
        if missing and now.state is RevisionState.STAGING:
            return NotStaged(now, tuple(missing))
    raise looks_ran_out(revision, met, "Publish") from met  # safety: looks-run-out


def _publish_staged(deployment: Deployment, revision: Revision, actor: str) -> NotStaged | None:
    """Publish the revision, from STAGING or COMMITTING on. None: it is COMMIT."""
    if revision.state is not RevisionState.COMMITTING:
        decided = _decided(deployment, revision, actor)
        if isinstance(decided, NotStaged):
            return decided
        revision = decided
    _roll_forward(deployment, revision, actor)
    return None


def _decide(deployment: Deployment, revision: Revision, actor: str) -> Revision:
    """STAGING -> COMMITTING, after a last look at the tables."""
    meta, topology = deployment.meta, revision.topology
    # a delivery that had begun before the revision did may have brought a sink what it corrects
    check_sinks(deployment, str(revision), topology, revision.tables, revision.first_barrier)
    head = _newest_commit(deployment, topology)
    try:
        stood = {row.table: row.snapshot_id for row in meta.barriers.progress(topology, head.barrier_id)}
        expected = current_mains(deployment, topology, {**stood, **revision.expected})
        rows = meta.revisions.swap_rows(topology, revision.revision)
        deployment.tables.look(  # safety: last-look
            publications_of(deployment, revision, head.barrier_id, rows, expected)
        )
    except ForeignWriteError:
        now = meta.revisions.get(topology, revision.revision)
        if now.state is not RevisionState.STAGING:  # safety: decided-by-another
            return now
        published = [each for each in meta.barriers.uncommitted(topology) if each.state in DECIDED_BARRIERS]
        if published:
            raise RevisionNotStagedError(  # safety: committed-by-another
                f"{revision}: expected nothing else to be published in {topology}, found {published[0]}, "
                f"{published[0].state.value}; finish that one first"
            ) from None
        newest = _newest_commit(deployment, topology)
        if newest.barrier_id == head.barrier_id:  # safety: committed-by-another
            raise
        raise HeadMovedError(  # safety: committed-by-another
            f"{revision}: expected {head} to be the newest COMMIT, found {newest}"
        ) from None
    decided = meta.revisions.begin_swap(topology, revision.revision, head.barrier_id, expected, actor)
    log.info("%s is COMMITTING: barriers %s to %s", decided, decided.first_barrier, decided.last)
    return decided


def _newest_commit(deployment: Deployment, topology: str) -> Barrier:
    return deployment.meta.barriers.newest(topology, [BarrierState.COMMIT], limit=1)[0]


def _roll_forward(deployment: Deployment, revision: Revision, actor: str) -> None:
    meta, topology, number = deployment.meta, revision.topology, revision.revision
    revision = meta.revisions.get(topology, number)
    if revision.state is RevisionState.COMMIT or revision.head is None:
        return
    try:
        rows = meta.revisions.swap_rows(topology, number)
        publications = publications_of(deployment, revision, revision.head, rows, revision.expected)
        barriers = _barriers(deployment, revision)
        write_revision(deployment, revision, barriers, rows.before)  # safety: journal-before-publish
        _tag_what_left(deployment, revision, revision.head, rows)
        publish(deployment, publications, lambda: meta.revisions.swapping(topology, number, actor))
    except (ForeignWriteError, *_OVERTAKEN):
        if meta.revisions.get(topology, number).state is RevisionState.COMMIT:
            return  # another publisher was faster, and `main` may have gone on since
        raise
    log.info("%s is COMMIT: swapped %s", revision, ", ".join(revision.tables))


def _tag_what_left(deployment: Deployment, revision: Revision, head: int, rows: SwapRows) -> None:
    """Tables that barriers before the head have and the head has not: they have no part in the publish, and yet those
    barriers can be read whole by the revision's tags.
    """
    for barrier_id, tables in rows.barriers.items():
        left = {table: each for table, each in tables.items() if table not in rows.barriers[head] and each is not None}
        for table, snapshot in left.items():
            try:
                deployment.tables.pin(table, tag_name(revision.topology, barrier_id, revision.revision), snapshot)
            except (MissingTableError, SnapshotMissingError) as error:  # its owner is free to drop it
                log.warning("%s: barrier %s: %s", revision, barrier_id, error)


def _tidy(deployment: Deployment, revision: Revision) -> None:
    """Let go of what nobody needs once it is COMMIT. Again is fine: a publisher may die before it gets here."""
    topology = revision.topology
    barriers = _barriers(deployment, revision)
    for barrier in barriers:
        write_entry(deployment, *entry_of(deployment, barrier))
    delete_files(deployment, topology, [barrier.barrier_id for barrier in barriers])
    if revision.head is not None and revision.last is not None:
        # nobody commits what was replaced at open barriers, and tidies up after that
        delete_files(deployment, topology, range(revision.head + 1, revision.last + 1), -revision.revision)


def _barriers(deployment: Deployment, revision: Revision) -> list[Barrier]:
    head = revision.head or 0
    return [
        barrier
        for barrier in deployment.meta.answers.readable(revision.topology)
        if revision.first_barrier <= barrier.barrier_id <= head
    ]


def _all_tables(deployment: Deployment, revision: Revision, barrier_ids: Iterable[int]) -> list[str]:
    """Return the tables that its attempts may have made branches on: what its jobs write, and what they read, also of a
    job that nobody declares any more.
    """
    meta, topology = deployment.meta, revision.topology
    attempts = [each for number in barrier_ids for each in meta.attempts.of(topology, number, revision.revision)]
    return sorted({*revision.tables, *(table for attempt in attempts for table in attempt.inputs)})
