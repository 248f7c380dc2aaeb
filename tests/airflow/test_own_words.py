"""DAGs whose tasks say in Airflow's own words what they read and write, and decorated functions, reach COMMIT."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE = "own_words"
TABLES = ("events", "totals", "mirror", "copy")


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
@pytest.mark.touches("operators/_inlets.py", "operators/_taskflow.py")
def test_tasks_are_jobs_by_their_own_words(counting: Counting, spark: SparkSession) -> None:
    counting.create_by(spark, *TABLES)
    airflow = counting.airflow
    held = counting.tell("hold", "total", 1)
    airflow.unpause("own_words")
    airflow.until(lambda: counting.states() == {1: "OPEN"}, "the first barrier")
    airflow.unpause("own_words_later")
    airflow.until(lambda: len(airflow.runs("own_words_later")) == 2, "both runs of the member")
    first, second = airflow.run_ids("own_words_later")
    airflow.wait_for_task("own_words_later", first, counting.task("copy"), "skipped")
    airflow.wait_for_task("own_words_later", second, counting.task("copy"), "deferred")
    held.unlink()
    runs = airflow.wait_for_runs("own_words", 2)
    airflow.wait_for_run("own_words_later", second)

    assert counting.states() == {1: "COMMIT", 2: "COMMIT"}
    for number, tables in ((1, TABLES[:3]), (2, TABLES)):
        assert set(counting.table_states(number)) == {f"own_words.{table}" for table in tables}
        whole = sum_of_barriers(number)
        expected = {"events": whole, "totals": 6 * whole, "mirror": whole, "copy": whole}
        assert {table: counting.total_at(table, number) for table in tables} == {t: expected[t] for t in tables}
    names = {task: one["operator_name"] for task, one in airflow.tasks("own_words", runs[1]).items()}
    assert names[counting.task("total")] == "@task.barrier"
    assert names[counting.task("mirror")] == "@task.barrier_sql"

    # by the commit alone: a job that has staged its epoch has published nothing
    assert counting.event_keys("events") == {"b1.r0", "b2.r0"}
    (asset,) = airflow.get("/assets", uri_pattern="barrier://own_words/own_words.events")["assets"]
    events = airflow.get("/assets/events", asset_id=asset["id"])["asset_events"]
    assert {event["source_task_id"] for event in events} == {counting.task("commit")}
