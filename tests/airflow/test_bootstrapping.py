"""Another team's job joins a schedule that is running, with its history, by what a person reads and types."""

from __future__ import annotations

import json
import shlex

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.revisions.bootstrap import says_that_it_waits
from airflow_barrier.coordinator.revisions.runs import AFTERWARDS
from airflow_barrier.protocol.revisions import RevisionState
from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers

NAMESPACE, LATE = "bootstrapping", "bootstrapping_late"
#: The last one comes while the history is computed.
DAYS = 4
COMMITTED = range(1, DAYS)
ASKED = [NAMESPACE, "--job", "total", "--accept-pause", "--reason", "sums of last week"]


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_job_of_another_team_joins_with_its_history(
    counting: Counting, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting.create("events", "totals")
    airflow, meta = counting.airflow, counting.deployment.meta
    airflow.unpause(NAMESPACE)
    airflow.until(lambda: len(airflow.runs(NAMESPACE)) == DAYS, "all runs")
    *runs, last = airflow.run_ids(NAMESPACE)
    for run in runs:
        airflow.wait_for_run(NAMESPACE, run)
    assert counting.states() == dict.fromkeys(COMMITTED, "COMMIT")

    # its DAG begins with the third day: of a barrier that is there its task says what to do, for the next one it waits
    airflow.unpause(LATE)
    airflow.until(lambda: len(airflow.runs(LATE)) == 2, "both runs of the other DAG")
    third, fourth = airflow.run_ids(LATE)
    task = counting.task("total")
    airflow.wait_for_run(LATE, third)
    assert airflow.state(LATE, third, task) == "skipped"
    assert says_that_it_waits(NAMESPACE, "total") in airflow.log(LATE, third, task)
    airflow.wait_for_task(LATE, fourth, task, "deferred")
    assert counting.totals("totals") == [0, 0, 0]

    # a person begins the revision; a day that comes now does not open a barrier
    for name, connection in airflow.connections.items():
        monkeypatch.setenv(name, connection)
    assert main(["revision", "run", *ASKED, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    number = told["revision"]["revision"]
    (airflow.folder / "bootstrapping-last-day").touch()
    airflow.wait_for_task(NAMESPACE, last, counting.task("start"), "skipped")
    airflow.wait_for_run(NAMESPACE, last)

    # and has Airflow compute it by the commands that were printed
    assert [each["backfill"]["dag_id"] for each in told["backfills"]] == [NAMESPACE, LATE]
    for each in told["backfills"]:
        airflow.command(*shlex.split(each["command"])[1:])
    airflow.until(lambda: meta.revisions.get(NAMESPACE, number).state is RevisionState.COMMIT, "the swap")

    # it is in every barrier, and an ordinary member of the one that was put off
    airflow.until(lambda: counting.states() == dict.fromkeys(range(1, DAYS + 1), "COMMIT"), "the last day")
    for run in (*runs, last):
        airflow.wait_for_run(NAMESPACE, run)
    for run in airflow.wait_for_runs(LATE, DAYS):
        assert airflow.state(LATE, run, task) == "success"
    from_the_beginning = [sum_of_barriers(day) for day in range(1, DAYS + 1)]
    assert counting.totals("totals") == counting.totals("events") == from_the_beginning
    assert counting.published("totals") == from_the_beginning[-1]
    assert [counting.read_at("totals", day, revision=0) for day in COMMITTED] == [0, 0, 0]
    assert counting.attempts(DAYS, "total") == ["PROCESSED"]

    # the task that published died before it had woken who was put off: its next try does
    commit = counting.task("commit")
    by = next(run for run in runs if "is COMMIT: readers see it" in airflow.log(NAMESPACE, run, commit))
    meta.revisions.bind_run(NAMESPACE, number, AFTERWARDS, NAMESPACE, last, None)
    airflow.clear(NAMESPACE, by, commit)
    airflow.wait_for_run(NAMESPACE, by)
    assert (NAMESPACE, last) not in {(run.dag_id, run.run_id) for run in meta.revisions.runs(NAMESPACE, number)}
    airflow.wait_for_run(NAMESPACE, last)
