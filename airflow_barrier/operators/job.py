"""Making a task the job of a barrier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import BaseOperator

from airflow_barrier.links.barrier import BarrierLink
from airflow_barrier.operators._binding import BINDING, RESUME_METHOD, Binding, SparkWork, check_unmapped
from airflow_barrier.operators._task import without_useless_retries
from airflow_barrier.operators.handover.finding import adapter_of
from airflow_barrier.operators.handover.port import Adapter, Handing
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_barrier.coordinator.staging import Ready
    from airflow_barrier.operators._steps import EpochSteps
    from airflow_barrier.protocol.topology import Job

#: What OpenLineage calls the operator's method that says what its task has read and made.
_FACETS_METHOD = "get_openlineage_facets_on_complete"
#: The operator's method that it resumes with where it had deferred itself.
_RESUME_OPERATOR = "resume_operator"
_PURPOSE = "be a job, since a table has one writer"


def task_of(operator: Any) -> Any:
    """The operator itself, also where a decorated function was called, which gives its result to come.

    Raises ConfigurationError for a decorated function that was not called, and for what is no task.
    """
    task = getattr(operator, "operator", operator)
    if hasattr(task, "task_id"):
        return task
    function = getattr(task, "function", None)
    if function is not None:
        raise ConfigurationError(
            f"barrier.job: expected a task, found the decorated function {function.__name__}, which makes a task when "
            f"it is called; call it: barrier.job({function.__name__}(), ...)"
        )
    raise ConfigurationError(
        f"barrier.job: expected a task, found {operator!r}; hand over an operator, or what a function with "
        "@task.pyspark returned"
    )


def as_job(operator: Any) -> None:
    """Make a task a job; :func:`bind` then says which. Raises :class:`ConfigurationError` if it cannot be one.

    The task's class becomes a subclass of its own class with our steps around ``execute``: it keeps its type for
    ``isinstance``, its name in the UI, its templating, callbacks, links and serialized form. A task of ours that calls
    the operator would lose all these, and Airflow warns about operators that are run by operators. The subclass has
    this one base, because Python changes the class of an object only where the memory layout stays.
    """
    check_unmapped(operator, _PURPOSE)
    if not hasattr(operator, "epoch_work"):
        _adapter_for(operator)
    links = tuple(operator.operator_extra_links)  # the operator's own, which its class may compute
    operator.__class__ = _job_class(operator.__class__)
    vars(operator)["operator_extra_links"] = (*links, BarrierLink())
    if getattr(operator, "durable", False):
        # reconnecting after a lost worker would wait for a driver of an attempt that the new try has fenced
        vars(operator)["durable"] = False


def bind(operator: BaseOperator, binding: Binding) -> None:
    """Tie a job's task to its place in the topology."""
    vars(operator)[BINDING] = binding


def check_batch(operator: BaseOperator, batch_barriers: int) -> None:
    """Refuse, while the DAG is parsed, what cannot process several barriers in one Spark job."""
    from airflow_barrier.operators.epoch import SparkEpochOperator

    if batch_barriers < 1:
        raise ConfigurationError(f"task {operator.task_id}: batch_barriers: expected 1 or more, found {batch_barriers}")
    if batch_barriers == 1:
        return
    what = f"task {operator.task_id}: batch_barriers={batch_barriers}"
    if not isinstance(operator, SparkEpochOperator):
        raise ConfigurationError(
            f"{what}: expected SparkEpochOperator, found {type(operator).__name__}; the conf of an unchanged job names "
            "the branch of one barrier: make it an epoch job or an SQL job, or leave batch_barriers away"
        )
    if is_sql_file(operator.sql or ""):
        raise ConfigurationError(
            f"{what}: expected the statement itself, found the file {operator.sql}, which Airflow would render for the "
            "first barrier's run alone; read it in the DAG file: sql=Path(...).read_text()"
        )
    for field in operator.template_fields:
        if has_jinja(str(getattr(operator, field))):
            raise ConfigurationError(
                f"{what}: expected nothing templated, found Jinja in {field!r}, which Airflow would render for the "
                "first barrier's run alone; take what differs from the epoch ({timestamp} in SQL, epoch.timestamp)"
            )


def check_sql(operator: BaseOperator, job: Job) -> None:
    """Refuse, while the DAG is parsed, a statement that cannot be the job's, if the DAG file has all of it."""
    from airflow_barrier.operators.epoch import SparkEpochOperator

    if not isinstance(operator, SparkEpochOperator) or operator.sql is None:
        return
    if not is_sql_file(operator.sql) and not has_jinja(operator.sql):
        from airflow_barrier.spark.statement import check_for  # of DAGs with SQL in the file

        check_for(operator.sql, job)


def is_sql_file(sql: str) -> bool:
    """Return whether the text is the name of a file, which Airflow reads when the task runs."""
    return sql.strip().endswith(".sql")


def has_jinja(text: str) -> bool:
    """Return whether Airflow makes another text of it when the task runs."""
    return any(sign in text for sign in ("{{", "{%", "{#"))


def could_be_job(task: Any) -> bool:
    """Return whether the task does work on Spark that could be a job's, also where Airflow maps it."""
    return hasattr(getattr(task, "operator_class", task), "epoch_work") or adapter_of(task) is not None


