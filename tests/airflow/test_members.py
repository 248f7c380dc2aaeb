"""Another team's DAG joins from the next barrier on, and the commit waits for it."""

from __future__ import annotations

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting

NAMESPACE = "joined"


@pytest.mark.timeout(LONG)
def test_a_member_takes_part_from_the_next_barrier_on(counting: Counting) -> None:
    counting.create("events", "mirror")
    airflow = counting.airflow
    hold = counting.tell("hold", "load", 1)
    airflow.unpause("joined")
    airflow.until(lambda: counting.states() == {1: "OPEN"}, "the first barrier")

    airflow.unpause("joined_later")
    airflow.until(lambda: len(airflow.runs("joined_later")) == 2, "both runs of the member")
    first, second = airflow.run_ids("joined_later")
    mirror = counting.task("mirror")
    # barrier 1 was opened without it; barrier 2 is not open yet
    airflow.wait_for_task("joined_later", first, mirror, "skipped")
    airflow.wait_for_task("joined_later", second, mirror, "deferred")
    hold.unlink()

    airflow.wait_for_runs("joined", 2)
    airflow.wait_for_run("joined_later", second)
    assert counting.states() == {1: "COMMIT", 2: "COMMIT"}
    assert set(counting.table_states(1)) == {"joined.events"}
    assert counting.table_states(2) == {"joined.events": "WRITTEN", "joined.mirror": "WRITTEN"}
    # its table was empty, so it began with all that its source held
    assert counting.published("events") == counting.published("mirror") == 11
