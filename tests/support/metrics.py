"""Airflow's metrics in a test: each version of Airflow is told otherwise where they go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow.providers.common.compat.sdk import Stats, conf
from packaging.version import Version

from airflow_barrier.hooks.features import AIRFLOW

try:
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
except ImportError:  # Airflow 3.1
    from airflow.metrics.base_stats_logger import NoStatsLogger

__all__ = ["NoStatsLogger", "begin_metrics", "metrics_by"]


@contextmanager
def metrics_by(factory: Callable[[], Any]) -> Iterator[None]:
    """Airflow sends its metrics by what ``factory`` makes."""
    _send_by(factory, legacy_names=True)
    try:
        yield
    finally:
        _send_by(NoStatsLogger, legacy_names=True)


def begin_metrics() -> None:
    """As Airflow's task runner begins them: by what the configuration says."""
    if Version("3.2") > AIRFLOW:  # the first metric begins them
        return
    from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

    made = get_stats_factory() if Version("3.3") <= AIRFLOW else get_stats_factory(Stats)
    _send_by(made, legacy_names=conf.getboolean("metrics", "legacy_names_on", fallback=True))


def _send_by(factory: Callable[[], Any], *, legacy_names: bool) -> None:
    if Version("3.3") <= AIRFLOW:
        Stats.initialize(factory=factory, export_legacy_names=legacy_names)
    elif Version("3.2") <= AIRFLOW:
        Stats.initialize(factory=factory)
    else:
        type(Stats).factory, Stats.instance = staticmethod(factory), None
