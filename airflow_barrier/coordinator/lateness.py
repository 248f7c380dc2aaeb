"""What a topology waits for, since when, and when that is too long: jobs, commits, and barriers that nobody opens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
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


@dataclass(frozen=True)
class Late:
    """What holds up ``barrier_id``, or the topology (None), ``since`` when (UTC). ``summary`` says it in a sentence.

    ``job`` None: it is no job's doing. ``dag``: whose task is waited for, if it is known.
    """

    barrier_id: int | None
    job: str | None
    dag: str | None
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


def overdue(
    rows: Overviews,
    open_now: Sequence[Barrier],
    recent: Sequence[BarrierRow],
    now: datetime,
    freshness: float | None = None,
) -> tuple[Late, ...]:
    """All that is late in one topology, the longest first. ``open_now``: its barriers in flight, in order. ``recent``:
    as :func:`overdue_jobs` takes them. ``freshness``: seconds that readers' data may be old.
    """
    found = [_late_job(barrier, job) for barrier in open_now for job in overdue_jobs(rows, barrier, recent, now)]
    found += _uncommitted(open_now[0], recent, now) if open_now else _unopened(recent, now)
    found += _stale(recent, now, freshness)
    return tuple(sorted(found, key=lambda late: (late.since, late.barrier_id or 0, late.job or "")))


def _late_job(barrier: Barrier, job: LateJob) -> Late:
    tables = ", ".join(job.tables[:3]) + (f" and {len(job.tables) - 3} more" if len(job.tables) > 3 else "")
    summary = f"{tables} holds up barrier {barrier.barrier_id} (job {job.job} of DAG {job.dag}: {job.summary})"
    return Late(barrier.barrier_id, job.job, job.dag, job.tables, job.since, summary)


def _uncommitted(oldest: Barrier, recent: Sequence[BarrierRow], now: datetime) -> list[Late]:
    """The barrier that is the next to be committed, if all jobs are done and nobody does it; others wait for it."""
    if oldest.state is BarrierState.OPEN:
        return []
    before = next((row.commit_at for row in recent if row.barrier_id == oldest.predecessor), None)
    since = max(filter(None, (oldest.committing_at or oldest.precommit_at or oldest.opened_at, before)))
    if oldest.state is not BarrierState.BLOCKED and now - since <= patience_of(recent):
        return []
    number, command = oldest.barrier_id, f"airflow-barrier barrier commit {oldest.topology} {oldest.barrier_id}"
    summary = {
        BarrierState.PRECOMMIT: f"barrier {number} is staged, nobody commits it: clear its commit task, or {command}",
        BarrierState.COMMITTING: f"barrier {number} is decided and not published: clear its commit task, or {command}",
        BarrierState.BLOCKED: f"barrier {number} is BLOCKED, as somebody else changed a table: see docs/blocked.md",
    }[oldest.state]
    return [Late(number, None, oldest.run.dag_id or None, (), since, summary)]


def _unopened(recent: Sequence[BarrierRow], now: datetime) -> list[Late]:
    """Nothing is open, and the next timestamp has passed by as much as there is between two, as a rule."""
    opened = [row for row in recent if row.kind is BarrierKind.EPOCH and row.state is not BarrierState.ABORTED]
    between = [(after.timestamp - before.timestamp).total_seconds() for after, before in pairwise(opened)]
    if not between:
        return []
    usual, newest = timedelta(seconds=median(between)), opened[0]
    since = newest.opened_at + usual
    if now - since <= max(usual, _LEAST):
        return []
    summary = (
        f"no barrier was opened after {newest.barrier_id}, as a rule there is one every {usual}; is the DAG paused?"
    )
    return [Late(None, None, None, (), since, summary)]


def _stale(recent: Sequence[BarrierRow], now: datetime, freshness: float | None) -> list[Late]:
    """Readers have something older than they are to have."""
    readable = next((row for row in recent if row.state is BarrierState.COMMIT), None)
    if freshness is None or readable is None:
        return []
    since = readable.timestamp + timedelta(seconds=freshness)
    if now <= since:
        return []
    summary = f"readers have barrier {readable.barrier_id}, older than the objective of {timedelta(seconds=freshness)}"
    return [Late(None, None, None, (), since, summary)]


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
        attempt = found.get(job.name)
        # what it waited for is there
        said = None if attempt is None else attempt._replace(waited_for=())
        summary = summary_of(said, job.owner, member=job.owner != barrier.run.dag_id)
        late.append(LateJob(job.name, job.owner, missing, since, summary))
    return tuple(sorted(late, key=lambda job: (job.since, job.job)))
