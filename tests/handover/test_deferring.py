"""An operator that defers itself while its job runs: the attempt stays open, and is closed where the operator ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.bases.operator import ExecutorSafeguard
from fsspec.implementations.local import LocalFileSystem

from airflow_barrier.coordinator.cuts import cut_put_off
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.handover.placeholder import BARRIER_CONF
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.unchanged import GUARD_MARK, GUARD_PROMISE
from tests.coordinator.test_sources import arrive, files_of, fragment, landing
from tests.support.shop import COLUMNS, MONDAY, SHOPPING, Shop, make_shop
from tests.support.supervising import KeptXComs, supervised

GUARDED = {"engine-name": "spark", "engine-version": "4.1.3", "spark.app.id": "app-1", GUARD_MARK: GUARD_PROMISE}


class Livy(BaseHTTPRequestHandler):
    """As much of Livy's REST interface as one batch takes."""

    posted: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer({"id": 7, "state": "starting"}, 201)

    def do_GET(self) -> None:
        self._answer({"id": 7, "state": "running", "appId": "app-1"}, 200)

    def _answer(self, body: dict[str, Any], code: int) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a Livy server was asked to run."""
    handler = type("Handler", (Livy,), {"posted": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        host, port = "127.0.0.1", server.server_port
        monkeypatch.setenv("AIRFLOW_CONN_LIVY_DEFAULT", json.dumps({"conn_type": "livy", "host": host, "port": port}))
        yield handler.posted
        server.shutdown()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    url, warehouse = f"sqlite:///{tmp_path}/barrier.db", (tmp_path / "warehouse").as_uri()
    connection = {"conn_type": "barrier", "extra": {"warehouse": warehouse, "metaservice_url": url}}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", json.dumps(connection))
    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)  # no task runner calls the operator here
    shop = make_shop(Settings(url, url, warehouse))
    shop.deployment.tables.take_in([SHOPPING])
    yield shop
    shop.deployment.close()


def parsed(*sources: Files) -> Any:
    """The DAG file is read anew by each process that a task runs in."""
    start = datetime(2025, 1, 1, tzinfo=timezone.utc)
    with DAG("shopping_dag", schedule=None, start_date=start), BarrierGroup("shopping") as group:
        return group.job(
            LivyOperator(task_id="load", file="s3://load.py", deferrable=True, conf={"spark.own": "1"}),
            inlets=sources,
            outlets=[SHOPPING],
        )


def context_of(operator: Any, day: int = 1, max_tries: int = 0) -> Any:
    ti = SimpleNamespace(
        dag_id="shopping_dag",
        run_id=f"day-{day}",
        start_date=datetime.now(timezone.utc),
        task_id=operator.task_id,
        map_index=-1,
        try_number=1,
        max_tries=max_tries,
        xcom_push=lambda key, value: None,
    )
    run = SimpleNamespace(
        logical_date=MONDAY,
        data_interval_start=MONDAY,
        data_interval_end=MONDAY + timedelta(days=day),
        run_type=SimpleNamespace(value="scheduled"),
        conf={},
        clear_number=0,
    )
    return {"ti": ti, "dag_run": run, "task": operator}


def test_the_attempt_is_closed_when_the_operator_has_resumed(shop: Shop, posted: list[dict[str, Any]]) -> None:
    shop.open(1)
    operator = parsed()
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(operator))
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 1)
    assert attempt.state is AttemptState.RUNNING
    (body,) = posted
    assert body["conf"]["spark.wap.branch"] == attempt.branch
    assert body["conf"]["spark.own"] == "1"
    assert deferred.value.method_name == "resume_operator"
    kept = json.loads(json.dumps(deferred.value.kwargs))  # as it goes through Airflow's database

    table = shop.deployment.tables.load(SHOPPING)
    rows = pa.Table.from_pylist([dict.fromkeys(COLUMNS[SHOPPING], 1)], table.schema().as_arrow())
    table.append(rows, snapshot_properties={**attempt.stamp.properties(), **GUARDED}, branch=attempt.branch)

    again = parsed()
    event = {"status": "success", "batch_id": 7, "log_lines": None, "response": "done"}
    assert again.resume_execution("resume_operator", {**kept, "event": event}, context_of(again)) == 1
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 1)
    assert attempt.state is AttemptState.PROCESSED


def test_a_task_links_to_its_barrier_while_its_batch_runs(shop: Shop, posted: list[dict[str, Any]]) -> None:
    shop.open(1)
    operator, xcoms = parsed(), KeptXComs()
    with supervised(xcoms), pytest.raises(TaskDeferred):
        operator.execute(context_of(operator))
    assert xcoms.link == "deployment=barrier_default&topology=shopping&barrier=1"
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 1)
    assert attempt.state is AttemptState.RUNNING


def test_a_batch_that_failed_ends_the_attempt(shop: Shop, posted: list[dict[str, Any]]) -> None:
    shop.open(1)
    operator = parsed()
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(operator))
    again = parsed()
    event = {"status": "error", "batch_id": 7, "log_lines": None, "response": "batch 7 has failed"}
    with pytest.raises(Exception, match="batch 7 has failed"):
        again.resume_execution(
            "resume_operator", {**(deferred.value.kwargs or {}), "event": event}, context_of(again, max_tries=2)
        )
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 1)
    assert (attempt.state, attempt.tried, attempt.tries) == (AttemptState.ABORTED, 1, 3)
    assert attempt.again_at is not None
    assert attempt.ended_at is not None
    assert timedelta(0) <= attempt.again_at - attempt.ended_at - again.retry_delay < timedelta(minutes=1)


class Submitting(BaseOperator):
    """An operator of an author's own. ``submitted``: the command lines that it has run."""

    template_fields = ("command",)
    submitted: ClassVar[list[str]] = []

    def __init__(self, *, command: str, **options: Any) -> None:
        super().__init__(**options)
        self.command = command

    def execute(self, context: Any) -> None:
        self.submitted.append(self.command)


