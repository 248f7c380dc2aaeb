"""A deploy that has reached some of the workers only."""

from __future__ import annotations

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting

NAMESPACE = "upgrading"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_worker_that_the_deploy_has_not_reached_gives_up_no_barrier(counting: Counting) -> None:
    counting.create("events", "mirror")
    airflow = counting.airflow
    deploy = counting.tell("hold", "deploy", 1)
    airflow.unpause("upgrading")
    airflow.until(lambda: len(airflow.runs("upgrading")) == 1, "the run")
    (run,) = airflow.run_ids("upgrading")
    airflow.wait_for_run("upgrading", run, "failed")
    assert airflow.state("upgrading", run, counting.task("load")) == "failed"
    assert "a newer one has upgraded the database" in airflow.log("upgrading", run, counting.task("load"))
    assert airflow.state("upgrading", run, counting.task("abort")) == "success"
    assert "upgrading.load failed since their workers" in airflow.log("upgrading", run, counting.task("abort"))
    assert counting.states() == {1: "OPEN"}

    # the worker is upgraded, and the job fails for a reason of its own
    deploy.unlink()
    broken = counting.tell("fail", "load", 1)
    airflow.clear("upgrading", run, counting.task("load"))
    airflow.wait_for_run("upgrading", run, "failed")
    broken.unlink()
    assert counting.states() == {1: "ABORTED"}
