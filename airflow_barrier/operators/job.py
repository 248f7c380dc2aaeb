"""Making a task the job of a barrier."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_barrier.operators._commit import BINDING
from airflow_barrier.operators._leading import LeadingSteps
from airflow_barrier.operators._steps import RESUME_METHOD, Binding, EpochSteps, SparkWork
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.staging import Ready


def as_job(operator: Any) -> None:
    """Make a task a job; :func:`bind` then says which. Raises :class:`ConfigurationError` if it cannot be one.

    The task's class becomes a subclass of its own class with our steps around ``execute``: it keeps its type for
    ``isinstance``, its name in the UI, its templating, callbacks, links and serialized form. A task of ours that calls
    the operator would lose all these, and Airflow warns about operators that are run by operators. The subclass has
    this one base, because Python changes the class of an object only where the memory layout stays.
    """
    if not isinstance(operator, BaseOperator) or not (hasattr(operator, "epoch_work") or hasattr(operator, "conf")):
        raise ConfigurationError(
            f"task {operator.task_id}: expected SparkEpochOperator, SparkSubmitOperator or another operator with an "
            f"attribute 'conf' that is handed to Spark, found {type(operator).__name__}; a mapped task cannot be a "
            "job, since a table has one writer"
        )
    operator.__class__ = _job_class(type(operator))
    if getattr(operator, "durable", False):
        # reconnecting after a lost worker would wait for a driver of an attempt that the new try has fenced
        vars(operator)["durable"] = False


def bind(operator: BaseOperator, binding: Binding) -> None:
    """Tie a job's task to its place in the topology."""
    vars(operator)[BINDING] = binding


@cache
def _job_class(operator_class: Any) -> Any:
    def epoch_work(self: Any, context: Context) -> SparkWork:
        def run(ready: Ready) -> None:
            from airflow_barrier.spark.submit import submit_conf

            self.conf = {**(self.conf or {}), **submit_conf(ready.spec_uri, ready.digest)}
            operator_class.execute(self, context)

        # what stops the work is the operator's own on_kill, which Airflow calls
        return SparkWork(run=run, stop=lambda: None)

    def begin(self: Any, context: Context) -> EpochSteps:
        binding, work = self._binding, self.epoch_work(context)
        self._steps = (LeadingSteps if binding.batch_barriers > 1 else EpochSteps)(self, binding, work, context)
        return self._steps  # type: ignore[no-any-return]

    def execute(self: Any, context: Context) -> int:
        return begin(self, context).execute()

    def resume_epoch(self: Any, context: Context, event: dict[str, Any], attempt_id: int | None = None) -> int:
        return begin(self, context).resume(event, attempt_id)

    def on_kill(self: Any) -> None:
        if self._steps is not None:
            self._steps.kill()
        operator_class.on_kill(self)

    namespace = {
        "__module__": operator_class.__module__,
        "__doc__": operator_class.__doc__,
        BINDING: None,
        "_steps": None,
        "execute": execute,
        RESUME_METHOD: resume_epoch,
        "on_kill": on_kill,
    }
    if not hasattr(operator_class, "epoch_work"):
        namespace["epoch_work"] = epoch_work
    return type(operator_class)(operator_class.__name__, (operator_class,), namespace)
