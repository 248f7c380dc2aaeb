"""The plugin: the link from a task to its barrier, and the page that it leads to."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_barrier.links.barrier import BarrierLink


class BarrierPlugin(AirflowPlugin):
    """Loaded through the entry point group `airflow.plugins`."""

    name = "barrier"
    operator_extra_links: list[Any] = [BarrierLink()]  # noqa: RUF012 - the base class declares it so
