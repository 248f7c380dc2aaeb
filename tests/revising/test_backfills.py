"""Which runs a person backfills for a revision."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow_barrier.coordinator.revisions.backfills import Backfill, backfill_dates, backfills_of
from airflow_barrier.protocol.records import Barrier, BarrierKind, RunRef
from airflow_barrier.protocol.states import BarrierState

MONDAY = datetime(2017, 1, 2, tzinfo=timezone.utc)
DAY = timedelta(days=1)


def barrier(day: int, logical_date: datetime | None, dag: str = "shopping_dag") -> Barrier:
    at = MONDAY + day * DAY
    run = RunRef(dag, f"scheduled__{at}", "scheduled", logical_date)
    return Barrier("shopping", day, 0, at, BarrierState.COMMIT, day - 1, 1, BarrierKind.EPOCH, run, "test", at)


def over(day: int) -> datetime:
    """The logical date of a run for the day before."""
    return MONDAY + (day - 1) * DAY


def moment(day: int) -> datetime:
    """The logical date of a run for a moment, as of `@daily` in Airflow 3."""
    return MONDAY + day * DAY


def test_runs_for_a_moment_have_its_date() -> None:
    assert backfill_dates([barrier(day, moment(day)) for day in (3, 4, 5)]) == (MONDAY + 3 * DAY, MONDAY + 5 * DAY)


def test_runs_for_an_interval_have_the_date_of_its_start() -> None:
    assert backfill_dates([barrier(day, over(day)) for day in (3, 4, 5)]) == (MONDAY + 2 * DAY, MONDAY + 4 * DAY)
    # the first of all has no barrier before it to tell, nor has one after days without a barrier
    assert backfill_dates([barrier(1, over(1))]) == (MONDAY, MONDAY)


def test_a_schedule_that_changed_is_followed() -> None:
    assert backfill_dates([barrier(3, over(3)), barrier(4, moment(4))]) == (MONDAY + 2 * DAY, MONDAY + 4 * DAY)


def test_each_opener_is_asked_for_its_own_days() -> None:
    days = [barrier(1, moment(1), "old"), barrier(2, moment(2)), barrier(3, moment(3))]
    assert backfills_of(days) == (
        Backfill("old", MONDAY + DAY, MONDAY + DAY),
        Backfill("shopping_dag", MONDAY + 2 * DAY, MONDAY + 3 * DAY),
    )
    assert backfills_of([]) == ()


def test_a_run_without_a_logical_date_goes_by_its_barriers_timestamp() -> None:
    assert backfill_dates([barrier(3, None)]) == (MONDAY + 3 * DAY, MONDAY + 3 * DAY)
