"""What a barrier has staged, read before it is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.levels import Level, Resolution, ResolvedTable
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import TableState
from airflow_barrier.reading.answer import Answer
from airflow_barrier.reading.session import ConsistentSession, consistent_session


class Staged(Answer):
    """The tables of a barrier in flight at what is staged there; in a revision's line those that it computes again at
    what that has staged, and the others as they stand.

    Made by :func:`staged_session`.
    """

    def __init__(self, deployment: Deployment, barrier: Barrier, session: ConsistentSession) -> None:
        super().__init__(deployment, barrier.barrier_id)
        self._barrier = barrier
        self._session = session
        self._revised = self._look_at_line()

    @property
    def resolution(self) -> Resolution:
        found = self._session.resolution
        return replace(found, tables={**found.tables, **self._revised})

    def still_stands(self) -> bool:
        """Return whether nothing has been staged anew, or given up, since this was resolved. Raises LeaseLostError."""
        self._session.check()
        rolled_back = self._session.lease.rolled_back or self._look_at_line() != self._revised
        return not rolled_back  # safety: staged-anew-is-checked-anew

    def _look_at_line(self) -> Mapping[str, ResolvedTable]:
        barrier = self._barrier
        if not barrier.line:
            return {}
        rows = self._deployment.meta.revisions.progress(barrier.topology, barrier.line, barrier.barrier_id)
        return {
            row.table: ResolvedTable(row.table, row.snapshot_id, barrier.barrier_id, barrier.line)
            for row in rows
            if row.state is not TableState.PENDING
        }


@contextmanager
def staged_session(deployment: Deployment, barrier: Barrier, holder: str) -> Iterator[Staged]:
    """Read what ``barrier`` has staged, until the block ends. It is PRECOMMIT.

    What it reads is not deleted meanwhile: the lease holds the barrier that stands, as any reader's does, and all that
    a revision stages is kept as long as that is under way. It may be staged anew, though:
    :meth:`Staged.still_stands` tells.

    Raises NotReadableYetError if it has been by now, and what
    :func:`~airflow_barrier.reading.session.consistent_session` raises.

    >>> with staged_session(deployment, barrier, "audit") as staged:  # doctest: +SKIP
    ...     staged.spark(spark).sql("SELECT * FROM lake.shop.price WHERE price < 0").count()
    """
    # a revision may come by a barrier that stands half done: what is not its own is read there as far as it is staged
    level = Level.READ_UNCOMMITTED if barrier.line else Level.READ_COMMITTED
    with consistent_session(deployment, barrier.topology, level=level, at=barrier.barrier_id, holder=holder) as session:
        yield Staged(deployment, barrier, session)
