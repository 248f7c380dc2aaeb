"""Putting the rows of tables into fewer files, without anybody noticing but by speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.links.barrier import BarrierLink, show_barrier
from airflow_barrier.operators._at import several
from airflow_barrier.operators._session import TaskSession
from airflow_barrier.operators._task import actor, generation, reason_of, run_ref, task_key, without_useless_retries
from airflow_barrier.operators._waiting import WAIT_TIMEOUT, check_event, defer
from airflow_barrier.protocol.compaction import TARGET_OPTION
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.records import Barrier

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.compacting import Compacted, Compactor
    from airflow_barrier.coordinator.deployment import Deployment


class CompactTablesOperator(BaseOperator):
    """Compacts the tables of a topology, by Iceberg's ``rewrite_data_files``, as a barrier of its own.

    The barrier has its predecessor's timestamp and no epoch: every table holds the rows that it held, in fewer files.
    What jobs stage at later barriers stands on it, so that nothing staged is lost; jobs that read changes see none. A
    job of a later barrier waits for the compaction of its own tables only, and for no table that is not compacted.
    Readers go on undisturbed; the old files go with :class:`~airflow_barrier.operators.expire.ExpireSnapshotsOperator`.

    Without ``tables`` it compacts those of which a quarter more is read in vain than has to be: files beyond what their
    bytes need, and deleted rows. It knows that from metadata, without Spark. If there is none it opens no barrier, and
    is over in a second, so it can run after each barrier.

    If it fails or is killed, nothing waits for it: tables that are not rewritten by then stand as they were. If its
    worker is lost, the next try, or the next run, goes on with it.

    :param topology: whose tables. (templated)
    :param tables: which of them, as ``namespace.table``, whether it pays or not; default: those where it pays.
        (templated)
    :param options: of ``rewrite_data_files``, such as ``{"rewrite-all": "true"}``, before ours, which are
        ``{"min-input-files": "2", "delete-ratio-threshold": "0.2"}``, and before Iceberg's. (templated)
    :param spark_conn_id: the Spark Connect server that rewrites.
    :param wait_timeout: how long a try may wait for other barriers, from its beginning.

    Returns (XCom) the barrier's id; None if it pays for no table, or no barrier was opened since the last compaction.

    >>> CompactTablesOperator(task_id="compact", topology="shopping", tables=["shop.shopping"]).tables
    ['shop.shopping']
    """

    template_fields: Sequence[str] = ("topology", "tables", "options")
    operator_extra_links = (BarrierLink(),)
    ui_color = "#e5e7eb"

    def __init__(
        self,
        *,
        topology: str,
        tables: Sequence[str] | None = None,
        options: Mapping[str, str] | None = None,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        spark_conn_id: str = "spark_connect_default",
        wait_timeout: timedelta = WAIT_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = topology
        self.tables = list(several("tables", tables)) if tables is not None else None
        self.options = dict(options or {})
        self.barrier_conn_id = barrier_conn_id
        self.spark_conn_id = spark_conn_id
        self.wait_timeout = wait_timeout
        self._spark = TaskSession(self.task_id, spark_conn_id)

    def execute(self, context: Context) -> int | None:
        from airflow_barrier.coordinator.compacting import open_compaction, worth_compacting
        from airflow_barrier.coordinator.opening import Later

        with without_useless_retries():
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            compactor = self._compactor(context)
            tables = self.tables
            if tables is None:
                tables = worth_compacting(deployment, self.topology, self._target_bytes())
            barrier = open_compaction(deployment, self.topology, tables, compactor)
            if barrier is None:
                self.log.info(
                    "Nothing to compact: it pays for no table of %s, or there is no barrier since it was compacted",
                    self.topology,
                )
                return None
            if isinstance(barrier, Later):
                self._wait_for_room(deployment, barrier.reason, context)
            return self._compact(deployment, barrier, context)

    def resume(self, context: Context, event: dict[str, Any]) -> int | None:
        """Ask: what was waited for may be there, and what did not answer may answer again."""
        check_event(event)
        if "barrier_id" not in event:
            return self.execute(context)
        with without_useless_retries():
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            return self._compact(deployment, deployment.meta.barriers.get(self.topology, event["barrier_id"]), context)

    def on_kill(self) -> None:
        """End the session on the server, whose work ends with it; what that raises lets go of the barrier."""
        self._spark.kill()

    def _compact(self, deployment: Deployment, barrier: Barrier, context: Context) -> int:
        from airflow_barrier.coordinator.compacting import compact
        from airflow_barrier.spark.compacting import RewrittenFiles, rewrite_files

        self.log.info("Compacting tables at %s, opened by %s", barrier, barrier.run)
        show_barrier(context, self.barrier_conn_id, barrier)
        compactor = self._compactor(context)

        def rewrite(table: str, branch: str) -> RewrittenFiles:
            return rewrite_files(self._spark(), deployment.spark_catalog, table, branch, self.options)

        with _letting_go(deployment, barrier, compactor), self._spark:
            compacted = compact(deployment, barrier, rewrite, compactor)
        if not compacted.over:
            self._wait_for(compacted, context)
        self.log.info("%s is %s", compacted.barrier, compacted.barrier.state.value)
        return barrier.barrier_id

    def _target_bytes(self) -> int | None:
        said = self.options.get(TARGET_OPTION)
        if said is None:
            return None
        if not (str(said).isdecimal() and int(said)):
            raise ConfigurationError(
                f"options: expected {TARGET_OPTION} in bytes, such as '134217728', found {said!r}; correct the "
                "operator's options"
            )
        return int(said)

    def _wait_for(self, compacted: Compacted, context: Context) -> NoReturn:
        from airflow_barrier.coordinator.waiting import Condition, Wait

        barrier = compacted.barrier
        conditions = tuple(Condition("PROCESSED", barrier_id=n.barrier_id, tables=(n.table,)) for n in compacted.needs)
        reason = f"{barrier} waits for {', '.join(map(str, compacted.needs))}"
        if not conditions:
            conditions = (Condition("COMMIT", barrier_id=barrier.predecessor),)
            reason = f"{barrier} waits for the barrier before it to be committed"
        wait = Wait(conditions, reason, any_of=True, attempt_ids=compacted.waiting)
        defer(self, self, self.topology, wait, context, self.resume.__name__, barrier_id=barrier.barrier_id)

    def _wait_for_room(self, deployment: Deployment, reason: str, context: Context) -> NoReturn:
        from airflow_barrier.coordinator.waiting import Room, Wait

        wait = Wait((Room(deployment.max_open_barriers),), f"the compaction cannot begin yet: {reason}")
        defer(self, self, self.topology, wait, context, self.resume.__name__)

    def _compactor(self, context: Context) -> Compactor:
        from airflow_barrier.coordinator.compacting import Compactor

        return Compactor(run_ref(context), task_key(context), generation(context), actor(context))


@contextmanager
def _letting_go(deployment: Deployment, barrier: Barrier, compactor: Compactor) -> Iterator[None]:
    """Let go of the attempts, whatever ends the task, a timeout and an exit included: nothing waits for it any more."""
    from airflow_barrier.coordinator.compacting import let_go

    try:
        yield
    except BaseException as error:
        let_go(deployment, barrier, reason_of(error), compactor)
        raise
