"""The way out of BLOCKED: a person says whose snapshot of a table stands, and the next commit rolls forward."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_barrier.coordinator.blocking import IN_THE_WAY, reason_of, resolve_command
from airflow_barrier.coordinator.committing import publications_of, set_aside
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.metaservice.commits import Settled, raise_not_blocked
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    MissingTableError,
    SnapshotMissingError,
    UnknownTableError,
)
from airflow_barrier.protocol.names import set_aside_tag
from airflow_barrier.protocol.records import Attempt, Barrier, TableProgress
from airflow_barrier.protocol.states import BarrierState, Decision
from airflow_barrier.protocol.topology import downstream_jobs
from airflow_barrier.tables.port import Publication

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resolved:
    """A decision on a conflict. ``barrier`` is COMMITTING again, to be published by the next commit; or still BLOCKED,
    because another table is in the way.

    ``decision`` None: nothing was in the way any more. ``tag`` keeps the snapshot that does not stand, from the publish
    on; None if there is none. ``computed_from_ours``: tables of this barrier that were computed from our snapshot of
    this one, which does not stand. ``voided``: attempts at later barriers that stood on what was decided against.
    """

    barrier: Barrier
    table: str
    decision: Decision | None
    theirs: int | None = None
    ours: int | None = None
    tag: str | None = None
    computed_from_ours: tuple[str, ...] = ()
    voided: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class InTheWay:
    """A table about which a person decides, and what there is to choose from.

    ``finding``: what was expected and found. None: nothing is in the way any more, and KEEP_OURS goes on. ``possible``:
    what the next commit could carry out. ``tag`` will keep what does not stand. ``computed_from_ours`` as in
    :class:`Resolved`.
    """

    table: str
    finding: BarrierError | None
    possible: tuple[Decision, ...]
    theirs: int | None
    ours: int | None
    tag: str
    computed_from_ours: tuple[str, ...]


def in_the_way(deployment: Deployment, topology: str, barrier_id: int) -> list[InTheWay]:
    """The tables that are in the way of a BLOCKED barrier. Nothing is changed.

    Raises IllegalTransitionError unless it is BLOCKED, CatalogUnavailableError.
    """
    barrier = _blocked(deployment, topology, barrier_id)
    rows = {row.table: row for row in deployment.meta.barriers.progress(topology, barrier_id)}
    planned = {each.table: each for each in publications_of(deployment, barrier)}
    findings = deployment.tables.findings(list(planned.values()))
    tag = set_aside_tag(topology, barrier_id, barrier.computed_in)
    if not findings:
        table = min(rows)
        return [InTheWay(table, None, (Decision.KEEP_OURS,), None, _ours(rows[table]), tag, ())]
    # nothing can be decided about a table that cannot be looked at
    mains = deployment.tables.mains(
        [table for table, each in findings.items() if not isinstance(each, (MissingTableError, ConfigurationError))]
    )
    found = []
    for table, finding in sorted(findings.items()):
        ours, theirs, possible = _ours(rows[table]), mains.get(table), []
        for decision in Decision if table in mains else ():
            with suppress(*IN_THE_WAY):
                _check(deployment, barrier, _decided(barrier, planned[table], decision, theirs, ours))
                possible.append(decision)
        readers = _readers(deployment, barrier, table)
        found.append(InTheWay(table, finding, tuple(possible), theirs, ours, tag, readers))
    return found


def resolve_table(
    deployment: Deployment, topology: str, barrier_id: int, table: str, decision: Decision, *, reason: str, actor: str
) -> Resolved:
    """Decide about one table that is in the way of a BLOCKED barrier.

    KEEP_OURS: the next commit publishes what this barrier staged over exactly the snapshot that `main` is at now; if it
    moves again before, the barrier is BLOCKED again. ADOPT_THEIRS: that snapshot is the table at this barrier, and what
    this barrier staged of it is dropped.

    Raises IllegalTransitionError unless the barrier is BLOCKED, UnknownTableError, MissingTableError,
    ConfigurationError (this table is not in the way, or cannot be decided that way), SnapshotMissingError (ours is
    gone), RefTakenError.
    """
    barrier = _blocked(deployment, topology, barrier_id)
    rows = {row.table: row for row in deployment.meta.barriers.progress(topology, barrier_id)}
    if table not in rows:
        raise UnknownTableError(
            f"{barrier}: expected one of its tables, which are {', '.join(rows)}; found {table}; correct the name"
        )
    planned = publications_of(deployment, barrier)
    findings = deployment.tables.findings(planned)
    if table not in findings:
        return _not_in_the_way(deployment, barrier, table, decision, findings, reason, actor)
    if isinstance(findings[table], (MissingTableError, ConfigurationError)):
        raise findings[table]  # nothing can be decided about a table that cannot be looked at
    theirs, ours = deployment.tables.mains([table])[table], _ours(rows[table])
    current = next(each for each in planned if each.table == table)
    _check(deployment, barrier, _decided(barrier, current, decision, theirs, ours))
    settled = Settled(table, decision, theirs, ours, reason, actor)
    after, voided = deployment.meta.publishing.settle(topology, barrier_id, settled)
    log.info("%s: %s for %s by %s: %s", barrier, decision.value, table, actor, reason)
    if still := deployment.tables.findings(publications_of(deployment, after)):
        after = deployment.meta.publishing.block(topology, barrier_id, reason_of(barrier, still), actor)
    aside = theirs if decision is Decision.KEEP_OURS else ours
    return Resolved(
        barrier=after,
        table=table,
        decision=decision,
        theirs=theirs,
        ours=ours,
        tag=next(iter(set_aside(barrier, aside)), None),
        computed_from_ours=_readers(deployment, barrier, table) if decision is Decision.ADOPT_THEIRS else (),
        voided=voided,
    )


def _blocked(deployment: Deployment, topology: str, barrier_id: int) -> Barrier:
    """Raises IllegalTransitionError unless it is BLOCKED."""
    barrier = deployment.meta.barriers.get(topology, barrier_id)
    if barrier.state is not BarrierState.BLOCKED:
        raise_not_blocked(barrier)  # safety: only-blocked-is-unblocked
    return barrier


def _not_in_the_way(
    deployment: Deployment,
    barrier: Barrier,
    table: str,
    decision: Decision,
    findings: dict[str, BarrierError],
    reason: str,
    actor: str,
) -> Resolved:
    """Somebody has mended the table by hand, or it is another one that is in the way."""
    if findings:
        raise ConfigurationError(
            f"{barrier}: expected a table that is in the way, found that {table} can be published; in the way are "
            f"{', '.join(sorted(findings))}: decide about these"
        )
    if decision is Decision.ADOPT_THEIRS:
        keep = resolve_command(barrier, table, Decision.KEEP_OURS)
        raise ConfigurationError(
            f"{barrier}: expected somebody else's snapshot of {table} to adopt, found that nothing is in the way any "
            f"more; `{keep}` goes on"
        )
    after = deployment.meta.publishing.unblock(barrier.topology, barrier.barrier_id, reason, actor)
    return Resolved(after, table, None)


def _ours(row: TableProgress) -> int | None:
    """Return the barrier's own snapshot of a table, whatever was decided before."""
    if row.decision is Decision.ADOPT_THEIRS:
        return row.set_aside
    # of a carried table, what main was at: maybe a compaction of what is carried
    return row.expected_snapshot if row.carried_from is not None and row.decision is None else row.snapshot_id


