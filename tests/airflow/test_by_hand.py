"""A person tries a DAG by Airflow's own `dag.test()`, without a scheduler, in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from airflow_barrier.metaservice import schema
from tests.delivering.feed import Reporting
from tests.support.airflow import LONG, REPORTING
from tests.support.counting import Counting
from tests.support.postgresql import PostgreSQL

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

NAMESPACE = "by_hand"


@pytest.mark.timeout(LONG)
@pytest.mark.drawn("stories of Airflow")
@pytest.mark.touches("operators/_waiting.py", "operators/_conf.py", "coordinator/rehearsing.py", "triggers/barrier.py")
def test_a_run_that_publishes_and_runs_that_rehearse(
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

    day = ["dags", "test", NAMESPACE, "2025-01-01T12:00:00+00:00", "--conf", '{"barrier_rehearsal": false}']
    with airflow.commanded("dags test", *day) as (trying, said):

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
    rehearsals_leave_nothing(counting, reporting)


def everything(counting: Counting) -> dict[str, object]:
    """All that is known of the topology and its tables, and what the tables' names lead to."""
    meta, tables = counting.deployment.meta, counting.deployment.tables
    rows = {
        table.name: meta.query(lambda c, table=table: sorted(map(str, c.execute(select(table)).all())))  # type: ignore[misc]
        for table in schema.metadata.sorted_tables
    }
    names = [f"{NAMESPACE}.events", f"{NAMESPACE}.totals"]
    refs = {name: {k: v.snapshot_id for k, v in tables.load(name).metadata.refs.items()} for name in names}
    specs = sorted(map(str, Path(tables.location("_barrier").removeprefix("file://")).glob(f"{NAMESPACE}*")))
    return {**rows, "refs": refs, "specs": specs}


def rehearsals_leave_nothing(counting: Counting, reporting: Reporting) -> None:
    airflow, meta = counting.airflow, counting.deployment.meta
    airflow.unpause(NAMESPACE)
    airflow.wait_for_run(NAMESPACE, airflow.run_ids(NAMESPACE)[0])  # the day of the schedule ends
    airflow.pause(NAMESPACE)  # or the scheduler would take tasks of `dags test`
    before, delivered = everything(counting), sorted(reporting.run("SELECT n FROM by_hand"))
    keys = counting.event_keys("totals")
    evening = ("dags", "test", NAMESPACE, "2025-01-01T18:00:00+00:00")
    held = counting.tell("hold", "total", 3)
    with airflow.commanded("rehearsal", *evening) as (trying, said):

        def is_at_work() -> bool:
            assert trying.poll() is None, said.read_text()[-3000:]
            at = [replace(counting, name=each.topology) for each in meta.rehearsals.of(NAMESPACE)]
            return [each.attempts(3, "total") for each in at] == [["RUNNING"]]

        airflow.until(is_at_work, "the rehearsal's second job")
        assert meta.topologies.names().count(NAMESPACE) == 1
        assert counting.states() == {1: "COMMIT", 2: "COMMIT"}
    assert everything(counting) != before  # it was killed
    held.unlink()
    with airflow.commanded("rehearsed", *evening) as (trying, said):
        airflow.until(lambda: trying.poll() is not None, "the rehearsal to end")
        assert trying.returncode == 0, said.read_text()[-3000:]
    log = said.read_text()
    assert "by_hand.totals: 3 rows after 2 would be published, by job total; its files gain 1 rows" in log
    assert "sink by_hand would receive by_hand.totals" in log
    assert everything(counting) == before

    # by the box of the form for a run
    airflow.unpause(NAMESPACE)
    run = airflow.trigger(NAMESPACE, logical_date="2025-01-01T16:00:00+00:00", conf={"barrier_rehearsal": True})
    airflow.wait_for_run(NAMESPACE, run)
    states = {task: one["state"] for task, one in airflow.tasks(NAMESPACE, run).items()}
    assert states.pop(counting.task("deliver_by_hand")) == "skipped"
    assert set(states.values()) == {"success"}
    assert "3 rows after 2 would be published" in airflow.log(NAMESPACE, run, counting.task("commit"))
    assert everything(counting) == before
    assert counting.event_keys("totals") == keys
    assert sorted(reporting.run("SELECT n FROM by_hand")) == delivered

    # before the first barrier there is nothing to build on, which its commit task says
    run = airflow.trigger(NAMESPACE, logical_date="2024-12-31T18:00:00+00:00", conf={"barrier_rehearsal": True})
    airflow.wait_for_run(NAMESPACE, run, "failed")
    assert airflow.state(NAMESPACE, run, counting.task("start")) == "skipped"
    refused = "expected a barrier before it that is COMMIT, which it is built on, found none"
    assert refused in airflow.log(NAMESPACE, run, counting.task("commit"))
    assert everything(counting) == before
