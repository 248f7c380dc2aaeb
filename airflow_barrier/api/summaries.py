"""From records to what is told of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from airflow_barrier.api import models
from airflow_barrier.api.sight import Sight
from airflow_barrier.coordinator.awaited import task_key
from airflow_barrier.coordinator.failing import Failed
from airflow_barrier.coordinator.lateness import Late
from airflow_barrier.coordinator.status import SinkStatus
from airflow_barrier.protocol.records import Barrier


def barrier_of(barrier: Barrier, *, whole: bool) -> models.BarrierSummary:
    """``whole``: whether all of its DAGs are seen, since its reason may be the error of any job."""
    return models.BarrierSummary.of(
        barrier,
        revision=barrier.computed_in,
        seconds=None if barrier.commit_at is None else (barrier.commit_at - barrier.timestamp).total_seconds(),
        reason=barrier.reason if whole else None,
    )


def late_of(found: Iterable[Late], dags: Collection[str]) -> list[models.Late]:
    """Return the late ones that are no job's doing, or jobs of ``dags``."""
    return [
        models.Late.of(late, dag=late.dag if late.dag in dags else None)
        for late in found
        if late.job is None or late.dag in dags
    ]


def failed_of(found: Iterable[Failed], dags: Collection[str]) -> list[models.Failed]:
    """The jobs of ``dags``."""
    return [models.Failed.of(each, task=task_of(each.request_key)) for each in found if each.dag in dags]


def task_of(request_key: str) -> models.Task | None:
    """The task that asks for an attempt; None: it was asked for by somebody who is no task."""
    key = task_key(request_key)
    return None if key is None else models.Task.of(key)


def sinks_of(sight: Sight, statuses: Iterable[SinkStatus]) -> list[models.Sink]:
    """The sinks of DAGs that are seen, and of their tables those that are."""
    tables = {table for job in sight.jobs() for table in job.outlets}
    statuses = list(statuses)
    sight.ask(each.sink.owner for each in statuses)  # whose jobs may have left, or are none
    return [
        models.Sink.of(
            each.sink,
            sink=each.sink.name,
            dag=each.sink.owner,
            kind=each.sink.definition.kind,
            tables=sorted(tables.intersection(each.sink.definition.targets)),
            lacks=each.lacks,
            since=each.since,
            hold=each.sink.hold_seconds,
        )
        for each in statuses
        if sight.sees(each.sink.owner)
    ]
