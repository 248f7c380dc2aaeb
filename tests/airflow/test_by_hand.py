"""A person tries a DAG by Airflow's own `dag.test()`, without a scheduler, in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.delivering.feed import Reporting
from tests.support.airflow import LONG, REPORTING
from tests.support.counting import Counting
from tests.support.postgresql import PostgreSQL

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

NAMESPACE = "by_hand"


@pytest.mark.timeout(LONG)
@pytest.mark.drawn("stories of Airflow")
@pytest.mark.touches("operators/_waiting.py", "triggers/barrier.py")
def test_a_run_whose_job_waits_reaches_commit(
    counting: Counting, spark_server: SparkServer, postgresql: PostgreSQL
) -> None:
    reporting, airflow = Reporting(postgresql.url(REPORTING)), counting.airflow
    counting.create("events", "totals")
    reporting.run("CREATE TABLE by_hand (k integer, n bigint PRIMARY KEY)")
    # the scheduler begins a day, and leaves everything else alone: what runs goes on
    held = counting.tell("hold", "total", 1)
    airflow.unpause(NAMESPACE)
    airflow.until(lambda: counting.states() and counting.attempts(1, "total") == ["RUNNING"], "total to run")
    airflow.pause(NAMESPACE)

    with airflow.commanded("dags test", "dags", "test", NAMESPACE, "2025-01-01T12:00:00+00:00") as (trying, said):

        def waits() -> bool:
            assert trying.poll() is None, said.read_text()[-3000:]
            return "running trigger in line" in said.read_text().partition(f"starting task_id={NAMESPACE}.total")[2]

        airflow.until(waits, "the job to be deferred")
        assert counting.states() == {1: "OPEN", 2: "OPEN"}
        assert counting.attempts(2, "total") == ["REQUESTED"]
        held.unlink()
        airflow.until(lambda: trying.poll() is not None, "the run to end")
        assert trying.returncode == 0, said.read_text()[-3000:]
    assert counting.states() == {1: "COMMIT", 2: "COMMIT"}
    assert counting.attempts(2, "total") == ["PROCESSED"]
    assert counting.totals("totals") == [1, 11]
    assert sorted(reporting.run("SELECT n FROM by_hand")) == [(1,), (10,)]
    run = airflow.runs(NAMESPACE)[-1]
    assert (run["run_type"], run["triggered_by"], run["state"]) == ("manual", "test", "success")
    states = {task: one["state"] for task, one in airflow.tasks(NAMESPACE, run["dag_run_id"]).items()}
    assert states == {
        counting.task(task): "success" for task in ("start", "load", "total", "commit", "deliver_by_hand")
    }
