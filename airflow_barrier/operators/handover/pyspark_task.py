"""``@task.pyspark``, and the operator under it: ``config_kwargs``, for a session of its own or one on a server."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from airflow.sdk import BaseHook

from airflow_barrier.operators.handover.local_spark import with_jar
from airflow_barrier.operators.handover.port import Handing


def refusal(operator: Any) -> str | None:
    return None


def spark_version(operator: Any) -> str | None:
    return None if _is_on_a_server(operator) else version("pyspark")


def hand_over(operator: Any, handing: Handing) -> None:
    conf = {**operator.config_kwargs, **handing.conf}
    if not _is_on_a_server(operator):  # a running server has the jars that it was started with
        conf["spark.jars"] = with_jar(_jars_so_far(operator), handing.guard)
    operator.config_kwargs = conf


def _is_on_a_server(operator: Any) -> bool:
    if "spark.remote" in operator.config_kwargs:
        return True
    return bool(operator.conn_id) and BaseHook.get_connection(operator.conn_id).conn_type == "spark_connect"


def _jars_so_far(operator: Any) -> str | None:
    """The task's own take the place of the connection's."""
    if "spark.jars" in operator.config_kwargs:
        return str(operator.config_kwargs["spark.jars"])
    if not operator.conn_id:
        return None
    jars: str | None = BaseHook.get_connection(operator.conn_id).extra_dejson.get("spark.jars")
    return jars
