"""SparkSqlOperator: ``conf``, which is a dictionary or ``key=value,key=value``."""

from __future__ import annotations

from typing import Any

from airflow_barrier.operators.handover.local_spark import installed_version, spark_defaults, with_guard
from airflow_barrier.operators.handover.port import Handing

_BINARY = "spark-sql"


def refusal(operator: Any) -> str | None:
    return None


def spark_version(operator: Any) -> str | None:
    return installed_version(_BINARY)


def hand_over(operator: Any, handing: Handing) -> None:
    conf = {**_parsed(operator._conf), **handing.conf}
    operator._conf = with_guard(conf, handing.guard, spark_version(operator), spark_defaults(_BINARY))


def _parsed(conf: dict[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(conf, str):  # split as the operator's hook does
        return dict(pair.split("=", 1) for pair in conf.split(",") if "=" in pair)
    return dict(conf or {})
