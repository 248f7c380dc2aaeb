"""What leaves the lake by tasks of a group: whole, then what comes, and a sink that cannot take it alone is red."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from tests.delivering.feed import Reporting
from tests.support.airflow import LONG, REPORTING
from tests.support.counting import Counting
from tests.support.lineage import Datasets, Told, ends_of
from tests.support.postgresql import PostgreSQL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "delivering"


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
    location = counting.deployment.tables.load("delivering.events").location()
    at_barrier = Told(3, 0, "delivering", str(counting.snapshot("events", 3)))
    name = (location.rpartition("/delivering")[0], "delivering.events")
    table = {name: at_barrier}
    # by its folder Spark's own listener knows it
    folder = ("file", location.removeprefix("file://"))
    assert lineage_of(counting, third, "load") == [({}, {name: at_barrier._replace(folder=folder)})]
    assert lineage_of(counting, third, "commit") == [({}, table)]
    delivered = (table, {outside: Told(3, 0, "delivering")})
    assert lineage_of(counting, third, "deliver_events") == [delivered]
    # one that finds it delivered says what stands
    airflow.clear("delivering", third, counting.task("deliver_events"))
    airflow.until(lambda: len(lineage_of(counting, third, "deliver_events")) == 2, "the second try's lineage")
    airflow.wait_for_run("delivering", third)
    assert "was delivered to" in airflow.log("delivering", third, counting.task("deliver_events"))
    assert lineage_of(counting, third, "deliver_events") == [delivered, delivered]
    # what a task that failed has not made is not said
    assert lineage_of(counting, second, "deliver_log", "FAIL") == [({}, {})]


def lineage_of(counting: Counting, run_id: str, task: str, kind: str = "COMPLETE") -> list[tuple[Datasets, Datasets]]:
    """What OpenLineage was told at each end of a task: what it has read and made."""
    ends = ends_of(counting.airflow, f"delivering.{counting.task(task)}", kind)
    return [(read, made) for run, read, made in ends if run == run_id]


def events_of(counting: Counting, sink: str) -> list[dict[str, str]]:
    uri = f"barrier://{counting.name}/sink/{sink}"
    (asset,) = [one for one in counting.airflow.get("/assets", uri_pattern=uri)["assets"] if one["uri"] == uri]
    found: list[dict[str, str]] = counting.airflow.get("/assets/events", asset_id=asset["id"])["asset_events"]
    return found
