"""A check of what a barrier has staged, before it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import redact
from airflow.sdk import BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.links.barrier import BarrierLink, show_barrier
from airflow_barrier.operators._binding import check_unmapped
from airflow_barrier.operators._session import TaskSession
from airflow_barrier.operators._task import actor, run_of_task, without_useless_retries
from airflow_barrier.operators._waiting import WAIT_TIMEOUT, check_event, defer
from airflow_barrier.protocol.errors import CheckFailedError, NotReadableYetError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.protocol.records import Barrier

#: Rows that a failed check shows, and characters of each.
_SHOWN, _WIDEST = 10, 300


class CheckOperator(BaseOperator):
    """Looks for rows that must not be published, in what the run's barrier has staged, and fails if there are any.

    It stands before the commit task, which does not run then, so that the barrier is not published:
    :meth:`BarrierGroup.check <airflow_barrier.operators.group.BarrierGroup.check>` puts it there. The query sees all
    tables of the barrier as readers are to get them; in the run of a revision as that has computed them. Tables
    outside the topology are read as they are, and a warning in the log says so.

    Waits (deferred) for tables that other DAGs write, and until the barriers before have passed the same check, for a
    commit publishes these, too. Where the barrier is committed already there is nothing to check, and the task
    succeeds. Work that is staged anew while the query runs is looked at anew.

    :param topology: the topology's name. (templated)
    :param check: the check's name, for errors and the log.
    :param sql: one query of Spark, or a ``.sql`` file; it writes nothing, and gives the rows that are wrong.
        (templated)
    :param catalog: what the Spark server calls the catalog that the tables are in, as for
        :class:`~airflow_barrier.operators.query.ConsistentQueryOperator`.
    :param spark_conn_id: the Spark Connect server that runs the query.
    :param wait_timeout: how long a try may wait, from its beginning; then it fails, and says what for.

    Raises CheckFailedError, which names the check and has the first ten rows. It is retried as any task.

    Returns (XCom) the barrier's id.

    >>> CheckOperator(
    ...     task_id="check",
    ...     topology="shopping",
    ...     check="no negative prices",
    ...     sql="SELECT * FROM lake.shop.price WHERE price < 0",
    ... ).check
    'no negative prices'
    """

    template_fields: Sequence[str] = ("topology", "sql")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers = {"sql": "sql"}  # noqa: RUF012 - Airflow reads it as a plain attribute
    operator_extra_links = (BarrierLink(),)
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        topology: str,
        check: str,
        sql: str,
        catalog: str | None = None,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        spark_conn_id: str = "spark_connect_default",
        wait_timeout: timedelta = WAIT_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_unmapped(self, "check a barrier, since a run has one")
        self.topology = topology
        self.check = check
        self.sql = sql
        self.catalog = catalog
        self.barrier_conn_id = barrier_conn_id
        self.spark_conn_id = spark_conn_id
        self.wait_timeout = wait_timeout
        self._session = TaskSession(self.task_id, spark_conn_id)

    def execute(self, context: Context) -> int:
        from airflow_barrier.coordinator.next import Nothing, next_check
        from airflow_barrier.coordinator.waiting import Wait
        from airflow_barrier.operators._waking import AirflowScheduler

        with without_useless_retries():
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            known = partial(show_barrier, context, self.barrier_conn_id)
            run, scheduler = run_of_task(context), AirflowScheduler(context)
            topology = run.topology(self.topology)
            while True:
                step = next_check(deployment, run, topology, scheduler, known=known)
                if isinstance(step, Wait):
                    defer(self, self, topology, step, context, self.resume.__name__)
                if isinstance(step, Nothing):
                    self.log.info("Nothing to check: %s", step.reason)
                    return step.barrier_id
                found = self._look(deployment, step.barrier, actor(context))
                if found is None:
                    self.log.info("%s was staged anew meanwhile: looking again", step.barrier)
                    continue
                self._judge(deployment, step.barrier, found, actor(context))
                return step.barrier.barrier_id

    def resume(self, context: Context, event: dict[str, Any]) -> int:
        """Called when what was waited for is there, or never will be: ask again."""
        check_event(event)
        return self.execute(context)

    def on_kill(self) -> None:
        """End the session on the server, whose work ends with it."""
        self._session.kill()

    def _look(self, deployment: Deployment, barrier: Barrier, holder: str) -> list[dict[str, Any]] | None:
        """The rows that are wrong, one more than are shown at most; None: what was read does not count any more."""
        from airflow_barrier.reading.spark_results import first_rows
        from airflow_barrier.reading.staged import staged_session
        from airflow_barrier.spark.connect import lost_server_is_retryable

        try:
            with staged_session(deployment, barrier, holder) as staged, self._session:
                with lost_server_is_retryable(f"task {self.task_id}"):
                    found = first_rows(staged.spark(self._session(), self.catalog).sql(self.sql), _SHOWN + 1)
                return found if staged.still_stands() else None
        except NotReadableYetError:
            return None

    def _judge(self, deployment: Deployment, barrier: Barrier, found: Sequence[dict[str, Any]], who: str) -> None:
        """Tell what was found, the barrier's page too. Raises CheckFailedError."""
        at = (barrier.topology, barrier.barrier_id, barrier.line)
        if found:
            shown = _shown(found)
            deployment.meta.barriers.checked(*at, self.check, shown.replace("\n", " "), who)
            raise CheckFailedError(_told(barrier, self.check, shown))
        deployment.meta.barriers.checked(*at, self.check, None, who)
        self.log.info("%s has passed check %s: no rows", barrier, self.check)


def _shown(found: Sequence[dict[str, Any]]) -> str:
    """Say how many rows, and the first of them, without the secrets that Airflow knows of, as in its own logs."""
    many = f"more than {_SHOWN}" if len(found) > _SHOWN else str(len(found))
    rows = "\n".join(str(redact(str(row)))[:_WIDEST] for row in found[:_SHOWN])
    return f"{many} {'row' if len(found) == 1 else 'rows'}:\n{rows}"


def _told(barrier: Barrier, check: str, shown: str) -> str:
    give_up = f"airflow-barrier barrier abort {barrier.topology} {barrier.barrier_id}"
    if barrier.line:
        give_up = f"airflow-barrier revision cancel {barrier.topology} {barrier.line}"
    return (
        f"{barrier}: expected that check {check!r} finds no rows. Mend the job that made them, then clear its task and "
        f"what follows it; if they are right, mark this task success; or give up: {give_up}. Found {shown}"
    )
