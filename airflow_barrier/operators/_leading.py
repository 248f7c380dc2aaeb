"""The steps of a task that may process later barriers' epochs in the Spark job that it has started for its own."""

from __future__ import annotations

from functools import partial

from airflow_barrier.coordinator.batching import Batch
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.staging import Asking, Ready
from airflow_barrier.operators._steps import EpochSteps
from airflow_barrier.operators._task import actor, first_generation, reason_of, task_key
from airflow_barrier.protocol.errors import ConfigurationError


class LeadingSteps(EpochSteps):
    """Steps as :class:`EpochSteps` has them; once the task has work to do for its own barrier, it leads."""

    def _do(self, deployment: Deployment, ready: Ready) -> None:
        if ready.earlier or ready.attempt.line:  # each barrier of a revision has a run of its own
            super()._do(deployment, ready)
            return
        self._stage(deployment, ready.attempt)
        leader = Asking(
            request_key=task_key(self.context),
            generation=first_generation(self.context),
            actor=actor(self.context),
            owner=self.task.dag_id,
            sql=self.work.sql,
            server=self.work.server,
            profile=self.work.profile,
        )
        batch = Batch(
            deployment,
            leader,
            ready,
            self.binding.batch_barriers,
            may_go_on=lambda: not self._killed,
            begun=partial(self._stage, deployment),
        )
        self._lead(deployment, batch)
        if batch.barrier is not None:
            self._after_processed(deployment, batch.barrier)

    def _lead(self, deployment: Deployment, batch: Batch) -> None:
        if self.work.run_batch is None:
            raise ConfigurationError(f"task {self.task.task_id}: cannot process several epochs in one Spark job")
        try:
            self._stop_if_killed()
            self.work.run_batch(batch)
            self._stop_if_killed()
        except BaseException as error:
            if batch.under_way is not None:
                self._give_up(deployment, batch.under_way.attempt.attempt_id, reason_of(error), actor(self.context))
            if batch.barrier is None or self._killed or not isinstance(error, Exception):
                raise
            # the own epoch counts; the later ones have tasks of their own, which try again and say what is wrong
            self.log.warning("The batch ended after %d epochs: %s", len(batch.done), error)
