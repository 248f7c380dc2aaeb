"""A person backfills two days of a running schedule in a revision; our own cascade does the rest, in both DAGs."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.protocol.errors import UnknownTopologyError
from airflow_barrier.protocol.revisions import RevisionState
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.counting import Counting
from tests.support.lineage import Told, ends_of

NAMESPACE = "revising"
#: The last day is at work while the revision begins.
DAYS = 5
CORRECTED = (2, 3)
TOTALS = [1, 11, 111, 1111, 11111]
REVISED = [1, 31, 331, 1331, 11331]


def backfill(counting: Counting, days: tuple[int, ...], conf: dict[str, Any] | None) -> None:
    """What `airflow backfill create` asks for; the logical dates are those of the days' runs."""
    airflow = counting.airflow
    _wait_for_its_end(airflow)
    runs = airflow.run_ids(NAMESPACE)[days[0] - 1 : days[-1]]
    body = {**_body(airflow, runs), "dag_run_conf": conf or {}}
    airflow.api.post("/backfills", json=body).raise_for_status()


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_two_days_are_corrected_while_the_schedule_goes_on(counting: Counting) -> None:
    counting.create("events", "mirror", "totals")
    airflow, meta = counting.airflow, counting.deployment.meta
    held, until_member = (counting.tell("hold", "load", day) for day in (DAYS, 1))
    airflow.unpause("revising")
    airflow.unpause("revising_member")
    # three runs are at work at once, so the last days open with its job
    airflow.until(lambda: "mirror" in _jobs(counting), "the other DAG to join")
    until_member.unlink()
    airflow.until(lambda: counting.states() == {**dict.fromkeys(range(1, DAYS), "COMMIT"), DAYS: "OPEN"}, "four days")
    assert counting.totals("totals") == TOTALS[:-1]
    runs = airflow.run_ids("revising")
    for run in runs[:-1]:
        airflow.wait_for_run("revising", run)
    for run in airflow.run_ids("revising_member")[:-1]:
        airflow.wait_for_run("revising_member", run)

    for day in CORRECTED:
        (airflow.folder / f"corrected-revising-{day}").write_text("3")
    plan = plan_revision(counting.deployment, Wanted(NAMESPACE, *CORRECTED))
    revision = begin_revision(counting.deployment, plan, reason="wrong amounts", actor="test")
    backfill(counting, CORRECTED, {"barrier_revision": revision.revision})

    # the last day is waited for: no later one may open
    airflow.until(lambda: meta.revisions.gatekeeper(NAMESPACE), "the gate to close")
    assert counting.totals("totals") == TOTALS[:-1]
    held.unlink()
    airflow.until(lambda: meta.revisions.get(NAMESPACE, revision.revision).state is RevisionState.COMMIT, "the swap")
    for run in runs:
        airflow.wait_for_run("revising", run)
    assert counting.totals("totals") == counting.totals("events") == REVISED
    # from the barrier on that the other DAG joined with, whichever that was
    member = counting.totals("mirror")
    assert [found for found in member if found] == REVISED[member.count(0) :]
    assert [counting.read_at("totals", day, 0) for day in CORRECTED] == TOTALS[1:3]
    assert counting.published("totals") == counting.published("mirror") == REVISED[-1]
    number = revision.revision
    revised = {f"b{day}.r{number}" for day in range(2, DAYS + 1)}
    airflow.until(lambda: revised <= counting.event_keys("totals"), "asset events of the revision")

    # OpenLineage is told by the task that published it, of the other DAG's table as well
    published = {
        f"revising.{table}": Told(DAYS, number, NAMESPACE, str(counting.snapshot(table, DAYS)))
        for table in ("events", "mirror", "totals")
    }
    commit = f"revising.{counting.task('commit')}"
    airflow.until(
        lambda: (
            published in [{name: told for (_, name), told in made.items()} for *_, made in ends_of(airflow, commit)]
        ),
        "the lineage of the revision",
    )

    _backfills_that_name_no_revision(counting, runs)


