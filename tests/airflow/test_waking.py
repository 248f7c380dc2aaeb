"""A task has runs of its own and of other DAGs run again, and a backfill gives runs a conf."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_barrier.operators import _waking
from airflow_barrier.protocol.errors import (
    AirflowRefusedError,
    AirflowUnavailableError,
    BarrierError,
)
from tests.support.airflow import LONG, AirflowUnderTest

FIRST, SECOND = (f"scheduled__2025-01-0{day}T00:00:00+00:00" for day in (1, 2))
DAY = datetime(2025, 1, 1, tzinfo=timezone.utc)


def notes(airflow: AirflowUnderTest) -> list[dict[str, Any]]:
    file = airflow.folder / "waking.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_backfilled_day_wakes_what_has_ended_and_nothing_else(airflow: AirflowUnderTest) -> None:
    for dag_id, days in (("waking", 2), ("woken", 1), ("waking_forbidden", 1)):
        airflow.unpause(dag_id)
        airflow.wait_for_runs(dag_id, days)
    # a run that failed is woken like any other
    airflow.api.patch(f"/dags/woken/dagRuns/{FIRST}", json={"state": "failed"}).raise_for_status()
    before = len(notes(airflow))
    runs_before = [airflow.run_ids(dag_id) for dag_id in ("waking", "woken")]
    asked = [
        ["waking", SECOND],
        ["woken", FIRST],
        ["waking", FIRST],
        ["woken", "scheduled__never"],
        ["no_such_dag", FIRST],
        ["waking_forbidden", FIRST],
    ]
    conf = {"barrier_revision": 7, "wake": asked}
    body = {
        "dag_id": "waking",
        "from_date": DAY.isoformat(),
        "to_date": DAY.isoformat(),
        "reprocess_behavior": "completed",
        "dag_run_conf": conf,
    }
    airflow.api.post("/backfills", json=body).raise_for_status()

    # the backfilled day sees and wakes, and the two that it woke see
    fresh = airflow.until(lambda: len(found := notes(airflow)[before:]) >= 4 and found, "four notes")
    for dag_id, run_id in (("waking", FIRST), ("waking", SECOND), ("woken", FIRST)):
        airflow.wait_for_run(dag_id, run_id)
    assert len(notes(airflow)) == before + 4
    backfilled, said = (one for one in fresh if one["run"] == ["waking", FIRST])
    assert backfilled == {
        "run": ["waking", FIRST],
        "type": "backfill",
        "clear_number": 1,
        "conf": conf,
        "end": "2025-01-01",
    }
    woken = {"type": "scheduled", "clear_number": 1, "conf": {}}
    others = sorted((one for one in fresh if one["run"] != ["waking", FIRST]), key=lambda one: one["run"])
    assert others == [
        {"run": ["waking", SECOND], "end": "2025-01-02", **woken},
        {"run": ["woken", FIRST], "end": "2025-01-01", **woken},
    ]
    # what could not be woken says why, and no run has been made of it
    states, errors = zip(*said["said"], strict=True)
    assert states == ("success", "failed", "running", None, None, "success")
    assert errors[:2] == ("", "")
    assert errors[2].startswith(f"RunActiveError: expected the run {FIRST} of DAG waking to have ended")
    assert errors[3].startswith("UnknownRunError: expected the run scheduled__never of DAG woken, found none")
    assert errors[4].startswith(f"UnknownRunError: expected the run {FIRST} of DAG no_such_dag, found none")
    assert errors[5].startswith("AirflowRefusedError: ")
    assert "does not allow operator-triggered runs" in errors[5]
    assert [airflow.run_ids(dag_id) for dag_id in ("waking", "woken")] == runs_before

    # and a plain clear by a person leaves the token where it is
    assert airflow.clear("waking", FIRST, "see", include_downstream=False) == ["see"]
    again = airflow.until(lambda: notes(airflow)[before + 4 :], "the cleared task")
    assert again == [{**backfilled, "clear_number": 2}]
    airflow.wait_for_run("waking", FIRST)


def test_a_task_sdk_without_the_message_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.execution_time import comms

    monkeypatch.delattr(comms, "TriggerDagRun")
    with pytest.raises(AirflowRefusedError, match=r"found version \d.* without; clear the run r of DAG d in Airflow"):
        _waking._clear("d", "r")


@pytest.mark.parametrize(
    ("detail", "error", "says"),
    [
        ({"status_code": None, "message": "Connection refused"}, AirflowUnavailableError, "Connection refused"),
        (
            {"status_code": 503, "message": "Server error", "detail": None},
            AirflowUnavailableError,
            "try again",
        ),
        ({"status_code": 400, "detail": {"detail": {"reason": "r", "message": "it is so"}}}, AirflowRefusedError, "so"),
    ],
)
def test_what_the_supervisor_says_is_worth_a_retry_or_not(detail: Any, error: type[BarrierError], says: str) -> None:
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    response = ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail)
    with pytest.raises(error, match=f"run r of DAG d: .*{says}"), _waking._in_our_words("d", "r"):
        raise AirflowRuntimeError(response)
