"""A run that asks what its tasks do next, and what only the scheduler knows of runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from airflow_barrier.protocol.names import rehearsal_name
from airflow_barrier.protocol.records import RunRef

#: States of a run that does nothing any more.
ENDED = frozenset({"success", "failed"})
#: And of one that has not begun, since a person has cleared tasks of it for instance. It waits for a slot of its DAG,
#: which may be the very one of the run that would wait for its end.
AT_REST = ENDED | {"queued"}


@dataclass(frozen=True)
class ActiveBackfill:
    """A backfill in Airflow that has not ended. A DAG has one at a time.

    ``first`` and ``last``: the logical dates (UTC) that ``author`` named, both included. ``jobs``, ``recut`` and
    ``full``: what was wrong, as :class:`~airflow_barrier.coordinator.revisions.plan.Wanted` has it.
    """

    dag_id: str
    number: int
    created_at: datetime
    first: datetime
    last: datetime
    author: str | None = None
    jobs: tuple[str, ...] = ()
    recut: tuple[str, ...] = ()
    full: bool = False

    def __str__(self) -> str:
        return f"backfill {self.number} of DAG {self.dag_id}"

    @property
    def actor(self) -> str:
        """The actor that begins the revision of this backfill, and of no other one: numbers begin anew with a database.

        >>> day = datetime(2017, 1, 5, tzinfo=timezone.utc)
        >>> ActiveBackfill("shopping", 12, day, day, day, "ann").actor
        'backfill 12 of DAG shopping of 2017-01-05 00:00:00 UTC'
        """
        return f"{self} of {self.created_at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True)
class Run:
    """A run of a DAG, as one of its tasks asks for it.

    ``timestamp`` (UTC) is the one that its barrier has, ``timestamp_from`` where it came from. ``barrier_id``: the
    barrier that the run's partition names (None: it has none). ``token``: the number of a revision that whoever
    started the run gave it (0: none). ``clear_number``: how often the run was cleared. ``backfill``: the one that the
    run is in, while that is active. ``rehearsal``: nothing of what the run computes is ever published.
    """

    ref: RunRef
    timestamp: datetime
    timestamp_from: str
    barrier_id: int | None = None
    token: int = 0
    clear_number: int = 0
    backfill: ActiveBackfill | None = None
    rehearsal: bool = False

    def topology(self, declared: str) -> str:
        """The topology that the run works in, of the one that its DAG has ``declared``."""
        return rehearsal_name(declared, *self.ref.key) if self.rehearsal else declared

    @property
    def at(self) -> datetime | int:
        """The run's name of its barrier."""
        return self.timestamp if self.barrier_id is None else self.barrier_id


class Waker(Protocol):
    """The part of a scheduler that looks at runs and has them run again. Airflow's API server has it, too."""

    def state(self, dag_id: str, run_id: str) -> str | None:
        """``queued``, ``running``, ``success`` or ``failed``; None: there is no such run.

        Raises AirflowUnavailableError, AirflowRefusedError.
        """
        ...

    def wake(self, dag_id: str, run_id: str) -> None:
        """Have all tasks of a run run again that has ended, or not begun.

        Raises UnknownRunError, RunActiveError, AirflowRefusedError, AirflowUnavailableError.
        """
        ...


class Scheduler(Waker, Protocol):
    """The scheduler's own knowledge of runs, and what only it can do with them. Airflow's is in the operators' room."""

    def is_running(self, request_key: str) -> bool:
        """Return True if the task that asked for an attempt, the same one in another run, is running."""
        ...

    def has_passed(self, run_id: str) -> bool:
        """Return True if the asking task has succeeded in another run of its DAG."""
        ...

    def at_work_until(self) -> datetime | None:
        """The timestamp (UTC) of the run before the asking one, of the same DAG, if it has not ended."""
        ...
