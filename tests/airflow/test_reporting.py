"""Queries, macros, compaction and expiry in a real Airflow: results in XCom and in a table, links, and holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_barrier.protocol.states import BarrierState
from tests.support.airflow import LONG
from tests.support.counting import Counting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "reporting"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_what_reads_a_barrier(counting: Counting, spark: SparkSession) -> None:
    counting.create_by(spark, "events")
    spark.sql("CREATE NAMESPACE in_airflow.reporting_results")
    airflow = counting.airflow
    airflow.unpause("reporting")
    (run,) = airflow.wait_for_runs("reporting", 1)
    instances = f"/dags/reporting/dagRuns/{run}/taskInstances"

    def said(task: str, key: str) -> object:
        return airflow.get(f"{instances}/{task}/xcomEntries/{key}")["value"]

    assert said("ask", "return_value") == [{"k": 1, "n": 25, "price": "25.00"}, {"k": 2, "n": 50, "price": "50.00"}]
    assert (said("ask", "barrier_id"), said("ask", "level")) == (1, "repeatable_read")
    assert said("keep", "return_value") == "in_airflow.reporting_results.daily"
    assert [tuple(row) for row in spark.table("in_airflow.reporting_results.daily").collect()] == [(1, 75)]
    link = airflow.link("reporting", run, "ask")
    assert link == airflow.page("reporting", "barrier=1")

    checked = airflow.log("reporting", run, "reporting.check_no_negative_counts")
    assert "has passed check no negative counts: no rows" in checked

    (row,) = counting.deployment.meta.barriers.progress("reporting", 1)
    snapshot = row.snapshot_id
    assert f"tag=barrier_reporting_b1_r0 id={snapshot}" in airflow.log("reporting", run, "show")
    assert said("compact", "return_value") == 2
    assert airflow.link("reporting", run, "compact") == airflow.page("reporting", "barrier=2")
    assert "2 data files (" in airflow.log("reporting", run, "compact")
    compacted = counting.deployment.meta.barriers.get("reporting", 2)
    assert (compacted.is_maintenance, compacted.state) == (True, BarrierState.COMMIT)
    # what was handed out is held, whatever retention says; what goes is the empty snapshot that the table began with
    assert said("expire", "return_value") == {"barriers": [], "snapshots": {"reporting.events": 1}}

    seen = airflow.command("tasks", "render", "reporting", "show", run)  # by a person, who takes no hold
    assert "tag=barrier_reporting_b2_r0 id=" in seen
    (held,) = counting.deployment.meta.leases.of("reporting")  # both macros of the task spoke of one answer
    assert held.holder == f"reporting/{run}/show#1"
    told = airflow.api.get(f"{airflow.barriers}/barrier_default/topologies/reporting/leases").raise_for_status().json()
    assert [(lease["holder"], lease["barrier_id"]) for lease in told["leases"]] == [(held.holder, held.barrier_id)]
