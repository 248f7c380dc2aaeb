"""What tasks do in a run that computes a barrier of a revision: such a run has its token, or was woken for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.waking import barrier_of_run, next_unstaged, runs_at
from airflow_barrier.operators._task import run_timestamp, skip
from airflow_barrier.operators._waking import AT_REST, ENDED, run_state, wake
from airflow_barrier.operators.processed import barrier_of_partition
from airflow_barrier.protocol.errors import (
    AirflowRefusedError,
    ConfigurationError,
    RunActiveError,
    UnknownRunError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import TOKEN, Revision, RevisionState

#: The barrier of runs that are not the revision's, but wait until it is published.
AFTERWARDS = 0
#: For how many seconds, and every how many, the ends of runs are looked for that are being skipped.
_FOR_ENDS, _BETWEEN_LOOKS = 60.0, 2.0

if TYPE_CHECKING:
    from airflow.sdk import Asset, BaseOperator, Context


def revision_of_run(deployment: Deployment, topology: str, context: Context) -> Revision | None:
    """The revision that the run computes for; None: none, or one that is published or cancelled.

    A run's conf stays what it was after later clears, so of a token and what the run was woken for the newer counts.
    Raises ConfigurationError for a token that is no number, UnknownRevisionError.
    """
    revision, ti = newest_revision_of_run(deployment, topology, context), context["ti"]
    if revision is not None and not revision.is_under_way:
        ti.task.log.info(
            "%s, of run %s, is %s: nothing is left to do for it", revision, ti.run_id, revision.state.value
        )
        return None
    return revision


def newest_revision_of_run(deployment: Deployment, topology: str, context: Context) -> Revision | None:
    """The newest revision that the run computed, or computes, something for. Raises as :func:`revision_of_run`."""
    meta, ti = deployment.meta, context["ti"]
    bound = meta.revisions.run_binding(topology, ti.dag_id, ti.run_id)
    number = max(_token(context), bound.revision if bound is not None and bound.barrier_id != AFTERWARDS else 0)
    return meta.revisions.get(topology, number) if number else None


def attach(deployment: Deployment, topology: str, context: Context) -> Barrier | None:
    """The barrier of the run as its revision computes it, with the runs that it needs woken; None: no revision's run.

    Raises RevisionRefusedError for a day that is not in the revision, or a DAG that has no part in it.
    """
    revision = revision_of_run(deployment, topology, context)
    if revision is None or revision.state is not RevisionState.STAGING:
        return None
    barrier = barrier_of(deployment, revision, context)
    ti, run = context["ti"], context["dag_run"]
    deployment.meta.revisions.bind_run(
        topology, revision.revision, barrier.barrier_id, ti.dag_id, ti.run_id, run.clear_number
    )
    ti.task.log.info("This run computes %s", barrier)
    wake_others(deployment, revision, barrier, context)
    return barrier


def barrier_of(deployment: Deployment, revision: Revision, context: Context) -> Barrier:
    """The barrier at the run's timestamp, or that its partition names, in the revision. Raises RevisionRefusedError."""
    timestamp, _ = run_timestamp(context)
    number = barrier_of_partition(context)
    return barrier_of_run(deployment, revision, timestamp if number is None else number, context["ti"].dag_id)


def silence(task: BaseOperator, assets: Sequence[Asset]) -> None:
    """Let the end of a task, which emits an event for each of its outlets, emit none for these: nothing happened."""
    task.outlets = [outlet for outlet in task.outlets if outlet not in assets]


def wake_others(deployment: Deployment, revision: Revision, barrier: Barrier, context: Context) -> None:
    """Let the other DAGs' runs of this barrier run again and, past the days that a person asked for, the next one's."""
    standing = deployment.meta.barrier(barrier.topology, barrier.barrier_id)
    wake_runs(deployment, revision, standing, context)
    if barrier.barrier_id >= revision.window_end:
        following = next_unstaged(deployment, revision, barrier.barrier_id)
        if following is not None:
            wake_runs(deployment, revision, following, context)


