"""Committing barriers: decide once, publish all tables, and be repeatable by anyone after any crash."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_barrier.coordinator.cuts import release_sources
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import check_lead, check_origin, write_entry
from airflow_barrier.coordinator.staging import closing_uri, spec_uri
from airflow_barrier.protocol.errors import BarrierAbortedError, ForeignWriteError, NotPrecommitError
from airflow_barrier.protocol.names import tag_name
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
    BarrierAbortedError; ForeignWriteError when somebody else moved a table (before the decision: nothing has
    happened; after it: the barrier is BLOCKED and readers stay at the one before).
    """
    barrier = deployment.meta.barrier(topology, barrier_id)
    if barrier.state is BarrierState.ABORTED:
        raise BarrierAbortedError(f"{barrier} was aborted ({barrier.reason}); its epoch is part of the next barrier")
    published: list[Barrier] = []
    for candidate in deployment.meta.open_barriers(topology):
        if candidate.barrier_id > barrier_id:
            break
        try:
            published.append(_commit_one(deployment, candidate, actor))
        except NotPrecommitError:
            now = deployment.meta.barrier(topology, candidate.barrier_id)
            missing = [
                progress
                for progress in deployment.meta.progress(topology, candidate.barrier_id)
                if progress.state is TableState.PENDING
            ]
            return NotYet(now, tuple(missing))
    return Committed(deployment.meta.barrier(topology, barrier_id), tuple(published))


def _commit_one(deployment: Deployment, barrier: Barrier, actor: str) -> Barrier:
    meta = deployment.meta
    if barrier.state is BarrierState.BLOCKED:
        raise ForeignWriteError(f"{barrier} is BLOCKED: {barrier.reason}; a person has to decide")
    if barrier.state is BarrierState.OPEN:
        raise NotPrecommitError(f"{barrier} is OPEN")
    if barrier.state is BarrierState.PRECOMMIT:
        check_lead(deployment, barrier.topology)
        _decide(deployment, barrier, actor)
    write_entry(deployment, barrier)
    _publish(deployment, barrier, actor)
    # what the predecessor's cut holds was the start of this epoch, which is published now
    release_sources(deployment, barrier, barrier.predecessor or 0)
    # nor does anybody read the epoch specs of a committed barrier any more, and they would pile up
    attempts = meta.attempts(barrier.topology, barrier.barrier_id)
    deployment.tables.delete(uri(deployment, attempt) for attempt in attempts for uri in (spec_uri, closing_uri))
    return meta.barrier(barrier.topology, barrier.barrier_id)


def _decide(deployment: Deployment, barrier: Barrier, actor: str) -> None:
    """PRECOMMIT -> COMMITTING, unless another committer of the same barrier was faster."""
    meta = deployment.meta
    try:
        # the last look before the decision: from here on a foreign write can only block, not refuse
        expected = {
            table: _current(deployment, barrier, table, snapshot_id)
            for table, snapshot_id in _published_before(deployment, barrier).items()
        }
    except ForeignWriteError:
        # while nobody has decided, no committer moves a table; afterwards it was one of us who did
        if meta.barrier(barrier.topology, barrier.barrier_id).state not in DECIDED_BARRIERS:
            raise
        return
    meta.begin_commit(barrier.topology, barrier.barrier_id, expected, actor)
    log.info("%s is COMMITTING", barrier)


def _current(deployment: Deployment, barrier: Barrier, table: str, expected: int | None) -> int | None:
    try:
        return deployment.tables.current(table, expected)
    except ForeignWriteError:
        check_origin(deployment, barrier.topology, table)
        raise


def _publish(deployment: Deployment, barrier: Barrier, actor: str) -> None:
    meta = deployment.meta
    publications = _publications(deployment, barrier)
    try:
        if deployment.shares_database:
            _publish_with_commit(deployment, barrier, publications, actor)
        else:
            deployment.tables.publish(publications)
            with meta.publishing(barrier.topology, barrier.barrier_id, actor):
                pass  # published already: only COMMIT is left to write down
    except ForeignWriteError as error:
        after = meta.block(barrier.topology, barrier.barrier_id, str(error), actor)
        if after.state is BarrierState.COMMIT:
            return  # another committer has published it, and main went on to a later barrier meanwhile
        raise
    log.info("%s is COMMIT: published %s", barrier, ", ".join(p.table for p in publications if p.new != p.expected))


def _publish_with_commit(
    deployment: Deployment, barrier: Barrier, publications: Sequence[Publication], actor: str
) -> None:
    """Tables and COMMIT in one transaction; what takes time is done before it begins."""
    with (
        deployment.tables.staging(publications) as staging,
        deployment.meta.publishing(barrier.topology, barrier.barrier_id, actor) as connection,
    ):
        if connection is not None:  # None: somebody else has committed it meanwhile
            deployment.tables.publish(publications, connection, staging)


def _publications(deployment: Deployment, barrier: Barrier) -> list[Publication]:
    drop_tags = tuple(
        tag_name(barrier.topology, dropped, barrier.revision)
        for dropped in deployment.tag_policy.dropped(barrier.predecessor or 0, barrier.barrier_id)
    )
    return [
        Publication(
            table=progress.table,
            topology=barrier.topology,
            barrier_id=barrier.barrier_id,
            expected=progress.expected_snapshot,
            # a carried table keeps what main is at, which may be a compaction of what is carried
            new=progress.expected_snapshot if progress.carried_from is not None else progress.snapshot_id,
            tag=barrier.tag,
            drop_tags=drop_tags,
        )
        for progress in deployment.meta.progress(barrier.topology, barrier.barrier_id)
    ]


def _published_before(deployment: Deployment, barrier: Barrier) -> Mapping[str, int | None]:
    """What `main` of each of the barrier's tables must be at: the predecessor's snapshot, or its baseline."""
    meta = deployment.meta
    baseline = {p.table: p.snapshot_id for p in meta.progress(barrier.topology, 0)}
    before = {p.table: p.snapshot_id for p in meta.progress(barrier.topology, barrier.predecessor or 0)}
    tables = [progress.table for progress in meta.progress(barrier.topology, barrier.barrier_id)]
    return {table: before.get(table, baseline.get(table)) for table in tables}
