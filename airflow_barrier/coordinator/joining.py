"""How a member's job finds the barrier of its run: it registers when its task has started, and not before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_barrier.coordinator.creating import check_table_names, create_declared
from airflow_barrier.coordinator.cuts import check_allowed, check_reachable
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.journal import check_not_lost
from airflow_barrier.coordinator.opening import Later
from airflow_barrier.coordinator.revisions.bootstrap import says_that_it_waits
from airflow_barrier.coordinator.starting import check_start, looks
from airflow_barrier.protocol.errors import (
    HeadMovedError,
    UnknownBarrierError,
    UnknownTopologyError,
    WithdrawnError,
)
from airflow_barrier.protocol.names import nearest
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment, Job

#: A run that is further ahead of the newest barrier than so many of these periods has others before it.
_PERIODS_AHEAD = 1.5


@dataclass(frozen=True)
class StaysOut:
    """The job has no part in the barrier of its run, and why; waiting changes nothing."""

    reason: str


def take_part(
    deployment: Deployment, fragment: Fragment, job: Job, at: datetime | int, actor: str
) -> Barrier | Later | StaysOut:
    """Register ``job``, whose task has started, and find the barrier of that timestamp (UTC) or id.

    A barrier that is open already keeps the members that it was opened with. A run of before the newest barrier may
    have the code of then: it adds a job that has never been a member, and changes nothing else. Raises TopologyError
    naming both DAGs if their fragments contradict each other, and StartFromError if it is not known how the job joins.
    """
    topology = fragment.topology
    if isinstance(at, datetime) and (instead := _out_of_reach(deployment, topology, job, at)) is not None:
        return instead
    try:
        unwritten = _register(deployment, fragment, job, at, actor)
    except WithdrawnError as error:
        barrier = _barrier(deployment, topology, at)
        # what was open when it left goes on with it
        return barrier if barrier is not None and takes_part(deployment, barrier, job.name) else StaysOut(str(error))
    barrier = _barrier(deployment, topology, at)
    missing = (
        f"job {job.name} reads {', '.join(unwritten)}, which no job writes so far: has the DAG that does run yet? "
        f"Otherwise declare what is written elsewhere as an external source, IcebergTable({unwritten[0]!r})"
        if unwritten
        else None
    )
    if barrier is None:
        reason = missing or f"no barrier of {topology} is open {_said(at)} yet"
        if (unopened := never_opened(deployment, topology)) is not None:
            reason = f"{unopened}; {reason}"
        return Later(reason, deployment.meta.revisions.gatekeeper(topology))
    if barrier.state is BarrierState.ABORTED:
        return StaysOut(f"{barrier} was aborted ({barrier.reason}); its epoch joins the next barrier's")
    if not takes_part(deployment, barrier, job.name):
        if waits_for_history(deployment, topology, job.name):
            return StaysOut(says_that_it_waits(topology, job.name))
        if not missing and not _is_registered(deployment, topology, job):
            return StaysOut(
                f"job {job.name} is no member of {topology} any more, nor was it one at {barrier}; a run of before the "
                "newest barrier does not bring it back, since its DAG may have the code of then: the next run does"
            )
        return StaysOut(
            f"{barrier} was opened before job {job.name} joined {topology}; "
            + (missing or "the job takes part from the next barrier on")
        )
    return barrier


def never_opened(deployment: Deployment, topology: str) -> str | None:
    """Return a note that names all topologies, if no DAG ever opened a barrier of this one: its name may be mistyped.

    Its own DAG may be still to come, so this is told, and nothing fails (docs/decisions/0058).
    """
    if deployment.meta.barriers.head(topology) is not None:
        return None
    others = [name for name in deployment.meta.topologies.names() if name != topology]
    near = nearest(topology, others)
    meant = "" if near is None else f"; did you mean {near!r}?"
    return f"no DAG has ever opened a barrier of topology {topology}; there are: {', '.join(others) or 'none'}{meant}"


def takes_part(deployment: Deployment, barrier: Barrier, job: str) -> bool:
    """Return True if a barrier has the job: its members are fixed since it was opened."""
    return any(
        each.name == job for each in deployment.meta.topologies.get(barrier.topology, barrier.topology_version).jobs
    )


def waits_for_history(deployment: Deployment, topology: str, job: str) -> bool:
    """Return True if a job joins only once a revision has computed its tables over history."""
    return any(each.name == job for each in deployment.meta.topologies.waiting(topology))


def _out_of_reach(deployment: Deployment, topology: str, job: Job, at: datetime) -> Later | StaysOut | None:
    """Return the step for a barrier at that timestamp that will not come, or that others come before; None: go on."""
    head = deployment.meta.barriers.head(topology)
    if head is None or not head.barrier_id:
        return None  # there is the baseline at most
    if head.timestamp > at and deployment.meta.barriers.at(topology, at) is None:
        return StaysOut(
            f"no barrier of {topology} opens {_said(at)} any more, since one at {head.timestamp.isoformat()} is there: "
            "it was aborted, or no run opened one; what the job has not had yet comes with its next barrier. If no run "
            "of this DAG ever has the timestamp of a barrier, give the DAG the schedule of the one that opens them"
        )
    if _is_ahead(deployment, deployment.meta.barriers.epoch_of(head), at) and not _is_registered(
        deployment, topology, job
    ):
        return Later(
            f"the barriers of {topology} are not near {at.isoformat()} yet; the job joins when they are, since those "
            "that open until then would wait for its tables"
        )
    return None


def _is_ahead(deployment: Deployment, head: Barrier, at: datetime) -> bool:
    """Return True if more barriers open before that timestamp, as far as the last two tell."""
    if not head.predecessor:
        return False
    before = deployment.meta.barriers.epoch_of(deployment.meta.barriers.get(head.topology, head.predecessor))
    if not before.barrier_id:
        return False  # the baseline
    period = head.timestamp - before.timestamp
    return period * _PERIODS_AHEAD < at - head.timestamp


def _barrier(deployment: Deployment, topology: str, at: datetime | int) -> Barrier | None:
    if isinstance(at, datetime):
        return deployment.meta.barriers.at(topology, at)
    try:
        return deployment.meta.barriers.get(topology, at)
    except (UnknownBarrierError, UnknownTopologyError):
        return None


def _said(at: datetime | int) -> str:
    return f"at {at.isoformat()}" if isinstance(at, datetime) else f"with number {at}"


def _register(deployment: Deployment, fragment: Fragment, job: Job, at: datetime | int, actor: str) -> tuple[str, ...]:
    """The tables that nobody writes yet: until somebody does, the job is not registered."""
    meta = deployment.meta
    check_allowed(deployment, [job])
    check_table_names(deployment, [job])
    barrier = _barrier(deployment, fragment.topology, at)
    timestamp = barrier.timestamp if barrier is not None else at if isinstance(at, datetime) else None
    if barrier is None and meta.barriers.head(fragment.topology) is None:
        check_not_lost(deployment, fragment.topology)
        if unwritten := _unwritten(deployment, fragment, job):
            return unwritten  # before its tables are made: the topology's name may be mistyped
    for attempt in looks(HeadMovedError):
        with attempt:
            _check_start(deployment, fragment, job, timestamp)
    joined = meta.topologies.join(fragment.topology, fragment.owner, job.name, fragment.jobs, actor, at=timestamp)
    return joined if isinstance(joined, tuple) else ()


def _unwritten(deployment: Deployment, fragment: Fragment, job: Job) -> tuple[str, ...]:
    written = {
        outlet for each in (*_registered(deployment, fragment.topology), *fragment.jobs) for outlet in each.outlets
    }
    return tuple(table for table in job.inlets if table not in written)


def _check_start(deployment: Deployment, fragment: Fragment, job: Job, timestamp: datetime | None) -> None:
    """Here, so that it fails this job, and not the opening of everybody's next barrier."""
    meta, topology = deployment.meta, fragment.topology
    registered = _registered(deployment, topology)
    is_member = any(each.name == job.name for each in registered)
    new = {*job.outlets}.difference(*(each.outlets for each in registered))
    declared = [table for table in fragment.tables if table.name in new]
    if (is_member and not declared) or meta.topologies.withdrawal(topology, fragment.owner, job.name) is not None:
        return
    if timestamp is not None and meta.topologies.is_settled(topology, fragment.owner, job.name, timestamp):
        return  # it does not join now
    if declared:
        check_not_lost(deployment, topology)  # an empty table would stand where `recover` looks for the one that was
        create_declared(deployment, declared)
    if is_member or meta.topologies.waits(topology, job):
        return  # what it joins with is found out when its history is planned
    check_reachable(deployment, job)
    if timestamp is not None:
        check_start(deployment, topology, job, timestamp)


def _is_registered(deployment: Deployment, topology: str, job: Job) -> bool:
    return any(each.name == job.name for each in _registered(deployment, topology))


def _registered(deployment: Deployment, topology: str) -> tuple[Job, ...]:
    try:
        return deployment.meta.topologies.get(topology).jobs
    except UnknownTopologyError:
        return ()
