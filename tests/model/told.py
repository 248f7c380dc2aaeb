"""Who was told to come back later, and what he waits for meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_barrier.coordinator.committing import NotYet
from airflow_barrier.coordinator.compacting import Compacted
from airflow_barrier.coordinator.opening import Later
from airflow_barrier.coordinator.staging import Waiting
from airflow_barrier.coordinator.waiting import AnyCondition, Condition, TopologyView, Wait, look
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import Retryable, UnknownTableError, VoidedAttemptError
from airflow_barrier.protocol.records import Need
from tests.model.tasks import Task
from tests.model.topology import NAME


@dataclass(frozen=True)
class Kept:
    """Somebody is deferred until all of his conditions have been reached, or one never will be. Then he looks again."""

    who: str
    conditions: tuple[AnyCondition, ...]
    again: Callable[[], Task] | None = None

    def waits_for(self, meta: MetaService) -> list[str]:
        """What has neither come, nor is over, nor is refused with a reason."""
        waits = []
        for condition in self.conditions:
            try:
                found = look(TopologyView(meta, NAME), condition)
            except UnknownTableError:
                return []
            if found.never is not None:
                return []
            waits += [] if found.waits_for is None else [found.waits_for]
        return waits


def told_later(task: Task) -> bool:
    """Whether the task is to be repeated as it is, by Airflow or when it is woken.

    The next try of one whose attempt was voided begins anew, which tasks of their own do here.
    """
    if isinstance(task.error, VoidedAttemptError):
        return False
    return isinstance(task.result, (Later, Waiting, NotYet, Wait)) or isinstance(task.error, Retryable)


def kept_of(task: Task) -> Kept | None:
    """With the conditions that the operators wait with."""
    result = task.result
    conditions: tuple[AnyCondition, ...] = ()
    if isinstance(result, Wait):
        conditions = result.conditions
    elif isinstance(result, Waiting):
        conditions = tuple(map(_processed, result.needs))
    elif isinstance(result, NotYet):
        conditions = (Condition("PRECOMMIT", barrier_id=result.barrier.barrier_id),)
    elif isinstance(result, Compacted) and result.needs:
        conditions = tuple(map(_processed, result.needs))
    elif not told_later(task) or task.again is None:
        return None
    return Kept(task.name, conditions, task.again)


def _processed(need: Need) -> Condition:
    return Condition("PROCESSED", barrier_id=need.barrier_id, tables=(need.table,), line=need.line)
