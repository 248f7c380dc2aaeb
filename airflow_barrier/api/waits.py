"""Why what a barrier waits for does not begin, as the host of the API knows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from airflow_barrier.api import models
from airflow_barrier.api.access import Access, Outlook, Wait
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.coordinator.lateness import Late, Standing


def waits_of(access: Access, held_up: Iterable[Late], dags: Collection[str]) -> Mapping[Awaited, Wait]:
    """``dags``: those that the caller may read. The host is asked, so what asks is not in a transaction."""
    awaited = {each.awaited for each in held_up if each.awaited is not None and each.awaited.dag_id in dags}
    return access.waits(awaited) if awaited else {}


def explained(standing: Standing, waits: Mapping[Awaited, Wait]) -> list[Late]:
    """All that is late, and the jobs that will not begin although nobody is late yet, each with why."""
    early = [each for each in standing.expected if (wait := wait_of(each, waits)) and wait.outlook.needs_somebody]
    told = (*standing.late, *early)
    return [replace(each, why=wait.summary) if (wait := wait_of(each, waits)) else each for each in told]


def again_at(
    failed: Iterable[models.Failed], late: Iterable[Late], waits: Mapping[Awaited, Wait]
) -> list[datetime | None]:
    """Return the time of the next try of each that has failed. None: there is none, as for a job that does not begin
    since a task has failed for good.
    """
    outlooks = [wait.outlook for each in late if (wait := wait_of(each, waits))]
    return [*(each.again_at for each in failed), *(None for each in outlooks if each is Outlook.FAILED)]


def wait_of(late: Late, waits: Mapping[Awaited, Wait]) -> Wait | None:
    return None if late.awaited is None else waits.get(late.awaited)
