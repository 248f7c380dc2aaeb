"""EmrContainerOperator: ``sparkSubmitParameters``. The guard has to be in the image or on S3."""

from __future__ import annotations

import copy
import re
from typing import Any

from airflow_barrier.operators.handover.emr_text import with_conf
from airflow_barrier.operators.handover.port import Handing

# Releases 7 have Spark 3.5.
_TOO_OLD = re.compile(r"emr-[1-6]\.")


def refusal(operator: Any) -> str | None:
    if not operator.wait_for_completion and not operator.deferrable:
        return "it does not wait for its job; take wait_for_completion=False out"
    if "sparkSubmitJobDriver" not in operator.job_driver:
        return "its job is no spark-submit; give job_driver a sparkSubmitJobDriver"
    if (operator.job_retry_max_attempts or 1) > 1:
        return (
            "job_retry_max_attempts starts a second driver for the same attempt; take it out and use Airflow's retries"
        )
    return None


def spark_version(operator: Any) -> str | None:
    return f"3.4 or older of {operator.release_label}" if _TOO_OLD.match(operator.release_label) else None


def hand_over(operator: Any, handing: Handing) -> None:
    operator.job_driver = driver = copy.deepcopy(operator.job_driver)
    submit = driver["sparkSubmitJobDriver"]
    submit["sparkSubmitParameters"] = with_conf(submit.get("sparkSubmitParameters"), handing.conf)
    operator.client_request_token = handing.token
