"""The states of barriers, tables and attempts, and the only transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from airflow_barrier.protocol.errors import IllegalTransitionError


class BarrierState(str, Enum):
    """The state of a barrier, over all its tables."""

    OPEN = "OPEN"
    PRECOMMIT = "PRECOMMIT"
    COMMITTING = "COMMITTING"
    COMMIT = "COMMIT"
    BLOCKED = "BLOCKED"
    ABORTED = "ABORTED"


class TableState(str, Enum):
    """The state of one table at one barrier."""

    PENDING = "PENDING"
    PROCESSED = "PROCESSED"
    WRITTEN = "WRITTEN"


class AttemptState(str, Enum):
    """The state of one run of one job for one barrier."""

    REQUESTED = "REQUESTED"  # asked for; its inputs may not be there yet
    RUNNING = "RUNNING"  # inputs pinned, Spark may be writing to the attempt branch
    CLOSED = "CLOSED"  # the driver said that it wrote everything, and what
    PROCESSED = "PROCESSED"  # the tables were checked and count as PROCESSED
    FENCED = "FENCED"  # superseded by a newer attempt
    VOIDED = "VOIDED"  # its input was staged anew, or its barrier aborted
    ABORTED = "ABORTED"  # killed or failed


class Decision(str, Enum):
    """The choice of the standing snapshot if somebody else moved a table while its barrier was COMMITTING."""

    KEEP_OURS = "keep-ours"
    ADOPT_THEIRS = "adopt-theirs"


#: States in which an attempt still may report something.
LIVE_ATTEMPTS = frozenset(  # safety: live-attempts
    {AttemptState.REQUESTED, AttemptState.RUNNING, AttemptState.CLOSED, AttemptState.PROCESSED}
)
#: Of these, the ones that somebody is at, or is going to be.
UNDER_WAY_ATTEMPTS = LIVE_ATTEMPTS - {AttemptState.PROCESSED}
#: Barriers that still may take reports.
STAGING_BARRIERS = frozenset({BarrierState.OPEN, BarrierState.PRECOMMIT})  # safety: staging-barriers
#: Barriers that count against `max_open_barriers`.
UNCOMMITTED_BARRIERS = frozenset(  # safety: uncommitted-barriers
    {BarrierState.OPEN, BarrierState.PRECOMMIT, BarrierState.COMMITTING, BarrierState.BLOCKED}
)
#: Barriers whose decision to commit is durable: they only roll forward.
DECIDED_BARRIERS = frozenset({BarrierState.COMMITTING, BarrierState.BLOCKED, BarrierState.COMMIT})  # safety: decided

BARRIER_TRANSITIONS: dict[BarrierState, frozenset[BarrierState]] = {  # safety: barrier-transitions
    BarrierState.OPEN: frozenset({BarrierState.PRECOMMIT, BarrierState.ABORTED}),
    # back to OPEN when a job is staged anew: the fallback of read committed
    BarrierState.PRECOMMIT: frozenset({BarrierState.OPEN, BarrierState.COMMITTING, BarrierState.ABORTED}),
    BarrierState.COMMITTING: frozenset({BarrierState.COMMIT, BarrierState.BLOCKED}),
    BarrierState.BLOCKED: frozenset({BarrierState.COMMITTING}),
    BarrierState.COMMIT: frozenset(),
    BarrierState.ABORTED: frozenset(),
}

TABLE_TRANSITIONS: dict[TableState, frozenset[TableState]] = {  # safety: table-transitions
    TableState.PENDING: frozenset({TableState.PROCESSED}),
    TableState.PROCESSED: frozenset({TableState.WRITTEN, TableState.PENDING}),
    TableState.WRITTEN: frozenset(),
}

_ENDED = frozenset({AttemptState.FENCED, AttemptState.VOIDED, AttemptState.ABORTED})

ATTEMPT_TRANSITIONS: dict[AttemptState, frozenset[AttemptState]] = {  # safety: attempt-transitions
    AttemptState.REQUESTED: frozenset({AttemptState.RUNNING}) | _ENDED,
    AttemptState.RUNNING: frozenset({AttemptState.CLOSED}) | _ENDED,
    AttemptState.CLOSED: frozenset({AttemptState.PROCESSED}) | _ENDED,
    AttemptState.PROCESSED: frozenset({AttemptState.FENCED, AttemptState.VOIDED}),
    AttemptState.FENCED: frozenset(),
    AttemptState.VOIDED: frozenset(),
    AttemptState.ABORTED: frozenset(),
}

_S = TypeVar("_S", BarrierState, TableState, AttemptState)

# By type first: members of two of these enums may be equal as text (PROCESSED of a table and of an attempt).
_TRANSITIONS: dict[type[Enum], Mapping[Any, frozenset[Any]]] = {
    BarrierState: BARRIER_TRANSITIONS,
    TableState: TABLE_TRANSITIONS,
    AttemptState: ATTEMPT_TRANSITIONS,
}


def check_transition(what: str, before: _S, after: _S) -> None:
    """Raise :class:`IllegalTransitionError` unless ``before`` may be followed by ``after``.

    >>> check_transition("barrier 3 of shopping", BarrierState.OPEN, BarrierState.PRECOMMIT)
    """
    allowed: frozenset[_S] = _TRANSITIONS[type(before)][before]
    if after not in allowed:
        names = ", ".join(sorted(state.value for state in allowed)) or "nothing (it is final)"
        raise IllegalTransitionError(  # safety: illegal-transition
            f"{what} is {before.value} and cannot become {after.value}; what may follow {before.value}: {names}"
        )
