"""The steps of a task that is a job: begin an attempt, run the Spark work for it, close it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, TaskDeferred
from airflow.sdk import BaseOperator
from structlog.contextvars import bind_contextvars

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.next import JobTask, Nothing, Skip, next_step
from airflow_barrier.coordinator.runs import Run
from airflow_barrier.coordinator.staging import Adopted, Ready, close, give_up
from airflow_barrier.coordinator.waiting import Wait
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.links.barrier import show_barrier
from airflow_barrier.operators._binding import RESUME_METHOD, Binding, SparkWork
from airflow_barrier.operators._code import code_of, templated_fields
from airflow_barrier.operators._commit import commit_in_place
from airflow_barrier.operators._events import silence
from airflow_barrier.operators._lineage import note_job
from airflow_barrier.operators._task import (
    actor,
    generation,
    reason_of,
    run_of_task,
    skip,
    task_key,
    tries_of,
    without_useless_retries,
)
from airflow_barrier.operators._waiting import check_event, defer
from airflow_barrier.operators._waking import AirflowScheduler
from airflow_barrier.operators.processed import announce_processed, processed_asset
from airflow_barrier.protocol.errors import RehearsalRefusedError, StoreUnavailableError
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.revisions import REHEARSAL
from airflow_barrier.protocol.states import BarrierState

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.spark.spec import ClosingRecord

#: Seconds that a killed task waits for its attempt to be given up; Airflow kills it harder after five.
_LAST_WORDS = 4.0


class EpochSteps:
    """One try of a job's task.

    A retry adopts what an earlier try closed; a cleared task stages anew, and from COMMITTING on does nothing. Missing
    input defers the task.
    """

    def __init__(self, task: BaseOperator, binding: Binding, work: SparkWork, context: Context) -> None:
        self.task = task
        self.log = task.log
        self.binding = binding
        self.work = work
        self.context = context
        #: barriers before the run's own that the task has worked off
        self.done: list[int] = []
        self._reached: Deployment | None = None
        self._under_way: tuple[Deployment, int] | None = None
        self._killed = False
        self._killers: list[threading.Thread] = []

    # --- what the task calls ----------------------------------------------------------------------

    def execute(self) -> int:
        """Returns the barrier's id, or raises TaskDeferred."""
        with self._ended_by_errors():
            return self._go_on()

    def resume(self, event: dict[str, Any], done: Sequence[int]) -> int:
        """The trigger fired, which is only a hint: ask again. ``done``: earlier barriers that were worked off."""
        check_event(event)
        self.done = list(done)
        with self._ended_by_errors():
            self._announce_again()
            return self._go_on()

    def finish(self, attempt_id: int, work: Callable[[], None], done: Sequence[int]) -> int:
        """The operator had deferred itself while its Spark work ran: ``work`` is how it goes on."""
        self.done = list(done)
        with self._ended_by_errors():
            self._announce_again()
            deployment = self._deployment()
            attempt = deployment.meta.attempts.get(attempt_id)
            self._show(attempt)
            self._work_on(deployment, attempt)
            self._run(deployment, attempt, work)
            if not self.binding.member:
                return attempt.barrier_id
            self.done.append(attempt.barrier_id)  # the run's own, or one before it
            return self._go_on()

    def kill(self) -> None:
        """Stop the Spark work and give the attempt up.

        Airflow calls this in a signal handler of the main thread, which may hold the database's lock just then: so
        what takes time happens in threads of its own, side by side since a few seconds are all there is, and the main
        thread waits for them when its work has ended.
        """
        self._killed = True
        for step in (self._give_up_killed, self.work.stop):
            thread = threading.Thread(target=step, name="barrier-on-kill", daemon=True)
            self._killers.append(thread)
            thread.start()

    # --- the steps --------------------------------------------------------------------------------

    def _go_on(self) -> int:
        """Do what comes next until that is the run's own barrier's."""
        deployment = self._deployment()
        run, scheduler = run_of_task(self.context), AirflowScheduler(self.context)
        if run.rehearsal and self.binding.member:
            raise RehearsalRefusedError(
                f"job {self.binding.job.name}: expected a rehearsal of the DAG that opens the barriers of "
                f"{self.binding.fragment.topology}, found one of a member; rehearse that DAG, whose rehearsal carries "
                f"this job's tables, or run this DAG for real: --conf '{{\"{REHEARSAL}\": false}}'"
            )
        while True:
            step = next_step(deployment, run, self._job_task(run), scheduler)
            if isinstance(step, Wait):
                self._wait(step, run)
            if isinstance(step, Skip):
                skip(self.task, step.reason)
            if isinstance(step, Nothing):
                return self._leave(step)
            if isinstance(step, Adopted):
                self._adopt(deployment, step)
            else:
                self._do(deployment, step)
            if not step.earlier:
                return step.attempt.barrier_id
            self.done.append(step.attempt.barrier_id)

    def _deployment(self) -> Deployment:
        self._reached = BarrierHook(self.binding.barrier_conn_id).get_deployment()
        return self._reached

    def _job_task(self, run: Run) -> JobTask:
        binding, work = self.binding, self.work
        return JobTask(
            replace(binding.fragment, topology=run.topology(binding.fragment.topology)),
            binding.job,
            request_key=task_key(self.context),
            generation=generation(self.context),
            actor=actor(self.context),
            member=binding.member,
            sql=work.sql,
            by_branch=work.by_branch,
            code=code_of(self.task, self.context),
            server=work.server,
            profile=work.profile,
            end=work.end,
            templated=templated_fields(self.task) if binding.member else (),
            done=tuple(self.done),
            known=self._show,
        )

    def _wait(self, wait: Wait, run: Run) -> NoReturn:
        defer(
            self.task,
            self.binding,
            run.topology(self.binding.fragment.topology),
            wait,
            self.context,
            RESUME_METHOD,
            done=list(self.done),
        )

    def _leave(self, nothing: Nothing) -> int:
        """The task ends well; a barrier that it has not processed has no events."""
        self.log.log(nothing.level, "%s", nothing.reason)
        if not self.done:
            self._silence()
        return nothing.barrier_id or self.done[-1]

    def _adopt(self, deployment: Deployment, adopted: Adopted) -> None:
        self.log.info("%s is %s: nothing to run", adopted.attempt, adopted.attempt.state.value)
        if adopted.attempt.barrier_id not in self.done:  # else this very try has told of it
            self._after_processed(deployment, adopted.barrier)

    def _do(self, deployment: Deployment, ready: Ready) -> None:
        self._stage(deployment, ready.attempt)
        self._run(deployment, ready.attempt, lambda: self.work.run(ready))

    def _announce_again(self) -> None:
        """A task that defers emits no events: what it did before is told by the process in which it ends."""
        if self.binding.announce_processed and self.done:
            meta, topology = self._deployment().meta, self.binding.fragment.topology
            for number in self.done:
                announce_processed(self.context, meta.barriers.get(topology, number), self.binding.job.outlets)

    def _stage(self, deployment: Deployment, attempt: Attempt) -> None:
        self._work_on(deployment, attempt)
        self.log.info("Staging %s on branch %s", attempt, attempt.branch)

    def _work_on(self, deployment: Deployment, attempt: Attempt) -> None:
        """Take up an attempt: from now on a kill ends it, and lines of the log are about it."""
        self._under_way = (deployment, attempt.attempt_id)
        bind_contextvars(barrier=attempt.barrier_id, attempt=attempt.attempt_id)

    def _run(self, deployment: Deployment, attempt: Attempt, work: Callable[[], ClosingRecord | None]) -> None:
        try:
            self._stop_if_killed()
            record = work()
            self._stop_if_killed()
        except TaskDeferred:  # the operator's own trigger waits for its work now
            raise
        except BaseException as error:  # a timeout and an exit are no Exceptions, and end the attempt all the same
            self._give_up(deployment, attempt.attempt_id, reason_of(error), actor(self.context))
            raise
        with self.work.handing_over() as idle:
            barrier = close(
                deployment,
                attempt,
                actor=actor(self.context),
                record=record,
                owner=self.task.dag_id,
                by_branch=self.work.by_branch,
                idle=idle,
            )
        self.log.info("%s is PROCESSED; %s is %s", attempt, barrier, barrier.state.value)
        self._after_processed(deployment, barrier)

    def _after_processed(self, deployment: Deployment, barrier: Barrier) -> None:
        """Tell who waits for the tables' assets; and who completes the barrier commits it, where this DAG does."""
        # a revision is published once all of its barriers are there, by the commit task, and a rehearsal never
        if barrier.line or is_rehearsal(barrier.topology):
            self._silence()
            return
        note_job(self.task, self.binding.barrier_conn_id, deployment, barrier, self.binding.job)
        if self.binding.announce_processed:
            announce_processed(self.context, barrier, self.binding.job.outlets)
        commit_task_id = self.binding.commit_task_id
        # a person who kills the task wants it to end
        if barrier.state is BarrierState.PRECOMMIT and commit_task_id is not None and not self._killed:
            commit_in_place(self.task, commit_task_id, deployment, barrier, self.context)

    def _silence(self) -> None:
        topology = self.binding.fragment.topology
        silence(self.task, [processed_asset(topology, outlet) for outlet in self.binding.job.outlets])

    def _show(self, at: Barrier | Attempt) -> None:
        show_barrier(self.context, self.binding.barrier_conn_id, at)

    # --- endings ----------------------------------------------------------------------------------

    @contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """Tell those who look at the barrier whether another try comes."""
        try:
            with without_useless_retries():
                yield
        except (TaskDeferred, AirflowSkipException):
            raise
        except BaseException as error:
            if not self._killed:  # by a person, as a rule, and then none does
                self._say_tries(error)
            raise

    def _say_tries(self, error: BaseException) -> None:
        if self._reached is None or isinstance(error, StoreUnavailableError):
            return
        try:
            self._reached.meta.attempts.tried(task_key(self.context), tries_of(self.context, error))
        except Exception as unsaid:  # what counts is the error before this one
            self.log.warning("Which try has failed could not be written down: %s", unsaid)

    def _stop_if_killed(self) -> None:
        if self._killed:
            raise AirflowException(f"task {self.task.task_id} was killed; what it staged does not count")

    def _give_up(self, deployment: Deployment, attempt_id: int, reason: str, who: str) -> None:
        for thread in self._killers:
            thread.join(_LAST_WORDS)
        try:
            give_up(deployment, attempt_id, reason=reason, actor=who)
        except StoreUnavailableError as error:
            # the next try, or a person's clear, fences the attempt; what counts now is the error before this one
            self.log.warning("attempt %s could not be given up: %s", attempt_id, error)

    def _give_up_killed(self) -> None:
        if self._under_way is not None:
            deployment, attempt_id = self._under_way
            give_up(deployment, attempt_id, reason="the task was killed", actor=actor(self.context))