def wake_runs(deployment: Deployment, revision: Revision, barrier: Barrier, context: Context) -> tuple[str, ...]:
    """Wake the runs of ``barrier`` that have not come yet; returns those that are still at work for something else.

    A run that is woken is bound to the revision: from then on its tasks know what they are for.
    """
    meta, ti = deployment.meta, context["ti"]
    known = {(run.dag_id, run.run_id) for run in meta.revisions.runs(revision.topology, revision.revision)}
    runs = runs_at(deployment, revision, barrier)
    busy = []
    for dag_id, run_id in sorted(runs.of.items()):
        if (dag_id, run_id) == (ti.dag_id, ti.run_id):
            continue
        state = run_state(ti, dag_id, run_id)
        if (dag_id, run_id) in known and (state not in ENDED or dag_id in runs.staged):
            continue  # it is on its way or at work for the revision, or has done its part
        if state is not None and state not in AT_REST:
            busy.append(f"{dag_id}/{run_id}")
            continue
        # before it is woken: its first task asks at once what it is for
        is_new = meta.revisions.bind_run(revision.topology, revision.revision, barrier.barrier_id, dag_id, run_id, None)
        try:
            wake(dag_id, run_id)
        except (RunActiveError, UnknownRunError, AirflowRefusedError) as error:
            if is_new:  # else it is the binding of another task, which may be waking the run in this moment
                meta.revisions.unbind_run(revision.topology, revision.revision, dag_id, run_id)
            ti.task.log.warning("%s waits for DAG %s: %s", revision, dag_id, error)
            if isinstance(error, RunActiveError):
                busy.append(f"{dag_id}/{run_id}")
            continue
        ti.task.log.info("Woke run %s of DAG %s for barrier %s of %s", run_id, dag_id, barrier.barrier_id, revision)
    for dag_id in runs.unknown:
        ti.task.log.warning(
            "%s waits for DAG %s at %s, of which no run is known: backfill that day with --dag-run-conf '{\"%s\": %s}'",
            revision,
            dag_id,
            barrier,
            TOKEN,
            revision.revision,
        )
    return tuple(busy)


def stay_out_until_published(deployment: Deployment, revision: Revision, context: Context) -> None:
    """Skip a run whose barrier may not open before the revision is published; the task that publishes wakes it.

    Waiting, it would hold one of the slots of its DAG that the revision's runs need. Returns if the revision has ended
    since the look: then nothing is in the way any more.
    """
    ti, revisions = context["ti"], deployment.meta.revisions
    revisions.bind_run(revision.topology, revision.revision, AFTERWARDS, ti.dag_id, ti.run_id, None)
    # from here on whoever publishes sees it; it may have looked before
    if not revisions.get(revision.topology, revision.revision).is_under_way:
        revisions.unbind_run(revision.topology, revision.revision, ti.dag_id, ti.run_id)
        return
    skip(
        ti.task,
        f"no barrier of {revision.topology} opens before {revision} is published ({revision.reason}); this run is "
        f"woken then. If {revision} is cancelled instead, clear the run; left out, its epoch joins the next barrier's",
    )


def wake_those_left_out(deployment: Deployment, revision: Revision, context: Context) -> None:
    """Wake the runs that were skipped until the revision was published, the oldest first.

    One that has just been skipped is about to end, which nobody is told of; all of them together are waited for at most
    a minute. Again is fine, for a task that died on its way: who was woken is not bound any more.
    """
    ti, revisions = context["ti"], deployment.meta.revisions
    until = time.monotonic() + _FOR_ENDS
    for run in revisions.runs(revision.topology, revision.revision):
        if run.barrier_id != AFTERWARDS:
            continue
        try:
            _wake_at_its_end(run.dag_id, run.run_id, until)
            ti.task.log.info("Woke run %s of DAG %s: its barrier may open", run.run_id, run.dag_id)
        except UnknownRunError as error:
            ti.task.log.warning("Run %s of DAG %s was left out: %s", run.run_id, run.dag_id, error)
        except (RunActiveError, AirflowRefusedError) as error:
            ti.task.log.warning("Run %s of DAG %s was left out, clear it: %s", run.run_id, run.dag_id, error)
            continue
        revisions.unbind_run(revision.topology, revision.revision, run.dag_id, run.run_id)


def _wake_at_its_end(dag_id: str, run_id: str, until: float) -> None:
    """``until``: by `time.monotonic`; after it there is one look more. Raises as :func:`wake` does."""
    while time.monotonic() < until:
        with suppress(RunActiveError):
            return wake(dag_id, run_id)
        time.sleep(_BETWEEN_LOOKS)
    return wake(dag_id, run_id)


def _token(context: Context) -> int:
    """0: the run has none."""
    token = (context["dag_run"].conf or {}).get(TOKEN)
    if token is None:
        return 0
    try:
        number = int(token)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ConfigurationError(
            f"conf of the run: expected the number of a revision as {TOKEN!r}, found {token!r}; give the one that "
            "airflow-barrier revision run has printed"
        )
    return number
