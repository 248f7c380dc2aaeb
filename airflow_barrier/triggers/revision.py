"""What a task that has begun a revision waits with."""

from __future__ import annotations

from typing import Any

from airflow_barrier.coordinator.waiting import TopologyView
from airflow_barrier.triggers._watcher import REACHED, Outcome
from airflow_barrier.triggers.barrier import WatchingTrigger


class RevisionTrigger(WatchingTrigger):
    """Fires once a revision is COMMIT or CANCELLED.

    >>> RevisionTrigger(topology="shopping", barrier_conn_id="barrier_default", revision=7).revision
    7
    """

    def __init__(self, *, revision: int, **waiting: Any) -> None:
        super().__init__(**waiting)
        self.revision = revision

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {**self._arguments(), "revision": self.revision}

    def _look(self, view: TopologyView) -> Outcome:
        if not view.revision(self.revision).is_under_way:
            return REACHED
        missing = "; ".join(view.unstaged(self.revision)[:3])
        return Outcome(
            None, missing or f"revision {self.revision} of {self.topology}, of which all is there, to be published"
        )
