"""EmrAddStepsOperator: ``--conf`` of each step that is a spark-submit. The guard has to be on the cluster."""

from __future__ import annotations

import ast
import copy
from typing import Any

from airflow_barrier.operators.handover.placeholder import conf_arguments
from airflow_barrier.operators.handover.port import Handing


def refusal(operator: Any) -> str | None:
    if not operator.wait_for_completion and not operator.deferrable:
        return "it does not wait for its steps; give it wait_for_completion=True or deferrable=True"
    if isinstance(operator.steps, list):
        if not any(map(_is_submit, operator.steps)):
            return "none of its steps is a spark-submit by command-runner.jar, which takes --conf; make it one"
        for step in operator.steps:
            if step.get("ActionOnFailure") == "CONTINUE" and len(operator.steps) > 1:
                return "ActionOnFailure CONTINUE goes on after a step that failed; set it to CANCEL_AND_WAIT"
    return None


def spark_version(operator: Any) -> str | None:
    return None


def hand_over(operator: Any, handing: Handing) -> None:
    steps = ast.literal_eval(operator.steps) if isinstance(operator.steps, str) else copy.deepcopy(operator.steps)
    conf = {**handing.conf, "spark.yarn.maxAppAttempts": "1"}
    for step in filter(_is_submit, steps):
        command, *arguments = step["HadoopJarStep"]["Args"]
        step["HadoopJarStep"]["Args"] = [command, *conf_arguments(conf), *arguments]
    operator.steps = steps


def _is_submit(step: dict[str, Any]) -> bool:
    what = step.get("HadoopJarStep", {})
    arguments = what.get("Args") or [""]
    return bool(
        what.get("Jar", "").endswith("command-runner.jar") and arguments[0].rsplit("/", 1)[-1] == "spark-submit"
    )
