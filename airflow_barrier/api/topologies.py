"""Deployments and their topologies: what readers have, what is open, and who is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query

from airflow_barrier.api import models
from airflow_barrier.api.access import Told, Wait, not_found, told_in_http
from airflow_barrier.api.cells import STAGED
from airflow_barrier.api.sight import AccessDep, SightDep, owners, seen
from airflow_barrier.api.summaries import barrier_of, failed_of, late_of, sinks_of
from airflow_barrier.api.waits import explained, has_failed, waits_of
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.lateness import Late, Standing, standings
from airflow_barrier.coordinator.status import sink_statuses
from airflow_barrier.metaservice.overviews import BarrierRow, Known, Overviews
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import SinkState
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.health import health_of

#: How many of the newest barriers a summary has.
_RECENT = 10
router = APIRouter(route_class=Told)


@router.get("/v1/deployments", operation_id="deployments", summary="The deployments that you see a topology of")
def deployments(access: AccessDep) -> models.Deployments:
    """A deployment whose MetaService does not answer is left out; if no other is seen, that is a 503."""
    found, failed = [], None
    for name in access.deployments():
        try:
            told = seen(access, access.meta_service(name).overviews.known())
        except BarrierError as error:
            failed = told_in_http(error)
        else:
            found += [models.Deployment(deployment=name)] if told else []
    if not found and isinstance(failed, HTTPException) and failed.status_code == 503:
        raise failed
    return models.Deployments(deployments=found)


@router.get(
    "/v1/deployments/{deployment}/topologies",
    operation_id="topologies",
    summary="Topologies at a glance, by their names",
)
def topologies(
    access: AccessDep,
    deployment: str,
    after: Annotated[str | None, Query(description="Of those with later names.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    dag: Annotated[str | None, Query(description="Of those that this DAG has jobs in.")] = None,
) -> models.Topologies:
    meta = access.meta_service(deployment)
    known = {each.name: each for each in meta.overviews.known()}
    told = seen(access, known.values())
    if not told:
        raise not_found()
    names = [name for name in sorted(told) if (after is None or name > after) and (dag is None or dag in told[name])]
    page = names[:limit]
    sinks = meta.overviews.failing_sinks(page)
    readable = access.readable({dag for each in sinks.values() for _, dag in each})
    failing = {topology: [sink for sink, dag in each if dag in readable] for topology, each in sinks.items()}
    asked = [known[name] for name in page]
    found = meta.overviews.together(lambda rows: _standings(rows, asked))
    waits = waits_of(access, _held_up(found), {dag for dags in told.values() for dag in dags})
    glance = _glance(deployment, asked, told, failing, found, waits)
    return models.Topologies(topologies=glance, after=page[-1] if len(names) > limit else None)


def all_topologies(meta: MetaService, deployment: str) -> models.Topologies:
    """For who may read everything: also those that have no jobs any more."""
    known = sorted(meta.overviews.known(), key=lambda each: each.name)
    told = {each.name: each.dags for each in known}
    sinks = meta.overviews.failing_sinks(list(told))
    failing = {topology: [sink for sink, _ in each] for topology, each in sinks.items()}
    found = meta.overviews.together(lambda rows: _standings(rows, known))
    return models.Topologies(topologies=_glance(deployment, known, told, failing, found, {}), after=None)


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}",
    operation_id="topology",
    summary="One topology: its jobs, sources and sinks, too",
)
def topology(sight: SightDep, deployment: str) -> models.Topology:
    jobs, tables = sight.jobs(), sight.tables
    dags = {job.owner: 0 for job in jobs}
    for job in jobs:
        dags[job.owner] += len(job.outlets)

    now = sight.topology
    known = Known(sight.name, sight.version, dict.fromkeys(owners(now.jobs), 0), now.freshness)
    sinks = sinks_of(sight, sink_statuses(sight.meta, sight.name))
    failing = [each.sink for each in sinks if each.error is not None and each.state == SinkState.ACTIVE.value]

    def look(rows: Overviews) -> tuple[dict[str, Standing], int | None]:
        staged = rows.served(sight.name, STAGED)
        return _standings(rows, [known]), None if staged is None else staged.barrier_id

    found, read_committed = sight.meta.overviews.together(look)
    waits = sight.waits_of(_held_up(found))
    (glance,) = _glance(deployment, [known], {sight.name: dags}, {sight.name: failing}, found, waits)
    return models.Topology(
        **dict(glance),
        jobs=[
            models.Job(
                job=job.name,
                dag=job.owner,
                inlets=[table for table in job.inlets if table in tables],
                outlets=list(job.outlets),
                sources=[source.name for source in job.externals],
            )
            for job in jobs
        ],
        sources=[
            models.Source(source=name, kind=kind)
            for name, kind in sorted({source.name: source.kind for job in jobs for source in job.externals}.items())
        ],
        sinks=sinks,
        read_committed=read_committed,
    )


def _standings(rows: Overviews, known: Sequence[Known]) -> dict[str, Standing]:
    return standings(rows, {each.name: each.freshness for each in known})


def _held_up(found: Mapping[str, Standing]) -> list[Late]:
    return [each for standing in found.values() for each in (*standing.late, *standing.expected)]


def _glance(
    deployment: str,
    known: Sequence[Known],
    told: Mapping[str, Mapping[str, int]],
    failing: Mapping[str, list[str]],
    found: Mapping[str, Standing],
    waits: Mapping[Awaited, Wait],
) -> list[models.TopologySummary]:
    """``told``: of each topology the DAGs that are seen, and how many tables they write. ``failing``: sinks of each.
    ``waits``: of these DAGs.
    """
    return [_summary(deployment, each, told[each.name], found[each.name], failing[each.name], waits) for each in known]


def _summary(
    deployment: str,
    known: Known,
    dags: Mapping[str, int],
    found: Standing,
    failing: list[str],
    waits: Mapping[Awaited, Wait],
) -> models.TopologySummary:
    hidden = len(known.dags.keys() - dags.keys())
    failed, late = failed_of(found.failed, dags), explained(found, waits)
    again_at = [*(each.again_at for each in failed), *([None] if has_failed(late, waits) else [])]

    def whole(barrier: BarrierRow) -> bool:  # of another version there may be DAGs that nobody asked about
        return not hidden and barrier.topology_version == known.version

    return models.TopologySummary(
        deployment=deployment,
        topology=known.name,
        version=known.version,
        dags=sorted(dags),
        tables=sum(dags.values()),
        health=health_of(found.states, again_at, late=bool(late_of(found.late, dags)), sink_fails=bool(failing)),
        readable=None if found.readable is None else barrier_of(found.readable, whole=whole(found.readable)),
        age=found.age,
        objective=known.freshness,
        open=len(found.in_flight),
        recent=[barrier_of(row, whole=whole(row)) for row in reversed(found.recent[:_RECENT])],
        failed=failed,
        late=late_of(late, dags),
        failing=failing,
        hidden_dags=hidden,
    )
