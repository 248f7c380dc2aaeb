"""SparkSubmitOperator: ``conf`` and ``jars``."""

from __future__ import annotations

from typing import Any

from airflow_barrier.operators.handover.local_spark import installed_version, with_jar
from airflow_barrier.operators.handover.port import Handing

#: With these at "false", spark-submit returns before the job has ended.
_WAITING = ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion")


def refusal(operator: Any) -> str | None:
    for key in _WAITING:
        if str((operator.conf or {}).get(key, "true")).lower() == "false":
            return f"conf {key}=false ends the task before its job has ended; take it out"
    return None


def spark_version(operator: Any) -> str | None:
    return installed_version(operator._spark_binary or "spark-submit")


def hand_over(operator: Any, handing: Handing) -> None:
    conf = {**(operator.conf or {}), **handing.conf}
    # a second driver of the same attempt would write on top of the first one's half
    conf["spark.yarn.maxAppAttempts"] = "1"
    if operator.jars:  # spark-submit's --jars takes the place of the conf
        operator.jars = with_jar(operator.jars, handing.guard)
    else:
        conf["spark.jars"] = with_jar(conf.get("spark.jars"), handing.guard)
    operator.conf = conf
