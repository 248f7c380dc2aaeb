"""What is handed to others as snapshot ids, tags or SQL text, and held for a time that is said beforehand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import LeaseLostError
from airflow_barrier.protocol.leases import Hold, Lease
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.reading.answer import Answer
from airflow_barrier.reading.question import Question, resolved


class HandedOut(Answer):
    """An answer that nobody renews: what it says can be read until ``lease.expires_at``, by whoever has it."""

    def __init__(self, deployment: Deployment, question: Question, hold: Hold) -> None:
        super().__init__(deployment, question.at)
        held = resolved(deployment, question, hold)
        self.lease: Lease = held.lease
        self._resolution = held.resolution
        self._until = held.since + hold.seconds

    def hold_for(self, seconds: float) -> None:
        """Hold it for so many seconds from now, unless it is held for longer anyhow.

        Raises ConfigurationError beyond a week, LeaseLostError.
        """
        until = time.monotonic() + seconds
        if until > self._until:
            self.lease = self._deployment.meta.leases.renew(self.lease.lease_id, seconds)
            self._until = until

    @property
    def resolution(self) -> Resolution:
        if time.monotonic() > self._until:
            raise LeaseLostError(  # safety: handed-out-for-a-time
                f"{self.lease}: expected to read by it before it ended, at {self.lease.expires_at:%Y-%m-%d %H:%M:%S} "
                "UTC, found that it has; hand it out anew, for longer"
            )
        return self._resolution


class LookedUp(Answer):
    """An answer that would be handed out, for people to look at: nobody holds it, so it may be gone when it is read."""

    def __init__(self, deployment: Deployment, topology: str, level: Level, at: int | datetime | None) -> None:
        super().__init__(deployment, at)
        self._resolution = deployment.meta.answers.resolve(topology, level, at=at)

    @property
    def resolution(self) -> Resolution:
        return self._resolution


def hand_out(
    deployment: Deployment,
    topology: str,
    hold: Hold,
    *,
    level: str | None = None,
    tables: Sequence[str] | None = None,
    at: int | datetime | None = None,
    not_older_than: timedelta | None = None,
    wait: timedelta = timedelta(0),
) -> HandedOut:
    """An answer about ``tables`` of ``topology`` (None: all) for others to read by, held for ``hold``.

    Nobody renews or releases it: ``hold`` says how long they may take, a week at most
    (:data:`~airflow_barrier.protocol.leases.LONGEST_HOLD_SECONDS`). Who reads in this process opens a session instead
    (:func:`~airflow_barrier.reading.session.consistent_session`), whose ``level``, ``at``, ``not_older_than`` and
    ``wait`` these are, and whose errors.

    >>> given = hand_out(deployment, "shopping", Hold("dashboard of ada", seconds=3600))  # doctest: +SKIP
    >>> given.snapshots, given.tags, given.sql("SELECT * FROM shop.price", "trino").sql  # doctest: +SKIP
    """
    wanted = deployment.level if level is None else Level.parse(level)
    return HandedOut(deployment, Question(topology, wanted, tables, at, not_older_than, wait), hold)
