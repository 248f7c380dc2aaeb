"""The plugin: the link from a task to its barrier, and the page that it leads to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

from airflow_barrier.links.barrier import URL_PREFIX, BarrierLink

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def pages(scope: Scope, receive: Receive, send: Send) -> None:
    """The plugin's web application; every process of Airflow loads the plugin, and only the API server needs this."""
    from airflow_barrier.plugins.page import app

    await app(scope, receive, send)


class BarrierPlugin(AirflowPlugin):
    """Loaded through the entry point group `airflow.plugins`."""

    name = "barrier"
    operator_extra_links: list[Any] = [BarrierLink()]  # noqa: RUF012 - the base class declares it so
    fastapi_apps: list[Any] = [{"app": pages, "url_prefix": URL_PREFIX, "name": "barrier"}]  # noqa: RUF012
