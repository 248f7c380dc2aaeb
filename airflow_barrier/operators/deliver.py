"""Delivering committed barriers to a system outside the lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import Asset, BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.links.barrier import BarrierLink, show_barrier
from airflow_barrier.operators._binding import check_unmapped
from airflow_barrier.operators._extracts import Extracts, extracts_of
from airflow_barrier.operators._lineage import Listened, note
from airflow_barrier.operators._task import actor, run_of_task, skip, task_key, try_key, without_useless_retries
from airflow_barrier.operators._waiting import WAIT_TIMEOUT, check_event, defer
from airflow_barrier.operators.epoch import connection_for
from airflow_barrier.protocol.deliveries import Position, Rows
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.names import event_key, is_topology_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.next import Due
    from airflow_barrier.protocol.credentials import Credentials
    from airflow_barrier.protocol.deliveries import DeliveryRecord, SinkDeclaration
    from airflow_barrier.sinks.port import Sink


def sink_asset(topology: str, sink: str) -> Asset:
    """The asset that gets an event whenever a barrier was delivered to a sink.

    >>> sink_asset("shopping", "prices").uri
    'barrier://shopping/sink/prices'
    """
    uri = f"barrier://{topology}/sink/{quote(sink, safe='')}"
    return Asset(name=uri, uri=uri, group="barrier")


class DeliverOperator(Listened, BaseOperator):
    """Delivers tables to a sink, barrier by barrier, each exactly once: its rows and the sink's own record together.

        DeliverOperator(
            task_id="deliver",
            topology="shopping",
            tables="shop.prices",
            to=PostgreSQLSink("reporting", table="prices"),
        )

    Waits (deferred) until the barrier of its run is COMMIT; then it delivers every barrier that the sink lacks up to
    that one, in order, so that the next run catches up what a run has missed. The first delivery is the tables whole.
    Several tables go in one step: whoever joins them in the sink never sees two barriers. What a revision has corrected
    is delivered again, as the difference.

    Neither barriers nor readers of the tables ever wait for a sink. One that is away, or refuses a row, fails this task
    alone, and its log says what to do; `airflow-barrier status` says how far each sink is. What a sink lacks is kept
    from expiry for a week.

    Runs started by a person, and by events of tables in Airflow before 3.3, deliver up to the newest barrier that is
    COMMIT. Tasks of several runs that deliver to the same sink go one after the other.

    :param topology: whose tables. Not templated: the sink's asset has it in its name.
    :param tables: one table, ``namespace.table``, or table -> what it is called in the sink.
    :param to: the sink.
    :param rows: ``changes`` (what was inserted, updated and deleted), ``appends`` (of tables that are only added to) or
        ``table`` (all rows, with each barrier); what a sink can do of these it says when the DAG is parsed.
    :param collapse: bring a sink that is behind up to the run's barrier in one step, by what has changed in all. It
        passes over the barriers between, which get no events of their own.
    :param via: how Spark reads the tables, ``connect`` or ``submit``: in a session on a Spark Connect server, or by an
        application that is submitted in client mode, once for all tables of a barrier.
    :param spark_conn_id: default ``spark_connect_default`` or ``spark_default``.
    :param conf: Spark conf of the application, for ``via="submit"``. (templated)
    :param wait_timeout: how long a try may wait, from its beginning; then it fails, and says what for.

    Returns (XCom) the id of the barrier that the sink is at. Each barrier gets an asset event of :func:`sink_asset`,
    with barrier and revision as partition key (``b3.r0``).
    """

    template_fields: Sequence[str] = ("conf",)
    operator_extra_links = (BarrierLink(),)
    ui_color = "#ede9fe"

    def __init__(
        self,
        *,
        topology: str,
        tables: str | Mapping[str, str],
        to: Sink,
        rows: str = Rows.CHANGES.value,
        collapse: bool = False,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        via: str = "connect",
        spark_conn_id: str | None = None,
        conf: Mapping[str, str] | None = None,
        wait_timeout: timedelta = WAIT_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_unmapped(self, "deliver, since what a sink gets is none of what a group is expanded over")
        if not is_topology_name(topology):
            raise ConfigurationError(f"task {self.task_id}: expected the name of a topology, found {topology!r}")
        if rows not in {each.value for each in Rows}:
            raise ConfigurationError(
                f"task {self.task_id}: rows: expected one of {', '.join(each.value for each in Rows)}, found {rows!r}"
            )
        self.topology = topology
        self.tables = tables
        self.to = to
        self.rows = rows
        self.collapse = collapse
        self.declaration("")  # what cannot be is said when the DAG is parsed
        self.barrier_conn_id = barrier_conn_id
        self.via = via
        self.spark_conn_id = connection_for(self.task_id, via, spark_conn_id)
        self.conf = dict(conf or {})
        self.wait_timeout = wait_timeout
        self._extracts: Extracts | None = None
        self._killed = False
        self.add_outlets([sink_asset(topology, to.name)])

    def declaration(self, dag_id: str) -> SinkDeclaration:
        """Return what is registered with the topology, by the DAG of that id."""
        return self.to.declare(self.tables, Rows(self.rows), dag_id)

    def execute(self, context: Context) -> int:
        from airflow_barrier.coordinator.next import Nothing, Skip, next_delivery
        from airflow_barrier.coordinator.waiting import Wait
        from airflow_barrier.operators._waking import AirflowScheduler

        with without_useless_retries():
            run = run_of_task(context)
            if run.rehearsal:
                skip(self, f"a rehearsal delivers nothing to sink {self.to.name}")
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            step = next_delivery(
                deployment,
                run,
                self.topology,
                self.declaration(context["ti"].dag_id),
                AirflowScheduler(context),
                request_key=try_key(context),
                actor=actor(context),
                known=partial(show_barrier, context, self.barrier_conn_id),
            )
            if isinstance(step, Skip):
                skip(self, step.reason)
            if isinstance(step, Wait):
                defer(self, self, self.topology, step, context, self.resume.__name__)
            if isinstance(step, Nothing):
                self.log.log(step.level, "%s", step.reason)
                there = step.barrier
            else:
                there = step.through
                self._deliver(deployment, step, context)
            if there is not None:
                targets = self.declaration("").targets
                note(self, self.barrier_conn_id, deployment, there, read=targets, delivered=self._datasets(targets))
            self._tell(deployment, context)
        return there.barrier_id if there is not None else 0

    def resume(self, context: Context, event: dict[str, Any]) -> int:
        """Called when what was waited for is there, or never will be: ask again."""
        check_event(event)
        return self.execute(context)

    def on_kill(self) -> None:
        """End the work on Spark. The sink has all of a barrier or nothing, and the next try goes on."""
        self._killed = True
        if self._extracts is not None:
            self._extracts.kill()

    def _deliver(self, deployment: Deployment, due: Due, context: Context) -> None:
        from airflow_barrier.coordinator.delivering import deliver

        self._extracts = extracts = extracts_of(self.task_id, self.via, self.spark_conn_id, self.conf)
        if self._killed:  # before there was something to kill
            raise AirflowException(f"task {self.task_id} was killed")
        with extracts:
            deliver(
                deployment,
                due.sink,
                due.through,
                self.credentials(),
                partial(extracts.write, deployment),
                request_key=try_key(context),
                actor=actor(context),
                collapse=self.collapse,
            )

    def _datasets(self, targets: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        credentials = self.credentials()
        for target in targets.values():
            yield self.to.dataset(target, credentials)

    def credentials(self) -> Credentials | None:
        """Return the credentials of the sink's connection. Raises ConfigurationError for one that is missing, or of
        another type.
        """
        from airflow_barrier.hooks.credentials import credentials_of

        if self.to.conn_id is None:
            return None
        return credentials_of(f"sink {self.to.name}", self.to.conn_id, self.to.conn_type)

    def _tell(self, deployment: Deployment, context: Context) -> None:
        """An event for each barrier that the sink has received and of which at most a try of this task has told."""
        from airflow_barrier.operators._events import give_keys, silence

        asset, deliveries, by = sink_asset(self.topology, self.to.name), deployment.meta.deliveries, task_key(context)
        silent = [] if not self._is_registered(deployment) else deliveries.unannounced(self.topology, self.to.name, by)
        if not silent:
            silence(self, [asset])
            return
        accessor = context["outlet_events"][asset]
        accessor.extra = {"barriers": {_key(each): _extra(each) for each in silent}}
        give_keys(accessor, [_key(each) for each in silent])
        positions = [Position(each.barrier_id, each.revision) for each in silent]
        deliveries.announce(self.topology, self.to.name, positions, by)

    def _is_registered(self, deployment: Deployment) -> bool:
        return any(sink.name == self.to.name for sink in deployment.meta.deliveries.of(self.topology))


def _key(delivered: DeliveryRecord) -> str:
    return event_key(delivered.barrier_id, delivered.revision)


def _extra(delivered: DeliveryRecord) -> dict[str, Any]:
    return {
        "barrier": delivered.barrier_id,
        "revision": delivered.revision,
        "inserted": delivered.inserted,
        "updated": delivered.updated,
        "deleted": delivered.deleted,
    }
