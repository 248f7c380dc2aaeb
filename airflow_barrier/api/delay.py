"""Delay as the API and ``--json`` tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from airflow_barrier.api import models
from airflow_barrier.api.access import BarrierId, Told, not_found
from airflow_barrier.api.sight import Sight, SightDep
from airflow_barrier.coordinator.delay import BarrierDelay, Delay, barrier_delay, delay
from airflow_barrier.protocol.delay import Part, Segment

#: A quarter of a year.
_LONGEST = 92 * 86_400
router = APIRouter(route_class=Told)

#: Whether the caller may know of a job, or of a DAG.
Seen = Callable[[str], bool]


def everything(name: str) -> bool:
    """Return True, for callers that may know of all jobs and DAGs."""
    return True


def told(found: Delay, seen: Seen = everything, sees_dag: Seen = everything) -> models.Delay:
    """Give what jobs that are not ``seen`` took as one share of each part, of no job."""
    shares: dict[tuple[Part, str | None, str | None], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for one in found.blame:
        known = one.job is not None and seen(one.job)
        share = shares[one.part, one.job if known else None, one.dag if known else None]
        share[0] += one.seconds
        share[1] += one.share
    blame = [
        models.Blame(part=part.value, job=job, dag=dag, seconds=seconds, share=share)
        for (part, job, dag), (seconds, share) in shares.items()
    ]
    return models.Delay(
        topology=found.topology,
        table=found.table,
        window=found.window.total_seconds(),
        objective=None if found.objective is None else found.objective.total_seconds(),
        barriers=len(found.points),
        missed=found.missed,
        percentiles=dict(found.percentiles),
        scheduled=dict(found.scheduled),
        present=models.Present.of(found.present),
        points=[models.DelayPoint.of(point) for point in found.points],
        blame=sorted(blame, key=lambda each: -each.seconds),
        looked_into=found.looked_into,
        deliveries=[models.SinkDelay.of(each) for each in found.deliveries if sees_dag(each.dag)],
    )


def told_of_barrier(found: BarrierDelay, seen: Seen = everything, sees_dag: Seen = everything) -> models.BarrierDelay:
    """Jobs that are not ``seen``, and their tables, are not named."""

    def segment_of(each: Segment) -> models.Segment:
        return models.Segment.of(each, job=each.job if each.job is not None and seen(each.job) else None)

    return models.BarrierDelay(
        barrier_id=found.barrier.barrier_id,
        timestamp=found.barrier.timestamp,
        since=found.since,
        until=found.until,
        seconds=found.seconds,
        critical_path=list(map(segment_of, found.critical_path)),
        jobs={job: list(map(segment_of, path)) for job, path in found.jobs.items() if seen(job)},
        tables=[models.TableDelay.of(each) for each in found.tables if seen(each.job)],
        deliveries=[
            models.Delivered(sink=each.sink, dag=each.owner, at=each.delivered_at, seconds=each.seconds)
            for each in found.deliveries
            if sees_dag(each.owner)
        ],
    )


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/delay",
    operation_id="delay",
    summary="How late barriers were readable over a window, and who took the time",
)
def of_window(
    sight: SightDep,
    window: Annotated[float, Query(gt=0, le=_LONGEST, description="Seconds up to now.")] = 7 * 86_400.0,
    table: Annotated[str | None, Query(description="Who held up this table; default: the barriers.")] = None,
) -> models.Delay:
    if table is not None and table not in sight.tables:
        raise not_found()
    found = delay(sight.meta, sight.name, timedelta(seconds=window), table=table)
    return told(found, *_seen(sight, (each.dag for each in found.deliveries)))


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/barriers/{barrier_id}/delay",
    operation_id="barrier_delay",
    summary="Where the time of one barrier went: its critical path, and each table's own and inherited time",
)
def of_barrier(sight: SightDep, barrier_id: BarrierId) -> models.BarrierDelay:
    found = barrier_delay(sight.meta, sight.name, barrier_id)
    return told_of_barrier(found, *_seen(sight, (each.owner for each in found.deliveries)))


def _seen(sight: Sight, dags: Iterable[str]) -> tuple[Seen, Seen]:
    """Return tests for the jobs, and ``dags``, that the caller may know of."""
    sight.ask(dags)  # whose jobs may have left, or are none
    return {job.name for job in sight.jobs()}.__contains__, sight.sees