def _adapter_for(operator: Any) -> Adapter:
    """Return the adapter that hands an attempt to the operator. Raises ConfigurationError if that cannot be done."""
    adapter = adapter_of(operator)
    if adapter is None:
        raise ConfigurationError(
            f"task {operator.task_id}: expected SparkEpochOperator, or an operator that hands Spark conf to a job, "
            f"found {type(operator).__name__}, and nobody knows where that takes it. If it starts a Spark job, put "
            "BARRIER_CONF (from airflow_barrier.operators.handover.placeholder) where the conf belongs in one of its "
            "templated fields, or register an adapter for its class: an entry point of the group "
            "airflow_barrier.adapters (docs/unchanged-jobs.md)"
        )
    if refusal := adapter.refusal(operator):
        raise ConfigurationError(
            f"task {operator.task_id}: {type(operator).__name__} as it is cannot be a job: {refusal}"
        )
    return adapter


def _hand_over(operator: Any, adapter: Adapter, handing: Handing) -> None:
    adapter.hand_over(operator, handing)
    operator.log.info("Handed over: %s", ", ".join(f"{key}={value}" for key, value in handing.conf.items()))


def _put_back(operator: Any, rendered: dict[str, Any]) -> None:
    """The operator as Airflow rendered it: an earlier barrier's attempt, in the same task, was handed to it as well."""
    attributes, steps = vars(operator), operator._steps
    attributes.clear()
    attributes.update(rendered, _steps=steps)


@cache
def _job_class(operator_class: Any) -> Any:
    def epoch_work(self: Any, context: Context) -> SparkWork:
        from airflow_barrier.systems.spark_versions import check_version

        adapter = _adapter_for(self)
        check_version(adapter.spark_version(self), f"task {self.task_id}")
        rendered = dict(vars(self))

        def run(ready: Ready) -> None:
            from airflow_barrier.spark.guard import guard_jar
            from airflow_barrier.spark.unchanged import unchanged_conf

            _put_back(self, rendered)
            conf = unchanged_conf(ready.spec, ready.spec_uri, ready.digest, ready.key)
            handing = Handing(conf, guard_jar(), ready.attempt.branch)
            _hand_over(self, adapter, handing)
            with _deferral_is_ours(ready.attempt.attempt_id, handing, self._steps.done):
                operator_class.execute(self, context)

        # what stops the work is the operator's own on_kill, which Airflow calls
        return SparkWork(run=run, stop=lambda: None, by_branch=True)

    def begin(self: Any, context: Context) -> EpochSteps:
        from airflow_barrier.operators._leading import LeadingSteps
        from airflow_barrier.operators._steps import EpochSteps

        with without_useless_retries():
            check_unmapped(self, _PURPOSE)  # a DAG file can put a task into another group at any time
            work = self.epoch_work(context)
        binding = getattr(self, BINDING)
        self._steps = (LeadingSteps if binding.batch_barriers > 1 else EpochSteps)(self, binding, work, context)
        return self._steps  # type: ignore[no-any-return]

    def execute(self: Any, context: Context) -> int:
        return begin(self, context).execute()

    def resume_epoch(self: Any, context: Context, event: dict[str, Any]) -> int:
        return begin(self, context).resume(event, event["done"])

    def resume_operator(
        self: Any,
        context: Context,
        event: Any,
        attempt_id: int,
        handing: dict[str, Any],
        method: str,
        kwargs: Any,
        done: list[int],
    ) -> int:
        def work() -> None:
            again = Handing(**handing)
            _hand_over(self, _adapter_for(self), again)  # this is another process than the one that deferred
            with _deferral_is_ours(attempt_id, again, done):
                getattr(operator_class, method)(self, context, event=event, **kwargs)

        return begin(self, context).finish(attempt_id, work, done)

    def get_openlineage_facets_on_complete(self: Any, task_instance: Any) -> Any:
        from airflow_barrier.operators._lineage import lineage

        own = getattr(operator_class, _FACETS_METHOD, None)
        said = None if own is None else own(self, task_instance)
        return lineage(self) if said is None else lineage(self).merge(said)

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
        _RESUME_OPERATOR: resume_operator,
        _FACETS_METHOD: get_openlineage_facets_on_complete,
        "on_kill": on_kill,
        "operator_extra_links": (),  # each task's own are set beside it: a property of the class would hide them
    }
    if not hasattr(operator_class, "epoch_work"):
        namespace["epoch_work"] = epoch_work
    return type(operator_class)(operator_class.__name__, (operator_class,), namespace)


@contextmanager
def _deferral_is_ours(attempt_id: int, handing: Handing, done: list[int]) -> Iterator[None]:
    """An operator that defers itself resumes in our steps, so that the attempt is closed when its work is done."""
    try:
        yield
    except TaskDeferred as deferred:
        raise TaskDeferred(
            trigger=deferred.trigger,
            method_name=_RESUME_OPERATOR,
            kwargs={
                "attempt_id": attempt_id,
                "handing": asdict(handing),
                "method": deferred.method_name,
                "kwargs": deferred.kwargs or {},
                "done": done,
            },
            timeout=deferred.timeout,
        ) from None
