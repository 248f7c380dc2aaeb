"""Planning a revision, and beginning it: what is computed again, from what, and what readers see when.

The plan is what the revision walks: whoever begins one begins a plan.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.bootstrap import check_history, first_with_inlets, joining_jobs, with_joining
from airflow_barrier.coordinator.revisions.checks import (
    check_bases,
    check_can_be_cleared,
    check_readable,
    check_schemas,
    check_sinks,
    pace,
    predecessor_of,
)
from airflow_barrier.coordinator.revisions.inputs import (
    changed_jobs,
    code_changed,
    planned_inputs,
    planned_tables,
    undone_corrections,
)
from airflow_barrier.coordinator.revisions.plan import PlannedRecut, RevisionPlan, Wanted
from airflow_barrier.coordinator.revisions.recut import planned_recuts
from airflow_barrier.coordinator.revisions.window import day_notes, replay_of
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.revisions import Revision, RevisionMode, affected_jobs
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Job

log = logging.getLogger(__name__)


def plan_revision(deployment: Deployment, wanted: Wanted) -> RevisionPlan:
    """Return the plan of a revision; changes nothing.

    Raises RevisionRefusedError, with what would work instead, for days that no barrier covers or that have expired,
    input that is gone, and a replay that is longer than ``max_replay_barriers``; UnknownTopologyError, TopologyError
    for a job that is not there.

    >>> plan_revision(deployment, Wanted("shopping", date(2017, 1, 5), date(2017, 1, 6)))  # doctest: +SKIP
    """
    meta = deployment.meta
    version = meta.topologies.version(wanted.topology)
    joining = _joining(meta, wanted)
    topology = with_joining(meta.topologies.get(wanted.topology, version), joining)
    changed = changed_jobs(topology, wanted)
    names = affected_jobs(topology, changed)
    jobs = tuple(topology.job(name) for name in names)
    if joining:
        wanted = _over_history(deployment, wanted, joining)
    replay = replay_of(meta, wanted)
    window, barriers = replay.window, replay.barriers
    committed = [each for each in barriers if each.state is BarrierState.COMMIT]
    what = f"revision of {wanted.topology} from {window[0]}"
    check_readable(what, wanted, barriers)
    predecessor = predecessor_of(deployment, what, barriers[0], wanted)
    check_bases(deployment, what, wanted.mode, jobs, predecessor, barriers)
    tables = {outlet for job in jobs for outlet in job.outlets}
    check_sinks(deployment, what, wanted.topology, tables, barriers[0].barrier_id)
    mains = check_history(deployment, joining, barriers) if joining else {}
    builds_on = (predecessor,) if wanted.mode is RevisionMode.INCREMENTAL else ()
    check_schemas(deployment, jobs, (*builds_on, *barriers))
    if wanted.mode is RevisionMode.FULL:
        check_can_be_cleared(deployment, what, jobs, barriers[0])
    recuts = planned_recuts(deployment, wanted, topology, window)
    inputs = planned_inputs(deployment, wanted, jobs, barriers, recuts)
    return RevisionPlan(
        wanted=wanted,
        predecessor=predecessor,
        barriers=barriers,
        window=window,
        head=committed[-1],
        jobs=jobs,
        changed=changed,
        tables=planned_tables(deployment, jobs, committed, predecessor, mains),
        untouched=tuple(sorted(set(topology.tables) - tables)),
        inputs=inputs,
        topology_version=version,
        code_changed=code_changed(deployment, jobs, barriers[0], committed[-1]),
        notes=(
            *day_notes(meta, wanted, window),
            *undone_corrections(deployment, topology, inputs),
            *pace(deployment, wanted, barriers),
        ),
        recuts=recuts,
        joining=mains,
    )


def begin_revision(deployment: Deployment, plan: RevisionPlan, *, reason: str, actor: str) -> Revision:
    """Begin what was planned. Nothing that readers see changes until it is published.

    Raises RevisionRefusedError while another revision is under way, and if the topology changed since the plan, or
    somebody took what joins an epoch.
    """
    meta, wanted = deployment.meta, plan.wanted
    revision = meta.revisions.begin(
        NewRevision(
            topology=wanted.topology,
            mode=wanted.mode,
            first_barrier=plan.barriers[0].barrier_id,
            predecessor=plan.predecessor.barrier_id,
            window_end=plan.window[-1].barrier_id,
            tables=sorted(table.table for table in plan.tables),
            jobs=[job.name for job in plan.jobs],
            changed=plan.changed,
            topology_version=plan.topology_version,
            reason=reason,
            actor=actor,
            corrections=tuple(wanted.corrections),
            reused=tuple(wanted.reused),
            recut=tuple(wanted.recut),
            joining=plan.joining,
            cuts=_by_barrier(plan.recuts),
        )
    )
    try:
        # an expiry may have come between plan and beginning; from here on it leaves that alone
        check_bases(deployment, str(revision), wanted.mode, plan.jobs, plan.predecessor, plan.barriers)
    except RevisionRefusedError as error:
        meta.revisions.cancel(wanted.topology, revision.revision, str(error), actor)
        raise
    if wanted.accept_pause:
        revision = meta.revisions.gate(revision.topology, revision.revision, closed=True, actor=actor)
    log.info(
        "%s is STAGING: barriers %s to %s, tables %s",
        revision,
        revision.first_barrier,
        plan.barriers[-1].barrier_id,
        ", ".join(revision.tables),
    )
    return revision


def _by_barrier(recuts: Sequence[PlannedRecut]) -> dict[int, list[Cut]]:
    found: dict[int, list[Cut]] = {}
    for each in recuts:
        found.setdefault(each.barrier_id, []).append(each.cut)
    return found


def _joining(meta: MetaService, wanted: Wanted) -> tuple[Job, ...]:
    others = bool(wanted.corrections or wanted.reused or wanted.recut or wanted.mode is RevisionMode.FULL)
    return joining_jobs(
        meta.topologies.waiting(wanted.topology), wanted.topology, wanted.changed, wanted.tables, others=others
    )


def _over_history(deployment: Deployment, wanted: Wanted, joining: Sequence[Job]) -> Wanted:
    """Return the request for jobs that join, with its first barrier; all that follow are woken by ourselves."""
    wanted = replace(wanted, mode=RevisionMode.HISTORY)
    # one more than may be replayed: who has more of a history is refused, however long it is
    newest_first = deployment.meta.barriers.newest_epochs(wanted.topology, limit=wanted.max_replay_barriers + 1)
    if wanted.first is not None or not newest_first:
        return wanted
    return replace(wanted, first=first_with_inlets(deployment, joining, newest_first).barrier_id)
