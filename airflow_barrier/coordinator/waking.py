"""Which runs of which DAGs compute a barrier of a revision: those that computed it before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import RevisionRefusedError, UnknownBarrierError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import BarrierState, TableState


@dataclass(frozen=True)
class Runs:
    """The runs of a barrier: DAG -> run. ``unknown``: DAGs of which no run of that barrier is known. ``staged``: DAGs
    whose jobs have staged all that the revision lacked of it.
    """

    of: Mapping[str, str]
    unknown: tuple[str, ...]
    staged: frozenset[str]


def barrier_of_run(deployment: Deployment, revision: Revision, at: datetime | int, dag_id: str) -> Barrier:
    """The barrier that a run of a DAG, at a time (UTC) or of a number, computes for the revision.

    The revision is extended if the barrier was opened since. Raises RevisionRefusedError for a day that is not in the
    revision, and for a DAG that has no part in it.
    """
    meta, topology = deployment.meta, revision.topology
    standing = meta.barriers.at(topology, at) if isinstance(at, datetime) else meta.barriers.get(topology, at)
    if standing is None or standing.barrier_id < revision.first_barrier:
        found = "no barrier" if standing is None else str(standing)
        raise RevisionRefusedError(  # safety: day-of-the-revision
            f"{revision}: expected a run of one of its days, which begin with barrier {revision.first_barrier}, found "
            f"{found} at {at}; backfill the days that the plan names, or plan another revision"
        )
    try:
        barrier = meta.barriers.get(topology, standing.barrier_id, revision.revision)
    except UnknownBarrierError:
        meta.revisions.extend(topology, revision.revision, dag_id)
        barrier = meta.barriers.get(topology, standing.barrier_id, revision.revision)
    jobs = meta.topologies.get(topology, barrier.topology_version).jobs
    owners = {job.owner for job in jobs if job.name in revision.jobs} | {standing.run.dag_id}
    if dag_id not in owners:
        raise RevisionRefusedError(  # safety: dag-of-the-revision
            f"{revision}: expected a run of a DAG that has a part in it ({', '.join(sorted(owners))}), found {dag_id}, "
            "which owns none of its jobs; backfill one of these"
        )
    return barrier


def runs_at(deployment: Deployment, revision: Revision, barrier: Barrier) -> Runs:
    """The runs that computed ``barrier``, of every DAG that has a job in the revision, and of the one that commits."""
    meta = deployment.meta
    # as the revision has it: with the jobs that join by it, and that have no run of this barrier yet
    revised = meta.barriers.get(barrier.topology, barrier.barrier_id, revision.revision)
    topology = meta.topologies.get(barrier.topology, revised.topology_version)
    writers = {table: job.owner for job in topology.jobs if job.name in revision.jobs for table in job.outlets}
    owners = set(writers.values())
    rows = meta.revisions.progress(barrier.topology, revision.revision, barrier.barrier_id)
    pending = {writers[row.table] for row in rows if row.table in writers and row.state is TableState.PENDING}
    opener = barrier.run.dag_id
    runs = {opener: barrier.run.run_id}
    for attempt in meta.attempts.of(barrier.topology, barrier.barrier_id):
        owner = topology.job(attempt.job).owner
        run = _run_of(attempt.request_key, owner)
        if owner in owners and owner != opener and run is not None:
            runs[owner] = run  # of several attempts the newest
    return Runs(runs, tuple(sorted(owners - runs.keys())), frozenset(owners - pending))


def next_unstaged(deployment: Deployment, revision: Revision, after: int) -> Barrier | None:
    """The first barrier after ``after`` that the revision has not computed, as it stands; it may be open."""
    meta = deployment.meta
    meta.revisions.extend(revision.topology, revision.revision, "revision")
    for barrier in meta.revisions.barriers(revision.topology, revision.revision):
        if barrier.barrier_id > after and barrier.state is BarrierState.OPEN:
            return meta.barriers.get(revision.topology, barrier.barrier_id)
    return None


def close_gate_if_near(deployment: Deployment, revision: Revision, actor: str) -> Revision:
    """Let no barrier open any more once so few are left to compute that the pause is short.

    That is `max_open_barriers` at most, of those that are in flight anyway.
    """
    meta = deployment.meta
    left = [
        barrier
        for barrier in meta.revisions.barriers(revision.topology, revision.revision)
        if barrier.state is BarrierState.OPEN
    ]
    if revision.gated or len(left) > deployment.max_open_barriers:
        return revision
    if any(barrier.barrier_id <= revision.window_end for barrier in left):
        return revision  # a person's own runs are still to come, whenever that is
    return meta.revisions.gate(revision.topology, revision.revision, closed=True, actor=actor)


def _run_of(request_key: str, owner: str) -> str | None:
    """The run in the key of a task: `<dag>/<run>/<task>/<map index>`."""
    before, _, _ = request_key.rpartition("/")
    run, _, _ = before.rpartition("/")
    return run.removeprefix(f"{owner}/") if run.startswith(f"{owner}/") else None