def _backfills_that_name_no_revision(counting: Counting, runs: list[str]) -> None:
    airflow, revisions = counting.airflow, counting.deployment.meta.revisions
    start, total, commit = (counting.task(task) for task in ("start", "total", "commit"))
    days, (first, *_) = runs[CORRECTED[0] - 1 : CORRECTED[-1]], runs[CORRECTED[0] - 1 :]
    by_hand = revisions.newest(NAMESPACE, 1)[0].revision

    # another DAG would compute again, too: its plan is explained, and nothing is changed
    attempts = [counting.attempts(day, "load") for day in range(1, DAYS + 1)]
    backfill(counting, CORRECTED[:1], None)
    airflow.wait_for_task("revising", first, start, "skipped")
    airflow.wait_for_run("revising", first)
    said = airflow.log("revising", first, start)
    for sentence in (
        "computed again: revising.mirror by job mirror of DAG revising_member",
        "since DAG revising_member would compute again, too",
        "airflow-barrier revision run revising --from 2 --to 2",
        "revise",
    ):
        assert sentence in said, said
    assert [counting.attempts(day, "load") for day in range(1, DAYS + 1)] == attempts
    assert revisions.newest(NAMESPACE, 1)[0].revision == by_hand

    # a plan that cannot be fails the run, and holds up no later one
    backfill(counting, CORRECTED[:1], {"barrier_jobs": ["nothing"]})
    airflow.wait_for_task("revising", first, commit, "failed")
    assert "corrects nothing" in airflow.log("revising", first, commit)
    assert airflow.state("revising", first, start) == "success"

    # this DAG's own job is computed again by the backfill itself, until that is cancelled
    held = counting.tell("hold", "total", CORRECTED[0])
    own = {"barrier_jobs": ["total"]}
    backfill(counting, CORRECTED, own)
    airflow.wait_for_task("revising", first, total, "running")
    revision = airflow.until(lambda: revisions.under_way(NAMESPACE), "the backfill's revision")
    assert (revision.first_barrier, revision.window_end, revision.jobs) == (*CORRECTED, ("total",))
    assert revision.actor.startswith("backfill ")
    asked = airflow.runs("revising")[CORRECTED[0] - 1]["conf"]["barrier_backfill"]
    assert airflow.api.post("/backfills", json={**_body(airflow, days), "dag_run_conf": own}).status_code == 409
    airflow.api.put(f"/backfills/{asked['id']}/cancel").raise_for_status()
    airflow.until(lambda: revisions.under_way(NAMESPACE) is None, "it to be cancelled with the backfill")
    assert revisions.get(NAMESPACE, revision.revision).state is RevisionState.CANCELLED
    held.unlink()
    for run in days:
        airflow.until(lambda run=run: _state(airflow, run) in ("success", "failed"), f"{run} to end")

    # and again, to the end; the days up to the head follow
    backfill(counting, CORRECTED, own)
    published = revision.revision + 1
    airflow.until(
        lambda: (
            (found := revisions.newest(NAMESPACE, 1)[0]).revision == published and found.state is RevisionState.COMMIT
        ),
        "the backfill's revision to be published",
    )
    for run in runs:
        airflow.wait_for_run("revising", run)
    assert counting.totals("totals") == REVISED
    assert {barrier.computed_in for barrier in counting.deployment.meta.answers.readable(NAMESPACE)[1:]} == {published}

    # a clear is none: nothing is computed again
    _wait_for_its_end(airflow)
    airflow.clear("revising", first, start)
    airflow.wait_for_run("revising", first)
    assert "backfill that day of DAG revising" in airflow.log("revising", first, total)
    assert "barrier_backfill" not in airflow.runs("revising")[CORRECTED[0] - 1]["conf"]
    assert revisions.newest(NAMESPACE, 1)[0].revision == published


def _jobs(counting: Counting) -> set[str]:
    try:
        return {job.name for job in counting.deployment.meta.topologies.get(NAMESPACE).jobs}
    except UnknownTopologyError:
        return set()


def _wait_for_its_end(airflow: AirflowUnderTest) -> None:
    """Airflow takes no other one until the scheduler, which looks every 30 seconds, has marked it as completed."""
    airflow.until(
        lambda: all(one["completed_at"] for one in airflow.get("/backfills", dag_id=NAMESPACE)["backfills"]),
        "no backfill to be active",
    )


def _body(airflow: AirflowUnderTest, runs: list[str]) -> dict[str, Any]:
    dates = {run["dag_run_id"]: run["logical_date"] for run in airflow.runs(NAMESPACE)}
    return {
        "dag_id": NAMESPACE,
        "from_date": dates[runs[0]],
        "to_date": dates[runs[-1]],
        "reprocess_behavior": "completed",
    }


def _state(airflow: AirflowUnderTest, run: str) -> str:
    return str(airflow.get(f"/dags/{NAMESPACE}/dagRuns/{run}")["state"])
