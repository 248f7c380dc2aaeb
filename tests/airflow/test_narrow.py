"""A DAG of one run at a time is revised: no run waits for one that needs its slot."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.revisions import RevisionState
from tests.support.airflow import LONG
from tests.support.counting import Counting

NAMESPACE = "narrow"
DAYS = 3


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_dag_of_one_run_at_a_time_is_revised(counting: Counting) -> None:
    counting.create("events")
    airflow, revisions = counting.airflow, counting.deployment.meta.revisions
    airflow.unpause("narrow")
    first, second, third = airflow.wait_for_runs("narrow", DAYS)

    # a person has cleared the last day, which has not begun when the revision comes to it
    airflow.pause("narrow")
    airflow.clear("narrow", third, counting.task("load"))
    airflow.unpause("narrow_mend")
    mend = airflow.trigger("narrow_mend")
    airflow.until(lambda: airflow.get(f"/dags/narrow/dagRuns/{second}")["state"] == "queued", "the day to be woken")
    airflow.unpause("narrow")

    assert airflow.wait_for_task("narrow", second, counting.task("start"), "success", "failed") == "success"
    for run in (second, third):
        airflow.wait_for_run("narrow", run)
    airflow.wait_for_run("narrow_mend", mend)
    assert revisions.get(NAMESPACE, 1).state is RevisionState.COMMIT
    assert [counting.deployment.meta.barriers.get(NAMESPACE, day).computed_in for day in range(1, DAYS + 1)] == [
        0,
        1,
        1,
    ]
    assert counting.totals("events") == [1, 11, 111]
    assert airflow.get(f"/dags/narrow/dagRuns/{first}")["state"] == "success"
