"""Whoever completes a barrier commits it: the task of the job that was PROCESSED last, in place.

That spares readers the way through the scheduler to the commit task, which finds the barrier committed and emits its
asset events (decision 0017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_barrier.coordinator.committing import NotYet, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.operators._binding import BINDING
from airflow_barrier.operators._task import actor
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.records import Barrier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator, Context


def commit_in_place(
    task: BaseOperator, commit_task_id: str, deployment: Deployment, barrier: Barrier, context: Context
) -> None:
    """Commit ``barrier``, which is PRECOMMIT, unless something else than jobs stands before the commit task.

    Never raises: the job has done its work, and what keeps the barrier from being committed the commit task says.
    """
    others = not_jobs_before(task, commit_task_id, barrier.topology)
    if others:
        task.log.info("%s is left to %s, which waits for %s", barrier, commit_task_id, ", ".join(others))
        return
    try:
        outcome = commit_barrier(deployment, barrier.topology, barrier.barrier_id, actor=actor(context))
    # a timeout is no Exception, and takes nothing away from what the job has done
    except (Exception, AirflowTaskTimeout) as error:
        task.log.warning("%s is left to %s: %s: %s", barrier, commit_task_id, type(error).__name__, error)
        return
    if isinstance(outcome, NotYet):
        task.log.info("%s is left to %s: %s", barrier, commit_task_id, outcome.reason)
        return
    for published in outcome.published:
        task.log.info("Committed %s", published)


def not_jobs_before(task: BaseOperator, commit_task_id: str, topology: str) -> list[str]:
    """The tasks directly before the commit task that are no jobs of ``topology``: an author's own checks.

    Asked when the task runs, for edges may be added anywhere in the DAG file.
    """
    dag = task.get_dag()
    if dag is None:
        return []
    before = (dag.get_task(task_id) for task_id in sorted(dag.get_task(commit_task_id).upstream_task_ids))
    return [each.task_id for each in before if not _is_job(vars(each), topology)]


def check_gates(start: BaseOperator, commit_task_id: str | None) -> None:
    """Refuse tasks that would skip the commit task itself, but not the start task: a barrier that is open then stays so
    for ever, in a run that is success.

    Asked when the task runs, as above. Where a job is skipped and nothing else, the commit task notices.
    """
    dag = start.get_dag()
    if dag is None or commit_task_id is None:
        return
    for task in dag.tasks:
        after = task.get_flat_relative_ids(upstream=False)
        if commit_task_id not in after or start.task_id in after:
            continue
        if getattr(task, "ignore_downstream_trigger_rules", False):
            raise ConfigurationError(
                f"task {task.task_id}: expected no task that skips {commit_task_id} together with a job, found "
                f"{type(task).__name__} with ignore_downstream_trigger_rules=True; set it to False"
            )
        if task.inherits_from_skipmixin and commit_task_id in task.downstream_task_ids:
            raise ConfigurationError(
                f"task {task.task_id}: expected a check before {commit_task_id} that fails, found "
                f"{type(task).__name__}, which skips it, and the next run's commit publishes what it held back; have "
                "the check raise an error, with depends_on_past=True"
            )


def _is_job(attributes: Mapping[str, object], topology: str) -> bool:
    fragment = getattr(attributes.get(BINDING), "fragment", None)
    return fragment is not None and fragment.topology == topology
