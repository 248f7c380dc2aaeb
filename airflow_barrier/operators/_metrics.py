"""Airflow's metrics: what is sent where (StatsD, Datadog, OpenTelemetry), Airflow's settings say."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_barrier.protocol.records import Barrier

if TYPE_CHECKING:
    from airflow_barrier.coordinator.measuring import Measure

log = logging.getLogger(__name__)

#: What a line of StatsD cannot hold.
_UNFIT = re.compile(r"[^a-zA-Z0-9_.-]")


def emit(measured: Callable[[], Iterable[Measure]]) -> None:
    """Each as a gauge. Never raises: a number that is missing is no reason for a task to fail."""
    try:
        from airflow.providers.common.compat.sdk import Stats

        for name, value, tags in measured():
            Stats.gauge(name, value, tags={tag: _UNFIT.sub("_", text) for tag, text in tags.items()})
    except Exception as error:
        log.warning("Metrics were not sent: %s: %s", type(error).__name__, error)


def emit_commits(barriers: Sequence[Barrier]) -> None:
    """Emit how long after its timestamp each of these barriers was readable. Never raises."""

    def measured() -> Iterable[Measure]:
        from airflow_barrier.coordinator.measuring import Measure

        for barrier in dict.fromkeys(barriers):
            if barrier.commit_at is not None and not barrier.is_maintenance:
                seconds = (barrier.commit_at - barrier.timestamp).total_seconds()
                yield Measure("barrier.commit_seconds", seconds, {"topology": barrier.topology})

    emit(measured)
