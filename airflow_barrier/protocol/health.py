"""How a topology is, in one word, wherever that is told."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from enum import Enum

from airflow_barrier.protocol.states import BarrierState


class Health(str, Enum):
    """The worst of what is true of a topology."""

    OK = "ok"
    #: No barrier was opened yet.
    EMPTY = "empty"
    LATE = "late"
    #: A job has failed at a barrier that waits for it, and Airflow will try again.
    RETRYING = "retrying"
    #: A job has failed, and nobody will try again; or the last delivery to a sink failed.
    FAILING = "failing"
    #: A barrier is BLOCKED: somebody else wrote to one of its tables.
    BLOCKED = "blocked"


#: The order in which topologies are listed.
WORST_FIRST = (Health.BLOCKED, Health.FAILING, Health.RETRYING, Health.LATE, Health.OK, Health.EMPTY)


def health_of(
    states: Iterable[BarrierState], again_at: Collection[datetime | None], *, late: bool, sink_fails: bool
) -> Health:
    """``states``: of the newest barriers, and of all that are not committed. ``again_at``: of each job that has failed
    when it is tried again (None: it is not).

    >>> health_of([BarrierState.OPEN], [None], late=True, sink_fails=False).value
    'failing'
    """
    found = set(states)
    if BarrierState.BLOCKED in found:
        return Health.BLOCKED
    if sink_fails or None in again_at:
        return Health.FAILING
    if again_at:
        return Health.RETRYING
    if late:
        return Health.LATE
    return Health.OK if found else Health.EMPTY
