"""What leaves the lake by tasks of a group: whole, then what comes, and a sink that cannot take it alone is red."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from tests.delivering.feed import Reporting
from tests.support.airflow import LINEAGE, LONG, REPORTING
from tests.support.counting import Counting
from tests.support.postgresql import PostgreSQL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "delivering"
#: (namespace, name) -> barrier, revision, topology and snapshot
Datasets = dict[tuple[str, str], tuple[int, int, str, str | None]]


@pytest.mark.timeout(LONG)
@pytest.mark.drawn("stories of Airflow")
@pytest.mark.touches("operators/deliver.py", "operators/start.py", "coordinator/delivering.py", "spark/delivering.py")
def test_tables_are_delivered_by_tasks(counting: Counting, spark: SparkSession, postgresql: PostgreSQL) -> None:
    reporting, airflow = Reporting(postgresql.url(REPORTING)), counting.airflow
    counting.create("events")
    reporting.run("CREATE TABLE events (k integer, n bigint PRIMARY KEY)")
    holds = {number: counting.tell("hold", "load", number) for number in (1, 2, 3)}
    airflow.unpause("delivering")
    first = airflow.until(lambda: airflow.run_ids("delivering"), "the first run")[0]
    # no barrier is opened before the sinks can take their tables
    # cleared before that, its other tasks may still become upstream_failed
    airflow.wait_for_run("delivering", first, "failed")
    said = airflow.log("delivering", first, counting.task("start"))
    assert "target public.log of delivering.events: expected a table, found none; create it" in said
    assert "delivering" not in counting.deployment.meta.topologies.names()
    reporting.run("CREATE TABLE log (k integer, n bigint)")
    airflow.clear("delivering", first, counting.task("start"), include_downstream=True)
    holds[1].unlink()
    airflow.wait_for_run("delivering", first)
    # later on a sink holds up itself alone
    reporting.run("ALTER TABLE log RENAME TO away")
    holds[2].unlink()
    second = airflow.until(lambda: airflow.run_ids("delivering")[1:], "the second run")[0]
    airflow.wait_for_run("delivering", second, "failed")
    tasks = ("load", "commit", "deliver_events", "deliver_log")
    states = {task: airflow.state("delivering", second, counting.task(task)) for task in tasks}
    assert states == {"load": "success", "commit": "success", "deliver_events": "success", "deliver_log": "failed"}
    assert sorted(reporting.run("SELECT n FROM events")) == [(1,), (10,)]
    reporting.run("ALTER TABLE away RENAME TO log")
    holds[3].unlink()
    third = airflow.until(lambda: airflow.run_ids("delivering")[2:], "the third run")[0]
    airflow.wait_for_run("delivering", third)
    assert sorted(reporting.run("SELECT n FROM events")) == sorted(reporting.run("SELECT n FROM log"))
    assert sorted(reporting.run("SELECT n FROM log")) == [(1,), (10,), (100,)]
    told = airflow.log("delivering", airflow.run_ids("delivering")[2], counting.task("deliver_events"))
    assert "Delivered barrier 3 of delivering" in told
    # each line of a job's log says which attempt it is about
    (attempt,) = counting.deployment.meta.attempts.of("delivering", 3)
    lines = json.loads(airflow.log("delivering", third, counting.task("load")))
    (closed,) = [line for line in lines if " is PROCESSED; " in line["event"]]
    assert (closed["topology"], closed["barrier"], closed["attempt"]) == ("delivering", 3, attempt.attempt_id)
    assert {e["partition_key"] for e in events_of(counting, "events")} == {"b1.r0", "b2.r0", "b3.r0"}
    assert {e["partition_key"] for e in events_of(counting, "log")} == {"b1.r0", "b2.r0", "b3.r0"}
    where = make_url(postgresql.url(REPORTING))
    outside = (f"postgres://{where.host}:{where.port}", f"{where.database}.public.events")
    warehouse = counting.deployment.tables.load("delivering.events").location().rpartition("/delivering")[0]
    at_barrier = (3, 0, "delivering", str(counting.snapshot("events", 3)))
    table = {(warehouse, "delivering.events"): at_barrier}
    assert lineage_of(counting, third, "load") == ({}, table)
    assert lineage_of(counting, third, "commit") == ({}, table)
    assert lineage_of(counting, third, "deliver_events") == (table, {outside: (3, 0, "delivering", None)})
    # what a task that failed has not made is not said
    assert lineage_of(counting, second, "deliver_log", "FAIL") == ({}, {})


def lineage_of(counting: Counting, run_id: str, task: str, kind: str = "COMPLETE") -> tuple[Datasets, Datasets]:
    """What OpenLineage was told at the end of a task: datasets that it read, and that it made."""
    lines = (counting.airflow.home / LINEAGE).read_text().splitlines()
    ends = [event for event in map(json.loads, lines) if event["eventType"] == kind]
    (end,) = (
        event
        for event in ends
        if event["job"]["name"] == f"delivering.{counting.task(task)}"
        and event["run"]["facets"]["airflow"]["dagRun"]["run_id"] == run_id
    )
    return _datasets(end["inputs"]), _datasets(end["outputs"])


def _datasets(told: list[dict[str, Any]]) -> Datasets:
    return {(each["namespace"], each["name"]): _place(**each["facets"]) for each in told}


def _place(barrier: dict[str, Any], version: dict[str, Any] | None = None) -> tuple[int, int, str, str | None]:
    snapshot = None if version is None else version["datasetVersion"]
    return barrier["barrier"], barrier["revision"], barrier["topology"], snapshot


def events_of(counting: Counting, sink: str) -> list[dict[str, str]]:
    uri = f"barrier://{counting.name}/sink/{sink}"
    (asset,) = [one for one in counting.airflow.get("/assets", uri_pattern=uri)["assets"] if one["uri"] == uri]
    found: list[dict[str, str]] = counting.airflow.get("/assets/events", asset_id=asset["id"])["asset_events"]
    return found
