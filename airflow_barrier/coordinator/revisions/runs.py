"""Which runs compute the barriers of a revision: those that computed them before. They are woken, or wait."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.runs import AT_REST, ENDED, Run, Scheduler, Waker
from airflow_barrier.protocol.errors import (
    AirflowRefusedError,
    RevisionRefusedError,
    RunActiveError,
    UnknownBarrierError,
    UnknownRunError,
)
from airflow_barrier.protocol.records import Barrier, RunRef
from airflow_barrier.protocol.revisions import TOKEN, Revision, RevisionState
from airflow_barrier.protocol.states import BarrierState, TableState

log = logging.getLogger(__name__)

#: The barrier of runs that are not the revision's, but wait until it is published.
AFTERWARDS = 0
#: For how many seconds, and every how many, the ends of runs are looked for that are being skipped.
_FOR_ENDS, _BETWEEN_LOOKS = 60.0, 2.0


@dataclass(frozen=True)
class Runs:
    """The runs of a barrier: DAG -> run. ``unknown``: DAGs of which no run of that barrier is known. ``staged``: DAGs
    whose jobs have staged all that the revision lacked of it.
    """

    of: Mapping[str, str]
    unknown: tuple[str, ...]
    staged: frozenset[str]


@dataclass(frozen=True)
class Woken:
    """The outcome of waking runs: ``<dag>/<run>`` of those that were woken, and of the ``busy`` ones, which are still
    at work for something else. ``left``: of each other one that could not be woken a sentence, which says what to do.
    """

    runs: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def __add__(self, other: Woken) -> Woken:
        return Woken(self.runs + other.runs, self.busy + other.busy, self.left + other.left)


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


# --- the revision that a run computes for ---------------------------------------------------------


def newest_revision_of_run(deployment: Deployment, topology: str, run: Run) -> Revision | None:
    """The newest revision that the run computed, or computes, something for. Raises UnknownRevisionError."""
    revisions = deployment.meta.revisions
    bound = revisions.run_binding(topology, run.ref.dag_id, run.ref.run_id)
    number = max(run.token, bound.revision if bound is not None and bound.barrier_id != AFTERWARDS else 0)
    return revisions.get(topology, number) if number else None


def revision_of_run(deployment: Deployment, topology: str, run: Run) -> Revision | None:
    """The revision that the run computes for; None: none, or one that is published or cancelled.

    A run's conf stays what it was after later clears, so of a token and what the run was woken for the newer counts.
    Raises UnknownRevisionError.
    """
    revision = newest_revision_of_run(deployment, topology, run)
    if revision is not None and not revision.is_under_way:
        log.info("%s, of run %s, is %s: nothing is left to do for it", revision, run.ref, revision.state.value)
        return None
    return revision


def attach(deployment: Deployment, topology: str, run: Run, scheduler: Scheduler) -> Barrier | None:
    """The barrier of the run as its revision computes it, with the runs that it needs woken; None: no revision's run.

    Raises RevisionRefusedError for a day that is not in the revision, or a DAG that has no part in it.
    """
    revision = revision_of_run(deployment, topology, run)
    if revision is None or revision.state is not RevisionState.STAGING:
        return None
    barrier = barrier_of_run(deployment, revision, run.at, run.ref.dag_id)
    deployment.meta.revisions.bind_run(
        topology, revision.revision, barrier.barrier_id, run.ref.dag_id, run.ref.run_id, run.clear_number
    )
    log.info("This run computes %s", barrier)
    _wake_others(deployment, revision, barrier, run, scheduler)
    return barrier


def _wake_others(deployment: Deployment, revision: Revision, barrier: Barrier, run: Run, scheduler: Scheduler) -> None:
    """Let the other DAGs' runs of this barrier run again and, past the days that a person asked for, the next one's."""
    standing = deployment.meta.barriers.get(barrier.topology, barrier.barrier_id)
    wake_runs(deployment, revision, standing, run.ref, scheduler)
    if barrier.barrier_id >= revision.window_end:
        following = next_unstaged(deployment, revision, barrier.barrier_id)
        if following is not None:
            wake_runs(deployment, revision, following, run.ref, scheduler)


def wake_window(deployment: Deployment, revision: Revision, asking: RunRef | None, waker: Waker) -> Woken:
    """Wake the runs of the barriers that a person asked for, the oldest first; what follows them wakes itself.

    Again is fine: a run that is on its way is left alone, and one that failed since is woken again. Raises
    AirflowUnavailableError, RevisionEndedError.

    >>> wake_window(deployment, revision, None, waker).runs  # doctest: +SKIP
    ('shopping/scheduled__2017-01-06T00:00:00+00:00',)
    """
    barriers, woken = deployment.meta.barriers, Woken()
    for each in deployment.meta.revisions.barriers(revision.topology, revision.revision):
        if each.barrier_id <= revision.window_end:
            standing = barriers.get(revision.topology, each.barrier_id)
            woken += wake_runs(deployment, revision, standing, asking, waker)
    return woken


def wake_runs(
    deployment: Deployment, revision: Revision, barrier: Barrier, asking: RunRef | None, waker: Waker
) -> Woken:
    """Wake the runs of ``barrier`` that have not come yet.

    A run that is woken is bound to the revision: from then on its tasks know what they are for. The run that is
    ``asking`` is left alone (None: no run asks).
    """
    meta = deployment.meta
    known = {(run.dag_id, run.run_id) for run in meta.revisions.runs(revision.topology, revision.revision)}
    runs = runs_at(deployment, revision, barrier)
    woken, busy, left = [], [], []
    for dag_id, run_id in sorted(runs.of.items()):
        if asking is not None and (dag_id, run_id) == (asking.dag_id, asking.run_id):
            continue
        state = waker.state(dag_id, run_id)
        if (dag_id, run_id) in known and (state not in ENDED or dag_id in runs.staged):
            continue  # it is on its way or at work for the revision, or has done its part
        if state is not None and state not in AT_REST:
            busy.append(f"{dag_id}/{run_id}")
            continue
        # before it is woken: its first task asks at once what it is for
        is_new = meta.revisions.bind_run(revision.topology, revision.revision, barrier.barrier_id, dag_id, run_id, None)
        try:
            waker.wake(dag_id, run_id)
        except (RunActiveError, UnknownRunError, AirflowRefusedError) as error:
            if is_new:  # else it is the binding of another task, which may be waking the run in this moment
                meta.revisions.unbind_run(revision.topology, revision.revision, dag_id, run_id)
            log.warning("%s waits for DAG %s: %s", revision, dag_id, error)
            if isinstance(error, RunActiveError):
                busy.append(f"{dag_id}/{run_id}")
            else:
                left.append(f"{revision} waits for DAG {dag_id}: {error}")
            continue
        log.info("Woke run %s of DAG %s for barrier %s of %s", run_id, dag_id, barrier.barrier_id, revision)
        woken.append(f"{dag_id}/{run_id}")
    for dag_id in runs.unknown:
        left.append(
            f"{revision} waits for DAG {dag_id} at {barrier}, of which no run is known: backfill that day with "
            f"--dag-run-conf '{{\"{TOKEN}\": {revision.revision}}}'"
        )
        log.warning("%s", left[-1])
    return Woken(tuple(woken), tuple(busy), tuple(left))


# --- runs that a revision keeps out ---------------------------------------------------------------


def stays_out_until_published(deployment: Deployment, revision: Revision, run: Run) -> str | None:
    """Return the reason why a run ends whose barrier may not open before the revision is published; whoever publishes
    it wakes the run.

    A run that waited would hold one of the slots of its DAG that the revision's runs need. None: the revision has ended
    since the look, so that nothing is in the way any more.
    """
    revisions = deployment.meta.revisions
    revisions.bind_run(revision.topology, revision.revision, AFTERWARDS, run.ref.dag_id, run.ref.run_id, None)
    # from here on whoever publishes sees it; it may have looked before
    if not revisions.get(revision.topology, revision.revision).is_under_way:
        revisions.unbind_run(revision.topology, revision.revision, run.ref.dag_id, run.ref.run_id)
        return None
    return (
        f"no barrier of {revision.topology} opens before {revision} is published ({revision.reason}); this run is "
        f"woken then. If {revision} is cancelled instead, clear the run; left out, its epoch joins the next barrier's"
    )


def wake_those_left_out(deployment: Deployment, revision: Revision, scheduler: Scheduler) -> None:
    """Wake the runs that were skipped until the revision was published, the oldest first.

    A run that has just been skipped is about to end, and nobody is told of that; all of them together are waited for
    at most a minute. Calling it again is fine, for a task that died on its way: a run that was woken is not bound any
    more.
    """
    revisions = deployment.meta.revisions
    until = time.monotonic() + _FOR_ENDS
    for run in revisions.runs(revision.topology, revision.revision):
        if run.barrier_id != AFTERWARDS:
            continue
        try:
            _wake_at_its_end(scheduler, run.dag_id, run.run_id, until)
            log.info("Woke run %s of DAG %s: its barrier may open", run.run_id, run.dag_id)
        except UnknownRunError as error:
            log.warning("Run %s of DAG %s was left out: %s", run.run_id, run.dag_id, error)
        except (RunActiveError, AirflowRefusedError) as error:
            log.warning("Run %s of DAG %s was left out, clear it: %s", run.run_id, run.dag_id, error)
            continue
        revisions.unbind_run(revision.topology, revision.revision, run.dag_id, run.run_id)


def _wake_at_its_end(scheduler: Scheduler, dag_id: str, run_id: str, until: float) -> None:
    """Wake the run at its end. ``until``: by `time.monotonic`; then it is tried once more. Raises as
    :meth:`Scheduler.wake`.
    """
    while time.monotonic() < until:
        with suppress(RunActiveError):
            return scheduler.wake(dag_id, run_id)
        time.sleep(_BETWEEN_LOOKS)
    return scheduler.wake(dag_id, run_id)
