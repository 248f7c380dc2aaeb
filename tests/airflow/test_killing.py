"""Marking a task failed ends its Spark work, however it was handed over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers
from tests.support.waiting import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "killing"


@pytest.mark.every_landing
@pytest.mark.timeout(LONG)
def test_marked_failed_leaves_no_spark_work(counting: Counting, spark: SparkSession, spark_ui: str) -> None:
    counting.create_by(spark, "connected", "submitted")
    airflow = counting.airflow
    airflow.unpause("killing")
    run = airflow.until(lambda: airflow.run_ids("killing"), "a run of killing")[0]
    on_connect, by_submit = counting.task("on_connect"), counting.task("by_submit")
    for task in (on_connect, by_submit):
        airflow.wait_for_task("killing", run, task, "running")
    connected = airflow.until(lambda: branch_of(counting, "on_connect"), "an attempt of on_connect")
    airflow.until(lambda: running_jobs(spark_ui, connected), "Spark work on the Connect server")
    drivers = airflow.until(lambda: processes_that_say("endless_by_submit.py"), "the driver that was submitted")

    airflow.mark("killing", run, by_submit, "failed")
    airflow.until(lambda: not processes_that_say("endless_by_submit.py"), f"the drivers {drivers} to be gone")
    assert running_jobs(spark_ui, connected)  # the other one is nobody's fault
    airflow.until(lambda: counting.attempts(1, "by_submit") == ["ABORTED"], "its attempt to be given up")

    airflow.mark("killing", run, on_connect, "failed")
    airflow.until(lambda: not running_jobs(spark_ui, connected), "the Spark work on the Connect server to end")
    airflow.until(lambda: counting.attempts(1, "on_connect") == ["ABORTED"], "its attempt to be given up")
    airflow.wait_for_run("killing", run, "failed")
    assert counting.states() == {1: "OPEN"}  # on_failure="block": it waits for a person
    assert counting.published("connected") == 0


def branch_of(counting: Counting, job: str) -> str | None:
    """The branch of the job's attempt, which tags its work on the Connect server."""
    attempt = counting.deployment.meta.attempts.current("killing", 1, job)
    return attempt and attempt.branch


def running_jobs(spark_ui: str, tag: str) -> list[object]:
    """What the Connect server's own pages call running of what bears the tag."""
    api = f"{spark_ui}/api/v1/applications"
    (application,) = httpx.get(api, timeout=patience()).raise_for_status().json()
    found = httpx.get(f"{api}/{application['id']}/jobs", params={"status": "running"}, timeout=patience())
    return [job for job in found.raise_for_status().json() if any(tag in one for one in job.get("jobTags", []))]


def processes_that_say(text: str) -> list[int]:
    """Processes of this machine with ``text`` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        if text in command:
            found.append(int(entry.name))
    return found


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_jobs_that_are_submitted_take_part(counting: Counting, spark: SparkSession) -> None:
    submitted = Counting("submitted", counting.airflow, counting.deployment)
    submitted.create_by(spark, "events", "totals")
    submitted.airflow.unpause("submitted")
    run = submitted.airflow.trigger("submitted")
    submitted.airflow.wait_for_run("submitted", run)
    assert submitted.airflow.tasks("submitted", run)[submitted.task("load")]["operator"] == "SparkSubmitOperator"
    assert submitted.published("events") == sum_of_barriers(1)
    assert submitted.published("totals") == sum_of_barriers(1)
    assert submitted.states() == {1: "COMMIT"}
    # the DAG wants manual runs to open barriers, at the only time that such a run has
    barrier = submitted.deployment.meta.barriers.get("submitted", 1)
    assert (barrier.timestamp_from, barrier.run.kind) == ("run_after", "manual")
