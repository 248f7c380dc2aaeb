"""A person backfills two days of a running schedule in a revision; our own cascade does the rest, in both DAGs."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.protocol.revisions import RevisionState
from tests.support.airflow import LONG
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
    # Airflow refuses a second one until the scheduler, which looks every 30 seconds, has marked the first as completed
    airflow.until(
        lambda: all(one["completed_at"] for one in airflow.get("/backfills", dag_id=NAMESPACE)["backfills"]),
        "no backfill to be active",
    )
    runs = sorted(airflow.runs(NAMESPACE), key=lambda run: run["logical_date"])
    body = {
        "dag_id": NAMESPACE,
        "from_date": runs[days[0] - 1]["logical_date"],
        "to_date": runs[days[-1] - 1]["logical_date"],
        "reprocess_behavior": "completed",
        "dag_run_conf": conf or {},
    }
    airflow.api.post("/backfills", json=body).raise_for_status()


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_two_days_are_corrected_while_the_schedule_goes_on(counting: Counting) -> None:
    counting.create("events", "mirror", "totals")
    airflow, meta = counting.airflow, counting.deployment.meta
    held = counting.tell("hold", "load", DAYS)
    airflow.unpause("revising")
    airflow.unpause("revising_member")
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

    # a backfill that names no revision changes nothing, and says how
    attempts = [counting.attempts(day, "load") for day in range(1, DAYS + 1)]
    backfill(counting, CORRECTED[:1], None)
    airflow.until(lambda: airflow.runs("revising")[0]["state"] == "success", "the run")
    run = runs[CORRECTED[0] - 1]
    airflow.until(
        lambda: (
            "airflow-barrier revision plan revising --from 2" in airflow.log("revising", run, counting.task("load"))
        ),
        "the sentence that says how",
    )
    airflow.wait_for_run("revising", run)
    assert [counting.attempts(day, "load") for day in range(1, DAYS + 1)] == attempts
