"""Which jobs an open barrier waits for, and since when nothing but themselves holds them up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from airflow_barrier.coordinator.status import job_status
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.records import Barrier, TableProgress
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, BarrierState, TableState


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
    if barrier.state is not BarrierState.OPEN:
        return ()
    here = _by_table(meta.barriers.progress(barrier.topology, barrier.barrier_id))
    before = _by_table(meta.barriers.progress(barrier.topology, barrier.predecessor or 0))
    newest = {attempt.job: attempt for attempt in meta.attempts.of(barrier.topology, barrier.barrier_id)}
    late = []
    for job in meta.topologies.get(barrier.topology, barrier.topology_version).jobs:
        if barrier.is_maintenance and (job.name not in newest or newest[job.name].state not in LIVE_ATTEMPTS):
            continue  # nobody waits for it: the table is passed by
        missing = tuple(table for table in job.outlets if _is_pending(here[table]))
        # a table that joins with this barrier is not at the one before, and nothing waits for it there
        needs = [here[table] for table in job.inlets] + [before[table] for table in job.outlets if table in before]
        if missing and not any(map(_is_pending, needs)):
            since = max([barrier.opened_at, *(need.processed_at for need in needs if need.processed_at)])
            late.append(
                LateJob(job.name, job.owner, missing, since, job_status(barrier, job, newest.get(job.name)).summary)
            )
    return tuple(sorted(late, key=lambda job: (job.since, job.job)))


def _by_table(rows: Iterable[TableProgress]) -> dict[str, TableProgress]:
    return {row.table: row for row in rows}


def _is_pending(row: TableProgress) -> bool:
    return row.state is TableState.PENDING
