"""What a job is doing at a barrier, in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_barrier.protocol.records import AttemptProgress
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, AttemptState


def summary_of(attempt: AttemptProgress | None, dag: str, *, member: bool) -> str:
    """Return in words what a job is doing whose inputs are there, with its error. ``attempt``: its newest one; ``dag``
    and ``member``: as in :class:`~airflow_barrier.coordinator.status.JobStatus`.
    """
    words = words_of(attempt, dag, member=member)
    if attempt is not None and attempt.reason and attempt.state not in LIVE_ATTEMPTS:
        return f"{words}: {attempt.reason}"
    return words


def words_of(attempt: AttemptProgress | None, dag: str, *, member: bool, waits_for: Sequence[str] = ()) -> str:
    """The same without the error. ``waits_for``: the jobs whose tables it needs and that have not brought them."""
    if waits_for:
        return f"waits for {', '.join(waits_for)}"
    if attempt is None:
        return f"no run of DAG {dag} has asked for it yet" if member else "not started"
    if attempt.state is AttemptState.REQUESTED:
        return "waits for " + ", ".join(map(str, attempt.waited_for)) if attempt.waited_for else "requested"
    if attempt.state is AttemptState.ABORTED and attempt.tried is not None:
        return f"{'failed' if attempt.again_at is None else 'retrying'}, {attempt.tried} of {attempt.tries}"
    return state_said(attempt.state)


def state_said(state: AttemptState) -> str:
    """An attempt's state as people are told it, also on the page: *aborted* is what is done to a barrier."""
    return "failed" if state is AttemptState.ABORTED else str(state.value).lower()
