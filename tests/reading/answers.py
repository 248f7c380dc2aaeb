"""Answers as the MetaService gives them, for tests of what reads by them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from airflow_barrier.protocol.levels import Level, Resolution, ResolvedTable

MONDAY = datetime(2026, 1, 5, tzinfo=timezone.utc)


def answer(snapshots: Mapping[str, int | None]) -> Resolution:
    """All tables at barrier 3."""
    return Resolution(
        topology="shopping",
        level=Level.REPEATABLE_READ,
        barrier_id=3,
        revision=0,
        tables={table: ResolvedTable(table, snapshot, 3, 0) for table, snapshot in snapshots.items()},
        timestamp=MONDAY,
        resolved_at=MONDAY,
    )
