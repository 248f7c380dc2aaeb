"""What cannot process several barriers in one Spark job is refused while the DAG is parsed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_barrier.operators._task import first_generation, run_of
from airflow_barrier.protocol.errors import ConfigurationError

SQL = "INSERT INTO {target:shop.a} SELECT 1"


def declare(operator: Callable[[], Any], batch_barriers: int) -> Any:
    from airflow.sdk import DAG

    from airflow_barrier.operators.group import BarrierGroup

    with DAG("shopping", start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)), BarrierGroup("shop") as barrier:
        return barrier.job(operator(), outlets=["shop.a"], batch_barriers=batch_barriers)


def epoch_operator(**options: Any) -> Callable[[], Any]:
    from airflow_barrier.operators.epoch import SparkEpochOperator

    return lambda: SparkEpochOperator(task_id="a", **options)


def submit_operator() -> Any:
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    return SparkSubmitOperator(task_id="a", application="a.py")


@pytest.mark.parametrize(
    ("operator", "batch_barriers", "said"),
    [
        (submit_operator, 2, "the conf of an unchanged job names the branch of one barrier"),
        (epoch_operator(sql="a.sql"), 2, "read it in the DAG file"),
        (epoch_operator(sql=f"{SQL} -- {{{{ ds }}}}"), 2, "found Jinja in 'sql'"),
        (epoch_operator(application="a.py", conf={"spark.x": "{{ ds }}"}), 2, "found Jinja in 'conf'"),
        (epoch_operator(application="a.py"), 0, "expected 1 or more, found 0"),
    ],
)
def test_refused(operator: Callable[[], Any], batch_barriers: int, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        declare(operator, batch_barriers)


def test_taken() -> None:
    for operator in (epoch_operator(sql=SQL), epoch_operator(application="a.py", via="submit", conf={"a": "b"})):
        assert declare(operator, 6)._binding.batch_barriers == 6


class _Named:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def test_a_leaders_run_is_told_from_its_key() -> None:
    ti = _Named(dag_id="shopping", run_id="scheduled__2", task_id="shop.a", map_index=-1)
    context: Any = {"ti": ti, "task": _Named(retries=2)}
    assert run_of("shopping/scheduled__1/shop.a/-1", context) == "scheduled__1"
    assert run_of("shopping/scheduled__1/shop.b/-1", context) is None
    assert run_of("other/scheduled__1/shop.a/-1", context) is None
    assert run_of("shopping//shop.a/-1", context) is None
    assert first_generation(context) == "2/2"
