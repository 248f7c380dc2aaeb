"""A backfill of days that are committed: the revision that it is computed by, or what that would do."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import RevisionPlan, Wanted
from airflow_barrier.coordinator.revisions.publish import cancel_revision
from airflow_barrier.coordinator.revisions.telling import notes_of, plan_lines, revision_command
from airflow_barrier.coordinator.runs import ActiveBackfill, Run
from airflow_barrier.protocol.errors import RevisionRefusedError, TopologyError
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import MAX_REPLAY_BARRIERS, OnBackfill, Revision, RevisionMode, RevisionState
from airflow_barrier.protocol.states import BarrierState

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unchanged:
    """The backfill changes nothing, for a ``reason``. ``refused``: it cannot, as things are."""

    reason: str
    refused: bool = False


def answer_backfill(deployment: Deployment, topology: str, run: Run, answer: OnBackfill) -> Revision | Unchanged | None:
    """Return the revision that the days of the run's backfill are computed by; its first run begins it.

    None: the run is in no active backfill, or its day is not committed, and it does what any run does. The plan is
    logged before anything is begun.
    """
    backfill, meta = run.backfill, deployment.meta
    if backfill is None or run.token or topology not in meta.topologies.names():
        return None
    standing = meta.barriers.at(topology, run.timestamp)
    if standing is None:
        return _before_history(deployment, topology, run, backfill)
    if standing.state is not BarrierState.COMMIT:
        return None
    begun = _begun(deployment, topology, backfill)
    if begun is not None:
        return begun
    window = _window(deployment, topology, backfill)
    if not window:
        return Unchanged(
            f"{backfill} corrects nothing: expected days whose barriers of {topology} its own runs opened, found "
            f"{standing}, which run {standing.run} opened; backfill that DAG",
            refused=True,
        )
    wanted = Wanted(
        topology,
        window[0].barrier_id,
        window[-1].barrier_id,
        changed=backfill.jobs,
        recut=backfill.recut,
        mode=RevisionMode.FULL if backfill.full else RevisionMode.INCREMENTAL,
    )
    try:
        plan = plan_revision(deployment, wanted)
        for line in plan_lines(plan):
            log.info("%s: %s", backfill, line)
        for note in notes_of(plan):
            log.warning("%s: %s", backfill, note)
        newest = plan.barriers[-1]
        if backfill.last > newest.run_date:
            log.warning("%s ends after %s: its later days open barriers, as in any run", backfill, newest)
        unchanged = _explained(plan, backfill, answer, revision_command(wanted))
        if unchanged is not None:
            return unchanged
        reason = f"{backfill}, {backfill.first.isoformat()} to {backfill.last.isoformat()}"
        by = f", by {backfill.author}" if backfill.author else ""
        return begin_revision(deployment, plan, reason=reason + by, actor=backfill.actor)
    except (RevisionRefusedError, TopologyError) as error:
        # the run of another of its days, or a try that was thought dead, may have begun it since that look
        return _begun(deployment, topology, backfill) or Unchanged(
            f"{backfill} corrects nothing: {error}", refused=True
        )


def cancel_with_backfill(deployment: Deployment, backfill: ActiveBackfill) -> list[Revision]:
    """Cancel what the backfill has begun, in all topologies, unless runs of other DAGs are in it; returns these."""
    meta, cancelled = deployment.meta, []
    for topology in meta.topologies.names():
        revision = meta.revisions.under_way(topology)
        if revision is None or revision.actor != backfill.actor or revision.state is not RevisionState.STAGING:
            continue
        runs = meta.revisions.runs(topology, revision.revision)
        others = sorted({run.dag_id for run in runs if run.arrived_at is not None} - {backfill.dag_id})
        if others:
            command = f"airflow-barrier revision cancel {topology} {revision.revision}"
            log.warning(
                "%s was cancelled, %s goes on: DAGs %s are in it; %s", backfill, revision, ", ".join(others), command
            )
            continue
        cancelled.append(
            cancel_revision(
                deployment, topology, revision.revision, reason=f"{backfill} was cancelled", actor=backfill.actor
            )
        )
    return cancelled


def _begun(deployment: Deployment, topology: str, backfill: ActiveBackfill) -> Revision | Unchanged | None:
    revision = deployment.meta.revisions.begun_by(topology, backfill.actor)
    if revision is not None and revision.state is RevisionState.CANCELLED:
        return Unchanged(f"{revision}, which {backfill} began, was cancelled: backfill the days again to correct them")
    return revision


def _before_history(deployment: Deployment, topology: str, run: Run, backfill: ActiveBackfill) -> Unchanged | None:
    """A day of before the first barrier, for which none can open any more; None: a day that may have one."""
    oldest = deployment.meta.barriers.epochs(topology, limit=1)
    if not oldest or run.timestamp > oldest[0].timestamp:
        return None
    return Unchanged(
        f"{backfill} begins before the history of {topology}: expected days from {oldest[0].run_date.isoformat()} on, "
        f"whose run opened {oldest[0]}, found {run.at}; nothing of this day can be corrected",
        refused=True,
    )


def _window(deployment: Deployment, topology: str, backfill: ActiveBackfill) -> list[Barrier]:
    """The barriers that are COMMIT and that its runs opened; of more than may be replayed the first, as their plan says
    that they are too many.

    The timestamp of a barrier is not before the logical date of its run.
    """
    found = deployment.meta.barriers.epochs(
        topology, after=backfill.first - timedelta(microseconds=1), committed=True, limit=MAX_REPLAY_BARRIERS + 2
    )
    days = [each for each in found if backfill.first <= each.run_date <= backfill.last]
    return [each for each in days if each.run.dag_id == backfill.dag_id]


def _explained(plan: RevisionPlan, backfill: ActiveBackfill, answer: OnBackfill, command: str) -> Unchanged | None:
    """None: the plan is carried out."""
    others = [owner for owner in plan.owners if owner != backfill.dag_id]
    if answer is OnBackfill.REVISE or (answer is OnBackfill.OWN and not others):
        return None
    who = f"DAG{'s' if len(others) > 1 else ''} {', '.join(others)}"
    why = f"{who} would compute again, too" if others else "that is what the DAG's author wants"
    return Unchanged(
        f"{backfill} changes nothing, since {why} (the plan is above). To carry it out: {command}; or have each "
        'backfill of the DAG do so: BarrierGroup(..., backfill="revise")'
    )
