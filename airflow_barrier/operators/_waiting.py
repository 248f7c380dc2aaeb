"""How deferred tasks wait, and what they make of what they were told."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from airflow_barrier.protocol.errors import StoreUnavailableError, WaitTimeoutError

if TYPE_CHECKING:
    from airflow.sdk import Context

#: How long a try of a task may wait, as long as Airflow's sensors do.
WAIT_TIMEOUT = timedelta(days=7)


class Waits(Protocol):
    """An operator, or what ties a task to its topology."""

    @property
    def barrier_conn_id(self) -> str: ...
    @property
    def poll_interval(self) -> float: ...
    @property
    def wait_timeout(self) -> timedelta: ...


def waiting(who: Waits, topology: str, context: Context) -> dict[str, Any]:
    """What every trigger takes. The time runs from the beginning of the try, however often it is deferred."""
    return {
        "topology": topology,
        "barrier_conn_id": who.barrier_conn_id,
        "poll_interval": who.poll_interval,
        "until": context["ti"].start_date + who.wait_timeout,
    }


def check_event(event: dict[str, Any]) -> None:
    """Raises StoreUnavailableError, WaitTimeoutError. Whatever else a trigger says is a hint to look again."""
    if event["status"] == "unavailable":
        raise StoreUnavailableError(event["message"])
    if event["status"] == "late":
        raise WaitTimeoutError(event["message"])
