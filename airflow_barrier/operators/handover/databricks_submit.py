"""DatabricksSubmitRunOperator: ``spark_conf`` of the cluster that the run brings, on which the guard has to be."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from airflow_barrier.operators.handover.port import Handing

# Runtime 14.0 is the first with Spark 3.5.
_FIRST_RUNTIME = 14


def refusal(operator: Any) -> str | None:
    if not operator.wait_for_termination and not operator.deferrable:
        return "it does not wait for its run; take wait_for_termination=False out"
    for part in _parts(_named(operator)):
        if part.get("existing_cluster_id") or (_is_task(part) and not _brings_cluster(part, _named(operator))):
            return (
                "it runs on a cluster that is there already, whose Spark conf is not the job's own; give the run a "
                "new_cluster (or job_clusters) of its own"
            )
        if part.get("max_retries"):
            return "max_retries starts a second driver for the same attempt; take it out and use Airflow's retries"
    return None


def spark_version(operator: Any) -> str | None:
    for cluster in _clusters(_named(operator)):
        found = re.match(r"(\d+)\.", str(cluster.get("spark_version", "")))
        if found is not None and int(found[1]) < _FIRST_RUNTIME:
            return f"3.4 or older of Databricks Runtime {cluster['spark_version']}"
    return None


def hand_over(operator: Any, handing: Handing) -> None:
    run = copy.deepcopy(_named(operator))
    for cluster in _clusters(run):
        cluster["spark_conf"] = {**(cluster.get("spark_conf") or {}), **handing.conf}
    run["idempotency_token"] = handing.token
    operator.json = {**(operator.json or {}), **run}
    for name in ("tasks", "new_cluster", "idempotency_token"):
        if name in run:
            setattr(operator, name, run[name])


def _named(operator: Any) -> dict[str, Any]:
    """Return what the run consists of, from ``json`` and from named arguments, which win."""
    named = {
        name: value
        for name in ("tasks", "new_cluster", "existing_cluster_id")
        if (value := getattr(operator, name, None)) is not None
    }
    return {**(operator.json or {}), **named}


def _parts(run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield run
    yield from run.get("tasks") or ()


def _is_task(part: dict[str, Any]) -> bool:
    return any(key.endswith("_task") for key in part)


def _brings_cluster(part: dict[str, Any], run: dict[str, Any]) -> bool:
    return bool(part.get("new_cluster") or part.get("job_cluster_key") or run.get("new_cluster"))


def _clusters(run: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in [*_parts(run), *(run.get("job_clusters") or ())]:
        if part.get("new_cluster"):
            yield part["new_cluster"]
