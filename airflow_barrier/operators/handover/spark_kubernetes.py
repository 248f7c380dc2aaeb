"""SparkKubernetesOperator: ``sparkConf`` in the spec of the SparkApplication. The guard has to be in the image."""

from __future__ import annotations

import copy
from typing import Any

from airflow_barrier.operators.handover.port import Handing


def refusal(operator: Any) -> str | None:
    restarts = _spec(operator).get("restartPolicy", {}).get("type", "Never")
    if restarts != "Never":
        return (
            f"restartPolicy {restarts} starts a second driver for the same attempt; set it to Never and use Airflow's "
            "retries"
        )
    return None


def spark_version(operator: Any) -> str | None:
    version: str | None = _spec(operator).get("sparkVersion")
    return version


def hand_over(operator: Any, handing: Handing) -> None:
    body = copy.deepcopy(operator.manage_template_specs())
    spec = body["spark"].setdefault("spec", {})
    spec["sparkConf"] = {**(spec.get("sparkConf") or {}), **handing.conf}
    operator.application_file, operator.template_spec = None, body
    # a driver that is there already is one of an attempt that this one has fenced
    operator.reattach_on_restart = False


def _spec(operator: Any) -> dict[str, Any]:
    """Empty while the DAG is parsed, where it is a file yet to be rendered."""
    if operator.application_file and operator.application_file.endswith(tuple(operator.template_ext)):
        return {}
    spec: dict[str, Any] = operator.manage_template_specs()["spark"].get("spec", {})
    return spec
