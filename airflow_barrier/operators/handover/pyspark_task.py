"""``@task.pyspark``, and the operator under it: ``config_kwargs``, for a session of its own or one on a server."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from airflow.sdk import BaseHook

from airflow_barrier.operators.handover.local_spark import spark_defaults, with_guard
from airflow_barrier.operators.handover.port import Handing


def refusal(operator: Any) -> str | None:
    return None


def spark_version(operator: Any) -> str | None:
    return None if _is_on_a_server(operator) else version("pyspark")


def hand_over(operator: Any, handing: Handing) -> None:
    conf = {**operator.config_kwargs, **handing.conf}
    if not _is_on_a_server(operator):  # a running server has the jars that it was started with
        defaults = {**spark_defaults("spark-submit"), **_of_connection(operator)}
        conf = with_guard(conf, handing.guard, spark_version(operator), defaults)
    operator.config_kwargs = conf


def _is_on_a_server(operator: Any) -> bool:
    if "spark.remote" in operator.config_kwargs:
        return True
    return bool(operator.conn_id) and BaseHook.get_connection(operator.conn_id).conn_type == "spark_connect"


def _of_connection(operator: Any) -> dict[str, Any]:
    """Conf of which the task's own takes the place."""
    return dict(BaseHook.get_connection(operator.conn_id).extra_dejson) if operator.conn_id else {}
