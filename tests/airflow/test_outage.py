"""Catching up after an outage: fewer drivers than barriers, and each barrier has its own snapshot all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers
from tests.support.reporting import report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "outage"
DAYS = 6


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_six_barriers_need_fewer_drivers(counting: Counting, spark: SparkSession) -> None:
    counting.create_by(spark, "events", "totals")
    airflow = counting.airflow
    airflow.unpause("outage")

    run_ids = airflow.wait_for_runs("outage", DAYS)

    meta = counting.deployment.meta
    assert counting.states() == dict.fromkeys(range(1, DAYS + 1), "COMMIT")
    for table in ("events", "totals"):
        totals = [counting.total_at(table, barrier_id) for barrier_id in range(1, DAYS + 1)]
        assert totals == [sum_of_barriers(n) for n in range(1, DAYS + 1)]
        assert len({counting.snapshot(table, barrier_id) for barrier_id in range(1, DAYS + 1)}) == DAYS
        assert counting.event_keys(table) == {f"b{n}.r0" for n in range(1, DAYS + 1)}
    # who asked for an attempt is who ran it
    leaders = {}
    for job in ("load", "total"):
        done = [meta.attempts.current("outage", barrier_id, job) for barrier_id in range(1, DAYS + 1)]
        leaders[job] = {attempt.request_key for attempt in done if attempt is not None}
    assert len(leaders["load"]) < DAYS
    drivers = sum(
        "Successfully stopped SparkContext" in airflow.log("outage", run_id, counting.task("load"))
        for run_id in run_ids
    )
    assert drivers == len(leaders["load"])
    report(
        f"catching up over {DAYS} barriers with batch_barriers: {len(leaders['load'])} drivers by spark-submit, "
        f"{len(leaders['total'])} sessions on Spark Connect"
    )
