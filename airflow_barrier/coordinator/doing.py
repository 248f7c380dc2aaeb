"""What a job is doing at a barrier, in a few words."""

from __future__ import annotations

from airflow_barrier.metaservice.overviews import AttemptRow
from airflow_barrier.protocol.records import Attempt
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, AttemptState


def summary_of(attempt: Attempt | AttemptRow | None, dag: str, *, member: bool) -> str:
    """What a job is doing, in a few words. ``attempt``: its newest one; ``dag`` and ``member``: as in
    :class:`~airflow_barrier.coordinator.status.JobStatus`.
    """
    if attempt is None:
        return f"no run of DAG {dag} has asked for it yet" if member else "not started"
    if attempt.state is AttemptState.REQUESTED:
        return "waits for " + ", ".join(map(str, attempt.waited_for)) if attempt.waited_for else "requested"
    state = _failed(attempt) if attempt.state is AttemptState.ABORTED else str(attempt.state.value).lower()
    return f"{state}: {attempt.reason}" if attempt.reason and attempt.state not in LIVE_ATTEMPTS else state


def _failed(attempt: Attempt | AttemptRow) -> str:
    if attempt.tried is None:
        return "failed"
    return f"{'failed' if attempt.again_at is None else 'retrying'}, {attempt.tried} of {attempt.tries}"
