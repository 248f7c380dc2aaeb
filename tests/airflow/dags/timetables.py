"""One DAG per timetable, to see what times their runs have. Empty tasks are done by the scheduler itself."""

from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import (
    DAG,
    Asset,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
)

SCHEDULES = {
    "cron": "0 6 * * *",
    "cron_trigger_with_interval": CronTriggerTimetable("0 6 * * *", timezone="UTC", interval=timedelta(days=1)),
    "cron_data_interval": CronDataIntervalTimetable("0 6 * * *", timezone="UTC"),
    "delta": timedelta(days=1),
    "delta_trigger": DeltaTriggerTimetable(timedelta(days=1)),
    "delta_data_interval": DeltaDataIntervalTimetable(timedelta(days=1)),
    "once": "@once",
    "continuous": "@continuous",
    "none": None,
    "asset": [Asset("timetables")],
}

for name, schedule in SCHEDULES.items():
    with DAG(
        f"timetable_{name}",
        schedule=schedule,
        start_date=datetime(2025, 1, 1, 6, tzinfo=timezone.utc),
        end_date=datetime(2025, 1, 1, 18, tzinfo=timezone.utc) if name != "asset" else None,
        catchup=True,
        max_active_runs=1,
    ):
        EmptyOperator(task_id="nothing")
