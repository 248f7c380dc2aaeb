"""How deferred tasks wait, and what they make of what they were told."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from airflow_barrier.protocol.errors import StoreUnavailableError, WaitTimeoutError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_barrier.coordinator.waiting import Wait

#: How long a try of a task may wait, as long as Airflow's sensors do.
WAIT_TIMEOUT = timedelta(days=7)


class Waits(Protocol):
    """An operator, or what ties a task to its topology."""

    @property
    def barrier_conn_id(self) -> str: ...
    @property
    def wait_timeout(self) -> timedelta: ...


def defer(
    task: BaseOperator, who: Waits, topology: str, wait: Wait, context: Context, method: str, **kept: Any
) -> NoReturn:
    """Let the task wait in the triggerer, and go on with ``method`` of it, which finds ``kept`` in the event.

    The task's log says what it waits for.
    """
    from airflow_barrier.hooks.deferral import NO_RETRIES, triggerer_fault
    from airflow_barrier.triggers.barrier import BarrierTrigger

    task.log.info("Waiting: %s", wait.reason)
    if fault := triggerer_fault():
        task.log.warning("%s", fault)
    if not task.retries:
        task.log.warning("Task %s has no retries: %s", task.task_id, NO_RETRIES)
    task.defer(
        trigger=BarrierTrigger(
            topology=topology,
            barrier_conn_id=who.barrier_conn_id,
            conditions=wait.conditions,
            any_of=wait.any_of,
            attempt_ids=wait.attempt_ids,
            not_before=wait.not_before,
            look_again=wait.look_again,
            unopened=wait.unopened,
            # the time runs from the beginning of the try, however often it is deferred
            until=context["ti"].start_date + who.wait_timeout,
            kept=kept,
        ),
        method_name=method,
    )


def check_event(event: dict[str, Any]) -> None:
    """Raises StoreUnavailableError, WaitTimeoutError. Whatever else a trigger says is a hint to look again."""
    if event["status"] == "unavailable":
        raise StoreUnavailableError(event["message"])
    if event["status"] == "late":
        raise WaitTimeoutError(event["message"])
