"""What a task that has begun a revision waits with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_barrier.triggers.barrier import PollingTrigger

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService


class RevisionTrigger(PollingTrigger):
    """Fires once a revision is COMMIT or CANCELLED.

    >>> RevisionTrigger(topology="shopping", barrier_conn_id="barrier_default", revision=7).revision
    7
    """

    def __init__(
        self,
        *,
        topology: str,
        barrier_conn_id: str,
        revision: int,
        poll_interval: float = 5.0,
        patience: float = 300.0,
    ) -> None:
        super().__init__(
            topology=topology, barrier_conn_id=barrier_conn_id, poll_interval=poll_interval, patience=patience
        )
        self.revision = revision
        self._said = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {**self._arguments(), "revision": self.revision}

    def _look(self, meta: MetaService) -> dict[str, Any] | None:
        if not meta.revisions.get(self.topology, self.revision).is_under_way:
            return {"status": "reached"}
        missing = "; ".join(meta.revisions.unstaged(self.topology, self.revision)[:3])
        if missing != self._said:  # once per change, not once per look
            self._said = missing
            self.log.info("Waiting: %s", missing or "all is there, and about to be published")
        return None
