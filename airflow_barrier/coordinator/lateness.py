"""Which jobs an open barrier waits for, since when nothing but themselves holds them up, and when that is too long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from airflow_barrier.coordinator.status import summary_of
from airflow_barrier.metaservice.overviews import AttemptRow, BarrierRow, InFlight, Overviews
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.records import Barrier, BarrierKind
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, BarrierState
from airflow_barrier.protocol.topology import Job

#: Barriers with the newest numbers among which the usual time is looked for, and how many of them it is of.
LOOKED_BACK = 32
_USUAL_OF = 20
#: A job is late after so many times the usual time, and never before that much.
_TIMES = 2
_LEAST = timedelta(seconds=60)


@dataclass(frozen=True)
class LateJob:
    """A job that has not brought ``tables`` to a barrier, although all that it needs has been there ``since`` (UTC).

    ``dag`` runs it. ``summary``: what it is doing, in a few words.
    """

    job: str
    dag: str
    tables: tuple[str, ...]
    since: datetime
    summary: str


def late_jobs(meta: MetaService, barrier: Barrier) -> tuple[LateJob, ...]:
    """Those that ``barrier`` waits for, the one that is late the longest first; jobs that wait for others are not.

    None unless the barrier is OPEN: at PRECOMMIT all jobs are done.
    """

    key = (barrier.topology, barrier.barrier_id)

    def look(rows: Overviews) -> tuple[LateJob, ...]:
        in_flight = rows.in_flight([barrier.topology])[barrier.topology]
        return _held_up(rows, [each for each in in_flight if each.barrier.barrier_id == barrier.barrier_id]).get(
            key, ()
        )

    return meta.overviews.together(look)


def overdue_jobs(
    rows: Overviews, recent: Mapping[str, Sequence[BarrierRow]], in_flight: Mapping[str, Sequence[InFlight]]
) -> dict[tuple[str, int], tuple[LateJob, ...]]:
    """Those that hold up a barrier for longer than is usual: (topology, barrier) -> the longest first.

    ``recent``: of each topology the newest barriers, the newest first, :data:`LOOKED_BACK` if there are as many.
    """
    now = rows.now()
    patience = {name: patience_of(recent[name]) for name in in_flight}
    # nobody is late for longer than the barrier is open
    old = [
        each
        for name, barriers in in_flight.items()
        for each in barriers
        if now - each.barrier.opened_at > patience[name]
    ]
    found = _held_up(rows, old)
    return {
        (name, barrier_id): tuple(job for job in jobs if now - job.since > patience[name])
        for (name, barrier_id), jobs in found.items()
    }


def patience_of(recent: Iterable[BarrierRow]) -> timedelta:
    """How long a job may hold up a barrier: twice the median of how long the newest committed barriers took from
    opening to COMMIT, and a minute at least.
    """
    took = [
        (row.commit_at - row.opened_at).total_seconds()
        for row in recent
        if row.kind is BarrierKind.EPOCH and row.commit_at is not None
    ]
    return max(_LEAST, timedelta(seconds=_TIMES * median(took[:_USUAL_OF]))) if took else _LEAST


def _held_up(rows: Overviews, barriers: Iterable[InFlight]) -> dict[tuple[str, int], tuple[LateJob, ...]]:
    """(topology, barrier) -> its late jobs. A handful of queries for all of them."""
    open_now = [each for each in barriers if each.barrier.state is BarrierState.OPEN]
    if not open_now:
        return {}
    names = sorted({each.barrier.topology for each in open_now})
    pending = rows.pending(names)
    held = {}
    for each in open_now:
        barrier = each.barrier
        here = pending.get((barrier.topology, barrier.barrier_id), set())
        # Where nothing is PENDING, the barrier before is not in flight, or all is staged there. A table that joins with
        # this one is not at the one before, and nothing waits for it there.
        before = pending.get((barrier.topology, barrier.predecessor or 0), set())
        held[each] = [
            job
            for job in rows.topology_of(each).jobs
            if not here.isdisjoint(job.outlets) and here.isdisjoint(job.inlets) and before.isdisjoint(job.outlets)
        ]
    jobs = [job for each in held.values() for job in each]
    newest = rows.newest_in_flight(names, {job.name for job in jobs})
    processed = rows.processed_at(names, {table for job in jobs for table in (*job.inlets, *job.outlets)})
    return {
        (each.barrier.topology, each.barrier.barrier_id): _late(each.barrier, jobs, pending, newest, processed)
        for each, jobs in held.items()
    }


def _late(
    barrier: Barrier,
    jobs: Iterable[Job],
    pending: Mapping[tuple[str, int], Collection[str]],
    newest: Mapping[tuple[str, int, str], AttemptRow],
    processed: Mapping[tuple[str, int, str], datetime],
) -> tuple[LateJob, ...]:
    name, here, before = barrier.topology, barrier.barrier_id, barrier.predecessor or 0
    late = []
    for job in jobs:
        attempt = newest.get((name, here, job.name))
        if barrier.is_maintenance and (attempt is None or attempt.state not in LIVE_ATTEMPTS):
            continue  # nobody waits for it: the table is passed by
        needs = [(name, here, table) for table in job.inlets] + [(name, before, table) for table in job.outlets]
        since = max([barrier.opened_at, *(processed[need] for need in needs if need in processed)])
        missing = tuple(table for table in job.outlets if table in pending[name, here])
        summary = summary_of(attempt, job.owner, member=job.owner != barrier.run.dag_id)
        late.append(LateJob(job.name, job.owner, missing, since, summary))
    return tuple(sorted(late, key=lambda job: (job.since, job.job)))
