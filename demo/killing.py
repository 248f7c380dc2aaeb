"""Killing one task's process at the worst moment, and what became of its barrier."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_barrier.protocol.states import AttemptState

if TYPE_CHECKING:
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.protocol.records import Attempt
    from demo.places import Places


@dataclass(frozen=True)
class Killed:
    """The process that was killed, and what it had staged but not reported: a snapshot that must never count."""

    pid: int
    attempt_id: int
    table: str
    staged: int


@dataclass(frozen=True)
class Aftermath:
    """All attempts of the victim's job at its barrier, and the snapshot that was published."""

    killed: Killed
    attempts: tuple[Attempt, ...]
    published: int | None

    @property
    def holds(self) -> bool:
        """The killed attempt was fenced, exactly one other counts, and its snapshot is the published one."""
        by_id = {attempt.attempt_id: attempt for attempt in self.attempts}
        counted = [attempt for attempt in self.attempts if attempt.state is AttemptState.PROCESSED]
        return (
            by_id[self.killed.attempt_id].state is AttemptState.FENCED
            and len(counted) == 1
            and counted[0].staged[self.killed.table].snapshot_id == self.published
            and self.published != self.killed.staged
        )


def kill_held(deployment: Deployment, places: Places) -> Killed | None:
    """Send SIGKILL to the task that the saboteur holds, and to its driver, once it holds one; None before."""
    if not places.held.exists():
        return None
    held = json.loads(places.held.read_text())
    attempt = deployment.meta.attempts.get(held["attempt_id"])
    [(table, base)] = attempt.bases.items()
    staged = deployment.tables.staged(table, attempt.stamp, base)
    if staged is None:
        raise RuntimeError(f"{attempt} was to be killed after it staged {table}, but nothing is staged")
    for process in ("pid", "driver"):
        if process in held:  # a task on Spark Connect has no driver
            os.kill(held[process], signal.SIGKILL)
    return Killed(held["pid"], attempt.attempt_id, table, staged)


def aftermath(deployment: Deployment, killed: Killed) -> Aftermath:
    victim = deployment.meta.attempts.get(killed.attempt_id)
    attempts = deployment.meta.attempts.of(victim.topology, victim.barrier_id)
    progress = {p.table: p for p in deployment.meta.barriers.progress(victim.topology, victim.barrier_id)}
    return Aftermath(
        killed,
        tuple(attempt for attempt in attempts if attempt.job == victim.job),
        progress[killed.table].snapshot_id,
    )
