"""What time a run's barrier has, for each timetable: the table in `docs/timestamps.md`."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import DagRunType

from airflow_barrier.operators._task import run_ref, run_timestamp
from airflow_barrier.protocol.records import RunRef
from tests.support.airflow import LONG, AirflowUnderTest

TYPED = "2025-06-15T13:07:00Z"
#: timetable -> the timestamp of its first scheduled run, and of a manual run with the logical date ``TYPED``
TABLE = {
    "cron": ("2025-01-01T06:00", "2025-06-15T13:07"),
    "cron_trigger_with_interval": ("2025-01-01T06:00", "2025-06-15T13:07"),
    "cron_data_interval": ("2025-01-02T06:00", "2025-06-15T06:00"),
    "delta": ("2025-01-01T06:00", "2025-06-15T13:07"),
    "delta_trigger": ("2025-01-01T06:00", "2025-06-15T13:07"),
    "delta_data_interval": ("2025-01-02T06:00", "2025-06-15T13:07"),
    "once": ("2025-01-01T06:00", "2025-06-15T13:07"),
    "continuous": (None, "2025-06-15T13:07"),
    "none": (None, "2025-06-15T13:07"),
    "asset": (None, "2025-06-15T13:07"),
}


def opening_of(run: dict[str, Any]) -> tuple[str, str, RunRef]:
    """What the start operator would say of the run: timestamp in minutes, where it came from, and the run."""
    start, end, after = run["data_interval_start"], run["data_interval_end"], run["run_after"]
    dag_run = SimpleNamespace(
        logical_date=datetime.fromisoformat(run["logical_date"]) if run["logical_date"] else None,
        run_type=DagRunType(run["run_type"]),
        data_interval_start=datetime.fromisoformat(start) if start else None,
        data_interval_end=datetime.fromisoformat(end) if end else None,
        run_after=datetime.fromisoformat(after),
    )
    context: Any = {"dag_run": dag_run, "ti": SimpleNamespace(dag_id=run["dag_id"], run_id=run["dag_run_id"])}
    timestamp, timestamp_from = run_timestamp(context)
    assert timestamp.tzinfo is timezone.utc
    return f"{timestamp:%Y-%m-%dT%H:%M}", timestamp_from, run_ref(context)


def minute(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%dT%H:%M}"


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_every_timetable(airflow: AirflowUnderTest) -> None:
    for name, (scheduled, typed) in TABLE.items():
        dag_id = f"timetable_{name}"
        airflow.wait_for_dag(dag_id)
        with_date = airflow.get(f"/dags/{dag_id}/dagRuns/{airflow.trigger(dag_id, logical_date=TYPED)}")
        timestamp, timestamp_from, ref = opening_of(with_date)
        assert (timestamp, timestamp_from, ref.kind) == (typed, "data interval end", "manual"), name
        assert ref.logical_date == datetime.fromisoformat(TYPED), name
        without = airflow.get(f"/dags/{dag_id}/dagRuns/{airflow.trigger(dag_id)}")
        timestamp, timestamp_from, ref = opening_of(without)
        assert (timestamp, timestamp_from) == (minute(without["run_after"]), "run_after"), name
        assert ref == RunRef(dag_id, without["dag_run_id"], "manual"), name
        if scheduled is not None:
            airflow.unpause(dag_id)
            runs = airflow.until(lambda dag_id=dag_id: scheduled_runs(airflow, dag_id), f"a scheduled run of {dag_id}")
            timestamp, timestamp_from, ref = opening_of(runs[0])
            assert (timestamp, timestamp_from, ref.kind) == (scheduled, "data interval end", "scheduled"), name
            # by which a backfill finds the run again
            assert ref.logical_date == datetime.fromisoformat(runs[0]["logical_date"]), name
            airflow.pause(dag_id)


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_an_asset_triggered_run_has_no_interval(airflow: AirflowUnderTest) -> None:
    airflow.unpause("timetable_asset")
    (asset,) = airflow.get("/assets", name_pattern="timetables")["assets"]
    airflow.api.post("/assets/events", json={"asset_id": asset["id"]}).raise_for_status()
    run = airflow.until(
        lambda: [r for r in airflow.runs("timetable_asset") if r["run_type"] == "asset_triggered"],
        "the run that the asset's event starts",
    )[0]
    airflow.pause("timetable_asset")
    assert run["data_interval_end"] is None
    ref = RunRef("timetable_asset", run["dag_run_id"], "asset_triggered")
    assert opening_of(run) == (minute(run["run_after"]), "run_after", ref)


def scheduled_runs(airflow: AirflowUnderTest, dag_id: str) -> list[dict[str, Any]]:
    return [run for run in airflow.runs(dag_id) if run["run_type"] == "scheduled"]
