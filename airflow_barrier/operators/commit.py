"""Committing and aborting the barrier of a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Asset, BaseOperator, TaskInstanceState, TriggerRule

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.links.barrier import BarrierLink, show_barrier
from airflow_barrier.operators._at import several
from airflow_barrier.operators._binding import check_unmapped
from airflow_barrier.operators._conf import REFUSED
from airflow_barrier.operators._lineage import Listened, note
from airflow_barrier.operators._task import (
    actor,
    failed_by_a_deploy,
    run_of_task,
    run_ref,
    run_timestamp,
    skip,
    without_useless_retries,
)
from airflow_barrier.operators._waiting import WAIT_TIMEOUT, check_event, defer
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    ConfigurationError,
    UnknownBarrierError,
)
from airflow_barrier.protocol.names import event_key, is_topology_name
from airflow_barrier.protocol.records import Barrier

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.committing import Committed
    from airflow_barrier.coordinator.deployment import Deployment
    from airflow_barrier.coordinator.runs import Run


#: XCom of a commit task: what would have been published, of a rehearsal, a line each.
REHEARSED = "barrier_rehearsed"


def table_asset(topology: str, table: str) -> Asset:
    """The asset that gets an event whenever a barrier publishes ``table``.

    >>> table_asset("shopping", "shop.user_item_price").uri
    'barrier://shopping/shop.user_item_price'
    """
    uri = f"barrier://{topology}/{quote(table, safe='')}"
    return Asset(name=uri, uri=uri, group="barrier")


class CommitBarrierOperator(Listened, BaseOperator):
    """Publishes all tables of the run's barrier in one step, after those of every barrier before it.

    Where nothing but jobs of the same group stands before this task, the job that completes the barrier commits it in
    place, and this task finds it committed. A task of the author's own before this one, such as a check of the
    numbers, keeps the commit here: ``jobs >> check >> barrier.commit``.

    Waits (deferred) for barriers before it and for tables that other DAGs write. A table of this DAG's own jobs that
    is not PROCESSED although its task has ended, because a person marked it success, fails the task naming it.
    In a group a task before this one that Airflow has skipped fails the task, too, or has it abort the barrier, by the
    group's ``on_failure``: the run would be success, and its barrier open for ever.
    Run again it rolls a commit forward that a crash interrupted; a barrier that is committed already is left alone.
    One that is BLOCKED, since somebody else changed a table, fails the task; its error says how a person leads it out.

    The run's barrier, and every other one that this task commits, gets one asset event per table of ``tables``, with
    the barrier and revision as partition key (``b3.r0``); so does one before it whose own commit task ended without,
    because a person marked it success. The event's extra lists, by that key, ``barrier``, ``revision``, ``timestamp``
    (ISO, UTC) and ``snapshot``: ``{"barriers": {"b3.r0": {...}}}``. Consumers are idempotent: a commit that was
    interrupted between publishing and its end emits the same key again.

    :param topology: the topology's name. Not templated: the tables' assets have it in their names.
    :param tables: tables with asset events; :class:`~airflow_barrier.operators.group.BarrierGroup` fills in those
        that its jobs write.
    :param wait_timeout: how long a try may wait, from its beginning; then it fails, and says what for.

    Returns (XCom) the barrier's id.
    """

    operator_extra_links = (BarrierLink(),)
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        topology: str,
        tables: Sequence[str] = (),
        barrier_conn_id: str = DEFAULT_CONN_ID,
        wait_timeout: timedelta = WAIT_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_unmapped(self, "commit a barrier, since a run has one")
        if not is_topology_name(topology):
            raise ConfigurationError(
                f"task {self.task_id}: expected the name of a topology, found {topology!r}; it is not templated, since "
                "the assets of its tables are made of it while the DAG is parsed"
            )
        self.topology = topology
        self.barrier_conn_id = barrier_conn_id
        self.wait_timeout = wait_timeout
        self.tables: tuple[str, ...] = ()
        self.publishes(tables)
        self._start_task_id: str | None = None
        self._gives_up = False

    def publishes(self, tables: Sequence[str]) -> None:
        """Declare tables that get asset events."""
        self.tables += several("tables", tables)
        self.add_outlets([table_asset(self.topology, table) for table in tables])

    def ends(self, start_task_id: str, *, gives_up: bool) -> None:
        """Run also after tasks that were skipped; ``gives_up``: abort the barrier then."""
        self.trigger_rule = TriggerRule.NONE_FAILED
        self._start_task_id = start_task_id
        self._gives_up = gives_up

    def execute(self, context: Context) -> int:
        from airflow_barrier.coordinator.next import Nothing, Published, Skip, next_commit
        from airflow_barrier.coordinator.waiting import Wait
        from airflow_barrier.operators._waking import AirflowScheduler

        skipped = self._skipped(context)
        with without_useless_retries():
            run = run_of_task(context)
            may_be_refused = run.backfill is not None or run.rehearsal
            refused = context["ti"].xcom_pull(self._start_task_id, key=REFUSED) if may_be_refused else None
            if refused is not None:
                raise AirflowFailException(refused)
            if self._start_task_id in skipped:
                skip(self, f"{self._start_task_id} was skipped, so the run has opened no barrier")
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            if run.rehearsal:
                return self._end_rehearsal(deployment, run, context)
            outcome = next_commit(
                deployment,
                run,
                self.topology,
                AirflowScheduler(context),
                actor=actor(context),
                known=partial(show_barrier, context, self.barrier_conn_id),
                skipped=skipped,
                gives_up=self._gives_up,
            )
            if isinstance(outcome, Skip):
                skip(self, outcome.reason)
            if isinstance(outcome, Wait):
                defer(self, self, self.topology, outcome, context, self.resume.__name__)
            if isinstance(outcome, Nothing):
                self.log.info("%s", outcome.reason)
                self._silence()
                return outcome.barrier_id
            if isinstance(outcome, Published):
                self.log.info("%s is COMMIT: readers see it from now on", outcome.revision)
                self._tell(context, deployment, outcome.barriers, outcome.revision.tables)
                return outcome.barrier.barrier_id
            self._emit(context, deployment, outcome)
            return outcome.barrier.barrier_id

    def _skipped(self, context: Context) -> list[str]:
        """Return which of the tasks directly before this one, and of the start task, were skipped."""
        if self._start_task_id is None:  # Airflow's own rule lets none of these pass
            return []
        ti, asked = context["ti"], sorted({*self.upstream_task_ids, self._start_task_id})
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=asked, run_ids=[ti.run_id]).get(ti.run_id, {})
        return sorted(task for task, state in states.items() if state == TaskInstanceState.SKIPPED)

    def resume(self, context: Context, event: dict[str, Any]) -> int:
        """Called when what was waited for is there, or never will be: ask again."""
        check_event(event)
        return self.execute(context)

    def _end_rehearsal(self, deployment: Deployment, run: Run, context: Context) -> int:
        """Tell what would be published and delivered, and forget all of it."""
        from airflow_barrier.coordinator.rehearsing import forget_rehearsal, rehearsed
        from airflow_barrier.operators.deliver import DeliverOperator

        self._silence()
        done = rehearsed(deployment, run, self.topology)
        deliveries = [each for each in self.dag.tasks if isinstance(each, DeliverOperator)]
        sinks = [
            f"sink {each.to.name} would receive {', '.join(each.declaration('').targets)}"
            for each in deliveries
            if each.topology == self.topology
        ]
        lines = [*done.lines, *sinks]
        for line in lines:
            self.log.info("%s: %s", done.barrier, line)
        context["ti"].xcom_push(REHEARSED, value=lines)
        forget_rehearsal(deployment, done.barrier.topology)
        return done.barrier.barrier_id

    # --- the world outside ------------------------------------------------------------------------

    def _silence(self) -> None:
        from airflow_barrier.operators._events import silence

        silence(self, [table_asset(self.topology, table) for table in self.tables])

    def _emit(self, context: Context, deployment: Deployment, committed: Committed) -> None:
        from airflow_barrier.operators._events import swallowed
        from airflow_barrier.operators._metrics import emit_commits

        if not committed.published:
            self.log.info("%s is committed already; what is left are its asset events", committed.barrier)
        # its own barrier whoever committed it: that was a job, or another run's commit that died before its events
        silent = swallowed(self, context, deployment, committed.barrier)
        told = (*silent, *committed.published, committed.barrier)
        self._tell(context, deployment, told)
        emit_commits(told)
        for barrier in committed.published:
            self.log.info("Committed %s", barrier)

    def _tell(
        self, context: Context, deployment: Deployment, told: Sequence[Barrier], made: Sequence[str] | None = None
    ) -> None:
        """``made``: what was published; None: all that is new at these barriers."""
        from airflow_barrier.operators._events import give_keys

        barriers = {b.barrier_id: b for b in told if not b.is_maintenance}  # there nothing has changed
        progress = {
            barrier.barrier_id: {
                p.table: p for p in deployment.meta.barriers.progress(self.topology, barrier.barrier_id)
            }
            for barrier in barriers.values()
        }
        for table in self.tables:
            published = [b for b in barriers.values() if table in progress[b.barrier_id]]
            accessor = context["outlet_events"][table_asset(self.topology, table)]
            accessor.extra = {
                "barriers": {
                    event_key(b.barrier_id, b.computed_in): {
                        "barrier": b.barrier_id,
                        "revision": b.computed_in,
                        "timestamp": b.timestamp.isoformat(),
                        "snapshot": progress[b.barrier_id][table].snapshot_id,
                    }
                    for b in published
                }
            }
            give_keys(accessor, [event_key(b.barrier_id, b.computed_in) for b in published])
        deployment.meta.publishing.announce(self.topology, list(barriers), actor(context))
        for _, barrier in sorted(barriers.items()):
            note(self, self.barrier_conn_id, deployment, barrier, made=made)


class AbortBarrierOperator(BaseOperator):
    """Gives the run's barrier up, and every later uncommitted one with it; their epochs join the next barrier's.

    From COMMITTING on nothing can be given up: the task says so and succeeds. It keeps the barrier, too, if all tasks
    before it that failed did so since their workers and the MetaService's database were of different versions.

    :param topology: the topology's name. (templated)
    :param reason: why, for the audit and for the tasks that meet the aborted barrier. (templated)

    >>> AbortBarrierOperator(task_id="abort", topology="shopping", reason="bad input").topology
    'shopping'
    """

    template_fields: Sequence[str] = ("topology", "reason")
    operator_extra_links = (BarrierLink(),)
    ui_color = "#fee2e2"

    def __init__(
        self,
        *,
        topology: str,
        reason: str = "run {{ run_id }} of {{ dag.dag_id }} failed",
        barrier_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_unmapped(self, "abort a barrier, since a run has one")
        self.topology = topology
        self.reason = reason
        self.barrier_conn_id = barrier_conn_id

    def execute(self, context: Context) -> list[int]:
        from airflow_barrier.coordinator.aborting import abort_barrier
        from airflow_barrier.coordinator.next import nothing_to_do
        from airflow_barrier.coordinator.rehearsing import forget_rehearsal

        with without_useless_retries():
            deployment, run = BarrierHook(self.barrier_conn_id).get_deployment(), run_of_task(context)
            if run.rehearsal:
                forget_rehearsal(deployment, run.topology(self.topology))
                return []
            try:
                barrier = _barrier_of(deployment, self.topology, context)
            except UnknownBarrierError as error:
                self.log.info("Nothing to abort: %s", error)
                return []
            show_barrier(context, self.barrier_conn_id, barrier)
            if failed := failed_by_a_deploy(context):
                self.log.warning(
                    "%s is kept: %s failed since their workers and the MetaService's database were of different "
                    "versions, which says nothing about the barrier. Finish the upgrade, then clear these tasks; or "
                    "give it up: airflow-barrier barrier abort %s %s",
                    barrier,
                    ", ".join(failed),
                    self.topology,
                    barrier.barrier_id,
                )
                return []
            try:
                aborted = abort_barrier(
                    deployment, self.topology, barrier.barrier_id, reason=self.reason, actor=actor(context)
                )
            except AlreadyCommittedError as error:
                self.log.info("%s: %s", error, nothing_to_do(run, barrier))
                return []
        self.log.info("Aborted %s", ", ".join(map(str, aborted)) or f"nothing: {barrier} was aborted before")
        return [one.barrier_id for one in aborted]


def _barrier_of(deployment: Deployment, topology: str, context: Context) -> Barrier:
    from airflow_barrier.coordinator.staging import find_barrier

    timestamp, _ = run_timestamp(context)
    return find_barrier(deployment, topology, run=run_ref(context), timestamp=timestamp)
