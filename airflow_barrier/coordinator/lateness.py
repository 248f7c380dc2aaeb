"""Which jobs an open barrier waits for, since when nothing but themselves holds them up, and when that is too long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from airflow_barrier.coordinator.status import summary_of
from airflow_barrier.metaservice.overviews import BarrierRow, Overviews
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.records import Barrier, BarrierKind
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, BarrierState

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
    return meta.overviews.together(lambda rows: held_up(rows, barrier))


def overdue_jobs(rows: Overviews, barrier: Barrier, recent: Iterable[BarrierRow], now: datetime) -> tuple[LateJob, ...]:
    """Those of :func:`late_jobs` that are late for longer than is usual. ``recent``: the newest barriers, the newest
    first, at least :data:`LOOKED_BACK` if there are as many.
    """
    patience = patience_of(recent)
    if now - barrier.opened_at <= patience:  # nobody is late for longer than the barrier is open
        return ()
    return tuple(job for job in held_up(rows, barrier) if now - job.since > patience)


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


def held_up(rows: Overviews, barrier: Barrier) -> tuple[LateJob, ...]:
    """As :func:`late_jobs`, among other questions."""
    if barrier.state is not BarrierState.OPEN:
        return ()
    topology, here, before = barrier.topology, barrier.barrier_id, barrier.predecessor or 0
    pending = rows.pending(topology, [here, before])
    held = [
        job
        for job in rows.topology(topology, barrier.topology_version).jobs
        # a table that joins with this barrier is not at the one before, and nothing waits for it there
        if not pending[here].isdisjoint(job.outlets)
        and pending[here].isdisjoint(job.inlets)
        and pending[before].isdisjoint(job.outlets)
    ]
    newest = rows.newest_attempts(topology, [here], [job.name for job in held])
    found = {name: each.attempt for (_, name), each in newest.items()}
    if barrier.is_maintenance:  # what nobody is at nobody waits for: the table is passed by
        held = [job for job in held if job.name in found and found[job.name].state in LIVE_ATTEMPTS]
    needs = {
        here: {table for job in held for table in job.inlets},
        before: {table for job in held for table in job.outlets},
    }
    processed = rows.processed_at(topology, needs)
    late = []
    for job in held:
        places = [(here, table) for table in job.inlets] + [(before, table) for table in job.outlets]
        since = max([barrier.opened_at, *(processed[place] for place in places if place in processed)])
        missing = tuple(table for table in job.outlets if table in pending[here])
        summary = summary_of(found.get(job.name), job.owner, member=job.owner != barrier.run.dag_id)
        late.append(LateJob(job.name, job.owner, missing, since, summary))
    return tuple(sorted(late, key=lambda job: (job.since, job.job)))
