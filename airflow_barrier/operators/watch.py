"""Watching topologies: numbers for a monitoring system, and signals for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseNotifier, BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.notifications.barrier import BarrierNotifier, check_wanted
from airflow_barrier.operators._metrics import emit
from airflow_barrier.operators._task import without_useless_retries
from airflow_barrier.protocol.signals import KINDS, SignalKind

if TYPE_CHECKING:
    from airflow.sdk import Context


class WatchBarriersOperator(BaseOperator):
    """Sends metrics about each topology, and tells notifiers what is late, blocked, aborted, not delivered or revised.

    For a DAG of its own that runs every few minutes: ``schedule="*/5 * * * *", catchup=False, max_active_runs=1``. A
    run tells what has happened since the run of the schedule before it, up to a minute before its own time; see
    :class:`~airflow_barrier.notifications.barrier.BarrierNotifier`. A run that the scheduler left out is made up for by
    the next one. If a notifier fails, the others are called, and the task fails: a retry tells all of them once more
    what this run has to tell.

    Metrics are gauges, by Airflow's own client and settings, with the tag ``topology``: ``barrier.age_seconds``,
    ``barrier.open``, ``barrier.late``, ``barrier.waiting_tasks``, and for each ``sink`` ``barrier.sinks_behind``. If
    they cannot be sent, the log says so and the task goes on.

    :param notifiers: any notifiers of Airflow's; their templates have ``signal``.
    :param topologies: which topologies (None: all that the deployment has). (templated)
    :param on: which kinds of signals: late, blocked, aborted, delivery_failing, revised.

    >>> WatchBarriersOperator(task_id="watch", topologies=["shopping"], on=["late"]).on
    ('late',)
    """

    template_fields: Sequence[str] = ("topologies",)
    ui_color = "#fef9c3"

    def __init__(
        self,
        *,
        notifiers: Sequence[BaseNotifier] = (),
        topologies: Sequence[str] | None = None,
        on: Sequence[SignalKind] = KINDS,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_wanted(notifiers, topologies, on)
        self.notifiers = tuple(notifiers)
        self.topologies = topologies
        self.on = tuple(on)
        self.barrier_conn_id = barrier_conn_id

    def execute(self, context: Context) -> None:
        from airflow_barrier.coordinator.measuring import measures

        with without_useless_retries():
            meta = BarrierHook(self.barrier_conn_id).get_meta_service()
            emit(lambda: measures(meta, meta.topologies.names() if self.topologies is None else self.topologies))
            BarrierNotifier(
                *self.notifiers, topologies=self.topologies, on=self.on, barrier_conn_id=self.barrier_conn_id
            ).notify(context)