def _decided(
    barrier: Barrier, current: Publication, decision: Decision, theirs: int | None, ours: int | None
) -> Publication:
    """The publication as it will be with the decision."""
    keep = decision is Decision.KEEP_OURS
    return replace(
        current,
        expected=theirs,
        new=ours if keep else theirs,
        decision=decision,
        set_aside=set_aside(barrier, theirs if keep else ours),
    )


def _check(deployment: Deployment, barrier: Barrier, decided: Publication) -> None:
    """Refuse a decision that the next commit could not carry out."""
    adopt = resolve_command(barrier, decided.table, Decision.ADOPT_THEIRS)
    if decided.decision is Decision.KEEP_OURS and decided.new is None:
        raise ConfigurationError(
            f"{barrier}: expected a snapshot of {decided.table} to keep, found that this barrier leaves the table "
            f"without any, and main cannot be set back to none; `{adopt}` takes what main is at"
        )
    finding = deployment.tables.findings([decided]).get(decided.table)
    if isinstance(finding, SnapshotMissingError):
        raise SnapshotMissingError(  # safety: kept-snapshot-is-there
            f"{barrier}: expected what it staged of {decided.table}, snapshot {decided.new}, found it is gone "
            "(expired, or the table was dropped and made again), so it cannot be kept; "
            f"`{adopt}` takes what main is at"
        )
    if finding is not None:
        raise finding  # safety: decision-can-be-carried-out


def _readers(deployment: Deployment, barrier: Barrier, table: str) -> tuple[str, ...]:
    """The tables of this barrier that were computed from ``table``, directly or through others."""
    topology = deployment.meta.topologies.get(barrier.topology, barrier.topology_version)
    jobs = downstream_jobs(topology, *(job.name for job in topology.readers(table)))
    return tuple(sorted(outlet for name in jobs for outlet in topology.job(name).outlets))
