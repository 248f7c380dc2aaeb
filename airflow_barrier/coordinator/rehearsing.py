"""Rehearsing a barrier: its jobs run as ever, and nothing of it is published.

A rehearsal is a topology of its own for one run. It has the barrier that the next one would be built on, and one more,
in which the DAG's own jobs compute on branches of their own name; tables of other DAGs' jobs are carried. It ends by
being forgotten: branches, files of attempts, what sources hold for it, and last its rows, so that whoever dies on the
way leaves the way back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from airflow_barrier.coordinator.creating import with_declaration
from airflow_barrier.coordinator.cuts import check_allowed, cut_sources, cuts_to_release, release_cuts
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import brief
from airflow_barrier.coordinator.runs import ENDED, Run, Scheduler
from airflow_barrier.coordinator.staging import find_barrier
from airflow_barrier.coordinator.starting import already, rows_of, starts_of
from airflow_barrier.metaservice.rehearsals import Rehearsal
from airflow_barrier.protocol.errors import (
    MissingTableError,
    NotProcessedError,
    RehearsalRefusedError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.records import Attempt, Barrier, Cut, JobStart, RunRef, TableProgress
from airflow_barrier.protocol.states import BarrierState, TableState
from airflow_barrier.protocol.topology import Fragment, Topology
from airflow_barrier.sources.port import NotReady

log = logging.getLogger(__name__)

#: How long a rehearsal stays whose run has not ended, as that of a process that was killed.
_KEPT = timedelta(days=1)


@dataclass(frozen=True)
class Rehearsed:
    """``barrier`` of a rehearsal, all of whose tables are staged, and what would have come of it, a line each."""

    barrier: Barrier
    lines: tuple[str, ...]


def begin_rehearsal(
    deployment: Deployment, fragment: Fragment, run: Run, scheduler: Scheduler, *, actor: str
) -> Barrier:
    """Open the run's barrier for a rehearsal, on the newest barrier before its timestamp that is COMMIT.

    Rehearsals of the topology that nobody is at any more are forgotten, and an earlier try of this one. Raises
    RehearsalRefusedError, with what would work, MissingTableError, TopologyError, and what sources raise.
    """
    meta, topology = deployment.meta, fragment.topology
    ended = {None, *ENDED}
    forget_left_rehearsals(
        deployment, topology, lambda other: other.key == run.ref.key or scheduler.state(*other.key) in ended
    )
    known = topology in meta.topologies.names()
    base = meta.rehearsals.base(topology, run.timestamp) if known else None
    if base is None or base.expiring_at is not None:
        found = "none" if base is None else f"{base}, which has expired"
        raise RehearsalRefusedError(  # safety: rehearsed-on-what-is-committed
            f"rehearsal of {topology} at {run.timestamp.isoformat()}: expected a barrier before it that is COMMIT, "
            f"which it is built on, found {found}; run the DAG by its schedule first, or rehearse a later day"
        )
    check_allowed(deployment, fragment.jobs)
    registered = meta.topologies.get(topology)
    others = [job for job in registered.jobs if job.owner != fragment.owner]
    whole = Topology.of(topology, [*others, *fragment.jobs])
    rows = {row.table: row.snapshot_id for row in meta.barriers.progress(topology, base.barrier_id)}
    starts = _starts(deployment, fragment, run, base, rows)
    cuts = _cuts(deployment, fragment, run, base, starts)
    try:
        joining = deployment.tables.mains([table for table in whole.tables if table not in rows])
    except MissingTableError as error:
        raise with_declaration(error) from error
    barrier = meta.rehearsals.begin(
        Rehearsal(
            replace(whole, name=run.topology(topology)),
            base,
            standing={table: rows[table] if table in rows else joining[table] for table in whole.tables},
            carried=sorted(table for job in others for table in job.outlets),
            timestamp=run.timestamp,
            timestamp_from=run.timestamp_from,
            run=run.ref,
            cuts=cuts,
            starts=starts,
            actor=actor,
        )
    )
    log.info("%s is a rehearsal, on top of %s: nothing of it is published", barrier, base)
    for cut in cuts:
        log.info("source %s is cut up to %s; its position stays unused", cut.source, brief(cut))
    for job in others:
        log.info("job %s of DAG %s does not run: %s as at %s", job.name, job.owner, ", ".join(job.outlets), base)
    return barrier


def rehearsed(deployment: Deployment, run: Run, topology: str) -> Rehearsed:
    """Return what the run's rehearsal of ``topology`` has staged. Raises NotProcessedError if a table is missing."""
    meta, name = deployment.meta, run.topology(topology)
    barrier = find_barrier(deployment, name, run=run.ref)
    rows = meta.barriers.progress(name, barrier.barrier_id)
    if barrier.state is not BarrierState.PRECOMMIT:
        missing = [f"{row.table} (job {row.job})" for row in rows if row.state is TableState.PENDING]
        raise NotProcessedError(  # safety: rehearsed-whole
            f"{barrier}: expected every table staged, found not PROCESSED although the tasks before this one have "
            f"ended: {', '.join(missing)}; clear these jobs' tasks"
        )
    before = {row.table: row.snapshot_id for row in meta.barriers.progress(name, barrier.predecessor or 0)}
    attempts = {each.attempt_id: each for each in meta.attempts.of(name, barrier.barrier_id)}
    lines = [_line(deployment, row, before[row.table], attempts.get(row.attempt_id or 0)) for row in rows]
    return Rehearsed(barrier, tuple(lines))


