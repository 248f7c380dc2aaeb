"""From a task to the page of its barrier."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink
from structlog.contextvars import bind_contextvars

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

    from airflow_barrier.protocol.records import Attempt, Barrier

log = logging.getLogger(__name__)

#: Where the API server serves the plugin's application.
URL_PREFIX = "/barrier"
#: What Airflow's UI calls the plugin's page.
UI_ROUTE = "barriers"
#: What it calls the tabs of a DAG, a run and a task in a run; no two entries of plugins may have the same.
DAG_ROUTE = "barriers-of-dag"
RUN_ROUTE = "barriers-of-run"
TASK_ROUTE = "barriers-of-task"
#: Seconds that a trigger waits for its link to be written.
_PATIENCE = 5.0


class BarrierLink(BaseOperatorLink):
    """The tables of the barrier that a task works for, and how far each of them is; or the revision that it is for.

    The task shows it by :func:`show_barrier` as soon as it knows its barrier, so that it is there while the task works
    and while it is deferred. For one that was deferred before its barrier was open, the triggerer does.
    """

    name = "Barrier"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return what the task has shown; empty if it does not know its barrier.

        Airflow asks each time that a process of the task ends, and keeps the answer instead of what it had. A task
        that resumes may end before it knows its barrier again: what it showed when it was deferred stays.
        """
        from airflow.sdk.bases.xcom import BaseXCom

        shown: str | None = BaseXCom.get_one(
            key=self.xcom_key,
            dag_id=ti_key.dag_id,
            task_id=ti_key.task_id,
            run_id=ti_key.run_id,
            map_index=ti_key.map_index,
        )
        return shown or ""


def show_barrier(context: Context, barrier_conn_id: str, at: Barrier | Attempt) -> None:
    """Link the running task to its barrier, or to the revision that it is for, and put topology and barrier beside the
    lines of its log from now on. Never raises.
    """
    bind_contextvars(topology=at.topology, barrier=at.barrier_id)
    page = revision_page(at.line) if at.line else barrier_page(at.barrier_id)
    show_page(context, barrier_conn_id, at.topology, page)


def barrier_page(barrier_id: int) -> str:
    return f"barrier={barrier_id}"


def revision_page(revision: int) -> str:
    return f"revision={revision}"


def page_url(barrier_conn_id: str, topology: str, page: str) -> str:
    """Return where Airflow's UI shows it. ``page``: a :func:`barrier_page` or a :func:`revision_page`."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    where = urlencode({"deployment": barrier_conn_id, "topology": topology}, quote_via=quote)
    return f"{base}/plugin/{UI_ROUTE}?{where}&{page}"


def show_page(context: Context, barrier_conn_id: str, topology: str, page: str) -> None:
    """Link as :func:`show_barrier` does. ``page``: as in :func:`page_url`."""
    from airflow.sdk.bases.xcom import BaseXCom

    try:
        BaseXCom.set(**_xcom(context["ti"], barrier_conn_id, topology, page))
    except Exception as error:  # the task's work does not depend on it
        _warn(topology, page, error)


async def show_while_deferred(ti: TaskInstanceKey, barrier_conn_id: str, topology: str, page: str) -> None:
    """Link as :func:`show_page` does, in the triggerer, for a task whose barrier is known only now."""
    from airflow.sdk.bases.xcom import BaseXCom

    try:
        await asyncio.wait_for(BaseXCom.aset(**_xcom(ti, barrier_conn_id, topology, page)), _PATIENCE)
    except Exception as error:  # what the task waits for may come all the same
        _warn(topology, page, error)


def _xcom(ti: Any, barrier_conn_id: str, topology: str, page: str) -> dict[str, Any]:
    """Keep it by ``BaseXCom``, not the XCom backend that is configured: the API server takes links from its
    database.
    """
    return {
        "key": BarrierLink().xcom_key,
        "value": page_url(barrier_conn_id, topology, page),
        "dag_id": ti.dag_id,
        "task_id": ti.task_id,
        "run_id": ti.run_id,
        "map_index": -1 if ti.map_index is None else ti.map_index,
    }


def _warn(topology: str, page: str, error: Exception) -> None:
    log.warning(
        "The task goes on without a link to its page of topology %s (%s), which could not be written: %s: %s",
        topology,
        page,
        type(error).__name__,
        error,
    )
