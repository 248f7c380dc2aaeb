"""Delay as the API and ``--json`` tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from airflow_barrier.api import models
from airflow_barrier.api.access import BarrierId, Told, not_found
from airflow_barrier.api.sight import SightDep
from airflow_barrier.coordinator.delay import BarrierDelay, Delay, barrier_delay, delay
from airflow_barrier.protocol.delay import Part

#: A quarter of a year.
_LONGEST = 92 * 86_400
router = APIRouter(route_class=Told)

#: Whether the caller may know of a job.
Seen = Callable[[str], bool]


def everything(job: str) -> bool:
    """For callers that may know of all jobs."""
    return True


def told(found: Delay, seen: Seen = everything) -> models.Delay:
    """What jobs that are not ``seen`` took is one share of each part, of no job."""
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
        scheduled=found.scheduled,
        points=[models.DelayPoint(**vars(point)) for point in found.points],
        blame=sorted(blame, key=lambda each: -each.seconds),
        looked_into=found.looked_into,
    )


def told_of_barrier(found: BarrierDelay, seen: Seen = everything) -> models.BarrierDelay:
    """Jobs that are not ``seen``, and their tables, are not named."""
    return models.BarrierDelay(
        barrier_id=found.barrier.barrier_id,
        timestamp=found.barrier.timestamp,
        until=found.until,
        seconds=found.seconds,
        critical_path=[
            models.Segment(
                part=each.part.value,
                job=each.job if each.job is not None and seen(each.job) else None,
                barrier_id=each.barrier_id,
                begin=each.begin,
                end=each.end,
            )
            for each in found.critical_path
        ],
        tables=[
            models.TableDelay(
                table=each.table,
                job=each.job,
                own=each.own,
                inherited=each.inherited,
                parts={part.value: seconds for part, seconds in each.parts.items()},
            )
            for each in found.tables
            if seen(each.job)
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
    mine = {job.name for job in sight.jobs()}
    return told(delay(sight.meta, sight.name, timedelta(seconds=window), table=table), mine.__contains__)


@router.get(
    "/v1/deployments/{deployment}/topologies/{topology}/barriers/{barrier_id}/delay",
    operation_id="barrier_delay",
    summary="Where the time of one barrier went: its critical path, and each table's own and inherited time",
)
def of_barrier(sight: SightDep, barrier_id: BarrierId) -> models.BarrierDelay:
    mine = {job.name for job in sight.jobs()}
    return told_of_barrier(barrier_delay(sight.meta, sight.name, barrier_id), mine.__contains__)
