"""Correcting history from a DAG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException
from airflow.sdk import BaseOperator

from airflow_barrier.hooks.barrier import DEFAULT_CONN_ID, BarrierHook
from airflow_barrier.links.barrier import BarrierLink, revision_page, show_page
from airflow_barrier.operators._at import several, true_or_false, whole_number
from airflow_barrier.operators._task import run_of_task, task_key, without_useless_retries
from airflow_barrier.operators._waiting import WAIT_TIMEOUT, check_event, defer
from airflow_barrier.protocol.errors import RunActiveError
from airflow_barrier.protocol.revisions import (
    MAX_REPLAY_BARRIERS,
    Revision,
    RevisionMode,
    RevisionState,
    TableCorrection,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.deployment import Deployment


class ReviseOperator(BaseOperator):
    """Has barriers computed again, by the runs of all DAGs that have a part in it, and waits until readers see it.

    The runs of the days are cleared, each in its own DAG, as a backfill with the revision's token would do; what lies
    between them and the newest barrier follows by itself. Until all of it is there readers see the old revision whole.
    A retry goes on with what an earlier try began. Killing the task leaves the revision as it is: `airflow-barrier
    revision cancel` gives it up.

    :param topology: what to correct. (templated)
    :param first: the first day (``2017-01-05``), a time with its zone, or a barrier's number. (templated)
    :param last: the last one, included; default: ``first``. (templated)
    :param changed: jobs whose code or input was corrected; default: all that read external sources. Jobs that wait for
        their history join by it (``first``: by default the first barrier that has their inlets).
    :param corrections: what replaces epochs of root tables.
    :param reused: root tables whose epochs are applied again as they were, without asking their sources.
    :param recut: sources that are cut anew at the days from ``first`` to ``last``: files that are gone leave, those
        that were delivered since under other names join.
    :param full: clear the tables and compute them from ``first`` on (default then: the first barrier).
    :param max_replay_barriers: a revision that replays more is refused. (templated)
    :param accept_pause: barriers may wait until it is published, however long that takes. (templated)
    :param reason: why, for the audit and for people. (templated)
    :param wait_timeout: how long a try may wait, from its beginning; then it fails, and says what for.

    Returns (XCom) the revision's number.

    >>> ReviseOperator(task_id="mend", topology="shopping", first="2017-01-05", reason="bad prices").last is None
    True
    >>> ReviseOperator(task_id="mend", topology="shopping", first=5, recut=["shopping"], reason="again").recut
    ('shopping',)
    """

    template_fields: Sequence[str] = ("topology", "first", "last", "max_replay_barriers", "accept_pause", "reason")
    operator_extra_links = (BarrierLink(),)
    ui_color = "#fef3c7"

    def __init__(
        self,
        *,
        topology: str,
        reason: str,
        first: str | int | None = None,
        last: str | int | None = None,
        changed: Sequence[str] = (),
        corrections: Sequence[TableCorrection] = (),
        reused: Sequence[str] = (),
        recut: Sequence[str] = (),
        full: bool = False,
        max_replay_barriers: int | str = MAX_REPLAY_BARRIERS,
        accept_pause: bool | str = False,
        barrier_conn_id: str = DEFAULT_CONN_ID,
        wait_timeout: timedelta = WAIT_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topology = topology
        self.reason = reason
        self.first = first
        self.last = last
        self.changed = several("changed", changed)
        self.corrections = several("corrections", corrections)
        self.reused = several("reused", reused)
        self.recut = several("recut", recut)
        self.full = full
        self.max_replay_barriers = max_replay_barriers
        self.accept_pause = accept_pause
        self.barrier_conn_id = barrier_conn_id
        self.wait_timeout = wait_timeout

    def execute(self, context: Context) -> int:
        from airflow_barrier.coordinator.revisions.runs import wake_window
        from airflow_barrier.operators._waking import AirflowScheduler

        with without_useless_retries():
            deployment = BarrierHook(self.barrier_conn_id).get_deployment()
            revision = self._begun(deployment, context) or self._begin(deployment, context)
            self._show(context, revision)
            woken = wake_window(deployment, revision, run_of_task(context).ref, AirflowScheduler(context))
            if woken.busy:
                raise RunActiveError(
                    f"{revision}: expected the runs of its days to have ended, found {', '.join(woken.busy)} still at "
                    "work; the next try wakes them"
                )
            return self._wait(revision, context)

    def resume(self, context: Context, event: dict[str, Any]) -> int:
        """Called when the revision is neither STAGING nor COMMITTING any more."""
        check_event(event)
        revision = BarrierHook(self.barrier_conn_id).get_meta_service().revisions.get(self.topology, event["number"])
        self._show(context, revision)
        if revision.is_under_way:
            return self._wait(revision, context)
        if revision.state is not RevisionState.COMMIT:
            raise AirflowException(f"{revision} is {revision.state.value}; nothing of it is seen by readers")
        self.log.info("%s is COMMIT, at barriers %s to %s", revision, revision.first_barrier, revision.last)
        return revision.revision

    def _begun(self, deployment: Deployment, context: Context) -> Revision | None:
        """Return what an earlier try of this task has begun."""
        revision = deployment.meta.revisions.under_way(self.topology)
        return revision if revision is not None and revision.actor == task_key(context) else None

    def _begin(self, deployment: Deployment, context: Context) -> Revision:
        from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
        from airflow_barrier.coordinator.revisions.plan import Wanted
        from airflow_barrier.coordinator.revisions.telling import notes_of, plan_lines
        from airflow_barrier.coordinator.revisions.window import days_or_barrier

        wanted = Wanted(
            topology=self.topology,
            first=None if self.first is None else days_or_barrier("first", self.first),
            last=None if self.last is None else days_or_barrier("last", self.last),
            changed=self.changed,
            corrections=self.corrections,
            reused=self.reused,
            recut=self.recut,
            mode=RevisionMode.FULL if self.full else RevisionMode.INCREMENTAL,
            max_replay_barriers=whole_number("max_replay_barriers", self.max_replay_barriers),
            accept_pause=true_or_false("accept_pause", self.accept_pause),
        )
        plan = plan_revision(deployment, wanted)
        for line in plan_lines(plan):
            self.log.info("%s", line)
        for note in notes_of(plan):
            self.log.warning("%s", note)
        return begin_revision(deployment, plan, reason=self.reason, actor=task_key(context))

    def _show(self, context: Context, revision: Revision) -> None:
        show_page(context, self.barrier_conn_id, self.topology, revision_page(revision.revision))

    def _wait(self, revision: Revision, context: Context) -> NoReturn:
        from airflow_barrier.coordinator.waiting import RevisionEnd, Wait

        wait = Wait((RevisionEnd(revision.revision),), f"{revision} is {revision.state.value}, until readers see it")
        defer(self, self, self.topology, wait, context, self.resume.__name__, number=revision.revision)
