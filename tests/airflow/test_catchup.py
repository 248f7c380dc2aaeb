"""Runs that Airflow starts in any order open and commit their barriers in order."""

from __future__ import annotations

import httpx
import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers
from tests.support.waiting import patience

NAMESPACE = "catchup"
DAYS = 4


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_runs_that_start_in_any_order_are_barriers_in_order(counting: Counting) -> None:
    """One story, since a manual run and the link to a page are looked at when the barriers are there."""
    counting.create("events")
    counting.airflow.unpause("catchup")
    run_ids = counting.airflow.wait_for_runs("catchup", DAYS)
    each_run_is_one_barrier(counting, run_ids)
    a_job_links_to_the_page_of_its_barrier(counting, run_ids[0])
    a_manual_run_fails_and_says_why(counting)


def each_run_is_one_barrier(counting: Counting, run_ids: list[str]) -> None:
    meta = counting.deployment.meta
    barriers = [meta.barriers.get("catchup", number) for number in range(1, DAYS + 1)]
    assert [b.state.value for b in barriers] == ["COMMIT"] * DAYS
    assert meta.barriers.uncommitted("catchup") == []
    # barrier n is the n-th day's, and committed after the one before
    assert [str(b.run) for b in barriers] == [f"catchup/{run_id}" for run_id in run_ids]
    assert [b.timestamp.day for b in barriers] == list(range(1, DAYS + 1))
    commits = [b.commit_at for b in barriers if b.commit_at]
    assert commits == sorted(commits)
    assert len(commits) == DAYS
    assert {(b.timestamp_from, b.run.kind) for b in barriers} == {("data interval end", "scheduled")}
    # each epoch once in each barrier
    assert [counting.total_at("events", b.barrier_id) for b in barriers] == [
        sum_of_barriers(n) for n in range(1, DAYS + 1)
    ]
    assert counting.published("events") == sum_of_barriers(DAYS)
    assert counting.event_keys("events") == {f"b{n}.r0" for n in range(1, DAYS + 1)}


def a_manual_run_fails_and_says_why(counting: Counting) -> None:
    airflow = counting.airflow
    before = counting.states()
    run = airflow.trigger("catchup")
    airflow.wait_for_run("catchup", run, "failed")
    tasks = airflow.tasks("catchup", run)
    assert tasks[counting.task("start")]["state"] == "failed"
    assert {task["state"] for task in tasks.values()} <= {"failed", "upstream_failed", "skipped"}
    said = "expected a scheduled run, found a manual one: it opens no barrier of catchup"
    assert said in airflow.log("catchup", run, counting.task("start"))
    assert counting.states() == before


def a_job_links_to_the_page_of_its_barrier(counting: Counting, run_id: str) -> None:
    airflow = counting.airflow
    url = airflow.link("catchup", run_id, counting.task("load"))
    assert url == airflow.page("catchup", "barrier=1")
    barriers = f"{airflow.barriers}/barrier_default/topologies/catchup/barriers"
    assert httpx.get(f"{barriers}/1", timeout=patience()).status_code == 401
    told = airflow.api.get(f"{barriers}/1").raise_for_status().json()
    assert (told["barrier_id"], told["state"], told["run_id"]) == (1, "COMMIT", run_id)
    assert [(table["table"], table["state"]) for table in told["tables"]] == [("catchup.events", "written")]
    assert [(attempt["job"], attempt["state"]) for attempt in told["attempts"]] == [("load", "PROCESSED")]
    assert airflow.api.get(f"{barriers}/99").status_code == 404
