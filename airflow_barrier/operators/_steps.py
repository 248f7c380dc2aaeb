"""The steps of a task that is a job: begin an attempt, run the Spark work for it, close it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_barrier.coordinator.bootstrapping import says_that_it_waits
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.joining import StaysOut, take_part, takes_part, waits_for_history
from airflow_barrier.coordinator.opening import Later
from airflow_barrier.coordinator.staging import (
    Adopted,
    Ready,
    Waiting,
    begin,
    begin_again,
    close,
    find_barrier,
    give_up,
)
from airflow_barrier.coordinator.waiting import Condition
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.operators._binding import RESUME_METHOD, Binding, SparkWork
from airflow_barrier.operators._code import code_of
from airflow_barrier.operators._commit import commit_in_place
from airflow_barrier.operators._revising import attach, silence, stay_out_until_published
from airflow_barrier.operators._task import (
    actor,
    generation,
    nothing_to_do,
    run_ref,
    run_timestamp,
    run_type,
    skip,
    task_key,
    without_useless_retries,
)
from airflow_barrier.operators._waiting import check_event, waiting
from airflow_barrier.operators.processed import announce_processed, barrier_of_partition, processed_asset
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    NotProcessedError,
    RevisionEndedError,
    SparkUnavailableError,
    StoreUnavailableError,
)
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.triggers.barrier import BarrierTrigger, SourceTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.spark.spec import ClosingRecord

#: Seconds that a killed task waits for its attempt to be given up; Airflow kills it harder after five.
_LAST_WORDS = 4.0
#: Characters of an error that are kept with the attempt.
REASON = 300


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
        #: where the barrier can be looked at, once it is known
        self.link_path: str | None = None
        self._under_way: tuple[Deployment, int] | None = None
        self._killed = False
        self._killers: list[threading.Thread] = []

    # --- what the task calls ----------------------------------------------------------------------

    def execute(self) -> int:
        """Returns the barrier's id, or raises TaskDeferred."""
        with without_useless_retries():
            deployment = BarrierHook(self.binding.barrier_conn_id).get_deployment()
            barrier = self._find_barrier(deployment)
            if self._is_no_member(deployment, barrier) or self._is_kept(deployment, barrier):
                return self._left_undone(barrier)
            try:
                step = self._begin(deployment, barrier)
            except AlreadyCommittedError as error:
                self.log.info("%s: %s", error, nothing_to_do(self.context, barrier))
                return self._left_undone(barrier)
            except RevisionEndedError as error:
                self.log.info("%s", error)
                return self._left_undone(barrier)
            return self._go_on(deployment, barrier, step)

    def _left_undone(self, barrier: Barrier) -> int:
        """The task ends well and has processed nothing, so its tables have no events."""
        silence(self.task, [processed_asset(barrier.topology, outlet) for outlet in self.binding.job.outlets])
        return barrier.barrier_id

    def resume(self, event: dict[str, Any], attempt_id: int | None) -> int:
        """The trigger fired, which is only a hint: ask again."""
        check_event(event)
        if attempt_id is None:
            return self.execute()
        with without_useless_retries():
            deployment = BarrierHook(self.binding.barrier_conn_id).get_deployment()
            attempt = deployment.meta.attempt(attempt_id)
            barrier = deployment.meta.barrier(attempt.topology, attempt.barrier_id, attempt.line)
            self._remember(barrier)
            step = begin_again(
                deployment,
                attempt_id,
                actor=actor(self.context),
                sql=self.work.sql,
                by_branch=self.work.by_branch,
            )
            return self._go_on(deployment, barrier, step)

    def finish(self, attempt_id: int, work: Callable[[], None]) -> int:
        """The operator had deferred itself while its Spark work ran: ``work`` is how it goes on."""
        with without_useless_retries():
            deployment = BarrierHook(self.binding.barrier_conn_id).get_deployment()
            attempt = deployment.meta.attempt(attempt_id)
            self._remember(deployment.meta.barrier(attempt.topology, attempt.barrier_id, attempt.line))
            self._run(deployment, attempt, work)
            return attempt.barrier_id

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

    def _find_barrier(self, deployment: Deployment) -> Barrier:
        binding = self.binding
        topology = binding.fragment.topology
        timestamp, _ = run_timestamp(self.context)
        revised = attach(deployment, topology, self.context)
        if revised is not None:
            self._remember(revised)
            return revised
        if not binding.member:
            barrier: Barrier = find_barrier(deployment, topology, run=run_ref(self.context), timestamp=timestamp)
            self._remember(barrier)
            return barrier
        number = barrier_of_partition(self.context)
        at = timestamp if number is None else number
        found = take_part(deployment, binding.fragment, binding.job, at, actor(self.context))
        if isinstance(found, Later):
            self.log.info("Waiting: %s", found.reason)
            if found.gatekeeper is not None:
                stay_out_until_published(deployment, found.gatekeeper, self.context)
            opened = Condition(None, timestamp=timestamp) if number is None else Condition(None, barrier_id=number)
            self._defer([opened], attempt_id=None)
        if isinstance(found, StaysOut):
            if run_type(self.context) == "manual":  # who asked for it is to see that nothing was done
                raise AirflowFailException(
                    f"{found.reason}; trigger the DAG with the logical date of a barrier, or let its schedule run it"
                )
            skip(self.task, found.reason)
        self._remember(found)
        return found

    def _is_no_member(self, deployment: Deployment, barrier: Barrier) -> bool:
        """Whether a person took the job out before the barrier was opened, or it waits for its history: then its task
        has nothing to do.
        """
        job = self.binding.job
        if takes_part(deployment, barrier, job.name):
            return False
        if waits_for_history(deployment, barrier.topology, job.name):
            self.log.warning("%s", says_that_it_waits(barrier.topology, job.name))
            return True
        gone = deployment.meta.withdrawal(barrier.topology, job.owner, job.name)
        if gone is not None:
            self.log.warning(
                "%s: nothing to run for %s. Take the job out of the DAG's group, or let it take part again: "
                "airflow-barrier topology join %s --dag %s%s",
                gone,
                barrier,
                barrier.topology,
                job.owner,
                f" --job {gone.job}" if gone.job else "",
            )
        return gone is not None

    def _is_kept(self, deployment: Deployment, barrier: Barrier) -> bool:
        """Whether the run is a revision's, and the job is none that it computes again."""
        if not barrier.line:
            return False
        revision = deployment.meta.revisions.get(barrier.topology, barrier.line)
        job = self.binding.job
        if job.name in revision.jobs:
            return False
        self.log.info("%s does not change what job %s made of it: %s stay as they are", barrier, job.name, job.outlets)
        return True

    def _begin(self, deployment: Deployment, barrier: Barrier) -> Ready | Adopted | Waiting:
        name = self.binding.job.name
        earlier = deployment.meta.current_attempt(barrier.topology, barrier.barrier_id, name, barrier.line)
        step = begin(
            deployment,
            barrier,
            name,
            request_key=task_key(self.context),
            generation=generation(self.context),
            actor=actor(self.context),
            owner=self.task.dag_id,
            sql=self.work.sql,
            by_branch=self.work.by_branch,
            code=code_of(self.task, self.context),
        )
        self._end(earlier, step.attempt)
        return step

    def _end(self, earlier: Attempt | None, attempt: Attempt) -> None:
        """What a lost worker left running is fenced by ``attempt``, and would still use up the cluster."""
        if earlier is None or earlier.attempt_id == attempt.attempt_id or earlier.state is not AttemptState.RUNNING:
            return
        if self.work.end is None:
            return
        try:
            self.work.end(earlier.stamp)
        except SparkUnavailableError as error:
            self.log.warning("What %s left running could not be stopped: %s", earlier, error)

    def _go_on(self, deployment: Deployment, barrier: Barrier, step: Ready | Adopted | Waiting) -> int:
        if isinstance(step, Adopted):
            self.log.info("%s is %s: nothing to run", step.attempt, step.attempt.state.value)
            self._after_processed(deployment, step.barrier)
            return barrier.barrier_id
        if isinstance(step, Waiting) and step.away is not None:
            self._try_again_later(step, step.away)
        if isinstance(step, Waiting):
            self._wait(deployment, barrier, step)
        ready = step
        self.log.info("Staging %s on branch %s", ready.attempt, ready.attempt.branch)
        self._run(deployment, ready.attempt, lambda: self.work.run(ready))
        return barrier.barrier_id

    def _wait(self, deployment: Deployment, barrier: Barrier, waiting: Waiting) -> NoReturn:
        topology = deployment.meta.topology(barrier.topology, barrier.topology_version)
        dead = [
            need
            for need in waiting.needs
            # tasks of one DAG follow each other by edges: this table's has ended, and nothing more will come
            if (need.barrier_id, need.line) == (barrier.barrier_id, barrier.line)
            and topology.job(need.job).owner == self.task.dag_id
        ]
        if dead:
            give_up(
                deployment, waiting.attempt.attempt_id, reason="its input was never staged", actor=actor(self.context)
            )
            raise NotProcessedError(
                f"{waiting.attempt} cannot run: not PROCESSED although the task before it has ended: "
                f"{', '.join(map(str, dead))}. Marking a task success stages nothing: clear it and what follows it"
            )
        self._defer(
            [Condition("PROCESSED", barrier_id=n.barrier_id, tables=(n.table,), line=n.line) for n in waiting.needs],
            attempt_id=waiting.attempt.attempt_id,
        )

    def _try_again_later(self, step: Waiting, away: str) -> NoReturn:
        """Nobody is told when a source can be cut, and the triggerer may not open it."""
        self.task.defer(
            trigger=SourceTrigger(
                **waiting(self.binding, self.binding.fragment.topology, self.context),
                attempt_id=step.attempt.attempt_id,
                away=away,
            ),
            method_name=RESUME_METHOD,
            kwargs={"attempt_id": step.attempt.attempt_id},
        )

    def _run(self, deployment: Deployment, attempt: Attempt, work: Callable[[], ClosingRecord | None]) -> None:
        self._under_way = (deployment, attempt.attempt_id)
        try:
            self._stop_if_killed()
            record = work()
            self._stop_if_killed()
        except TaskDeferred:  # the operator's own trigger waits for its work now
            raise
        except BaseException as error:  # a timeout and an exit are no Exceptions, and end the attempt all the same
            # Spark's messages go on for pages; what happened stands in the first line
            said = str(error).partition("\n")[0][:REASON]
            self._give_up(deployment, attempt.attempt_id, f"{type(error).__name__}: {said}", actor(self.context))
            raise
        barrier = close(
            deployment,
            attempt.attempt_id,
            actor=actor(self.context),
            record=record,
            owner=self.task.dag_id,
            by_branch=self.work.by_branch,
        )
        self.log.info("%s is PROCESSED; %s is %s", attempt, barrier, barrier.state.value)
        self._after_processed(deployment, barrier)

    def _after_processed(self, deployment: Deployment, barrier: Barrier) -> None:
        """Tell who waits for the tables' assets; and who completes the barrier commits it, where this DAG does."""
        if barrier.line:  # a revision is published once all of its barriers are there, by the commit task
            silence(self.task, [processed_asset(barrier.topology, outlet) for outlet in self.binding.job.outlets])
            return
        if self.binding.announce_processed:
            announce_processed(self.context, barrier, self.binding.job.outlets)
        commit_task_id = self.binding.commit_task_id
        # a person who kills the task wants it to end
        if barrier.state is BarrierState.PRECOMMIT and commit_task_id is not None and not self._killed:
            commit_in_place(self.task, commit_task_id, deployment, barrier, self.context)

    def _defer(self, conditions: list[Condition], attempt_id: int | None) -> NoReturn:
        self.task.defer(
            trigger=BarrierTrigger(
                **waiting(self.binding, self.binding.fragment.topology, self.context),
                conditions=conditions,
                attempt_ids=() if attempt_id is None else (attempt_id,),
            ),
            method_name=RESUME_METHOD,
            kwargs={"attempt_id": attempt_id},
        )

    def _remember(self, barrier: Barrier) -> None:
        what = f"revision/{barrier.line}" if barrier.line else str(barrier.barrier_id)
        self.link_path = f"{self.binding.barrier_conn_id}/{barrier.topology}/{what}"

    # --- endings ----------------------------------------------------------------------------------

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
