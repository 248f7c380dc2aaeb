"""The steps of a task that may process later barriers' epochs in the Spark job that it has started for its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_barrier.coordinator.batching import Batch, Leader, led_by
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.staging import Adopted, Ready, Waiting
from airflow_barrier.operators._binding import RESUME_METHOD
from airflow_barrier.operators._steps import REASON, EpochSteps
from airflow_barrier.operators._task import actor, first_generation, generation, run_of, task_key
from airflow_barrier.operators._waiting import waiting
from airflow_barrier.protocol.errors import (
    AttemptTakenError,
    ConfigurationError,
    FencedAttemptError,
    VoidedAttemptError,
)
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.triggers.barrier import LedTrigger

if TYPE_CHECKING:
    from collections.abc import Callable


class LeadingSteps(EpochSteps):
    """As :class:`EpochSteps`; the task leads once it has work to do, and waits while another task does its work."""

    def resume(self, event: dict[str, Any], attempt_id: int | None) -> int:
        # the attempt that waited may have been fenced by a leader; asking anew adopts what waits still
        return super().resume(event, None)

    def _begin(self, deployment: Deployment, barrier: Barrier) -> Ready | Adopted | Waiting:
        if barrier.line:  # each barrier of a revision has a run of its own
            return super()._begin(deployment, barrier)
        self._wait_while_led(deployment, barrier)
        try:
            return super()._begin(deployment, barrier)
        except (AttemptTakenError, FencedAttemptError, VoidedAttemptError):
            # a leader began it since we looked, or what the leader's attempt stood on was staged anew
            self._wait_while_led(deployment, barrier)
            return super()._begin(deployment, barrier)

    def _wait_while_led(self, deployment: Deployment, barrier: Barrier) -> None:
        attempt = deployment.meta.current_attempt(barrier.topology, barrier.barrier_id, self.binding.job.name)
        leader = led_by(attempt, task_key(self.context), generation(self.context))
        if attempt is None or leader is None:
            return
        if not self._runs(leader):
            self.log.info("%s was led by %s, which does not run any more", attempt, leader)
            return
        self.log.info("%s is led by %s: waiting for it", attempt, leader)
        self.task.defer(
            trigger=LedTrigger(
                **waiting(self.binding, barrier.topology, self.context),
                attempt_id=attempt.attempt_id,
            ),
            method_name=RESUME_METHOD,
            kwargs={"attempt_id": None},
        )

    def _runs(self, leader: str) -> bool:
        """Whether Airflow says that the leading task runs: it is the same task in another run."""
        ti = self.context["ti"]
        run_id = run_of(leader, self.context)
        if run_id is None:
            return False
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[run_id])
        return bool(states.get(run_id, {}).get(ti.task_id) == "running")

    def _go_on(self, deployment: Deployment, barrier: Barrier, step: Ready | Adopted | Waiting) -> int:
        if not isinstance(step, Ready) or barrier.line:
            return super()._go_on(deployment, barrier, step)
        self._begun(deployment)(step.attempt)
        leader = Leader(
            request_key=task_key(self.context),
            generation=first_generation(self.context),
            actor=actor(self.context),
            owner=self.task.dag_id,
            sql=self.work.sql,
        )
        batch = Batch(
            deployment,
            leader,
            step,
            self.binding.batch_barriers,
            may_go_on=lambda: not self._killed,
            begun=self._begun(deployment),
        )
        self._lead(deployment, batch)
        if batch.barrier is not None:
            self._after_processed(deployment, batch.barrier)
        return barrier.barrier_id

    def _lead(self, deployment: Deployment, batch: Batch) -> None:
        if self.work.run_batch is None:
            raise ConfigurationError(f"task {self.task.task_id}: cannot process several epochs in one Spark job")
        try:
            self._stop_if_killed()
            self.work.run_batch(batch)
            self._stop_if_killed()
        except BaseException as error:
            if batch.under_way is not None:
                said = str(error).partition("\n")[0][:REASON]
                attempt_id = batch.under_way.attempt.attempt_id
                self._give_up(deployment, attempt_id, f"{type(error).__name__}: {said}", actor(self.context))
            if batch.barrier is None or self._killed or not isinstance(error, Exception):
                raise
            # the own epoch counts; the later ones have tasks of their own, which try again and say what is wrong
            self.log.warning("The batch ended after %d epochs: %s", len(batch.done), error)

    def _begun(self, deployment: Deployment) -> Callable[[Attempt], None]:
        def remember(attempt: Attempt) -> None:
            self._under_way = (deployment, attempt.attempt_id)
            self.log.info("Staging %s on branch %s", attempt, attempt.branch)

        return remember
