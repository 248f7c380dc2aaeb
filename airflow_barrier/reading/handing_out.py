"""What is handed to others as snapshot ids, tags or SQL text, and held for a time that is said beforehand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import LeaseLostError
from airflow_barrier.protocol.leases import Hold, Lease
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.reading.answer import Answer


class HandedOut(Answer):
    """An answer that nobody renews: what it says can be read until ``lease.expires_at``, by whoever has it."""

    def __init__(self, deployment: Deployment, at: int | datetime | None, resolution: Resolution, until: float) -> None:
        super().__init__(deployment, at)
        assert resolution.lease is not None  # it was asked for
        self.lease: Lease = resolution.lease
        self._resolution = resolution
        self._until = until

    def hold_for(self, seconds: float) -> None:
        """For so many seconds from now, unless that is less than it is held for anyhow.

        Raises ConfigurationError beyond a week, LeaseLostError.
        """
        until = time.monotonic() + seconds
        if until > self._until:
            self.lease = self._deployment.meta.renew(self.lease.lease_id, seconds)
            self._until = until

    @property
    def resolution(self) -> Resolution:
        if time.monotonic() > self._until:
            raise LeaseLostError(  # safety: handed-out-for-a-time
                f"{self.lease}: expected to read by it before it ended, at {self.lease.expires_at:%Y-%m-%d %H:%M:%S} "
                "UTC, found that it has; hand it out anew, for longer"
            )
        return self._resolution


def hand_out(
    deployment: Deployment,
    topology: str,
    hold: Hold,
    *,
    level: str | None = None,
    tables: Sequence[str] | None = None,
    at: int | datetime | None = None,
) -> HandedOut:
    """An answer about ``tables`` of ``topology`` (None: all) for others to read by, held for ``hold``.

    Nobody renews or releases it: ``hold`` says how long they may take, a week at most
    (:data:`~airflow_barrier.protocol.leases.LONGEST_HOLD_SECONDS`). Who reads in this process opens a session instead
    (:func:`~airflow_barrier.reading.session.consistent_session`), whose ``level`` and ``at`` these are.

    Raises what :meth:`MetaService.resolve <airflow_barrier.metaservice.store.MetaService.resolve>` does.

    >>> given = hand_out(deployment, "shopping", Hold("dashboard of ada", seconds=3600))  # doctest: +SKIP
    >>> given.snapshots, given.tags, given.sql("SELECT * FROM shop.price", "trino").sql  # doctest: +SKIP
    """
    until = time.monotonic() + hold.seconds
    wanted = deployment.level if level is None else Level.parse(level)
    found = deployment.meta.resolve(topology, wanted, tables, at=at, hold=hold)
    return HandedOut(deployment, at, found, until)
