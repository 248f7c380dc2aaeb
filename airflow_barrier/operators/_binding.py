"""What a DAG file says of a task: that it runs once in a run; of a job its place in the topology, and its work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.topology import Fragment, Job

if TYPE_CHECKING:
    from airflow_barrier.coordinator.batching import Batch
    from airflow_barrier.coordinator.staging import Ready
    from airflow_barrier.spark.spec import ClosingRecord

#: The operator's attribute that says which job a task is.
BINDING = "_binding"
#: The operator's method that a deferred job resumes with.
RESUME_METHOD = "resume_epoch"


def check_unmapped(task: Any, purpose: str) -> None:
    """Refuse a task that Airflow runs several times in a run: each instance would take the others' work for its own."""
    if not isinstance(task, BaseOperator):
        found = type(task).__name__
    elif group := task.get_closest_mapped_task_group():
        found = f"it in the mapped task group {group.group_id}"
    else:
        return
    raise ConfigurationError(  # safety: once-in-a-run
        f"task {task.task_id}: expected an operator that runs once in a run, found {found}; a mapped task cannot "
        f"{purpose}: write a loop in the DAG file, or one task that does all"
    )


@dataclass(frozen=True)
class Binding:
    """A task's place in a topology; the group says it while the DAG is parsed."""

    job: Job
    fragment: Fragment
    member: bool
    #: the task that commits the barrier; None: it is in another DAG
    commit_task_id: str | None
    barrier_conn_id: str
    wait_timeout: timedelta
    #: whether tables get asset events when they are PROCESSED
    announce_processed: bool = False
    #: how many barriers' epochs the task may process in one Spark job
    batch_barriers: int = 1


def _no_session() -> AbstractContextManager[bool]:
    return nullcontext(False)


@dataclass(frozen=True)
class SparkWork:
    """The work itself, as the operator does it.

    ``run`` returns the closing record, or None if the driver wrote it to its file. ``stop`` ends the work; it is
    called in a thread of its own, maybe before the work has started. ``sql`` goes into the epoch spec. ``by_branch``:
    the job's code may know nothing of its epoch. ``run_batch`` runs several epochs in one Spark job. ``server``: the
    connection of the Spark Connect server that it runs on; ``end`` ends a session there, that of an earlier attempt
    whose worker is lost. ``handing_over``: what ``run`` has staged is closed in its block, and it yields whether the
    session may then serve another attempt. ``profile``: how it goes about small epochs.
    """

    run: Callable[[Ready], ClosingRecord | None]
    stop: Callable[[], None]
    sql: str | None = None
    by_branch: bool = False
    run_batch: Callable[[Batch], None] | None = None
    server: str | None = None
    end: Callable[[str], None] | None = None
    handing_over: Callable[[], AbstractContextManager[bool]] = _no_session
    profile: str = "auto"
