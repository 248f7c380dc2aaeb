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
    return models.BarrierSummary(
        barrier_id=barrier.barrier_id,
        timestamp=barrier.timestamp,
        state=barrier.state,
        kind=barrier.kind,
        revision=barrier.computed_in,
        opened_at=barrier.opened_at,
        precommit_at=barrier.precommit_at,
        commit_at=barrier.commit_at,
        aborted_at=barrier.aborted_at,
        seconds=None if barrier.commit_at is None else (barrier.commit_at - barrier.timestamp).total_seconds(),
        reason=barrier.reason if whole else None,
    )


def late_of(found: Iterable[Late], dags: Collection[str]) -> list[models.Late]:
    """Return the late ones that are no job's doing, or jobs of ``dags``."""
    return [
        models.Late(
            barrier_id=late.barrier_id,
            job=late.job,
            dag=late.dag if late.dag in dags else None,
            tables=list(late.tables),
            since=late.since,
            summary=late.summary,
        )
        for late in found
        if late.job is None or late.dag in dags
    ]


def failed_of(found: Iterable[Failed], dags: Collection[str]) -> list[models.Failed]:
    """The jobs of ``dags``."""
    return [
        models.Failed(
            barrier_id=failed.barrier_id,
            job=failed.job,
            dag=failed.dag,
            tables=list(failed.tables),
            at=failed.at,
            tried=failed.tried,
            tries=failed.tries,
            again_at=failed.again_at,
            holds_up=failed.holds_up,
            summary=failed.summary,
            reason=failed.reason,
            task=task_of(failed.request_key),
        )
        for failed in found
        if failed.dag in dags
    ]


def task_of(request_key: str) -> models.Task | None:
    """The task that asks for an attempt; None: it was asked for by somebody who is no task."""
    key = task_key(request_key)
    return None if key is None else models.Task(**key._asdict())


def sinks_of(sight: Sight, statuses: Iterable[SinkStatus]) -> list[models.Sink]:
    """The sinks of DAGs that are seen, and of their tables those that are."""
    tables = {table for job in sight.jobs() for table in job.outlets}
    statuses = list(statuses)
    sight.ask(each.sink.owner for each in statuses)  # whose jobs may have left, or are none
    return [
        models.Sink(
            sink=each.sink.name,
            dag=each.sink.owner,
            kind=each.sink.definition.kind,
            state=each.sink.state.value,
            tables=sorted(tables.intersection(each.sink.definition.targets)),
            barrier_id=each.sink.barrier_id,
            revision=each.sink.revision,
            delivered_at=each.sink.delivered_at,
            lacks=each.lacks,
            since=each.since,
            hold=each.sink.hold_seconds,
            remedy=None if each.sink.remedy is None else each.sink.remedy.value,
            error=each.sink.error,
            failed_at=each.sink.failed_at,
            failures=each.sink.failures,
        )
        for each in statuses
        if sight.sees(each.sink.owner)
    ]
