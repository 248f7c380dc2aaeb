"""Opening the barrier of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook, warning_of
from airflow_barrier.links.barrier import BarrierLink, show_barrier
from airflow_barrier.operators._binding import check_unmapped
from airflow_barrier.operators._conf import REFUSED
from airflow_barrier.operators._task import (
    RUNS_OF_A_SCHEDULE,
    actor,
    run_of_task,
    run_timestamp,
    run_type,
    skip,
    without_useless_retries,
)
from airflow_barrier.operators._waiting import WAIT_TIMEOUT, check_event, defer
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.records import SCHEDULED_RUNS
from airflow_barrier.protocol.revisions import OnBackfill, Revision
from airflow_barrier.protocol.topology import Fragment, Job

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.revisions.answering import Unchanged
    from airflow_barrier.coordinator.runs import Run
    from airflow_barrier.protocol.credentials import Credentials
    from airflow_barrier.protocol.deliveries import SinkDeclaration
    from airflow_barrier.protocol.table import Table

#: What the order of barriers rests on, whatever a DAG file says of its tasks by default. A day that is skipped waits
#: for those before it, too, or the next one would open before them; and it waits for no job, which may have failed.
_IN_ORDER = {
    "depends_on_past": True,
    "ignore_first_depends_on_past": True,
    "wait_for_past_depends_before_skipping": True,
    "wait_for_downstream": False,
}


class StartBarrierOperator(BaseOperator):
    """Registers this DAG's jobs and opens the barrier at the run's timestamp, with the cut of every source.

    The timestamp is the run's data interval end, or ``run_after`` where a run has no interval. Barriers open in
    timestamp order: the task depends on its own past, whatever ``default_args`` say, because under catch-up Airflow
    starts runs in any order. So one that failed holds up those of all later runs, until it is cleared and succeeds, or
    is marked success.
    It defers while ``max_open_barriers`` of the connection are open, and while a source's watermark has not reached
    the timestamp. A run that a person, another DAG or an asset event started opens a barrier as well, if the DAG does
    not catch up; else it fails, since days that are yet to be caught up could not open after it. Jobs of other DAGs,
    which have no run at its timestamp, come to its barrier with their next run. One that a person or another DAG
    started fails, too, where another run's barrier at its timestamp is committed.

    A run of ``airflow dags test``, and one that was triggered with the conf ``{"barrier_rehearsal": true}``, rehearses
    its barrier (`docs/rehearsing.md`).

    :param topology: the topology's name. (templated)
    :param jobs: this DAG's jobs; :class:`~airflow_barrier.operators.group.BarrierGroup` fills them in.
    :param tables: those of the jobs' outlets that are declared with their columns, likewise.
    :param open_manual_runs: open a barrier for runs of every type, although the DAG catches up.
    :param backfill: the answer to a backfill of days that are committed, as the group has it.
    :param wait_timeout: how long a try may wait, from its beginning; then it fails, and says what for.

    Returns (XCom) the barrier's id; None: a backfill was refused, and the run fails by its commit task.

    >>> StartBarrierOperator(task_id="start", topology="shopping", jobs=[]).depends_on_past
    True
    """

    template_fields: Sequence[str] = ("topology",)
    operator_extra_links = (BarrierLink(),)
    ui_color = "#dcfce7"

    def __init__(
        self,
        *,
        topology: str,
        jobs: Sequence[Job],
        tables: Sequence[Table] = (),
        barrier_conn_id: str = DEFAULT_CONN_ID,
        open_manual_runs: bool = False,
        backfill: str = OnBackfill.OWN.value,
        wait_timeout: timedelta = WAIT_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{**kwargs, **_IN_ORDER})
        check_unmapped(self, "open a barrier, since a run has one")
        self.topology = topology
        self.jobs = tuple(jobs)
        self.tables = tuple(tables)
        self.barrier_conn_id = barrier_conn_id
        self.open_manual_runs = open_manual_runs
        self.backfill = backfill
        self.wait_timeout = wait_timeout
        self.commit_task_id: str | None = None

    def execute(self, context: Context) -> int | None:
        with without_useless_retries():
            run = run_of_task(context)
        if run.rehearsal:
            return self._rehearse(run, context)
        timestamp, _ = run_timestamp(context)
        if run_type(context) not in SCHEDULED_RUNS and self.dag.catchup and not self.open_manual_runs:
            raise AirflowFailException(
                f"expected a scheduled run, found a {run_type(context)} one: it opens no barrier of {self.topology} at "
                f"{timestamp.isoformat()}, since the DAG catches up, and no barrier of a day before could open after "
                "it; let the schedule run the DAG, or set open_manual_runs=True if no day is missing"
            )
        try:
            with without_useless_retries():
                return self._open(run, context)
        except AirflowSkipException:
            raise
        except Exception:
            # Airflow writes no log for tasks that wait for their past
            self.log.error(
                "The start tasks of later runs of DAG %s do not begin, and say nothing, until this one has succeeded, "
                "or is marked success, which leaves its day out",
                self.dag_id,
            )
            raise

    def resume(self, context: Context, event: dict[str, Any]) -> int | None:
        """Called when a barrier may be opened again."""
        check_event(event)
        return self.execute(context)

    def _change_nothing(self, unchanged: Unchanged, context: Context) -> None:
        """Skip the run; or have it fail, by its commit task: a start task that fails would hold up all later runs."""
        if not unchanged.refused:
            skip(self, unchanged.reason)
        self.log.error("%s", unchanged.reason)
        context["ti"].xcom_push(REFUSED, value=unchanged.reason)

    def _rehearse(self, run: Run, context: Context) -> int:
        """Begin the rehearsal. What is in its way skips the run's jobs, and fails its commit task: a start task that
        fails would hold up the runs of the schedule.
        """
        from airflow_barrier.coordinator.rehearsing import begin_rehearsal
        from airflow_barrier.operators._waking import AirflowScheduler

        fragment = Fragment(self.topology, self.dag_id, self.jobs, self.tables)
        try:
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            barrier = begin_rehearsal(deployment, fragment, run, AirflowScheduler(context), actor=actor(context))
        except BarrierError as error:
            context["ti"].xcom_push(REFUSED, value=str(error))
            skip(self, str(error))
        show_barrier(context, self.barrier_conn_id, barrier)
        return barrier.barrier_id

    def _open(self, run: Run, context: Context) -> int | None:
        from airflow_barrier.coordinator.delivering import let_go_of_sinks, look_at_sinks
        from airflow_barrier.coordinator.next import Skip, next_opening
        from airflow_barrier.coordinator.revisions.answering import Unchanged, answer_backfill
        from airflow_barrier.coordinator.waiting import Wait
        from airflow_barrier.hooks.features import version_remark
        from airflow_barrier.operators._commit import check_gates
        from airflow_barrier.operators._waking import AirflowScheduler

        check_gates(self, self.commit_task_id)
        hook = BarrierHook(self.barrier_conn_id)
        for warning in filter(None, (warning_of(hook.get_settings()), version_remark())):
            self.log.warning("%s", warning)
        deployment = hook.get_deployment(new=True)
        corrected = answer_backfill(deployment, self.topology, run, OnBackfill(self.backfill))
        if isinstance(corrected, Unchanged):
            self._change_nothing(corrected, context)
            return None
        if isinstance(corrected, Revision):
            run = replace(run, token=corrected.revision)
        declared = self._sinks()
        if declared is not None:
            look_at_sinks(deployment, self.topology, declared)
        outcome = next_opening(
            deployment,
            run,
            Fragment(self.topology, self.dag_id, self.jobs, self.tables),
            AirflowScheduler(context),
            actor=actor(context),
            triggered=run_type(context) not in RUNS_OF_A_SCHEDULE,
        )
        if isinstance(outcome, Wait):
            defer(self, self, self.topology, outcome, context, self.resume.__name__)
        if isinstance(outcome, Skip):
            skip(self, outcome.reason)
        barrier = outcome.barrier
        if outcome.created and declared is not None:
            let_go_of_sinks(deployment, barrier, self.dag_id, declared, actor(context))
        show_barrier(context, self.barrier_conn_id, barrier)
        self.log.info(
            "%s: %s at timestamp %s, from the %s",
            "Opened" if outcome.created else f"Observing, it is {barrier.state.value} and was opened by {barrier.run}",
            barrier,
            barrier.timestamp.isoformat(),
            barrier.timestamp_from,
        )
        return barrier.barrier_id

    def _sinks(self) -> dict[str, tuple[SinkDeclaration, Callable[[], Credentials | None]]] | None:
        """The sinks of all deliveries of the DAG, within the group and beside it, with the way to their credentials.

        None: which these are is known only when they run.
        """
        from airflow.sdk.definitions.mappedoperator import MappedOperator

        from airflow_barrier.operators.deliver import DeliverOperator

        if any(isinstance(task, MappedOperator) and task.operator_class is DeliverOperator for task in self.dag.tasks):
            return None
        return {
            task.to.name: (task.declaration(self.dag_id), task.credentials)
            for task in self.dag.tasks
            if isinstance(task, DeliverOperator) and task.topology == self.topology
        }
