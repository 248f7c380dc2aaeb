"""Compaction as a barrier of its own: what is staged at later barriers stands on it, and no reader sees rows change.

The barrier is opened on the head and inherits its timestamp. Each table is rewritten on an attempt branch once it is
PROCESSED at the barrier before; tables that nobody rewrites are carried. Whoever dies over it is taken over from by the
next compaction; whoever fails lets go, and what comes after goes on with the tables as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_barrier.coordinator.committing import commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Later
from airflow_barrier.coordinator.staging import absorb_compactions, check_and_report
from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.metaservice.maintenance import Upkeep
from airflow_barrier.protocol.errors import (
    BarrierError,
    CompactionError,
    GatedError,
    StagedTableError,
    TooManyOpenBarriersError,
)
from airflow_barrier.protocol.records import Attempt, Barrier, Need, RunRef, StagedTable
from airflow_barrier.protocol.restaging import refuse_ended
from airflow_barrier.protocol.states import UNCOMMITTED_BARRIERS, UNDER_WAY_ATTEMPTS, AttemptState, BarrierState

log = logging.getLogger(__name__)

#: Rewrites what a branch of a table holds into other files, and says in words what it did.
Rewrite = Callable[[str, str], object]


@dataclass(frozen=True)
class Compactor:
    """The DAG that compacts, in its ``run``. ``request_key`` and ``generation`` as in an attempt."""

    run: RunRef
    request_key: str
    generation: str
    actor: str


@dataclass(frozen=True)
class Compacted:
    """A compaction's progress: ``barrier`` as it is now, and what its tables still ``needs`` at the barrier before.

    ``waiting``: the attempts of these tables, for which others wait.
    """

    barrier: Barrier
    needs: tuple[Need, ...] = ()
    waiting: tuple[int, ...] = ()

    @property
    def over(self) -> bool:
        return self.barrier.state not in UNCOMMITTED_BARRIERS


def open_compaction(
    deployment: Deployment, topology: str, tables: Sequence[str] | None, compactor: Compactor
) -> Barrier | Later | None:
    """The barrier at which ``tables`` (None: all) are compacted: a new one on the head, or the unfinished one.

    None: there is nothing to compact, since no barrier was opened yet, or none after the last compaction. Raises
    UnknownTopologyError, UnknownTableError.
    """
    try:
        barrier = deployment.meta.maintenance.open(
            Upkeep(
                topology,
                tables,
                run=compactor.run,
                request_key=compactor.request_key,
                generation=compactor.generation,
                max_open=deployment.max_open_barriers,
                actor=compactor.actor,
            ),
        )
    except (TooManyOpenBarriersError, GatedError) as error:
        return Later(str(error))
    if barrier is not None and barrier.run.key != compactor.run.key:
        log.warning("%s was opened by %s and is unfinished: going on with it", barrier, barrier.run)
    return barrier


def worth_compacting(deployment: Deployment, topology: str, target: int | None = None) -> list[str]:
    """Return the tables of the newest barrier of which so much is read in vain that their compaction pays; the log says
    of each what was found. Asks no Spark.

    ``target``: how large files are to be, in bytes; None: as each table says. Raises UnknownTopologyError.

    >>> worth_compacting(deployment, "shopping")  # doctest: +SKIP
    ['shop.shopping']
    """
    still = deployment.meta.topologies.get(topology).tables
    latest = deployment.meta.barriers.head(topology)
    rows = deployment.meta.barriers.progress(topology, latest.barrier_id) if latest is not None else ()
    readings = deployment.tables.readings([row.table for row in rows if row.table in still], target)
    for table, reading in readings.items():
        log.info("%s: compaction %s: %s", table, "pays" if reading.pays else "does not pay", reading)
    return [table for table, reading in readings.items() if reading.pays]


def compact(deployment: Deployment, barrier: Barrier, rewrite: Rewrite, compactor: Compactor) -> Compacted:
    """Rewrite every table of ``barrier`` that waits for it and can be, carry the others, and commit if that is all.

    Call it again when what it ``needs`` is there, until it is ``over``. A barrier before it that is not COMMIT yet is
    left to its own commit task, which takes this one along or leaves it to the next call. Raises CompactionError, once
    all other tables are done, if ``rewrite`` did; FencedAttemptError if somebody else went on with it,
    VoidedAttemptError if a revision was published meanwhile, and BarrierAbortedError. After any other error call
    :func:`let_go`.
    """
    meta = deployment.meta
    failed: list[str] = []
    needs: list[Need] = []
    waiting: list[int] = []
    for attempt in _taken(deployment, barrier, compactor):
        (table,) = meta.topologies.get(barrier.topology, barrier.topology_version).job(attempt.job).outlets
        try:
            lacks = _compact_table(deployment, attempt, table, rewrite, compactor.actor)
        except CompactionError as error:
            log.warning("%s: %s", barrier, error)
            failed.append(str(error))
            meta.attempts.abort(attempt.attempt_id, str(error), compactor.actor)
        else:
            needs += lacks
            waiting += [attempt.attempt_id] if lacks else []
    carried = meta.maintenance.carry(barrier.topology, barrier.barrier_id, compactor.actor)
    if carried:
        log.info("%s: %d tables carried as they were", barrier, carried)
    barrier = _commit(deployment, barrier, compactor.actor)
    if failed:
        raise CompactionError(
            f"{barrier}: expected to compact its tables, found that {len(failed)} could not be: {'; '.join(failed)}. "
            "They stand as they were: mend the cause, and the next compaction takes them"
        )
    return Compacted(barrier, tuple(needs), tuple(waiting))


def let_go(deployment: Deployment, barrier: Barrier, reason: str, compactor: Compactor) -> None:
    """Give up what is not rewritten yet: the barriers after this one go on with the tables as they were."""
    for attempt in _under_way(deployment, barrier):
        if attempt.request_key == compactor.request_key:
            deployment.meta.attempts.abort(attempt.attempt_id, reason, compactor.actor)
    carried = deployment.meta.maintenance.carry(barrier.topology, barrier.barrier_id, compactor.actor)
    log.info("%s: compaction given up (%s); %d tables carried as they were", barrier, reason, carried)


def _under_way(deployment: Deployment, barrier: Barrier) -> list[Attempt]:
    attempts = deployment.meta.attempts.of(barrier.topology, barrier.barrier_id)
    return [attempt for attempt in attempts if attempt.state in UNDER_WAY_ATTEMPTS]


def _taken(deployment: Deployment, barrier: Barrier, compactor: Compactor) -> list[Attempt]:
    """Claim every table's attempt before the first compaction starts, because each one takes long. Attempts that
    another run has closed come first: they only need reporting.
    """
    taken = []
    for begun in _under_way(deployment, barrier):
        job = (barrier.topology, barrier.barrier_id, begun.job)
        us: dict[str, Any] = {
            "request_key": compactor.request_key,
            "generation": begun.generation,
            "actor": compactor.actor,
            "owner": None,
        }
        if begun.request_key != compactor.request_key:
            deployment.meta.attempts.lead(Request(*job, **us))
        taken.append(deployment.meta.attempts.request(Request(*job, **us)))
    return sorted(taken, key=lambda attempt: attempt.state is not AttemptState.CLOSED)


def _compact_table(
    deployment: Deployment, attempt: Attempt, table: str, rewrite: Rewrite, actor: str
) -> tuple[Need, ...]:
    """One table; what it needs first, if anything."""
    meta = deployment.meta
    if attempt.state is AttemptState.REQUESTED:
        started = meta.attempts.start(attempt.attempt_id)
        if isinstance(started, tuple):
            log.info("%s waits for %s", attempt, ", ".join(map(str, started)))
            return started
        try:
            attempt = _rewrite(deployment, absorb_compactions(deployment, started), table, rewrite, actor)
        except BarrierError:
            now = meta.attempts.get(attempt.attempt_id)
            if now.state in (AttemptState.FENCED, AttemptState.VOIDED):
                # what it met is the work of those who superseded it, or a revision's since, and no stranger's
                refuse_ended(now)
            raise
    if attempt.state is AttemptState.CLOSED:
        check_and_report(deployment, attempt, actor)
    return ()


def _rewrite(deployment: Deployment, attempt: Attempt, table: str, rewrite: Rewrite, actor: str) -> Attempt:
    base = attempt.bases[table]
    deployment.tables.prepare({table: base}, attempt.stamp)
    if base is not None:
        log.info("%s: %s: %s", attempt, table, rewrite(table, attempt.branch))
    staged = deployment.tables.staged(table, attempt.stamp, base)
    operations = {
        summary.get("operation") for summary in deployment.tables.staged_summaries(table, attempt.stamp, base)
    }
    if staged is not None and operations != {"replace"}:
        raise StagedTableError(  # safety: compaction-changes-no-row
            f"{attempt}: expected snapshots of {table} on branch {attempt.branch} that change no row (replace), found "
            f"{', '.join(sorted(map(str, operations)))}; something else wrote to the branch: run the compaction again"
        )
    record = {table: StagedTable(table, staged, unchanged=staged is None)}
    return deployment.meta.attempts.close(attempt.attempt_id, record, actor)


def _commit(deployment: Deployment, barrier: Barrier, actor: str) -> Barrier:
    """Commit ``barrier`` if it is complete and its turn has come; the one before it may have checks of its author's."""
    meta = deployment.meta
    barrier = meta.barriers.get(barrier.topology, barrier.barrier_id)
    before = meta.barriers.get(barrier.topology, barrier.predecessor or 0)
    if barrier.state is not BarrierState.OPEN and before.state is BarrierState.COMMIT:
        commit_barrier(deployment, barrier.topology, barrier.barrier_id, actor=actor)
    return meta.barriers.get(barrier.topology, barrier.barrier_id)
