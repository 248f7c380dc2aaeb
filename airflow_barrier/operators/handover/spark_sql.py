"""SparkSqlOperator: ``conf``, which is a dictionary or ``key=value,key=value``."""

from __future__ import annotations

from typing import Any

from airflow_barrier.operators.handover.local_spark import installed_version, with_jar
from airflow_barrier.operators.handover.port import Handing


def refusal(operator: Any) -> str | None:
    return None


def spark_version(operator: Any) -> str | None:
    return installed_version("spark-sql")


def hand_over(operator: Any, handing: Handing) -> None:
    conf = {**_parsed(operator._conf), **handing.conf}
    conf["spark.jars"] = with_jar(conf.get("spark.jars"), handing.guard)
    operator._conf = conf


def _parsed(conf: dict[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(conf, str):  # split as the operator's hook does
        return dict(pair.split("=", 1) for pair in conf.split(",") if "=" in pair)
    return dict(conf or {})
