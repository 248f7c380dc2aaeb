"""SparkSubmitOperator: ``conf`` and ``jars``."""

from __future__ import annotations

from typing import Any

from airflow_barrier.operators.handover.local_spark import installed_version, spark_defaults, with_guard
from airflow_barrier.operators.handover.port import Handing

#: With these at "false", spark-submit returns before the job has ended.
_WAITING = ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion")


def refusal(operator: Any) -> str | None:
    for key in _WAITING:
        if str((operator.conf or {}).get(key, "true")).lower() == "false":
            return f"conf {key}=false ends the task before its job has ended; take it out"
    return None


def spark_version(operator: Any) -> str | None:
    return installed_version(_binary(operator))


def hand_over(operator: Any, handing: Handing) -> None:
    conf = {**(operator.conf or {}), **handing.conf}
    # a second driver of the same attempt would write on top of the first one's half
    conf["spark.yarn.maxAppAttempts"] = "1"
    if operator.jars:  # spark-submit's --jars takes the place of the conf
        conf["spark.jars"] = operator.jars
    defaults = spark_defaults(_binary(operator), operator.properties_file)
    guarded = with_guard(conf, handing.guard, spark_version(operator), defaults)
    operator.jars = guarded.pop("spark.jars")
    operator.conf = guarded


def _binary(operator: Any) -> str:
    return operator._spark_binary or "spark-submit"
