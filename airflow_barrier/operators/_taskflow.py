"""``@task.barrier`` and ``@task.barrier_sql``: jobs as functions in the DAG file."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_barrier.spark.epoch import Epoch, Job


class _Decorated(DecoratedOperator, SparkEpochOperator):
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *SparkEpochOperator.template_fields)
    template_fields_renderers = {  # noqa: RUF012 - Airflow reads it as a plain attribute
        **DecoratedOperator.template_fields_renderers,
        **SparkEpochOperator.template_fields_renderers,
    }


class _BarrierDecoratedOperator(_Decorated):
    custom_operator_name = "@task.barrier"
    _by_function = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse(self, kwargs, ("application", "job", "sql", "via", "conf"), "its function is the job, on Spark Connect")
        _check_call(self, python_callable, [None, *op_args], op_kwargs or {})
        super().__init__(
            python_callable=_without_epoch(python_callable), op_args=op_args, op_kwargs=op_kwargs, **kwargs
        )

    def _epoch_job(self) -> Job:
        from pyspark import cloudpickle

        module = sys.modules.get(self.python_callable.__module__)
        if module is not None:
            cloudpickle.register_pickle_by_value(module)  # Spark's workers have no DAG file to import

        def run(epoch: Epoch) -> Any:
            return self.python_callable(epoch, *self.op_args, **self.op_kwargs)

        return run


class _BarrierSqlDecoratedOperator(_Decorated):
    custom_operator_name = "@task.barrier_sql"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] = (),
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse(self, kwargs, ("application", "job", "sql"), "its function returns the statement")
        _check_call(self, python_callable, op_args, op_kwargs or {})
        sql = python_callable(*op_args, **(op_kwargs or {}))
        if not isinstance(sql, str):
            raise ConfigurationError(
                f"{self.custom_operator_name} {python_callable.__name__}: expected a function that returns the "
                f"statement as text, found {sql!r}"
            )
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, sql=sql, **kwargs)


def _refuse(operator: Any, given: Mapping[str, Any], names: Sequence[str], why: str) -> None:
    found = [name for name in names if name in given]
    if found:
        raise ConfigurationError(
            f"{operator.custom_operator_name}: expected no argument {found[0]}, found {given[found[0]]!r}: {why}; "
            "leave it away, or take a SparkEpochOperator"
        )


def _check_call(operator: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Airflow would fill in parameters such as ``ds``, which differ where a run computes another barrier again."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        takes = "the epoch, and what its call hands over" if operator._by_function else "what its call hands over"
        raise ConfigurationError(
            f"{operator.custom_operator_name} {function.__name__}: expected a function of {takes}, found "
            f"{function.__name__}{inspect.signature(function)}: {error}; what differs from run to run is the epoch's "
            "(epoch.timestamp, {timestamp} in SQL)"
        ) from None


def _without_epoch(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, of which Airflow sees the parameters that the call in the DAG file fills."""

    @functools.wraps(function)
    def job(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    vars(job)["__signature__"] = signature.replace(parameters=list(signature.parameters.values())[1:])
    return job


def barrier_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function of an epoch a task, which is a job in the block of a
    :class:`~airflow_barrier.operators.group.BarrierGroup`.

        @task.barrier(inlets=["shop.shopping"], outlets=["shop.user_amount"])
        def amount(epoch):
            epoch.changes("shop.shopping")...

        with BarrierGroup("shopping"):
            amount()

    The function takes what one with ``@epoch_job`` takes, then what its call in the DAG file hands over. It runs on the
    worker, over a Spark Connect server. Takes what a :class:`~airflow_barrier.operators.epoch.SparkEpochOperator`
    takes, but for ``application``, ``job``, ``sql``, ``via`` and ``conf``. Raises
    :class:`~airflow_barrier.protocol.errors.ConfigurationError` for these, and for a function that takes anything else.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=_BarrierDecoratedOperator, **kwargs
    )


def barrier_sql_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function that returns the statement of an SQL job a task, which is a job by what the statement names.

        @task.barrier_sql
        def spent(table):
            return f"INSERT OVERWRITE {{target:shop.spent}} SELECT sum(amount) FROM {{read:{table}}}"

        with BarrierGroup("shopping"):
            spent("shop.shopping")

    The function is called when the DAG file is parsed, since the job's tables have to be known then. Takes what a
    :class:`~airflow_barrier.operators.epoch.SparkEpochOperator` takes, but for ``application``, ``job`` and ``sql``.
    Raises :class:`~airflow_barrier.protocol.errors.ConfigurationError` for these, and for what is no statement.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=_BarrierSqlDecoratedOperator, **kwargs
    )
