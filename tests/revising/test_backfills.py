"""Which runs a person backfills for a revision."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow_barrier.coordinator.revision_backfills import Backfill, backfill_dates, backfills_of
from airflow_barrier.protocol.origins import interval_origin, logical_date
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import BarrierState

MONDAY = datetime(2017, 1, 2, tzinfo=timezone.utc)
DAY = timedelta(days=1)


def barrier(day: int, origin: str, dag: str = "shopping_dag") -> Barrier:
    at = MONDAY + day * DAY
    return Barrier("shopping", day, 0, at, BarrierState.COMMIT, day - 1, 1, f"{dag}/scheduled__{at}", origin, at)


def over(day: int) -> str:
    """Of a run for the day before."""
    return interval_origin("scheduled", MONDAY + (day - 1) * DAY, MONDAY + day * DAY)


def moment(day: int) -> str:
    """Of a run for a moment, as of `@daily` in Airflow 3."""
    return interval_origin("scheduled", MONDAY + day * DAY, MONDAY + day * DAY)


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


def test_an_interval_is_kept_in_utc_and_other_origins_are_what_they_were() -> None:
    east = timezone(timedelta(hours=5, minutes=30))
    origin = interval_origin("backfill", (MONDAY - DAY).astimezone(east), MONDAY.astimezone(east))
    assert origin == "data interval end of backfill run (interval since 2017-01-01T00:00:00+00:00)"
    assert logical_date(MONDAY, origin) == MONDAY - DAY
    assert logical_date(MONDAY, "run_after of manual run") == MONDAY
