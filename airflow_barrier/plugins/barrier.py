"""The plugin: the page in Airflow's UI, which tasks link to, with its API, the macros of templates, and backfills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from airflow_barrier.links.barrier import DAG_ROUTE, RUN_ROUTE, TASK_ROUTE, UI_ROUTE, URL_PREFIX
from airflow_barrier.plugins import backfills
from airflow_barrier.plugins.bundle import URL
from airflow_barrier.plugins.macros import MACROS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def api(scope: Scope, receive: Receive, send: Send) -> None:
    """The plugin's web application; every process of Airflow loads the plugin, and only the API server needs this."""
    from airflow_barrier.plugins.page import app

    await app(scope, receive, send)


class BarrierPlugin(AirflowPlugin):
    """Loaded through the entry point group `airflow.plugins`."""

    name = "barrier"
    fastapi_apps: list[Any] = [{"app": api, "url_prefix": URL_PREFIX, "name": "barrier"}]  # noqa: RUF012
    # Airflow's UI adds the bundle's URL to its own base, so it has no slash in front.
    react_apps: list[Any] = [  # noqa: RUF012
        {"name": "Barriers", "bundle_url": URL, "destination": "nav", "url_route": UI_ROUTE, "nav_top_level": True},
        # the same name: Airflow's UI keeps the component by it, and imports the bundle once
        {"name": "Barriers", "bundle_url": URL, "destination": "dag", "url_route": DAG_ROUTE},
        {"name": "Barriers", "bundle_url": URL, "destination": "dag_run", "url_route": RUN_ROUTE},
        {"name": "Barriers", "bundle_url": URL, "destination": "task_instance", "url_route": TASK_ROUTE},
        {"name": "Barriers", "bundle_url": URL, "destination": "dashboard"},
    ]
    macros: list[Any] = MACROS
    listeners: list[Any] = [backfills]  # noqa: RUF012
    fastapi_root_middlewares: list[Any] = [  # noqa: RUF012
        {"middleware": backfills.BackfillCancellations, "name": "cancelled backfills"}
    ]
