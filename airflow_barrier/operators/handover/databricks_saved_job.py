"""Operators of Databricks that start a job whose cluster is described over there, or that start nothing."""

from __future__ import annotations

from typing import Any

from airflow_barrier.operators.handover.port import Handing
from airflow_barrier.protocol.errors import ConfigurationError


def refusal(operator: Any) -> str | None:
    return (
        "what it starts has a Spark conf that is kept in Databricks and cannot be given for one run; use "
        "DatabricksSubmitRunOperator with a new_cluster"
    )


def spark_version(operator: Any) -> str | None:
    return None


def hand_over(operator: Any, handing: Handing) -> None:
    raise ConfigurationError(f"task {operator.task_id}: {refusal(operator)}")
