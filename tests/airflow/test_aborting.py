"""With on_failure="abort" a failed job takes its barrier with it, and the next one goes on without."""

from __future__ import annotations

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting

NAMESPACE = "aborting"


@pytest.mark.every_landing
@pytest.mark.timeout(LONG)
def test_the_next_barrier_goes_on(counting: Counting) -> None:
    counting.create("events")
    airflow = counting.airflow
    counting.tell("fail", "load", 1)
    airflow.unpause("aborting")
    airflow.until(lambda: len(airflow.runs("aborting")) == 2, "both runs")
    first, second = airflow.run_ids("aborting")
    airflow.wait_for_run("aborting", first, "failed")
    airflow.wait_for_run("aborting", second)
    assert counting.states() == {1: "ABORTED", 2: "COMMIT"}
    aborted = counting.deployment.meta.barriers.get("aborting", 1)
    assert aborted.reason == f"run {first} of aborting failed"
    committed = counting.deployment.meta.barriers.get("aborting", 2)
    assert committed.predecessor == 0
    assert counting.published("events") == 10
    assert airflow.state("aborting", second, counting.task("abort")) == "skipped"

    # its time has passed: the run cannot open a barrier before the newest one
    airflow.clear("aborting", first, counting.task("start"))
    airflow.wait_for_run("aborting", first, "failed")
    said = airflow.log("aborting", first, counting.task("start"))
    assert "BarrierOrderError" in said
    assert "2025-01-01" in said
    assert "2025-01-02" in said
    assert counting.states() == {1: "ABORTED", 2: "COMMIT"}
