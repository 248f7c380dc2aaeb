"""What a person does to tasks in Airflow, and what becomes of their barriers."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.levels import Level
from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers

NAMESPACE = "mending"


@pytest.mark.every_landing
@pytest.mark.timeout(LONG)
def test_clear_and_mark_success(counting: Counting) -> None:
    """One story, since each part needs the barriers before it: three barriers, all mended by hand."""
    counting.create("events", "totals")
    airflow = counting.airflow
    airflow.unpause("mending")
    first = airflow.until(lambda: airflow.run_ids("mending"), "a run of mending")[0]
    a_clear_restages_what_was_consumed(counting, first)
    second = a_commit_marked_success_is_made_up_for(counting, first)
    third = a_job_marked_success_is_named_by_what_follows(counting, second)
    a_clear_after_the_commit_does_nothing(counting, third)


def a_clear_restages_what_was_consumed(counting: Counting, run: str) -> None:
    airflow = counting.airflow
    load, total = counting.task("load"), counting.task("total")
    airflow.wait_for_task("mending", run, total, "success")
    assert counting.states() == {1: "PRECOMMIT"}
    assert counting.served(Level.READ_COMMITTED) == 1
    assert counting.served(Level.REPEATABLE_READ) == 0

    hold = counting.tell("hold", "load", 1)
    assert {load, total} <= set(airflow.clear("mending", run, load))
    airflow.until(lambda: counting.attempts(1, "load") == ["FENCED", "RUNNING"], "load to be staged anew")

    assert counting.attempts(1, "total") == ["VOIDED"]
    assert counting.states() == {1: "OPEN"}
    assert set(counting.table_states(1).values()) == {"PENDING"}
    assert counting.served(Level.READ_COMMITTED) == 0  # the fallback
    hold.unlink()
    airflow.until(lambda: counting.states() == {1: "PRECOMMIT"}, "the barrier to be PRECOMMIT again")
    assert counting.attempts(1, "load") == ["FENCED", "PROCESSED"]
    assert counting.attempts(1, "total") == ["VOIDED", "PROCESSED"]
    assert counting.total_at("totals", 1) == sum_of_barriers(1)


def a_commit_marked_success_is_made_up_for(counting: Counting, run: str) -> str:
    airflow = counting.airflow
    airflow.mark("mending", run, counting.task("commit"), "success")
    airflow.mark("mending", run, "gate", "success")
    airflow.wait_for_run("mending", run)
    assert counting.states() == {1: "PRECOMMIT"}
    assert counting.published("totals") == 0
    assert counting.event_keys("totals") == set()

    (airflow.folder / "gate-2025-01-02").touch()
    hold = counting.tell("hold", "load", 3)
    second = airflow.until(lambda: airflow.run_ids("mending")[1:], "the second run")[0]
    airflow.wait_for_run("mending", second)
    assert {n: state for n, state in counting.states().items() if n < 3} == {1: "COMMIT", 2: "COMMIT"}
    assert counting.published("totals") == sum_of_barriers(2)
    # the event that was swallowed comes with the next
    assert counting.event_keys("totals") == {"b1.r0", "b2.r0"}
    assert hold.exists()
    return second


def a_job_marked_success_is_named_by_what_follows(counting: Counting, second: str) -> str:
    airflow = counting.airflow
    load, total, commit = (counting.task(name) for name in ("load", "total", "commit"))
    third = airflow.until(lambda: airflow.run_ids("mending")[2:], "the third run")[0]
    assert third != second
    airflow.until(lambda: counting.attempts(3, "load") == ["RUNNING"], "load to run at barrier 3")

    airflow.mark("mending", third, load, "success")
    airflow.wait_for_task("mending", third, total, "failed")
    said = airflow.log("mending", third, total)
    assert "NotProcessedError" in said
    assert "mending.events at barrier 3 (job load)" in said
    airflow.until(lambda: counting.attempts(3, "load") == ["ABORTED"], "the marked job's attempt to be given up")
    # a mark clears what failed for want of the task: before the scheduler has said so, it finds nothing to clear
    airflow.wait_for_run("mending", third, "failed")

    airflow.mark("mending", third, total, "success")
    airflow.mark("mending", third, "gate", "success")
    airflow.wait_for_run("mending", third, "failed")
    said = airflow.log("mending", third, commit)
    assert "mending.events (job load), mending.totals (job total)" in said
    assert counting.states()[3] == "OPEN"

    (airflow.folder / "gate-2025-01-03").touch()
    (airflow.folder / "hold-mending-load-3").unlink()
    airflow.clear("mending", third, load)
    airflow.wait_for_run("mending", third)
    assert counting.states() == dict.fromkeys((1, 2, 3), "COMMIT")
    assert [counting.total_at("totals", n) for n in (1, 2, 3)] == [sum_of_barriers(n) for n in (1, 2, 3)]
    return third


def a_clear_after_the_commit_does_nothing(counting: Counting, run: str) -> None:
    airflow = counting.airflow
    before = counting.deployment.tables.mains(["mending.events", "mending.totals"])
    cleared = counting.task("total")
    airflow.clear("mending", run, cleared)
    airflow.wait_for_run("mending", run)
    assert "clearing changes nothing about them" in airflow.log("mending", run, cleared)
    assert counting.deployment.tables.mains(["mending.events", "mending.totals"]) == before
