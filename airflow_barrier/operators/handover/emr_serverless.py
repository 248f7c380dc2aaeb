"""EmrServerlessStartJobOperator: ``sparkSubmitParameters``. The guard has to be in the image or on S3."""

from __future__ import annotations

import copy
from typing import Any

from airflow_barrier.operators.handover.emr_text import with_conf
from airflow_barrier.operators.handover.port import Handing


def refusal(operator: Any) -> str | None:
    if not operator.wait_for_completion:
        return "it does not wait for its job; take wait_for_completion=False out"
    if "sparkSubmit" not in operator.job_driver:
        return "its job is none of Spark; give job_driver a sparkSubmit"
    if int(operator.config.get("retryPolicy", {}).get("maxAttempts", 1)) > 1:
        return "retryPolicy starts a second driver for the same attempt; take it out and use Airflow's retries"
    return None


def spark_version(operator: Any) -> str | None:
    return None


def hand_over(operator: Any, handing: Handing) -> None:
    operator.job_driver = driver = copy.deepcopy(operator.job_driver)
    submit = driver["sparkSubmit"]
    submit["sparkSubmitParameters"] = with_conf(submit.get("sparkSubmitParameters"), handing.conf)
    operator.client_request_token = handing.token
