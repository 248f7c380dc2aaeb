"""Letting history go that nobody reads, holds or needs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.operators._at import true_or_false, whole_number
from airflow_barrier.operators._session import TaskSession
from airflow_barrier.operators._task import actor, without_useless_retries
from airflow_barrier.protocol.retention import Retention

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.deployment import Deployment


class ExpireSnapshotsOperator(BaseOperator):
    """Expires the barriers of a topology that are beyond a retention, and deletes the snapshots that nothing needs.

    A barrier stays while it is among the newest ``keep``, was committed within ``keep_for``, is leased by a reader, a
    sink lacks it or received it last, or an open barrier stands on it. A snapshot stays while a tag or branch names it,
    whoever made that, while `main` has it as a step of the barriers that stay, and while it is a step or the base of a
    branch. Nobody can begin to read at a barrier before its tags go, and tags go before data. A table that fails keeps
    no other from it; what failed or was interrupted is gone on with by the next try or run.

    Iceberg deletes the files by Spark, in a session on the Spark Connect server that ``spark_conn_id`` names.

    Each commit lets go by the connection's ``tag_policy`` already, by default of all but the newest 31: set it to
    ``every=1`` to keep more.

    :param topology: whose barriers and tables. (templated)
    :param keep: how many barriers stay at least: 1 or more. (templated)
    :param keep_for: and those that were committed within this time.
    :param explain_only: a dry run: write into the log what would go, and why each of the others stays; change nothing.
        (templated)

    Returns (XCom) ``{"barriers": [ids], "snapshots": {table: how many}}``.

    >>> ExpireSnapshotsOperator(task_id="expire", topology="shopping", keep=31, keep_for=timedelta(days=30)).keep
    31
    """

    template_fields: Sequence[str] = ("topology", "keep", "explain_only")
    ui_color = "#e5e7eb"

    def __init__(
        self,
        *,
        topology: str,
        keep: int | str,
        keep_for: timedelta = timedelta(0),
        explain_only: bool | str = False,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        spark_conn_id: str = "spark_connect_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # what cannot be is said when the DAG is parsed
        if "{" not in str(keep):
            Retention(whole_number("keep", keep), keep_for)
        if "{" not in str(explain_only):
            true_or_false("explain_only", explain_only)
        self.topology = topology
        self.keep = keep
        self.keep_for = keep_for
        self.explain_only = explain_only
        self.barrier_conn_id = barrier_conn_id
        self.spark_conn_id = spark_conn_id
        self._spark = TaskSession(self.task_id, spark_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        with without_useless_retries():
            retention = Retention(whole_number("keep", self.keep), self.keep_for)
            explain_only = true_or_false("explain_only", self.explain_only)
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            if explain_only:
                return self._explain(deployment, retention)
            return self._expire(deployment, retention, actor(context))

    def on_kill(self) -> None:
        """End the session on the server, whose work ends with it; the next expiry goes on."""
        self._spark.kill()

    def _explain(self, deployment: Deployment, retention: Retention) -> dict[str, Any]:
        from airflow_barrier.coordinator.expiring import plan_expiry

        plan = plan_expiry(deployment, self.topology, retention)
        for barrier in plan.barriers:
            self.log.info("%s: %s, %s", barrier.barrier, "stays" if barrier.keep else "would expire", barrier.reason)
        for table, verdicts in plan.tables.items():
            for one in verdicts:
                what = "stays" if one.keep else "would go"
                self.log.info("table %s, snapshot %d: %s, %s", table, one.snapshot_id, what, one.reason)
        for said in (*plan.failed, *([plan.cut_short] if plan.cut_short else [])):
            self.log.warning("%s", said)
        going = {table: sum(not one.keep for one in verdicts) for table, verdicts in plan.tables.items()}
        return {"barriers": list(plan.expiring), "snapshots": {table: count for table, count in going.items() if count}}

    def _expire(self, deployment: Deployment, retention: Retention, actor: str) -> dict[str, Any]:
        from airflow_barrier.coordinator.expiring import expire
        from airflow_barrier.spark.expiring import ExpiredFiles, expire_snapshots

        def take_out(table: str, snapshot_ids: Sequence[int]) -> ExpiredFiles:
            return expire_snapshots(self._spark(), deployment.spark_catalog, table, snapshot_ids)

        with self._spark:
            self._spark()  # without a server nothing begins
            done = expire(deployment, self.topology, retention, take_out, actor=actor)
        return {
            "barriers": list(done.barriers),
            "snapshots": {table: len(snapshots) for table, snapshots in done.snapshots.items()},
        }
