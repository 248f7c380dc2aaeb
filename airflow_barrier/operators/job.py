"""A task as a job of a barrier: begin an attempt, run the Spark work for it, close it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Fragment
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
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.operators._task import (
    NOTHING_TO_DO,
    actor,
    generation,
    run_key,
    run_timestamp,
    task_key,
    without_useless_retries,
)
from airflow_barrier.protocol.errors import (
    AlreadyCommittedError,
    ConfigurationError,
    FencedAttemptError,
    NotProcessedError,
    StoreUnavailableError,
)
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.protocol.topology import Job
from airflow_barrier.spark.submit import submit_conf
from airflow_barrier.triggers.barrier import BarrierTrigger, Condition

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.spark.spec import ClosingRecord

    _Operator = BaseOperator
else:
    _Operator = object

#: Seconds that a killed task waits for its attempt to be given up; Airflow kills it harder after five.
_LAST_WORDS = 4.0


@dataclass(frozen=True)
class Binding:
    """What ties a task to its place in a topology; a group sets it while the DAG is parsed."""

    job: Job
    fragment: Fragment
    member: bool
    barrier_conn_id: str
    poll_interval: float


class StagesEpoch(_Operator):
    """What a task does around its Spark work, as a mix-in in front of an operator.

    The work itself is :meth:`stage_epoch`; :meth:`stop_epoch` ends it from another thread. A retry adopts what an
    earlier try closed; a cleared task stages anew, and from COMMITTING on does nothing. Missing input defers the
    task. The operator must have been given to
    :meth:`BarrierGroup.job <airflow_barrier.operators.group.BarrierGroup.job>`.
    """

    _binding: Binding | None = None
    _under_way: tuple[Deployment, int] | None = None
    _killed = False
    _killer: threading.Thread | None = None
    #: where the barrier can be looked at, once it is known
    barrier_link_path: str | None = None

    def bind_job(self, binding: Binding) -> None:
        """Called by the group."""
        self._binding = binding

    @property
    def binding(self) -> Binding:
        if self._binding is None:
            raise ConfigurationError(
                f"task {self.task_id}: expected to be part of a BarrierGroup, found it alone; hand it to "
                "barrier.job(..., sources=[...], sinks=[...])"
            )
        return self._binding

    # --- what an operator supplies ----------------------------------------------------------------

    def stage_epoch(self, ready: Ready, context: Context) -> ClosingRecord | None:
        """Run the Spark work of one attempt; the closing record, or None if the driver wrote it to its file."""
        raise NotImplementedError

    def stop_epoch(self) -> None:
        """End the Spark work. Called in a thread of its own, maybe before the work has started."""

    def epoch_sql(self) -> str | None:
        """The SQL that goes into the epoch spec, for SQL jobs."""
        return None

    # --- what Airflow calls -----------------------------------------------------------------------

    def execute(self, context: Context) -> Any:
        with without_useless_retries():
            deployment = BarrierHook(self.binding.barrier_conn_id).get_deployment()
            barrier = self._find_barrier(deployment, context)
            try:
                step = begin(
                    deployment,
                    barrier,
                    self.binding.job.name,
                    request_key=task_key(context),
                    generation=generation(context),
                    actor=actor(context),
                    sql=self.epoch_sql(),
                )
            except AlreadyCommittedError as error:
                self.log.info("%s: %s", error, NOTHING_TO_DO)
                return barrier.barrier_id
            return self._go_on(deployment, barrier, step, context)

    def resume_epoch(self, context: Context, event: dict[str, Any], attempt_id: int | None = None) -> Any:
        """Called when the trigger fired, which is only a hint: ask again."""
        if event["status"] == "unavailable":
            raise StoreUnavailableError(event["message"])
        if attempt_id is None:
            return self.execute(context)
        with without_useless_retries():
            deployment = BarrierHook(self.binding.barrier_conn_id).get_deployment()
            attempt = deployment.meta.attempt(attempt_id)
            barrier = deployment.meta.barrier(attempt.topology, attempt.barrier_id)
            self._remember(barrier)
            with _new_try_if_voided(deployment, attempt_id):
                step = begin_again(deployment, attempt_id, actor=actor(context), sql=self.epoch_sql())
            return self._go_on(deployment, barrier, step, context)

    def on_kill(self) -> None:
        """Stop the Spark work and give the attempt up.

        Airflow calls this in a signal handler of the main thread, which may hold the database's lock just then: so
        all that takes time happens in another thread, and the main thread waits for it when its work has ended.
        """
        self._killed = True
        self._killer = threading.Thread(target=self._die, name="barrier-on-kill", daemon=True)
        self._killer.start()
        super().on_kill()

    # --- the steps --------------------------------------------------------------------------------

    def _find_barrier(self, deployment: Deployment, context: Context) -> Barrier:
        binding = self.binding
        topology = binding.fragment.topology
        timestamp, _ = run_timestamp(context)
        if not binding.member:
            barrier = find_barrier(deployment, topology, run_key=run_key(context), timestamp=timestamp)
            self._remember(barrier)
            return barrier
        deployment.meta.register(topology, binding.fragment.owner, binding.fragment.jobs, actor(context))
        found = deployment.meta.barrier_at(topology, timestamp)
        if found is None:
            self.log.info("Waiting for a barrier of %s at %s to be opened", topology, timestamp.isoformat())
            self._defer([Condition(None, timestamp=timestamp)], attempt_id=None)
        names = {job.name for job in deployment.meta.topology(topology, found.topology_version).jobs}
        if binding.job.name not in names:
            raise AirflowSkipException(
                f"{found} was opened before job {binding.job.name} joined {topology}; the job takes part from the next "
                "barrier on"
            )
        self._remember(found)
        return found

    def _go_on(
        self, deployment: Deployment, barrier: Barrier, step: Ready | Adopted | Waiting, context: Context
    ) -> int:
        if isinstance(step, Adopted):
            self.log.info("%s is %s: nothing to run", step.attempt, step.attempt.state.value)
            return barrier.barrier_id
        if isinstance(step, Waiting):
            self._wait(deployment, barrier, step)
        self._run(deployment, step, context)
        return barrier.barrier_id

    def _wait(self, deployment: Deployment, barrier: Barrier, waiting: Waiting) -> NoReturn:
        topology = deployment.meta.topology(barrier.topology, barrier.topology_version)
        dead = [
            need
            for need in waiting.needs
            # tasks of one DAG follow each other by edges: this table's has ended, and nothing more will come
            if need.barrier_id == barrier.barrier_id and topology.job(need.job).owner == self.dag_id
        ]
        if dead:
            give_up(deployment, waiting.attempt.attempt_id, reason="its input was never staged", actor=self.task_id)
            raise NotProcessedError(
                f"{waiting.attempt} cannot run: not PROCESSED although the task before it has ended: "
                f"{', '.join(map(str, dead))}. Marking a task success stages nothing: clear it and what follows it"
            )
        self.log.info("%s waits for %s", waiting.attempt, ", ".join(map(str, waiting.needs)))
        self._defer(
            [Condition("PROCESSED", barrier_id=n.barrier_id, tables=(n.table,)) for n in waiting.needs],
            attempt_id=waiting.attempt.attempt_id,
        )

    def _run(self, deployment: Deployment, ready: Ready, context: Context) -> None:
        attempt = ready.attempt
        self._under_way = (deployment, attempt.attempt_id)
        self.log.info("Staging %s on branch %s", attempt, attempt.branch)
        try:
            self._stop_if_killed()
            record = self.stage_epoch(ready, context)
            self._stop_if_killed()
        except BaseException as error:  # a timeout and an exit are no Exceptions, and end the attempt all the same
            self._give_up(deployment, attempt.attempt_id, f"{type(error).__name__}: {error}", actor(context))
            raise
        with _new_try_if_voided(deployment, attempt.attempt_id):
            barrier = close(deployment, attempt.attempt_id, actor=actor(context), record=record)
        self.log.info("%s is PROCESSED; %s is %s", attempt, barrier, barrier.state.value)

    def _defer(self, conditions: list[Condition], attempt_id: int | None) -> NoReturn:
        self.defer(
            trigger=BarrierTrigger(
                topology=self.binding.fragment.topology,
                barrier_conn_id=self.binding.barrier_conn_id,
                conditions=conditions,
                poll_interval=self.binding.poll_interval,
                attempt_id=attempt_id,
            ),
            method_name=self.resume_epoch.__name__,
            kwargs={"attempt_id": attempt_id},
        )

    def _remember(self, barrier: Barrier) -> None:
        self.barrier_link_path = f"{self.binding.barrier_conn_id}/{barrier.topology}/{barrier.barrier_id}"

    # --- endings ----------------------------------------------------------------------------------

    def _stop_if_killed(self) -> None:
        if self._killed:
            raise AirflowException(f"task {self.task_id} was killed; what it staged does not count")

    def _give_up(self, deployment: Deployment, attempt_id: int, reason: str, who: str) -> None:
        if self._killer is not None:
            self._killer.join(_LAST_WORDS)
        try:
            give_up(deployment, attempt_id, reason=reason, actor=who)
        except StoreUnavailableError as error:
            # the next try, or a person's clear, fences the attempt; what counts now is the error before this one
            self.log.warning("attempt %s could not be given up: %s", attempt_id, error)

    def _die(self) -> None:
        try:
            self.stop_epoch()
        finally:
            if self._under_way is not None:
                deployment, attempt_id = self._under_way
                give_up(deployment, attempt_id, reason="the task was killed", actor=self.task_id)


@contextmanager
def _new_try_if_voided(deployment: Deployment, attempt_id: int) -> Iterator[None]:
    """An attempt whose input was staged anew is nobody's fault, and a new one mends it; a fenced one stays fenced."""
    try:
        yield
    except FencedAttemptError as error:
        if deployment.meta.attempt(attempt_id).state is AttemptState.VOIDED:
            raise AirflowException(f"{error}; its input was staged anew: the next try starts afresh") from error
        raise


