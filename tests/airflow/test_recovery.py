"""A job fails while others go on; scheduler and triggerer die while tasks wait; then all of it recovers."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.levels import Level
from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers

NAMESPACE = "recovery"
DAYS = 4
FAILS_AT = 2


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_failed_job_is_cleared_after_scheduler_and_triggerer_died(counting: Counting) -> None:
    counting.create("events", "mirror", "totals")
    airflow = counting.airflow
    failure = counting.tell("fail", "mirror", FAILS_AT)
    airflow.unpause("recovery_reader")
    airflow.until(lambda: airflow.runs("recovery_reader"), "the run of recovery_reader")
    (reader,) = airflow.run_ids("recovery_reader")
    sensors = ("mirrored", "committed")
    for sensor in sensors:  # before their barrier is open, which they cannot link to yet
        airflow.wait_for_task("recovery_reader", reader, sensor, "deferred")
        assert airflow.link("recovery_reader", reader, sensor) is None
    airflow.unpause("recovery")

    # the others reach the last barrier: two further than the job that failed
    airflow.until(lambda: len(airflow.runs("recovery")) == DAYS, "all runs of recovery")
    runs = airflow.run_ids("recovery")
    for run in runs:
        for job in ("load", "total"):
            airflow.wait_for_task("recovery", run, counting.task(job), "success")
    airflow.wait_for_run("recovery", runs[FAILS_AT - 1], "failed")
    assert airflow.state("recovery", runs[FAILS_AT - 1], counting.task("mirror")) == "failed"
    assert airflow.state("recovery", runs[FAILS_AT - 1], counting.task("commit")) == "upstream_failed"
    airflow.wait_for_task("recovery", runs[0], counting.task("commit"), "success")
    assert counting.states() == {1: "COMMIT", 2: "OPEN", 3: "OPEN", 4: "OPEN"}
    assert counting.attempts(FAILS_AT, "mirror") == ["ABORTED"]
    # whoever looks is told at once: who, where, and where the log is
    told = airflow.api.get(f"{airflow.barriers}/barrier_default/topologies/recovery").json()
    (said,) = told["failed"]
    assert (told["health"], said["summary"]) == ("failing", "mirror (DAG recovery) failed at barrier 2, try 1 of 1")
    assert (said["task"]["run_id"], said["task"]["task_id"]) == (runs[FAILS_AT - 1], counting.task("mirror"))
    assert counting.served(Level.REPEATABLE_READ) == 1
    assert counting.published("mirror") == sum_of_barriers(1)
    assert counting.published("totals") == sum_of_barriers(1)

    # the job waits at the next barriers, and so does another DAG
    waiting = [(run, counting.task("mirror"), "recovery") for run in runs[FAILS_AT:]]
    waiting += [(reader, sensor, "recovery_reader") for sensor in sensors]
    for run, task, dag in waiting:
        airflow.wait_for_task(dag, run, task, "deferred")
    failed = (runs[FAILS_AT - 1], counting.task("mirror"), "recovery")
    airflow.until(
        lambda: all(airflow.link("recovery_reader", reader, sensor) for sensor in sensors),
        "sensors to link to the barrier that has opened since they were deferred",
    )
    links_to_their_barriers(counting, failed, *waiting)
    airflow.stop_component("triggerer", hard=True)
    airflow.stop_component("scheduler", hard=True)
    failure.unlink()
    airflow.clear("recovery", runs[FAILS_AT - 1], counting.task("mirror"))
    airflow.start_component("scheduler")
    airflow.wait_for_task("recovery", runs[FAILS_AT - 1], counting.task("mirror"), "success")
    assert [airflow.state(dag, run, task) for run, task, dag in waiting] == ["deferred"] * len(waiting)
    airflow.start_component("triggerer")

    for run in runs:
        airflow.wait_for_run("recovery", run)
    airflow.wait_for_run("recovery_reader", reader)
    assert counting.states() == dict.fromkeys(range(1, DAYS + 1), "COMMIT")
    tasks = [(run, counting.task(task), "recovery") for run in runs for task in ("start", "load", "mirror", "commit")]
    links_to_their_barriers(counting, *tasks)
    assert airflow.link("recovery_reader", reader, "precommitted") == airflow.link("recovery", *tasks[0][:2])
    for table in ("events", "mirror", "totals"):
        found = [counting.total_at(table, n) for n in range(1, DAYS + 1)]
        assert found == [sum_of_barriers(n) for n in range(1, DAYS + 1)], table
    assert counting.attempts(FAILS_AT, "mirror") == ["ABORTED", "PROCESSED"]
    # what the others had staged was neither lost nor done again
    assert [counting.attempts(n, "total") for n in range(1, DAYS + 1)] == [["PROCESSED"]] * DAYS


def links_to_their_barriers(counting: Counting, *tasks: tuple[str, str, str]) -> None:
    """Whatever the tasks are doing. Each run is of the day that is its barrier's number."""
    airflow = counting.airflow
    found = {each: airflow.link(each[2], each[0], each[1]) for each in tasks}
    days = {each: each[0].removeprefix("scheduled__2025-01-0")[0] for each in tasks}
    assert found == {each: airflow.page("recovery", f"barrier={day}") for each, day in days.items()}
