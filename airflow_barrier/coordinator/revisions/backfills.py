"""What is asked of Airflow, so that a revision is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_barrier.coordinator.revisions.plan import RevisionPlan
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.states import BarrierState


@dataclass(frozen=True)
class Backfill:
    """A backfill for a person to run: a DAG's runs with logical dates (UTC) from ``first`` to ``last``, inclusive."""

    dag_id: str
    first: datetime
    last: datetime


def backfill_dates(barriers: Sequence[Barrier]) -> tuple[datetime, datetime]:
    """The logical dates (UTC) of the first and the last run that opened ``barriers``, which are in order.

    >>> backfill_dates(plan.window)  # doctest: +SKIP
    (datetime.datetime(2017, 1, 5, ...), datetime.datetime(2017, 1, 6, ...))
    """
    return barriers[0].run_date, barriers[-1].run_date


def backfills_of(barriers: Sequence[Barrier]) -> tuple[Backfill, ...]:
    """One for each DAG that opened some of ``barriers``, so one as a rule: its runs wake the other DAGs' of their day,
    and the dates are those of its own timetable.
    """
    opened: dict[str, list[Barrier]] = {}
    for barrier in barriers:
        opened.setdefault(barrier.run.dag_id, []).append(barrier)
    return tuple(Backfill(dag_id, *backfill_dates(those)) for dag_id, those in opened.items())


def backfills_of_plan(plan: RevisionPlan) -> tuple[Backfill, ...]:
    """Return :func:`backfills_of` the plan's window; of DAGs that join with it, whose runs nobody knows, all
    barriers.
    """
    opened = backfills_of(plan.window)
    if not plan.joining:
        return opened
    openers = {each.run.dag_id for each in plan.barriers}
    dates = backfill_dates(plan.barriers)
    return (*opened, *(Backfill(dag_id, *dates) for dag_id in plan.owners if dag_id not in openers))


def backfills_left(meta: MetaService, revision: Revision) -> tuple[Backfill, ...]:
    """Return the backfills of a revision whose runs have not come; of DAGs that join with it, also for barriers opened
    since.
    """
    days = [meta.barriers.get(revision.topology, each.barrier_id) for each in awaited(meta, revision)]
    opened = backfills_of(days)
    if revision.mode is not RevisionMode.HISTORY:
        return opened
    return (*opened, *(Backfill(dag_id, *backfill_dates(those)) for dag_id, those in _unknown(meta, revision).items()))


def awaited(meta: MetaService, revision: Revision) -> tuple[Barrier, ...]:
    """The barriers that a person asked for and of which no run has come yet; none once it is decided."""
    if revision.state is not RevisionState.STAGING:
        return ()
    come = {
        run.barrier_id
        for run in meta.revisions.runs(revision.topology, revision.revision)
        if run.arrived_at is not None
    }
    return tuple(
        barrier
        for barrier in meta.revisions.barriers(revision.topology, revision.revision)
        if barrier.barrier_id <= revision.window_end
        and barrier.state is BarrierState.OPEN
        and barrier.barrier_id not in come
    )


def _unknown(meta: MetaService, revision: Revision) -> dict[str, list[Barrier]]:
    """DAGs that join with the revision, and the barriers, as they stand, of which no run of theirs has come."""
    topology, number = revision.topology, revision.revision
    come = {(run.dag_id, run.barrier_id) for run in meta.revisions.runs(topology, number) if run.arrived_at is not None}
    found: dict[str, list[Barrier]] = {}
    for barrier in meta.revisions.barriers(topology, number):
        if barrier.state is not BarrierState.OPEN:
            continue
        jobs = meta.topologies.get(topology, barrier.topology_version).jobs
        opener = barrier.run.dag_id
        for dag_id in sorted({job.owner for job in jobs if job.name in revision.jobs} - {opener}):
            if (dag_id, barrier.barrier_id) not in come:
                found.setdefault(dag_id, []).append(meta.barriers.get(topology, barrier.barrier_id))
    return found
