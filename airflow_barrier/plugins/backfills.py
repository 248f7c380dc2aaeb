"""What Airflow tells of backfills: the scheduler, which one a run is in; the API server, that one was cancelled.

A task cannot ask for either: it has no credentials of Airflow's API, and the task SDK does not know backfills (decision
0067).
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from airflow_barrier.protocol.revisions import BACKFILL, REHEARSAL, TOKEN

if TYPE_CHECKING:
    from airflow.models.backfill import Backfill
    from airflow.models.dagrun import DagRun
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

_CANCELS = re.compile(r"/api/v2/backfills/([0-9]+)/cancel$")
#: As it stands in a serialized DAG. Its class is not imported: the scheduler has no other need of it.
_START_TASK = "StartBarrierOperator"


@hookimpl
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:
    """Called in the scheduler when a run begins: its conf says in which active backfill it is, or in none any more.

    Runs of DAGs that open no barrier are left alone, but for what a backfill gives them for a revision: Airflow 3.1
    gives its conf to new runs only.
    """
    said, backfill = dict(dag_run.conf or {}), _active_backfill(dag_run)
    given = {} if backfill is None else backfill.dag_run_conf or {}
    if backfill is not None and _opens_barriers(dag_run):
        # what an earlier backfill gave stays in the conf of a run where this one gives none
        kept = {key: value for key, value in said.items() if key not in (TOKEN, REHEARSAL)}
        dag_run.conf = {**kept, **given, BACKFILL: _said_of(backfill)}
    elif TOKEN in given or REHEARSAL in given:
        dag_run.conf = {**said, **given}
    elif BACKFILL in said:
        dag_run.conf = {key: value for key, value in said.items() if key not in (BACKFILL, REHEARSAL)}


def _active_backfill(dag_run: DagRun) -> Backfill | None:
    backfill: Backfill | None = dag_run.backfill if dag_run.backfill_id is not None else None
    return None if backfill is None or backfill.completed_at is not None else backfill


def _opens_barriers(dag_run: DagRun) -> bool:
    return any(task.task_type == _START_TASK for task in dag_run.get_dag().tasks)


def _said_of(backfill: Backfill) -> dict[str, Any]:
    return {
        "id": backfill.id,
        "created_at": backfill.created_at.isoformat(),
        "from_date": backfill.from_date.isoformat(),
        "to_date": backfill.to_date.isoformat(),
        "user": backfill.triggering_user_name,
    }


class BackfillCancellations:
    """ASGI middleware of Airflow's API server: the revision of a backfill that is cancelled is cancelled, too.

    Airflow has answered by then. Where the MetaService cannot be reached the log says what is left to do.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cancels = _CANCELS.search(scope["path"]) if scope["type"] == "http" and scope["method"] == "PUT" else None
        if cancels is None:
            await self.app(scope, receive, send)
            return
        status = 0

        async def listening(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        await self.app(scope, receive, listening)
        if status == 200:
            from starlette.concurrency import run_in_threadpool

            await run_in_threadpool(_cancel_revisions, int(cancels[1]))


def _cancel_revisions(number: int) -> None:
    from airflow.models.backfill import Backfill
    from airflow.utils.session import create_session

    from airflow_barrier.coordinator.revisions.answering import cancel_with_backfill
    from airflow_barrier.coordinator.runs import ActiveBackfill
    from airflow_barrier.hooks.barrier import BarrierHook
    from airflow_barrier.plugins.access import deployments

    with create_session() as session:
        row = session.get_one(Backfill, number)
        backfill = ActiveBackfill(row.dag_id, row.id, row.created_at, row.from_date, row.to_date)
    for conn_id in deployments():
        try:
            for revision in cancel_with_backfill(BarrierHook(conn_id).get_deployment(), backfill):
                log.info("%s was cancelled, and %s with it", backfill, revision)
        except Exception as error:  # Airflow has cancelled it, and is not to be disturbed
            log.warning(
                "%s was cancelled; connection %s: its revision could not be, if it has one: %s: %s. Cancel that by "
                "airflow-barrier revision cancel, or on the page",
                backfill,
                conn_id,
                type(error).__name__,
                error,
            )
