"""A task has runs of its own and of other DAGs run again; a backfill that gives runs a conf is asked for over REST."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pytest

from airflow_barrier.cli.connection import airflow_api
from airflow_barrier.hooks.airflow_api import AirflowApi
from airflow_barrier.operators import _waking
from airflow_barrier.protocol.errors import (
    AirflowRefusedError,
    AirflowUnavailableError,
    BackfillActiveError,
    BarrierError,
    ConfigurationError,
    RunActiveError,
    UnknownRunError,
)
from tests.support.airflow import LONG, AirflowUnderTest

FIRST, SECOND = (f"scheduled__2025-01-0{day}T00:00:00+00:00" for day in (1, 2))
DAY = datetime(2025, 1, 1, tzinfo=timezone.utc)
BEFORE = datetime(2024, 12, 31, tzinfo=timezone.utc)
SECRET = "planted5c1f"


@pytest.fixture
def connect(airflow: AirflowUnderTest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AirflowApi]:
    """Airflow's API by a connection, with fields that differ from those that are right."""
    return partial(connected, monkeypatch, airflow.api_connection)


def connected(monkeypatch: pytest.MonkeyPatch, right: dict[str, Any], **fields: Any) -> AirflowApi:
    monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps({**right, **fields}))
    return airflow_api("airflow_api")


def notes(airflow: AirflowUnderTest) -> list[dict[str, Any]]:
    file = airflow.folder / "waking.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_a_backfilled_day_wakes_what_has_ended_and_nothing_else(airflow: AirflowUnderTest, connect: Any) -> None:
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
    api = connect()

    airflow.pause("waking")  # so that what the backfill queues stays as it is until we have looked
    assert api.create_backfill("waking", DAY, DAY, conf) > 0
    with pytest.raises(RunActiveError, match="found 1 that have not") as active:
        api.create_backfill("waking", DAY, DAY, conf)
    assert FIRST in str(active.value)
    with pytest.raises(BackfillActiveError, match="no other backfill of the DAG"):
        api.create_backfill("waking", BEFORE, BEFORE, conf)
    airflow.unpause("waking")

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


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_what_cannot_be_backfilled(airflow: AirflowUnderTest, connect: Any) -> None:
    for dag_id in ("woken", "waking_forbidden", "timetable_none"):
        airflow.wait_for_dag(dag_id)
    token = airflow.api.headers["Authorization"].removeprefix("Bearer ")
    by_token = connect(login=None, password=None, extra={"token": token})
    naive = datetime(2025, 1, 1)  # noqa: DTZ001
    future = datetime(2999, 1, 1, tzinfo=timezone.utc)
    noon = datetime(2025, 1, 1, 12, tzinfo=timezone.utc)
    refused: list[tuple[AirflowApi, tuple[Any, ...], type[BarrierError], str]] = [
        (by_token, ("no_such_dag", DAY, DAY), UnknownRunError, "expected a DAG of that name"),
        (by_token, ("timetable_none", DAY, DAY), AirflowRefusedError, "non-periodic"),
        (by_token, ("waking_forbidden", BEFORE, BEFORE), AirflowRefusedError, "does not allow backfill runs"),
        (by_token, ("woken", naive, DAY), ConfigurationError, "a time zone"),
        (by_token, ("woken", future, future), AirflowRefusedError, "future"),
        (by_token, ("woken", noon, noon), AirflowRefusedError, "No runs to create"),
        (connect(password=SECRET), ("woken", DAY, DAY), AirflowRefusedError, "to let admin do this, found 401"),
        (
            connect(login=None, password=None, extra={"token": SECRET}),
            ("woken", DAY, DAY),
            AirflowRefusedError,
            "whether the token has expired",
        ),
        (connect(host=f"{airflow.url}/elsewhere"), ("woken", DAY, DAY), ConfigurationError, "base_url"),
        (connect(host="http://localhost:1"), ("woken", DAY, DAY), AirflowUnavailableError, "POST /auth/token"),
    ]
    for api, days, error, says in refused:
        with pytest.raises(error, match=says) as raised:
            api.create_backfill(*days, {"barrier_revision": 7})
        assert SECRET not in str(raised.value)
        assert SECRET not in repr(api)
    assert airflow.get("/backfills", dag_id="woken")["backfills"] == []


def test_connections_are_read_by_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"conn_type": "http", "host": "http://localhost:8080", "login": "admin", "password": SECRET}
    connect = partial(connected, monkeypatch, right)
    assert connect(host="airflow.example.com", schema="https", port=8443).url == "https://airflow.example.com:8443"
    assert connect(host="https://example.com/airflow/").url == "https://example.com/airflow"
    for fields, says in (
        ({"conn_type": "barrier"}, "expected the type http, found barrier"),
        ({"host": None}, "the address of Airflow's API server"),
        ({"host": "ftp://example.com"}, "http:// or https://"),
        ({"host": "http://example.com:port"}, "http:// or https://"),
        ({"host": f"http://admin:{SECRET}@example.com"}, "URL without password"),
        ({"password": None}, "either login and password, or the extra token"),
        ({"extra": {"token": SECRET}}, "either login and password, or the extra token"),
        ({"login": None, "password": None}, "either login and password, or the extra token"),
        ({"login": None, "password": None, "extra": {"token": f"{SECRET}\n"}}, "without blanks and line breaks"),
        ({"extra": {"verify": False}}, "unknown extra 'verify'"),
    ):
        with pytest.raises(ConfigurationError, match=says) as raised:
            connect(**fields)
        assert SECRET not in str(raised.value)
    with pytest.raises(ConfigurationError, match="found none; create it"):
        airflow_api("no_such_connection")


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