def forget_rehearsal(deployment: Deployment, topology: str) -> None:
    """Drop all that a rehearsal has left; ``topology`` is its own name. Again is fine, and beside another who does."""
    with suppress(UnknownTopologyError):
        _forget(deployment, topology)
        log.info("%s is forgotten", topology)


def forget_left_rehearsals(
    deployment: Deployment, topology: str, is_left: Callable[[RunRef], bool] = lambda _: False
) -> None:
    """Drop the rehearsals of ``topology`` that are older than a day, and those of runs that ``is_left`` is true of."""
    oldest = deployment.meta.now() - _KEPT
    for held in deployment.meta.rehearsals.of(topology):
        if held.begun_at < oldest or is_left(held.run):
            forget_rehearsal(deployment, held.topology)


def _forget(deployment: Deployment, topology: str) -> None:
    meta = deployment.meta
    for barrier in meta.barriers.newest(topology, [BarrierState.OPEN, BarrierState.PRECOMMIT], limit=1):
        attempts = meta.attempts.of(topology, barrier.barrier_id)
        for table in sorted({table for each in attempts for table in (*each.inputs, *each.bases)}):
            with suppress(MissingTableError):  # its owner is free to drop it
                deployment.tables.drop_revision([table], topology, revision=0)
        release_cuts(deployment, cuts_to_release(deployment, barrier, barrier.barrier_id))
    deployment.tables.clear(deployment.tables.location("_barrier", topology))
    meta.rehearsals.drop(topology)


def _starts(
    deployment: Deployment, fragment: Fragment, run: Run, base: Barrier, rows: dict[str, int | None]
) -> list[JobStart]:
    starts: list[JobStart] = []
    for job in fragment.jobs:
        if all(table in rows for table in job.outlets):
            continue
        last = deployment.meta.starts.last(fragment.topology, job.name)
        if last is not None:
            raise RehearsalRefusedError(  # safety: rehearsed-where-it-has-joined
                f"rehearsal of {fragment.topology} at {run.timestamp.isoformat()}: expected job {job.name} in {base}, "
                f"which it is built on, found that it joined with {last[0]}; rehearse a day after that"
            )
        starts += starts_of(deployment, Topology(fragment.topology, (job,)), [job], run.timestamp)
    return starts


def _cuts(
    deployment: Deployment, fragment: Fragment, run: Run, base: Barrier, starts: Sequence[JobStart]
) -> Sequence[Cut]:
    own = Topology(fragment.topology, fragment.jobs)
    now, holder = datetime.now(timezone.utc), run.topology(fragment.topology)
    cuts = cut_sources(deployment, own, base, run.timestamp, now, already(starts), holder=holder)
    if isinstance(cuts, NotReady):
        refused = f"source {cuts.source}: {cuts.reason}"
    elif put_off := [f"source {cut.source}: {cut.put_off}" for cut in cuts if cut.put_off is not None]:
        refused = "; ".join(put_off)
    else:
        return cuts
    raise RehearsalRefusedError(  # safety: rehearsed-on-whole-cuts
        f"rehearsal of {fragment.topology} at {run.timestamp.isoformat()}: expected to cut every source, found "
        f"{refused}; rehearse it again once that is mended"
    )


def _line(deployment: Deployment, row: TableProgress, before: int | None, attempt: Attempt | None) -> str:
    table = deployment.tables.load(row.table)
    there, now = rows_of(table, before), rows_of(table, row.snapshot_id)
    if attempt is None:
        return f"{row.table}: {_number(there)} rows, carried; its job {row.job} did not run"
    if row.carried_from is not None:
        return f"{row.table}: {_number(there)} rows, unchanged by job {row.job}"
    steps = deployment.tables.staged_summaries(row.table, attempt.stamp, attempt.bases[row.table])
    written, gone = (sum(int(step.get(key, 0)) for step in steps) for key in ("added-records", "deleted-records"))
    return (
        f"{row.table}: {_number(now)} rows after {_number(there)} would be published, by job {row.job}; its files "
        f"gain {written} rows and lose {gone}"
    )


def _number(rows: int | None) -> str:
    return "an unknown number of" if rows is None else str(rows)
