"""Unchanged code in the operators that people have, through two barriers; and what is refused, with what to do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.counting import Counting, sum_of_barriers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_barrier.coordinator.deployment import Deployment

NAMESPACE = "unchanged"
TABLES = ("events", "totals", "mirror", "copy")


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_unchanged_code_goes_through_barriers(counting: Counting, spark: SparkSession) -> None:
    counting.create_by(spark, *TABLES)
    counting.airflow.unpause("unchanged")
    runs = counting.airflow.wait_for_runs("unchanged", 2)
    assert counting.states() == {1: "COMMIT", 2: "COMMIT"}
    for table in TABLES:
        assert [counting.total_at(table, n) for n in (1, 2)] == [sum_of_barriers(1), sum_of_barriers(2)]
        assert counting.published(table) == sum_of_barriers(2)
    for job in ("load", "total", "mirror", "copy"):
        assert counting.attempts(2, job)[-1] == "PROCESSED"
        types = {"load": "SparkSubmitOperator", "total": "SparkSqlOperator"}
        found = counting.airflow.tasks("unchanged", runs[1])[counting.task(job)]["operator"]
        assert found == types.get(job, "_PySparkDecoratedOperator")


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_what_is_not_declared_not_enabled_or_not_written_is_refused(
    airflow: AirflowUnderTest, deployment: Deployment, spark: SparkSession
) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS in_airflow.refused")
    for table in ("peeked", "strayed", "silent", "secret", "flat"):
        wap = str(table != "flat").lower()
        spark.sql(
            f"CREATE TABLE in_airflow.refused.{table} (k INT, n BIGINT) USING iceberg "
            f"TBLPROPERTIES ('write.wap.enabled' = '{wap}')"
        )
    airflow.unpause("refused")
    run = airflow.trigger("refused")
    airflow.wait_for_run("refused", run, "failed")

    said = {job: airflow.log("refused", run, f"refused.{job}") for job in ("peeks", "strays", "flat", "silent")}
    assert "the job reads table refused.secret, which it does not declare" in said["peeks"]
    assert "inlets=[..., 'refused.secret'] to its barrier.job(...)" in said["peeks"]
    assert "outlets=[..., 'refused.secret'] to its barrier.job(...)" in said["strays"]
    assert "found it missing on refused.flat" in said["flat"]
    assert "ALTER TABLE in_airflow.refused.flat SET TBLPROPERTIES ('write.wap.enabled'='true')" in json.dumps(
        said["flat"]
    )
    assert "expected output in refused.silent, found none" in said["silent"]

    attempts = {attempt.job: attempt.state.value for attempt in deployment.meta.attempts.of("refused", 1)}
    assert set(attempts.values()) == {"ABORTED"}
    mains = deployment.tables.mains([f"refused.{table}" for table in ("peeked", "strayed", "silent", "secret", "flat")])
    assert set(mains.values()) == {None}
    # nothing was begun on the table without WAP, and nothing reached the one that nobody declared
    assert deployment.tables.load("refused.flat").refs() == {}
    assert deployment.tables.load("refused.secret").snapshots() == []
