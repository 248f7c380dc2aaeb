"""How deferred tasks wait, and what they make of what they were told."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from airflow.sdk import conf

from airflow_barrier.protocol.errors import StoreUnavailableError, WaitTimeoutError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_barrier.coordinator.waiting import Wait

#: How long a try of a task may wait, as long as Airflow's sensors do.
WAIT_TIMEOUT = timedelta(days=7)
#: Seconds for an answer about the triggerer.
_ANSWER = 2.0
#: What a deferred task without retries is exposed to, and what to do.
NO_RETRIES = (
    "Airflow itself now and then fails a deferred task, and an error that a retry would mend holds up the barrier; set "
    "retries=2, for all of the DAG by default_args"
)


class Waits(Protocol):
    """An operator, or what ties a task to its topology."""

    @property
    def barrier_conn_id(self) -> str: ...
    @property
    def wait_timeout(self) -> timedelta: ...


def defer(
    task: BaseOperator, who: Waits, topology: str, wait: Wait, context: Context, method: str, **kwargs: Any
) -> NoReturn:
    """Let the task wait in the triggerer, and go on with ``method`` of it. Its log says what it waits for."""
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
        ),
        method_name=method,
        kwargs=kwargs,
    )


def triggerer_fault() -> str | None:
    """What keeps a deferred task from ever going on, as far as the API server says it; None: nothing that is known.

    The task SDK does not tell. The server that a task talks to may serve nothing but tasks: then this is not known.
    """
    import httpx

    try:
        triggerer = (
            httpx.get(f"{api_server()}/api/v2/monitor/health", timeout=_ANSWER).raise_for_status().json()["triggerer"]
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return None
    if triggerer["status"] == "healthy":
        return None
    last = triggerer["latest_triggerer_heartbeat"]
    return (
        f"No triggerer is alive ({f'its last heartbeat was at {last}' if last else 'there never was one'}): this task "
        "stays deferred until there is one; start it: airflow triggerer"
    )


def api_server() -> str:
    """The server that tasks talk to, without a slash at its end."""
    url = conf.get("core", "execution_api_server_url", fallback=None) or conf.get("api", "base_url", fallback=None)
    return (url or "http://localhost:8080").removesuffix("/").removesuffix("/execution")


def check_event(event: dict[str, Any]) -> None:
    """Raises StoreUnavailableError, WaitTimeoutError. Whatever else a trigger says is a hint to look again."""
    if event["status"] == "unavailable":
        raise StoreUnavailableError(event["message"])
    if event["status"] == "late":
        raise WaitTimeoutError(event["message"])
