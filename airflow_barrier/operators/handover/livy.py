"""LivyOperator: the batch's ``conf``. The guard has to be on the cluster: Livy reads no files of the worker."""

from __future__ import annotations

from typing import Any

from airflow_barrier.operators.handover.port import Handing


def refusal(operator: Any) -> str | None:
    if not operator.deferrable and operator._polling_interval <= 0:
        return "it does not wait for its batch; give it polling_interval=30 or deferrable=True"
    return None


def spark_version(operator: Any) -> str | None:
    return None


def hand_over(operator: Any, handing: Handing) -> None:
    operator.spark_params["conf"] = {**(operator.spark_params["conf"] or {}), **handing.conf}
