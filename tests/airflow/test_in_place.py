"""The job that completes a barrier commits it, and the commit task says what else there is to say."""

from __future__ import annotations

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers

NAMESPACE = "in_place"


@pytest.mark.every_landing
@pytest.mark.timeout(LONG)
def test_the_last_job_commits(counting: Counting) -> None:
    """One story of three barriers: the commit task ended by hand, then as it is meant, then with nothing to commit."""
    counting.create("events", "totals")
    airflow = counting.airflow
    holds = {number: counting.tell("hold", "load", number) for number in (1, 2, 3)}
    airflow.unpause("in_place")
    first = next_run(counting, 1)
    # a person ends the commit task before there is anything to commit; the jobs go on
    airflow.mark("in_place", first, counting.task("commit"), "success")
    holds[1].unlink()
    airflow.wait_for_run("in_place", first)
    assert counting.states() == {1: "COMMIT"}
    assert counting.published("totals") == sum_of_barriers(1)
    assert counting.event_keys("totals") == set()

    second = next_run(counting, 2)
    holds[2].unlink()
    airflow.wait_for_run("in_place", second)
    # the event that was swallowed comes with the next
    assert counting.event_keys("totals") == counting.event_keys("events") == {"b1.r0", "b2.r0"}
    for number in (1, 2):
        (committed,) = [e for e in counting.deployment.meta.audit.newest("in_place", number) if e.event == "commit"]
        assert committed.actor.endswith(f"/{counting.task('total')}#1")

    third = next_run(counting, 3)
    counting.write("events", 7)
    holds[3].unlink()
    airflow.wait_for_run("in_place", third, "failed")
    states = {task: airflow.state("in_place", third, counting.task(task)) for task in ("load", "total", "commit")}
    assert states == {"load": "success", "total": "success", "commit": "failed"}
    said = airflow.log("in_place", third, counting.task("total"))
    assert "is left to in_place.commit: ForeignWriteError" in said
    assert "in_place.events" in airflow.log("in_place", third, counting.task("commit"))
    assert {n: state for n, state in counting.states().items() if n > 1} == {2: "COMMIT", 3: "PRECOMMIT"}
    assert counting.event_keys("totals") == {"b1.r0", "b2.r0"}


def next_run(counting: Counting, number: int) -> str:
    run: str = counting.airflow.until(lambda: counting.airflow.run_ids("in_place")[number - 1 :], f"run {number}")[0]
    counting.airflow.until(lambda: counting.attempts(number, "load") == ["RUNNING"], f"load to run at {number}")
    return run
