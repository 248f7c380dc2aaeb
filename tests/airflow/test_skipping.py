"""A job that Airflow skips leaves no barrier open in a run that is success."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting

NAMESPACE = "skipping"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_skipped_job_fails_the_run_or_aborts_its_barrier(counting: Counting) -> None:
    airflow = counting.airflow
    given_up, left_out = (replace(counting, name=f"skipping_{kind}") for kind in ("abort", "all"))
    for topology in (counting, given_up, left_out):
        topology.create("events", "extra")
        airflow.unpause(topology.name)
    for topology in (counting, given_up, left_out):
        airflow.until(lambda name=topology.name: airflow.runs(name), "a run")  # type: ignore[misc]
    (blocked,), (aborted,), (empty,) = (airflow.run_ids(each.name) for each in (counting, given_up, left_out))

    airflow.wait_for_run("skipping", blocked, "failed")
    assert airflow.state("skipping", blocked, "skipping.extra") == "skipped"
    assert "found skipped: skipping.extra" in airflow.log("skipping", blocked, "skipping.commit")
    assert counting.states() == {1: "OPEN"}

    airflow.wait_for_run("skipping_abort", aborted)
    assert airflow.state("skipping_abort", aborted, "skipping_abort.commit") == "skipped"
    assert given_up.states() == {1: "ABORTED"}
    assert "skipping_abort.extra" in given_up.deployment.meta.barriers.get("skipping_abort", 1).reason

    airflow.wait_for_run("skipping_all", empty)
    assert airflow.state("skipping_all", empty, "skipping_all.commit") == "skipped"
    assert left_out.states() == {}

    (airflow.folder / "open-skipping").touch()
    airflow.clear("skipping", blocked, "gate")
    airflow.wait_for_run("skipping", blocked)
    assert counting.states() == {1: "COMMIT"}
    assert counting.published("extra") == 1
