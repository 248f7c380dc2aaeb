"""Whose asset events are still to come: a barrier is committed before its commit task tells anybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.records import Barrier

if TYPE_CHECKING:
    from airflow.sdk import Asset, BaseOperator, Context

#: States in which a task will not run any more by itself. One whose run was deleted has none.
_ENDED = frozenset({"success", "failed", "upstream_failed", "skipped", "removed"})


def swallowed(task: BaseOperator, context: Context, deployment: Deployment, barrier: Barrier) -> list[Barrier]:
    """Barriers before ``barrier`` whose commit task has ended without a word: it was marked success, or it died.

    Nearly always there are none, and Airflow is not asked.
    """
    silent = []
    for barrier_id, who in deployment.meta.publishing.unannounced(barrier.topology, barrier.barrier_id).items():
        earlier = deployment.meta.barriers.get(barrier.topology, barrier_id)
        dag_id, run = _announcing_run(who, earlier, task)
        if dag_id == task.dag_id:
            silent.append((earlier, run))
    own = context["ti"].run_id  # what an earlier try of this very task committed, it may not have told
    others = sorted({run for _, run in silent} - {own})
    states = (
        context["ti"].get_task_states(dag_id=task.dag_id, task_ids=[task.task_id], run_ids=others) if others else {}
    )
    return [
        earlier for earlier, run in silent if run == own or states.get(run, {}).get(task.task_id, "removed") in _ENDED
    ]


def _announcing_run(who: str, barrier: Barrier, task: BaseOperator) -> tuple[str, str]:
    """The run whose commit task tells of ``barrier``: the one that committed it, or the barrier's own if a job did."""
    committer = who.rpartition("#")[0]
    if not committer.endswith(f"/{task.task_id}"):
        return barrier.run.key
    dag_id, _, run = committer.removesuffix(f"/{task.task_id}").partition("/")
    return dag_id, run


def give_keys(accessor: Any, keys: Sequence[str]) -> None:
    """Give the event of a task these partition keys, where Airflow has them."""
    from airflow_barrier.hooks.features import Feature

    if Feature.PARTITION_KEYS.is_there:
        accessor.add_partitions(list(keys))


def silence(task: BaseOperator, assets: Sequence[Asset]) -> None:
    """Let the end of a task, which emits an event for each of its outlets, emit none for these: nothing happened."""
    task.outlets = [outlet for outlet in task.outlets if outlet not in assets]
