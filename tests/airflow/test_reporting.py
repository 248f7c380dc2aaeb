"""Queries and macros in a real Airflow: results in XCom and in a table, a link, and holds in the task's name."""

from __future__ import annotations

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting

NAMESPACE = "reporting"


@pytest.mark.timeout(LONG)
def test_what_reads_a_barrier(counting: Counting) -> None:
    counting.create("events")
    counting.spark.sql("CREATE NAMESPACE lake.reporting_results")
    airflow = counting.airflow
    airflow.unpause("reporting")
    (run,) = airflow.wait_for_runs("reporting", 1)
    instances = f"/dags/reporting/dagRuns/{run}/taskInstances"

    def said(task: str, key: str) -> object:
        return airflow.get(f"{instances}/{task}/xcomEntries/{key}")["value"]

    assert said("ask", "return_value") == [{"k": 1, "n": 25, "price": "25.00"}, {"k": 2, "n": 50, "price": "50.00"}]
    assert (said("ask", "barrier_id"), said("ask", "level")) == (1, "repeatable_read")
    assert said("keep", "return_value") == "lake.reporting_results.daily"
    assert [tuple(row) for row in counting.spark.table("lake.reporting_results.daily").collect()] == [(1, 75)]
    link = airflow.get(f"{instances}/ask/links")["extra_links"]["Barrier"]
    assert link.endswith("/barrier/barrier_default/reporting/1")

    (snapshot,) = counting.deployment.tables.mains(["reporting.events"]).values()
    assert f"tag=barrier_reporting_b1_r0 id={snapshot}" in airflow.log("reporting", run, "show")
    (held,) = counting.deployment.meta.leases("reporting")  # both macros of the task spoke of one answer
    assert held.holder == f"reporting/{run}/show#1"
