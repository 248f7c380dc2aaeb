"""A member whose runs were missed catches up by its next one, and by a click."""

from __future__ import annotations

import pytest

from tests.support.airflow import LONG
from tests.support.counting import Counting, sum_of_barriers

NAMESPACE = "behind"
MEMBER = "behind_later"


def day(number: int) -> str:
    return f"2025-01-0{number}T00:00:00Z"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_the_next_run_of_a_member_works_off_what_was_missed(counting: Counting) -> None:
    counting.create("events", "mirror")
    airflow, mirror = counting.airflow, counting.task("mirror")
    for dag_id in ("behind", MEMBER):
        airflow.unpause(dag_id)
    airflow.trigger("behind", logical_date=day(1))
    airflow.until(lambda: counting.states() == {1: "COMMIT"}, "a barrier without the member")
    joins = airflow.trigger(MEMBER, logical_date=day(1))
    airflow.wait_for_task(MEMBER, joins, mirror, "failed")
    assert "the job takes part from the next barrier on" in airflow.log(MEMBER, joins, mirror)

    for number in (2, 3, 4):
        airflow.trigger("behind", logical_date=day(number))
    open_ones = dict.fromkeys((2, 3, 4), "OPEN")
    airflow.until(lambda: counting.states() == {1: "COMMIT", **open_ones}, "barriers that lack the member")
    next_run = it_is_told_why_nothing_runs(counting)
    airflow.wait_for_run(MEMBER, next_run)
    airflow.wait_for_runs("behind", 4)
    assert counting.states() == dict.fromkeys((1, 2, 3, 4), "COMMIT")
    said = airflow.log(MEMBER, next_run, mirror)
    for number in (2, 3):
        assert f"First barrier {number} of behind" in said
    assert counting.total_at("mirror", 3) == sum_of_barriers(3)
    assert counting.published("mirror") == counting.published("events") == sum_of_barriers(4)

    # a click in the opening DAG opens a barrier at that moment, and one in the member's does what is missing
    airflow.trigger("behind")
    airflow.until(lambda: 5 in counting.states(), "a fifth barrier")
    airflow.until(lambda: counting.table_states(5)["behind.events"] == "PROCESSED", "the opening DAG's part")
    assert counting.states()[5] == "OPEN"
    click = airflow.trigger(MEMBER)
    airflow.wait_for_run(MEMBER, click)
    assert "did job mirror at barriers 5" in airflow.log(MEMBER, click, mirror)
    airflow.wait_for_runs("behind", 5)
    assert counting.published("mirror") == sum_of_barriers(5)


def it_is_told_why_nothing_runs(counting: Counting) -> str:
    """While the member is paused, has no run, and while its run, which this returns, waits for a pool."""
    airflow, topology = counting.airflow, "/barrier_default/topologies/behind"
    mirror = "behind.mirror"

    def told() -> tuple[list[str], str]:
        late = airflow.told("viewer", topology).json()["late"]
        (waits,) = (
            each["waits"]
            for each in airflow.told("viewer", f"{topology}/barriers/2").json()["tables"]
            if each["table"] == mirror
        )
        return [each["summary"] for each in late], waits

    airflow.pause(MEMBER)
    paused = f"DAG {MEMBER} is paused"
    early = f"{mirror} holds up barrier 2 (job mirror of DAG {MEMBER}: {paused})"
    airflow.until(lambda: told()[1] == paused, "the pause to be told")
    assert early in told()[0], "before it is late"
    airflow.unpause(MEMBER)
    none = (
        f"no run of DAG {MEMBER} is under way, the last one failed at {counting.task('mirror')}, and none is scheduled"
    )
    airflow.until(lambda: told()[1] == none, "the want of a run to be told")
    assert early not in told()[0]

    def resize(slots: int) -> None:
        asked = {"json": {"slots": slots}, "params": {"update_mask": "slots"}}
        airflow.api.patch("/pools/default_pool", **asked).raise_for_status()

    slots = airflow.get("/pools/default_pool")["slots"]
    resize(0)
    try:
        run = airflow.trigger(MEMBER, logical_date=day(4))
        full = f"task {counting.task('mirror')} waits for pool default_pool, which has no slots"
        airflow.until(lambda: told()[1] == full, "the full pool to be told")
    finally:
        resize(slots)
    return run
