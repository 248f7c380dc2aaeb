"""Airflow's own side fails: each call that our tasks and triggers make to it, by what becomes of the call.

A call goes to the task's supervisor, which asks the API server and tries again by itself. So what a task sees is an
error after some seconds. A trigger may see nothing at all.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import (
    ConnectionResult,
    ErrorResponse,
    GetConnection,
    GetDagRunState,
    GetPreviousDagRun,
    GetTaskStates,
    SetXCom,
    TriggerDagRun,
)
from airflow.sdk.execution_time.context import set_current_context
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.waiting import Condition
from airflow_barrier.operators._events import swallowed
from airflow_barrier.operators._task import failed_by_a_deploy, without_useless_retries
from airflow_barrier.operators._waking import AirflowScheduler, run_state, wake
from airflow_barrier.operators.query import ConsistentQueryOperator
from airflow_barrier.operators.start import StartBarrierOperator
from airflow_barrier.protocol.errors import SchemaVersionError
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.sensors.barrier import BarrierSensor
from airflow_barrier.triggers import _watcher
from airflow_barrier.triggers.barrier import BarrierTrigger
from tests.support.airflow import LONG
from tests.support.counting import Counting
from tests.support.shop import make_shop
from tests.support.supervising import supervised

NAMESPACE = "failing"
CONN = "barrier_failing"
DAY = datetime(2025, 1, 1, tzinfo=timezone.utc)
#: Seconds that anything may take here that is to end.
BOUND = 20


@dataclass(frozen=True)
class World:
    """``broken``: the kind of message that fails, which is all that does."""

    folder: Path
    failure: Callable[[], Any]
    broken: type

    def answer(self, message: Any) -> Any:
        if isinstance(message, self.broken):
            return self.failure()
        if isinstance(message, GetConnection):
            extra = json.dumps({"warehouse": str(self.folder)})
            nothing = dict.fromkeys(("host", "schema", "login", "password", "port"))
            return ConnectionResult(conn_id=CONN, conn_type="barrier", extra=extra, **nothing)
        if isinstance(message, GetDagRunState):
            return SimpleNamespace(state="success")
        return None

    def context(self, task: BaseOperator) -> Any:
        ti = RuntimeTaskInstance.model_construct(
            dag_id=task.dag_id,
            run_id="today",
            task_id=task.task_id,
            try_number=1,
            map_index=-1,
            task=task,
            start_date=DAY,
        )
        run = SimpleNamespace(
            run_type=SimpleNamespace(value="scheduled"),
            logical_date=DAY,
            data_interval_start=DAY,
            data_interval_end=DAY,
            run_after=DAY,
            conf=None,
            clear_number=0,
        )
        return {"ti": ti, "task": task, "dag_run": run}


# --- what may become of a call: the supervisor's words --------------------------------------------


def an_error(status: int | None, said: str) -> Any:
    detail = {"status_code": status, "message": said, "detail": {"detail": {"message": said}}}
    raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))


def away() -> Any:
    return an_error(None, "Connection refused")


def broken() -> Any:
    return an_error(503, "Service Unavailable")


def refused() -> Any:
    return an_error(400, "not so")


def denied() -> Any:
    """This one is an answer, to who asks for a connection."""
    return ErrorResponse(error=ErrorType.PERMISSION_DENIED, detail={"status_code": 403, "message": "no"})


# --- the calls ------------------------------------------------------------------------------------


def task(kind: Callable[..., Any] = BaseOperator, dag_id: str = "dag", **arguments: Any) -> Any:
    with DAG(dag_id):
        return kind(task_id="task", **arguments)


def a_task_asks_for_its_connection(world: World) -> None:
    start = task(StartBarrierOperator, topology="shopping", jobs=[], barrier_conn_id=CONN)
    start.execute(world.context(start))


def a_sensor_pokes(world: World, **arguments: Any) -> Any:
    sensor = task(BarrierSensor, topology="shopping", barrier_id=1, barrier_conn_id=CONN, **arguments)
    return sensor.poke(world.context(sensor))


def a_sensor_pokes_in_a_process_for_each_look(world: World) -> Any:
    return a_sensor_pokes(world, mode="reschedule")


def a_sensor_that_pokes_loses_patience(world: World) -> Any:
    return a_sensor_pokes(world, patience=-1)


def a_sensor_defers(world: World) -> None:
    sensor = task(BarrierSensor, topology="shopping", barrier_id=1, barrier_conn_id=CONN, deferrable=True)
    sensor.execute(world.context(sensor))


def a_run_is_asked_for(world: World) -> None:
    run_state(world.context(task())["ti"], "dag", "yesterday")


def a_run_is_woken(world: World) -> None:
    with set_current_context(world.context(task())):
        wake("dag", "yesterday")


def an_abort_asks_why_tasks_failed(world: World) -> None:
    with DAG("dag"):
        before, abort = BaseOperator(task_id="job"), BaseOperator(task_id="task")
        before >> abort
    failed_by_a_deploy(world.context(abort))


def a_task_asks_whether_its_leader_runs(world: World) -> None:
    AirflowScheduler(world.context(task())).is_running("dag/yesterday/task/-1")


def a_member_asks_for_the_run_before(world: World) -> None:
    context = world.context(task())
    vars(context["ti"])["get_template_context"] = lambda: context  # which the task runner makes
    AirflowScheduler(context).at_work_until()


def a_commit_asks_who_has_told(world: World) -> None:
    shop = make_shop(Settings.embedded(str(world.folder)))
    for day in (1, 2):
        barrier = shop.open(day)
        shop.process_all(barrier, [{"amount": 25, "price": 250}])
        shop.commit(barrier)
    commit = task(dag_id="shopping_dag")
    try:
        swallowed(commit, world.context(commit), shop.deployment, barrier)
    finally:
        shop.deployment.close()


def a_query_says_which_barrier_it_reads(world: World) -> None:
    query = task(ConsistentQueryOperator, topology="shopping", sql="SELECT 1", barrier_conn_id=CONN)
    session: Any = SimpleNamespace(
        resolution=Resolution("shopping", Level.REPEATABLE_READ, 1, 0, {}, DAY, DAY), lease=None
    )
    query._tell(world.context(query), session)


def a_task_links_to_its_barrier(world: World) -> None:
    shop = make_shop(Settings.embedded(str(world.folder)))
    shop.open(1)
    shop.deployment.close()
    assert a_sensor_pokes(world, target="PROCESSED").xcom_value == 1


def a_task_of_another_version_leaves_a_note(world: World) -> None:
    with set_current_context(world.context(task())), without_useless_retries():
        raise SchemaVersionError("expected version 7, found 8")


# --- what is expected -----------------------------------------------------------------------------

WAITS, RETRIES, FAILS, GOES_ON = "waits", "is worth a retry", "fails for good", "goes on"
RETRIED = {away: RETRIES, broken: RETRIES}
CALLS: list[tuple[Callable[[World], Any], type, dict[Callable[[], Any], str]]] = [
    (a_task_asks_for_its_connection, GetConnection, {**RETRIED, denied: RETRIES}),
    (a_sensor_pokes, GetConnection, {away: WAITS, broken: WAITS, denied: RETRIES}),
    (a_sensor_pokes_in_a_process_for_each_look, GetConnection, {**RETRIED, denied: RETRIES}),
    (a_sensor_that_pokes_loses_patience, GetConnection, {**RETRIED, denied: RETRIES}),
    (a_sensor_defers, GetConnection, {away: WAITS, broken: WAITS, denied: RETRIES}),
    (a_run_is_asked_for, GetDagRunState, {**RETRIED, refused: FAILS}),
    (a_run_is_woken, GetDagRunState, {**RETRIED, refused: FAILS}),
    (a_run_is_woken, TriggerDagRun, {**RETRIED, refused: FAILS}),
    (an_abort_asks_why_tasks_failed, GetTaskStates, RETRIED),
    (a_task_asks_whether_its_leader_runs, GetTaskStates, RETRIED),
    (a_member_asks_for_the_run_before, GetPreviousDagRun, {**RETRIED, refused: FAILS}),
    (a_commit_asks_who_has_told, GetTaskStates, RETRIED),
    (a_query_says_which_barrier_it_reads, SetXCom, RETRIED),
    (a_task_links_to_its_barrier, SetXCom, dict.fromkeys((away, broken, refused), GOES_ON)),
    (a_task_of_another_version_leaves_a_note, SetXCom, RETRIED),
]


def outcome(act: Callable[[], Any]) -> str:
    """What Airflow makes of what the task did."""
    try:
        with without_useless_retries():
            found = act()
    except TaskDeferred:
        return WAITS
    except AirflowFailException:
        return FAILS
    except Exception:
        return RETRIES
    return WAITS if found is False else GOES_ON


@pytest.mark.parametrize(
    ("call", "message", "failure", "expected"),
    [
        pytest.param(call, message, failure, then, id=f"{call.__name__}-{message.__name__}-{failure.__name__}")
        for call, message, failures in CALLS
        for failure, then in failures.items()
    ],
)
def test_a_call_of_a_task(
    tmp_path: Path, call: Callable[[World], Any], message: type, failure: Callable[[], Any], expected: str
) -> None:
    world = World(tmp_path, failure, message)
    with supervised(world.answer) as supervisor:
        assert outcome(lambda: call(world)) == expected
    assert any(isinstance(asked, message) for asked in supervisor.asked), "it was not this that failed"


def test_what_could_not_be_noted_does_not_hide_what_happened(tmp_path: Path) -> None:
    world = World(tmp_path, away, SetXCom)
    with supervised(world.answer), pytest.raises(SchemaVersionError, match="found 8"):
        a_task_of_another_version_leaves_a_note(world)


@pytest.mark.parametrize("failure", [away, broken, denied, None], ids=["away", "broken", "denied", "hangs"])
def test_a_trigger_waits_for_its_connection_as_long_as_it_has_patience(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: Callable[[], Any] | None
) -> None:
    """None: the call hangs."""
    monkeypatch.setattr(_watcher, "_UNANSWERED", 0.1)
    shop = make_shop(Settings.embedded(str(tmp_path)))
    shop.open(1)
    shop.deployment.close()
    over = threading.Event()

    def failing() -> Any:
        if over.is_set():
            return World(tmp_path, away, type(None)).answer(GetConnection(conn_id=CONN))
        if failure is not None:
            return failure()
        assert over.wait(BOUND)
        return failing()

    async def event(patience: float) -> Any:
        trigger = BarrierTrigger(
            topology="shopping",
            barrier_conn_id=CONN,
            conditions=[Condition(None, barrier_id=1)],
            patience=patience,
            settling=0,
        )
        return (await anext(trigger.run())).payload

    async def story() -> tuple[Any, Any]:
        try:
            patient = asyncio.create_task(event(BOUND))
            impatient = await asyncio.wait_for(event(0.05), BOUND)
            assert not patient.done()
        finally:
            over.set()
        return impatient, await asyncio.wait_for(patient, BOUND)

    with supervised(World(tmp_path, failing, GetConnection).answer):
        impatient, patient = asyncio.run(story())
    assert impatient["status"] == "unavailable"
    assert patient == {"status": "reached"}


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_sensors_of_a_real_airflow_wait_for_their_connection(counting: Counting) -> None:
    """Airflow answers that a connection is not defined also while it cannot reach it, so that a sensor waits."""
    counting.create("events")
    airflow = counting.airflow
    airflow.unpause("failing_reader")
    run = airflow.trigger("failing_reader")
    airflow.wait_for_task("failing_reader", run, "pokes", "running", "failed")
    airflow.wait_for_task("failing_reader", run, "deferred", "deferred", "failed")
    for sensor in ("pokes", "deferred"):
        airflow.until(
            lambda sensor=sensor: "connection failing: expected" in airflow.log("failing_reader", run, sensor),
            f"{sensor} to say what it waits for",
        )
    airflow.command("connections", "add", "failing", "--conn-json", airflow.connections["AIRFLOW_CONN_BARRIER_DEFAULT"])
    try:
        airflow.unpause("failing")
        airflow.wait_for_run("failing_reader", run)
    finally:
        # other stories of this Airflow would see each topology twice, by two deployments
        airflow.command("connections", "delete", "failing")
    assert {one["try_number"] for one in airflow.tasks("failing_reader", run).values()} == {1}
