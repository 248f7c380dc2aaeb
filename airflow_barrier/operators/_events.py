"""Whose asset events are still to come: a barrier is committed before its commit task tells anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.records import Barrier

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

#: States in which a task will not run any more by itself. One whose run was deleted has none.
_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


def swallowed(task: BaseOperator, context: Context, deployment: Deployment, barrier: Barrier) -> list[Barrier]:
    """Barriers before ``barrier`` whose own commit task has ended without a word, as when it was marked success.

    A job committed them in place. Nearly always there are none, and Airflow is not asked.
    """
    silent = [
        deployment.meta.barrier(barrier.topology, barrier_id)
        for barrier_id, who in deployment.meta.unannounced(barrier.topology, barrier.barrier_id).items()
        # what a commit task commits it announces itself
        if not who.rpartition("#")[0].endswith(f"/{task.task_id}")
    ]
    runs = {each.barrier_id: each.run_key.partition("/")[2] for each in silent if _is_of(each, task.dag_id)}
    if not runs:
        return []
    states = context["ti"].get_task_states(
        dag_id=task.dag_id, task_ids=[task.task_id], run_ids=sorted(set(runs.values()))
    )
    return [
        each
        for each in silent
        if each.barrier_id in runs and states.get(runs[each.barrier_id], {}).get(task.task_id, "removed") in _ENDED
    ]


def _is_of(barrier: Barrier, dag_id: str) -> bool:
    return barrier.run_key.startswith(f"{dag_id}/")