class _HandedOverByConf(StagesEpoch):
    """Any operator whose attribute ``conf`` becomes Spark conf: the conf names the epoch spec, the rest stays."""

    conf: dict[str, Any] | None

    def stage_epoch(self, ready: Ready, context: Context) -> None:
        self.conf = {**(self.conf or {}), **submit_conf(ready.spec_uri, ready.digest)}
        super(StagesEpoch, self).execute(context)


def as_job(operator: Any, binding: Binding) -> None:
    """Make a task the job of ``binding``. Raises :class:`ConfigurationError` for an operator that cannot be one.

    An operator that is no job of ours becomes one by a subclass of its own class with our steps in front: it keeps
    its class for ``isinstance``, its name in the UI, its templating, callbacks and serialized form. Composition (a
    task of ours that calls the operator) would lose all these, and Airflow warns about operators run by operators.
    """
    if not isinstance(operator, StagesEpoch):
        if not isinstance(operator, BaseOperator) or not hasattr(operator, "conf"):
            raise ConfigurationError(
                f"task {operator.task_id}: expected SparkEpochOperator, SparkSubmitOperator or another operator with "
                f"an attribute 'conf' that is handed to Spark, found {type(operator).__name__}; a mapped task cannot "
                "be a job, since a table has one writer"
            )
        operator.__class__ = _job_class(type(operator))
        if getattr(operator, "durable", False):
            # reconnecting after a lost worker would wait for a driver of an attempt that the new try has fenced
            vars(operator)["durable"] = False
    cast(StagesEpoch, operator).bind_job(binding)


@cache
def _job_class(operator_class: type[BaseOperator]) -> type[BaseOperator]:
    namespace = {"__module__": operator_class.__module__, "__doc__": operator_class.__doc__}
    metaclass: Any = type(operator_class)
    made: type[BaseOperator] = metaclass(operator_class.__name__, (_HandedOverByConf, operator_class), namespace)
    return made