def test_each_attempt_of_a_task_is_handed_to_the_operator_as_it_was_rendered(shop: Shop) -> None:
    """A member's task works off earlier barriers, whose conf must not be what its own is run with."""
    first, second = shop.open(1), shop.open(2)
    with DAG("shopping_dag", schedule=None), BarrierGroup("shopping") as group:
        operator = Submitting(task_id="load", command=f"spark-submit {BARRIER_CONF} load.py")
        group.job(operator, outlets=[SHOPPING])
    work = operator.epoch_work(context_of(operator))
    operator._steps = SimpleNamespace(done=[])  # as its task has them while it runs
    branches = []
    for barrier in (first, second):
        ready = shop.begin(barrier, "load")
        work.run(ready)
        shop.close(ready, shop.write(ready, [{"amount": 1, "price": 1}]))
        branches.append(ready.attempt.branch)
    assert [[branch in line for branch in branches] for line in Submitting.submitted] == [[True, False], [False, True]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "landing"


@pytest.fixture
def storage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The storage that the landing folder lies in, which may be down."""
    storage, find = SimpleNamespace(down=False), LocalFileSystem.find

    def found(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if storage.down and str(path).startswith(str(folder)):
            raise OSError("no route to host")
        return find(self, path, *arguments, **options)

    monkeypatch.setattr(LocalFileSystem, "find", found)
    return storage


def put_off(shop: Shop, folder: Path, storage: SimpleNamespace) -> Barrier:
    """Barrier 2, which has opened while the storage was down."""
    arrive(folder, 1, "1.parquet")
    shop.process(shop.open(1, fragment(landing(folder))), "load", [{"amount": 1, "price": 2}])
    storage.down = True
    return shop.open(2, fragment(landing(folder)))


def resumed(operator: Any, deferred: Any) -> Any:
    """As Airflow has it run again when its trigger has fired, by ``dag.test()`` with nothing but the event."""
    kept = json.loads(json.dumps(deferred.value.trigger.serialize()[1]["kept"]))
    context = context_of(operator, 2)
    return operator.resume_execution(deferred.value.method_name, {"event": {"status": "reached", **kept}}, context)


def test_a_task_whose_source_is_away_waits_until_it_answers(
    shop: Shop, folder: Path, storage: SimpleNamespace, posted: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    barrier = put_off(shop, folder, storage)
    operator = parsed(landing(folder))
    with pytest.raises(TaskDeferred) as first:
        operator.execute(context_of(operator, 2))
    for part in ("source purchases", "no route to host", f"put off at {barrier.opened_at}"):
        assert part in caplog.text
    with pytest.raises(TaskDeferred) as second:
        resumed(parsed(landing(folder)), first)
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 2)
    assert attempt.state is AttemptState.REQUESTED, "one attempt waits, however often it is tried"
    storage.down = False
    arrive(folder, 2, "2.parquet")
    with pytest.raises(TaskDeferred) as third:
        resumed(parsed(landing(folder)), second)
    assert third.value.method_name == "resume_operator", "its Spark job runs now"
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 2)
    assert attempt.state is AttemptState.RUNNING
    assert files_of(shop, 2) == ["2.parquet"]
    assert len(posted) == 1


def test_what_a_task_waits_for_its_source_with(
    shop: Shop, folder: Path, storage: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fires so that the task tries again, at the end of `wait_timeout`, and at once if the attempt has ended or
    another job has cut the source.
    """
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")
    monkeypatch.setenv("AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME", "0")
    put_off(shop, folder, storage)
    operator = parsed(landing(folder))
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context_of(operator, 2))
    path, arguments = json.loads(json.dumps(deferred.value.trigger.serialize()))
    assert arguments["look_again"] == 60

    def fired(**changed: Any) -> Any:
        trigger = resolve_name(path)(**{**arguments, **changed})
        return asyncio.run(asyncio.wait_for(anext(trigger.run()), 60)).payload

    assert fired(look_again=0.01) == {"status": "reached", "done": []}
    late = fired(until=MONDAY.isoformat())
    assert late["status"] == "late"
    assert "expected a source (" in late["message"]
    assert "no route to host" in late["message"]
    with monkeypatch.context() as another_catalog:
        another_catalog.setattr(storage, "down", False)
        (attempt,) = shop.deployment.meta.attempts.of("shopping", 2)
        assert cut_put_off(shop.deployment, attempt, "another job") is None
    assert fired() == {"status": "reached", "done": []}, "another job has cut it"
    asyncio.run(resolve_name(path)(**arguments).on_kill())
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 2)
    assert attempt.state is AttemptState.ABORTED, "a person has cleared the task"
    assert fired() == {"status": "reached", "done": []}


def test_a_source_that_no_trying_again_mends_fails_its_task_at_once(
    shop: Shop, folder: Path, storage: SimpleNamespace
) -> None:
    put_off(shop, folder, storage)
    storage.down = False
    folder.rename(folder.parent / "elsewhere")
    operator, xcoms = parsed(landing(folder)), KeptXComs()
    with supervised(xcoms), pytest.raises(AirflowFailException, match="expected a folder, found nothing"):
        operator.execute(context_of(operator, 2, max_tries=2))
    assert xcoms.link == "deployment=barrier_default&topology=shopping&barrier=2"
    (attempt,) = shop.deployment.meta.attempts.of("shopping", 2)
    assert (attempt.state, attempt.tried, attempt.tries, attempt.again_at) == (AttemptState.ABORTED, 1, 3, None)
    assert "expected a folder, found nothing" in (attempt.reason or "")
