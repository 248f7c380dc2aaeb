"""Deployments and their topologies: what readers have, what is open, and who is late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

from fastapi import APIRouter, HTTPException, Query

from airflow_barrier.api import models
from airflow_barrier.api.access import Told, Wait, not_found, told_in_http
from airflow_barrier.api.cells import STAGED
from airflow_barrier.api.sight import AccessDep, SightDep, known_topologies, owners, seen
from airflow_barrier.api.summaries import barrier_of, failed_of, late_of, sinks_of
from airflow_barrier.api.waits import again_at, explained, waits_of
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.lateness import Late, Standing, standings
from airflow_barrier.coordinator.status import sink_statuses
from airflow_barrier.metaservice.overviews import Known, Overviews
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import SinkState
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.health import WORST_FIRST, Health, health_of
from airflow_barrier.protocol.records import Barrier

#: How many of the newest barriers a summary has.
_RECENT = 10
router = APIRouter(route_class=Told)


@router.get("/v1/deployments", operation_id="deployments", summary="The deployments that you see a topology of")
def deployments(
    access: AccessDep,
    dag: Annotated[str | None, Query(description="Only those that this DAG has jobs in.")] = None,
) -> models.Deployments:
    """Name those that cannot be asked to who sees a topology of another one; to others they are a 503."""
    told: dict[str, Mapping[str, Mapping[str, int]]] = {}
    failed: dict[str, HTTPException] = {}
    for name in access.deployments():
        try:
            told[name] = seen(access, known_topologies(access.meta_service(name)))
        except BarrierError as error:
            failed[name] = told_in_http(error)
    if not any(told.values()):
        for problem in failed.values():
            if problem.status_code == 503:
                raise problem
        return models.Deployments(deployments=[], failed=[])
    found = [
        name for name, topologies in told.items() if any(dag is None or dag in dags for dags in topologies.values())
    ]
    return models.Deployments(deployments=[models.Deployment(deployment=name) for name in found], failed=list(failed))


@router.get(
    "/v1/deployments/{deployment}/topologies",
    operation_id="topologies",
    summary="Topologies at a glance, the worst first",
)
def topologies(
    access: AccessDep,
    deployment: str,
    after: Annotated[str | None, Query(description="Of those behind these: what the list before says.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    dag: Annotated[str | None, Query(description="Of those that this DAG has jobs in.")] = None,
    name: Annotated[str, Query(description="Of those that have it in their name, or in that of a job or table.")] = "",
    health: Annotated[Health | None, Query(description="Of those that are so.")] = None,
) -> models.Topologies:
    """Count those that are found by `dag` and `name`, whatever their health."""
    meta = access.meta_service(deployment)
    known = known_topologies(meta)
    told = seen(access, known)
    if known and not told:
        raise not_found()
    asked = [
        each
        for each in known
        if each.name in told and (dag is None or dag in told[each.name]) and _has(each, name.lower(), told[each.name])
    ]
    if not asked:  # perhaps there is no MetaService yet
        return _page(deployment, [], [], None)
    sinks = meta.overviews.failing_sinks([each.name for each in asked])
    readable = access.readable({dag for each in sinks.values() for _, dag in each})
    failing = {topology: [sink for sink, dag in each if dag in readable] for topology, each in sinks.items()}
    found = meta.overviews.together(lambda rows: _standings(rows, asked))
    waits = waits_of(access, _held_up(found), {dag for dags in told.values() for dag in dags})
    glances = _glances(asked, told, failing, found, waits)
    listed = [each for each in glances if health in (None, each.health) and (after is None or each.place > after)]
    return _page(deployment, listed[:limit], glances, listed[limit - 1].place if len(listed) > limit else None)


def all_topologies(meta: MetaService, deployment: str) -> models.Topologies:
    """Return all topologies, also those without jobs by now: for who may read everything."""
    known = meta.overviews.known()
    told = {each.name: each.dags for each in known}
    sinks = meta.overviews.failing_sinks(list(told))
    failing = {topology: [sink for sink, _ in each] for topology, each in sinks.items()}
    found = meta.overviews.together(lambda rows: _standings(rows, known))
    glances = _glances(known, told, failing, found, {})
    return _page(deployment, glances, glances, None)


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
    known = Known(sight.name, sight.version, dict.fromkeys(owners(now.jobs), 0), now.freshness, {})
    sinks = sinks_of(sight, sink_statuses(sight.meta, sight.name))
    failing = [each.sink for each in sinks if each.error is not None and each.state == SinkState.ACTIVE.value]

    def look(rows: Overviews) -> tuple[dict[str, Standing], int | None]:
        staged = rows.served(sight.name, STAGED)
        return _standings(rows, [known]), None if staged is None else staged.barrier_id

    found, read_committed = sight.meta.overviews.together(look)
    waits = sight.waits_of(_held_up(found))
    (glance,) = _glances([known], {sight.name: dags}, {sight.name: failing}, found, waits)
    return models.Topology.of(
        _summary(deployment, glance),
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


def _has(known: Known, name: str, dags: Iterable[str]) -> bool:
    """Return whether the topology, or a job or table of ``dags``, has it in its name."""
    return name in known.name.lower() or any(name in known.names[dag] for dag in dags)


class _Glance(NamedTuple):
    """A topology as a caller sees it. ``dags``: those that are seen, and how many tables they write. ``failing``:
    sinks.
    """

    known: Known
    dags: Mapping[str, int]
    standing: Standing
    failed: list[models.Failed]
    late: list[models.Late]
    failing: list[str]
    health: Health

    @property
    def place(self) -> str:
        """Its place in the list: the worst first, of those the one whose readers have the oldest."""
        readable = self.standing.readable
        since = "" if readable is None else readable.timestamp.isoformat()
        return f"{WORST_FIRST.index(self.health)} {since} {self.known.name}"


def _standings(rows: Overviews, known: Sequence[Known]) -> dict[str, Standing]:
    return standings(rows, {each.name: each.freshness for each in known})


def _held_up(found: Mapping[str, Standing]) -> list[Late]:
    return [each for standing in found.values() for each in (*standing.late, *standing.expected)]


def _glances(
    known: Sequence[Known],
    told: Mapping[str, Mapping[str, int]],
    failing: Mapping[str, list[str]],
    found: Mapping[str, Standing],
    waits: Mapping[Awaited, Wait],
) -> list[_Glance]:
    """Return glances in the order of the list. That takes a look at all of them; how they stand is remembered.
    ``told``: of each topology the DAGs that are seen, and how many tables they write. ``failing``: sinks of each.
    ``waits``: of these DAGs.
    """
    glances = []
    for each in known:
        standing, dags, sinks = found[each.name], told[each.name], failing[each.name]
        failed, late = failed_of(standing.failed, dags), explained(standing, waits)
        is_late = bool(late_of(standing.late, dags))
        health = health_of(standing.states, again_at(failed, late, waits), late=is_late, sink_fails=bool(sinks))
        glances.append(_Glance(each, dags, standing, failed, late_of(late, dags), sinks, health))
    return sorted(glances, key=lambda each: each.place)


def _page(deployment: str, page: Sequence[_Glance], of: Sequence[_Glance], after: str | None) -> models.Topologies:
    counts = Counter(each.health for each in of)
    return models.Topologies(
        topologies=[_summary(deployment, each) for each in page],
        counts={health: counts[health] for health in WORST_FIRST if counts[health]},
        after=after,
    )


def _summary(deployment: str, glance: _Glance) -> models.TopologySummary:
    known, dags, standing = glance.known, glance.dags, glance.standing
    hidden = len(known.dags.keys() - dags.keys())

    def whole(barrier: Barrier) -> bool:  # of another version there may be DAGs that nobody asked about
        return not hidden and barrier.topology_version == known.version

    readable = standing.readable
    return models.TopologySummary(
        deployment=deployment,
        topology=known.name,
        version=known.version,
        dags=sorted(dags),
        tables=sum(dags.values()),
        health=glance.health,
        readable=None if readable is None else barrier_of(readable, whole=whole(readable)),
        age=standing.age,
        objective=known.freshness,
        revision=standing.revision,
        open=len(standing.in_flight),
        recent=[barrier_of(row, whole=whole(row)) for row in reversed(standing.recent[:_RECENT])],
        failed=glance.failed,
        late=glance.late,
        failing=glance.failing,
        hidden_dags=hidden,
    )
