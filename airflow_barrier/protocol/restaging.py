"""What stands on a job's output, and so has to be staged anew when the job is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from airflow_barrier.protocol.errors import FencedAttemptError, VoidedAttemptError
from airflow_barrier.protocol.records import Attempt
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.protocol.topology import Topology, downstream_jobs

#: Attempts whose inputs are pinned, and that count (or may come to).
CONSUMING = frozenset({AttemptState.RUNNING, AttemptState.CLOSED, AttemptState.PROCESSED})  # safety: consuming


@dataclass(frozen=True)
class Membership:
    """The jobs and tables of a barrier: fixed when it was opened, so barriers in flight may differ."""

    barrier_id: int
    predecessor: int | None
    topology: Topology


def consumers(barriers: Sequence[Membership], job: str) -> Mapping[int, tuple[str, ...]]:
    """The jobs that stand on what ``job`` stages at the first of ``barriers``, itself not included.

    ``barriers`` are that one and the later ones that are not committed, in order. At the same barrier these are the
    jobs downstream. At a later one they are the jobs that write a table staged anew at the predecessor (they build
    on it) or that read one (they compare with it), and what is downstream of those.
    """
    first = barriers[0]
    jobs = downstream_jobs(first.topology, job)
    anew = {first.barrier_id: frozenset(outlet for name in jobs for outlet in first.topology.job(name).outlets)}
    return {first.barrier_id: jobs[1:], **_later(barriers[1:], anew)}


def consumers_of_table(barrier_id: int, table: str, later: Sequence[Membership]) -> Mapping[int, tuple[str, ...]]:
    """The jobs of ``later`` barriers that stand on another snapshot of ``table``, once a person has replaced it.

    What was computed from it at its own barrier, which is decided, stays.
    """
    return _later(later, {barrier_id: frozenset({table})})


def _later(barriers: Iterable[Membership], anew: dict[int, frozenset[str]]) -> dict[int, tuple[str, ...]]:
    """Map each barrier to its jobs that stand on ``anew``: tables by the barrier at which they are replaced."""
    found: dict[int, tuple[str, ...]] = {}
    for barrier in barriers:
        topology = barrier.topology
        base = anew.get(barrier.predecessor, frozenset()) if barrier.predecessor is not None else frozenset()
        touched = [each.name for each in topology.jobs if base.intersection((*each.outlets, *each.inlets))]
        jobs = downstream_jobs(topology, *touched)
        found[barrier.barrier_id] = jobs
        anew[barrier.barrier_id] = frozenset(outlet for name in jobs for outlet in topology.job(name).outlets)
    return found


def voided(attempts: Iterable[Attempt], stands_on: Mapping[int, tuple[str, ...]]) -> tuple[Attempt, ...]:
    """Return those of ``attempts`` that read or built on what is staged anew. One that still waits has not."""
    return tuple(
        attempt
        for attempt in attempts
        if attempt.state in CONSUMING and attempt.job in stands_on.get(attempt.barrier_id, ())
    )


def refuse_ended(attempt: Attempt) -> NoReturn:
    """Refuse work for an attempt that has ended.

    Raises VoidedAttemptError if its task's next try begins a new attempt, else FencedAttemptError.
    """
    found = f"{attempt}: expected the current attempt, found one that is {attempt.state.value} ({attempt.reason})"
    if attempt.state is AttemptState.VOIDED:
        raise VoidedAttemptError(f"{found}; what it staged does not count: the next try begins a new attempt")
    raise FencedAttemptError(
        f"{found}; what it staged does not count: request a new attempt if the job still has to be done"
    )
