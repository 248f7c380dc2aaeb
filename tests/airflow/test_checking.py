"""What fails a check is not published, by nobody's commit, until it is mended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

NAMESPACE = "checking"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_barrier_that_fails_its_check(counting: Counting, spark_server: SparkServer) -> None:
    counting.create("events")
    airflow, meta = counting.airflow, counting.deployment.meta
    load, check, commit = (counting.task(name) for name in ("load", "check_no_negative_counts", "commit"))
    wrong = airflow.folder / "corrected-checking-1"
    wrong.write_text("-1")
    airflow.unpause("checking")
    airflow.until(lambda: len(airflow.runs("checking")) == 2, "both runs")
    first, second = airflow.run_ids("checking")
    airflow.wait_for_run("checking", first, "failed")
    assert airflow.state("checking", first, commit) == "upstream_failed"
    assert "check 'no negative counts' finds no rows" in airflow.log("checking", first, check)
    found = "check 'no negative counts' found 1 row: {'k': 1, 'n': -1}"
    assert meta.barriers.get("checking", 1).reason == found

    # the next barrier's commit would publish this one, too
    airflow.wait_for_task("checking", second, check, "deferred")
    assert counting.states() == {1: "PRECOMMIT", 2: "PRECOMMIT"}
    assert counting.published("events") == 0

    wrong.unlink()
    airflow.clear("checking", first, load)
    airflow.wait_for_run("checking", first)
    assert meta.barriers.get("checking", 1).reason is None
    assert counting.published("events") == sum_of_barriers(1)
    # what it had staged on the wrong row does not count any more, which its check says
    airflow.wait_for_run("checking", second, "failed")
    assert "checking.events (job load)" in airflow.log("checking", second, check)
    airflow.clear("checking", second, load)
    airflow.wait_for_run("checking", second)
    assert counting.published("events") == sum_of_barriers(2)
