"""Runs without Airflow: what a scheduler would say of them, and what it was asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from airflow_barrier.coordinator.runs import Run
from airflow_barrier.protocol.records import RunRef


@dataclass
class Scheduled:
    """A :class:`~airflow_barrier.coordinator.runs.Scheduler`. ``states``: of runs, by ``dag/run``; ``running``: tasks
    by their request keys; ``passed``: runs in which the asking task has succeeded; ``before``: up to which timestamp an
    earlier run of the asking one's DAG is at work.
    """

    states: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    before: datetime | None = None
    woken: list[str] = field(default_factory=list)

    def state(self, dag_id: str, run_id: str) -> str | None:
        return self.states.get(f"{dag_id}/{run_id}")

    def wake(self, dag_id: str, run_id: str) -> None:
        self.woken.append(f"{dag_id}/{run_id}")
        self.states[f"{dag_id}/{run_id}"] = "queued"

    def is_running(self, request_key: str) -> bool:
        return request_key in self.running

    def has_passed(self, run_id: str) -> bool:
        return run_id in self.passed

    def at_work_until(self) -> datetime | None:
        return self.before


def run_at(dag_id: str, timestamp: datetime, kind: str = "scheduled", barrier_id: int | None = None) -> Run:
    """A run of a DAG whose barrier has that timestamp (UTC)."""
    ref = RunRef(dag_id, f"{kind}__{timestamp.isoformat()}", kind)
    return Run(ref, timestamp, "data interval end", barrier_id=barrier_id)
