"""What goes in and out, who reads, and what is computed again: sources, sinks, leases and revisions."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence, Set
from operator import attrgetter
from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Query

from airflow_barrier.api import models, offers
from airflow_barrier.api.access import Access, BeforeRevision, RevisionNumber, Told
from airflow_barrier.api.sight import AccessDep, Sight, SightDep, owners
from airflow_barrier.api.summaries import sinks_of
from airflow_barrier.coordinator.revisions.backfills import awaited
from airflow_barrier.coordinator.status import SourceStatus, sink_statuses, source_statuses
from airflow_barrier.protocol.leases import Lease
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.topology import Job

#: Seconds in which a source is asked once, whoever looks.
_ASKED_EVERY = 10.0
#: Of each topology what each source has answered, and when; and who asks them, one at a time.
_answers: dict[tuple[str, str], dict[str, tuple[float, SourceStatus]]] = defaultdict(dict)
_asking: dict[tuple[str, str], threading.Lock] = defaultdict(threading.Lock)
router = APIRouter(route_class=Told)


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/sources",
    operation_id="sources",
    summary="How far behind the sources it is; they are asked, a source once in some seconds",
)
def sources(access: AccessDep, sight: SightDep) -> models.Sources:
    seen = {source.name for job in sight.jobs() for source in job.externals}
    return models.Sources(
        sources=[
            models.Lag(
                source=each.source,
                kind=each.kind,
                barrier_id=each.barrier_id,
                behind=None if each.lag is None else each.lag.behind,
                unit=None if each.lag is None else each.lag.unit,
                urgent=each.lag is not None and each.lag.is_urgent,
                note=None if each.lag is None else each.lag.note,
                unknown=each.unknown,
            )
            for each in _asked(sight, access, seen)
        ]
    )


def _asked(sight: Sight, access: Access, sources: Set[str]) -> list[SourceStatus]:
    """Return how far behind these sources it is, as of a few seconds ago: brokers and buckets are not asked by each
    look.
    """
    topology = sight.meta.url, sight.name
    with _asking[topology]:
        now = monotonic()
        known = {name: status for name, (at, status) in _answers[topology].items() if now - at < _ASKED_EVERY}
        found = source_statuses(sight.meta, sight.name, access.credentials, only=sources - known.keys())
        _answers[topology].update((each.source, (now, each)) for each in found)
    return sorted((each for each in (*known.values(), *found) if each.source in sources), key=attrgetter("source"))


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/sinks",
    operation_id="sinks",
    summary="What each sink was delivered, and what it lacks",
)
def sinks(sight: SightDep) -> models.Sinks:
    return models.Sinks(sinks=sinks_of(sight, sink_statuses(sight.meta, sight.name)))


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/leases",
    operation_id="leases",
    summary="Which barriers readers hold",
)
def leases(sight: SightDep) -> models.Leases:
    return leases_of(sight, sight.meta.leases.of(sight.name))


def leases_of(sight: Sight, found: Sequence[Lease]) -> models.Leases:
    whole = sight.sees_all(owners(sight.topology.jobs))
    actions = offers.of_leases(sight, found)
    holding_up = sight.meta.leases.holding_up(sight.name)
    return models.Leases(
        leases=[
            models.Lease.of(
                each,
                holder=each.holder if whole else None,
                holds_up=holding_up.get(each.lease_id, 0),
                actions=actions[each.lease_id],
            )
            for each in found
        ]
    )


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/revisions",
    operation_id="revisions",
    summary="Revisions, the newest first",
)
def revisions(
    sight: SightDep, before: BeforeRevision = None, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> models.Revisions:
    found = sight.meta.revisions.newest(sight.name, limit + 1, before=before)
    page = found[:limit]
    waiting = sight.joining(page)
    return models.Revisions(
        revisions=[_revision(sight, each, waiting) for each in page],
        before=page[-1].revision if len(found) > limit else None,
    )


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/revisions/{revision}",
    operation_id="revision",
    summary="One revision: how far its barriers are, and what is missing",
)
def revision(sight: SightDep, revision: RevisionNumber) -> models.RevisionDetail:
    found, barriers = sight.meta.overviews.revised(sight.name, revision)
    waiting = sight.joining([found])
    joining = [job for job in waiting if sight.sees(job.owner)]
    jobs = {job.name: job for job in (*sight.jobs(), *joining) if job.name in found.jobs}
    newest = sight.meta.overviews.newest_attempts(
        sight.name, [each.barrier_id for each in barriers], jobs, line=found.revision
    )
    versions = sight.versions({each.topology_version for each in barriers})
    tables = sight.tables.union(*(job.outlets for job in joining))
    told = []
    for barrier in barriers:
        here = {
            job.name: job for job in (*sight.jobs(versions[barrier.topology_version]), *joining) if job.name in jobs
        }
        attempts = {name: newest.get((barrier.barrier_id, name)) for name in here}
        told.append(
            models.RevisionProgress.of(
                barrier,
                jobs={
                    name: sight.summary(each and each.attempt, here[name], tables, member=False)
                    for name, each in attempts.items()
                },
            )
        )
    whole = jobs.keys() >= set(found.jobs)
    unstaged = sight.meta.revisions.unstaged_barriers(sight.name, revision) if whole and found.is_under_way else []
    runs = sight.meta.revisions.runs(sight.name, revision)
    sight.ask(run.dag_id for run in runs)
    hidden = {job.owner for job in (*sight.topology.jobs, *waiting) if job.name in found.jobs}
    return models.RevisionDetail.of(
        _revision(sight, found, waiting),
        runs=[models.RevisionRun.of(run, barrier_id=run.barrier_id or None) for run in runs if sight.sees(run.dag_id)],
        barriers=told,
        missing=[models.RevisionMissing.of(each.barrier, tables=each.tables, why=each.why) for each in unstaged],
        awaited=[each.barrier_id for each in awaited(sight.meta, found)],
        actions=offers.of_revision(sight, found, versions),
        hidden_dags=sight.hidden(hidden),
    )


def _revision(sight: Sight, revision: Revision, waiting: Sequence[Job]) -> models.Revision:
    """Return a revision as it is seen. The DAG of a job that has left is unknown: all is told to nobody."""
    seen = [job for job in (*sight.topology.jobs, *waiting) if sight.sees(job.owner)]
    jobs, tables = {job.name for job in seen}, {table for job in seen for table in job.outlets}
    whole = jobs.issuperset(revision.jobs)
    return models.Revision.of(
        revision,
        tables=[table for table in revision.tables if table in tables],
        jobs=[job for job in revision.jobs if job in jobs],
        changed=[job for job in revision.changed if job in jobs],
        actor=revision.actor if whole else None,
        reason=revision.reason if whole else None,
    )
