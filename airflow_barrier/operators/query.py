"""One query that reads one barrier."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.links.barrier import BarrierLink, barrier_page, show_page
from airflow_barrier.operators._at import barrier_or_time
from airflow_barrier.operators._lineage import Listened, note_answer
from airflow_barrier.operators._task import actor, without_useless_retries
from airflow_barrier.operators._waiting import check_event
from airflow_barrier.protocol.errors import ConfigurationError, StaleAnswerError
from airflow_barrier.protocol.levels import Level

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import DataFrame

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.reading.session import ConsistentSession
    from airflow_barrier.reading.spark_results import Replace


class ConsistentQueryOperator(Listened, BaseOperator):
    """Runs unchanged SQL on Spark, over tables that are all at one barrier, whatever is committed meanwhile.

    The barrier is held until the query is done. Tables outside the topology are read as they are, and a warning in the
    log says so; the metadata tables ``__META_...`` can be read along.

    :param topology: whose tables. (templated)
    :param sql: one query, or a ``.sql`` file; it writes nothing. (templated)
    :param level: ``repeatable_read``, ``read_committed`` or ``read_uncommitted``; default: the connection's
        ``consistency``. (templated)
    :param at: a barrier's id, or a time with its zone: the newest barrier at or before it. Default: the newest one at
        the level. The barrier that a sensor waited for is ``at="{{ ti.xcom_pull('wait') }}"``. (templated)
    :param not_older_than: how far the barrier may lie behind the database's clock, else the task fails and is retried;
        not at read uncommitted.
    :param wait: how long to wait for one that is new enough before that, in the triggerer.
    :param tables: those that the query reads, as ``namespace.table``; default: all of the topology. (templated)
    :param catalog: what the Spark server calls the catalog that the tables are in. Default: the connection's
        ``spark_catalog``, and then a table of the same name in another catalog is refused, since it may be the same.
    :param into: the table for the result, ``catalog.namespace.table``; no table of a topology, by either name of its
        catalog. Default: XCom. (templated)
    :param replace: what becomes of a table that is there: ``table``, all its rows are replaced; ``partitions``, those
        in the partitions that the new rows are in, which is how a run adds its day to a report that is partitioned by
        the day. Definition and partitioning stay. A table that is not there is created. There is no append: a retry
        would append twice. ``partitions`` is for tables of the topology's catalog; refused are tables without
        partitions, and those with rows of before their partitioning was changed.
    :param partition_by: for ``partitions``: the columns that the table is created with as its partitions. One that is
        there has to have the same. Without it the table has to be there, with any partitions; where they are finer
        than the day, or coarser, rows that a run did not write again stay, or rows of other days go.
    :param max_rows: the most that XCom takes; a larger result fails the task.
    :param spark_conn_id: the Spark Connect server that runs the query.

    A retry asks anew, so without ``at`` it may read a newer barrier; it replaces what an earlier try wrote. Killing the
    task stops the work on Spark. What cannot get better by itself (SQL that is refused, a barrier that expired) is not
    retried.

    Returns (XCom) the rows, as dictionaries of what JSON can hold, decimals and times as text; with ``into`` that
    table's name. Beside it: ``barrier_id`` and ``barrier_timestamp`` (None at read uncommitted), and ``level``.

    >>> ConsistentQueryOperator(
    ...     task_id="report",
    ...     topology="shopping",
    ...     sql="SELECT itemId, price / amount AS avg FROM lake.shop.amount JOIN lake.shop.price USING (itemId)",
    ...     into="lake.reports.prices",
    ... ).max_rows
    1000
    """

    template_fields: Sequence[str] = ("topology", "sql", "level", "at", "tables", "into")
    template_ext: Sequence[str] = (".sql",)
    template_fields_renderers = {"sql": "sql"}  # noqa: RUF012 - Airflow reads it as a plain attribute
    operator_extra_links = (BarrierLink(),)
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        topology: str,
        sql: str,
        level: str | None = None,
        at: int | str | datetime | None = None,
        not_older_than: timedelta | None = None,
        wait: timedelta = timedelta(0),
        tables: Sequence[str] | None = None,
        catalog: str | None = None,
        into: str | None = None,
        replace: Replace = "table",
        partition_by: Sequence[str] | None = None,
        max_rows: int = 1000,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        spark_conn_id: str = "spark_connect_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        from airflow_barrier.reading.question import check_age_asked

        # what cannot be is said when the DAG is parsed
        check_age_asked(f"task {self.task_id}", at, not_older_than, wait)
        if level is not None and "{" not in level:
            level = Level.parse(level).value
        if replace not in ("table", "partitions"):
            raise ConfigurationError(
                f"task {self.task_id}: replace: expected 'table' or 'partitions', found {replace!r}; use one of these"
            )
        if partition_by is not None and replace != "partitions":
            raise ConfigurationError(
                f"task {self.task_id}: expected partition_by=... with replace='partitions', found {replace!r}; give "
                "both or leave it out"
            )
        if partition_by is not None and (isinstance(partition_by, str) or not partition_by):
            raise ConfigurationError(
                f"task {self.task_id}: expected a list of columns in partition_by, found {partition_by!r}"
            )
        if max_rows < 1:
            raise ConfigurationError(f"task {self.task_id}: max_rows: expected 1 or more, found {max_rows}")
        self.topology = topology
        self.sql = sql
        self.level = level
        self.at = at
        self.not_older_than = not_older_than
        self.wait = wait
        self.tables = tables
        self.catalog = catalog
        self.into = into
        self.replace = replace
        self.partition_by = partition_by
        self.max_rows = max_rows
        self.barrier_conn_id = barrier_conn_id
        self.spark_conn_id = spark_conn_id
        self._spark: tuple[str, str] | None = None  # url, session id
        self._killed = False

    def execute(self, context: Context) -> list[dict[str, Any]] | str:
        try:
            return self._answer(context)
        except StaleAnswerError as error:
            if context["ti"].start_date + self.wait <= datetime.now(timezone.utc):
                raise
            self.log.info("Waiting for a newer barrier: %s", error)
            self._defer(context)

    def resume(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]] | str:
        """Called when there is a newer barrier, or the time is over, which the last look tells."""
        if event["status"] != "late":
            check_event(event)
        return self.execute(context)

    def _defer(self, context: Context) -> NoReturn:
        from airflow_barrier.coordinator.waiting import Condition
        from airflow_barrier.triggers.barrier import BarrierTrigger

        hook = BarrierHook(self.barrier_conn_id)
        level = Level.parse(self.level or hook.get_settings().consistency)
        newer = hook.get_meta_service().now() - (self.not_older_than or timedelta(0))
        self.defer(
            trigger=BarrierTrigger(
                topology=self.topology,
                barrier_conn_id=self.barrier_conn_id,
                conditions=[Condition.newer(level, newer, self.tables)],
                until=context["ti"].start_date + self.wait,
            ),
            method_name=self.resume.__name__,
        )

    def _answer(self, context: Context) -> list[dict[str, Any]] | str:
        with without_useless_retries():
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            target = self._target(deployment)
            with BarrierHook(self.barrier_conn_id).consistent_session(
                self.topology,
                level=self.level,
                tables=self.tables,
                at=barrier_or_time(self.at),
                not_older_than=self.not_older_than,
                holder=actor(context),
            ) as session:
                self._tell(context, session)
                result = self._run(session, deployment, target)
                ours = target is not None and target[0] in (deployment.spark_catalog, self.catalog)
                made = ".".join(target[1:]) if target is not None and ours else None
                note_answer(self, self.barrier_conn_id, deployment, session.resolution, read=session.read, made=made)
        return result

    def on_kill(self) -> None:
        """End the session on the server, whose work ends with it."""
        self._killed = True
        if self._spark is not None:
            from airflow_barrier.spark.connect import end_session

            end_session(*self._spark)

    def _target(self, deployment: Deployment) -> tuple[str, ...] | None:
        from airflow_barrier.reading.spark_results import target_of

        if self.into is None:
            return None
        catalogs = {deployment.spark_catalog, self.catalog or deployment.spark_catalog}
        return target_of(self.into, catalogs, deployment.topologies_by_table())

    def _run(
        self, session: ConsistentSession, deployment: Deployment, target: tuple[str, ...] | None
    ) -> list[dict[str, Any]] | str:
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        from airflow_barrier.reading.spark_results import rows_of
        from airflow_barrier.spark.connect import connect_session, lost_server_is_retryable, stop_session

        self._spark = (SparkConnectHook(self.spark_conn_id).get_connection_url(), str(uuid.uuid4()))
        spark = connect_session(*self._spark)
        try:
            if self._killed:
                raise AirflowException(f"task {self.task_id} was killed before its query began")
            with lost_server_is_retryable(f"task {self.task_id}"):
                frame = session.spark(spark, self.catalog).sql(self.sql)
                if target is None:
                    return rows_of(frame, self.max_rows)
                self._write(frame, deployment, target)
                return str(self.into)
        finally:
            stop_session(spark)

    def _write(self, frame: DataFrame, deployment: Deployment, target: tuple[str, ...]) -> None:
        """Write in one commit. Done again it changes nothing."""
        from airflow_barrier.reading.partitions import replaceable
        from airflow_barrier.reading.spark_results import create_partitioned, replace_partitions, replace_table

        if self.replace == "table":
            replace_table(frame, target)
        elif replaceable(deployment.tables, self.catalog or deployment.spark_catalog, target, self.partition_by):
            replace_partitions(frame, target)
        else:
            create_partitioned(frame, target, self.partition_by or ())

    def _tell(self, context: Context, session: ConsistentSession) -> None:
        """Tell the log, the link and downstream tasks which barrier it is."""
        found = session.resolution
        if found.barrier_id is not None:
            show_page(context, self.barrier_conn_id, found.topology, barrier_page(found.barrier_id))
        timestamp = None if found.timestamp is None else found.timestamp.isoformat()
        which = f"barrier {found.barrier_id} of {timestamp}"
        if found.barrier_id is None:
            which = "each table at its own: " + ", ".join(f"{t.table} at {t.barrier_id}" for t in found.tables.values())
        self.log.info("Reading %s at %s, %s; held by %s", found.topology, found.level.value, which, session.lease)
        for key, value in (
            ("barrier_id", found.barrier_id),
            ("barrier_timestamp", timestamp),
            ("level", found.level.value),
        ):
            context["ti"].xcom_push(key=key, value=value)
