"""Revisions: barriers computed again, after input or code was corrected, beside what readers go on to see.

What stands is line 0. Revision r stages in line r, from its first barrier to the head; one publish exchanges the two,
and what was replaced is line -r from then on, which keeps the old revision readable by its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.topology import Topology, downstream_jobs

#: The key of a run's conf, in Airflow, that says which revision the run computes for.
TOKEN = "barrier_revision"
#: Of the backfill that the run is in while it is active; the scheduler says it.
BACKFILL = "barrier_backfill"
#: Whether the run rehearses its barrier; who triggers it says so.
REHEARSAL = "barrier_rehearsal"
#: Barriers that a revision replays, unless its author says more.
MAX_REPLAY_BARRIERS = 31


class RevisionState(str, Enum):
    """The state of a revision."""

    STAGING = "STAGING"  # its barriers are computed again, one after the other
    COMMITTING = "COMMITTING"  # the decision to publish it is durable: it only rolls forward
    COMMIT = "COMMIT"  # it is what readers see
    CANCELLED = "CANCELLED"  # given up while it was STAGING


class RevisionMode(str, Enum):
    """A revision's way to compute."""

    #: on the snapshots just before its first barrier, barrier by barrier
    INCREMENTAL = "incremental"
    #: its tables cleared, everything up to its first barrier as one epoch; for state that cannot be replayed
    FULL = "full"
    #: for jobs that join: tables that no barrier has had yet, the first epoch with all that their inlets hold at it
    HISTORY = "history"


class OnBackfill(str, Enum):
    """The answer of a topology to a backfill of days that are committed."""

    OWN = "own"  # a revision, if it computes jobs of the DAG alone; else the plan is explained
    REVISE = "revise"  # a revision
    EXPLAIN = "explain"  # the plan is explained, and nothing is changed


REVISION_TRANSITIONS: dict[RevisionState, frozenset[RevisionState]] = {  # safety: revision-transitions
    RevisionState.STAGING: frozenset({RevisionState.COMMITTING, RevisionState.CANCELLED}),
    RevisionState.COMMITTING: frozenset({RevisionState.COMMIT}),
    RevisionState.COMMIT: frozenset(),
    RevisionState.CANCELLED: frozenset(),
}

#: Of these a topology has one at a time.
UNDER_WAY_REVISIONS = frozenset({RevisionState.STAGING, RevisionState.COMMITTING})


#: The kind of correction that changes what the epoch brought; the others stand in its place.
BY_STATEMENT = "sql"


@dataclass(frozen=True)
class TableCorrection:
    """The stand-in for the epoch of a root table at one barrier, instead of what its job makes of its cut.

    ``correction`` is JSON that Spark's side understands (:mod:`airflow_barrier.spark.corrections`).
    """

    barrier_id: int
    table: str
    correction: Mapping[str, Any]


@dataclass(frozen=True)
class Revision:
    """One revision of a topology; ``revision`` is its number: 1, 2, 3...

    It computes the ``tables`` of ``jobs`` again from barrier ``first_barrier`` on, because ``changed`` (jobs) or their
    input did; ``predecessor`` is the barrier that it builds on. ``window_end`` is the last barrier that a person asked
    for: each from ``first_barrier`` up to it waits for its own run, the later ones are replayed by ourselves.
    ``gated``: no barrier opens until it is published. ``head`` and ``last``, once it is decided: the newest COMMIT,
    whose snapshots `main` goes to, and the newest barrier of all; ``expected``: what `main` of each table was at then
    and, from the beginning on, of the tables that join by it.

    ``corrections`` replace epochs of root tables; those of the tables in ``reused`` are applied again as they were,
    where nothing else is said, without asking their sources. The sources in ``recut`` were cut anew, as they were when
    it began, for the barriers up to ``window_end``.
    """

    topology: str
    revision: int
    state: RevisionState
    mode: RevisionMode
    first_barrier: int
    predecessor: int
    window_end: int
    tables: tuple[str, ...]
    jobs: tuple[str, ...]
    changed: tuple[str, ...]
    gated: bool
    created_at: datetime
    actor: str
    reason: str | None = None
    head: int | None = None
    last: int | None = None
    expected: Mapping[str, int | None] = field(default_factory=dict)
    corrections: tuple[TableCorrection, ...] = ()
    reused: tuple[str, ...] = ()
    recut: tuple[str, ...] = ()
    committing_at: datetime | None = None
    commit_at: datetime | None = None
    cancelled_at: datetime | None = None

    def __str__(self) -> str:
        return f"revision {self.revision} of {self.topology}"

    @property
    def is_under_way(self) -> bool:
        return self.state in UNDER_WAY_REVISIONS


@dataclass(frozen=True)
class RevisionRun:
    """A run of a DAG that computes barrier ``barrier_id`` of a revision.

    ``clear_number`` is how often the run had been cleared when it was bound: a later clear stages anew. ``arrived_at``
    (UTC) is None until a task of it has come: then we have woken it, and it has not begun.
    """

    topology: str
    revision: int
    dag_id: str
    run_id: str
    barrier_id: int
    clear_number: int | None
    arrived_at: datetime | None


def affected_jobs(topology: Topology, changed: Sequence[str]) -> tuple[str, ...]:
    """The jobs of ``changed`` and all that stand on their tables, upstream first.

    Raises :class:`~airflow_barrier.protocol.errors.TopologyError` for a job that the topology does not have.
    """
    downstream = set(downstream_jobs(topology, *changed))
    return tuple(job.name for job in topology.jobs if job.name in downstream)


def check_range(what: str, barriers: int, most: int) -> None:
    """Raise :class:`RevisionRefusedError` for a replay that is longer than its author expects.

    >>> check_range("revision of shopping", barriers=3, most=31)
    """
    if barriers > most:
        raise RevisionRefusedError(  # safety: careless-replay
            f"{what}: expected to replay at most {most} barriers (max_replay_barriers), found {barriers} from its "
            "first one to the head; choose a later first day, or raise max_replay_barriers if that is what you want"
        )
