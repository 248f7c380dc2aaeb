"""Notifiers and the task that watches, on a real MetaService: who is told what, of which time, and which numbers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from airflow.providers.common.compat.sdk import AirflowException
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG, BaseNotifier
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.execution_time.comms import GetPreviousDagRun, PreviousDagRunResult
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from sqlalchemy import update

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.signals import SETTLED
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.metaservice import schema
from airflow_barrier.notifications._interval import interval_of
from airflow_barrier.notifications.barrier import BarrierNotifier
from airflow_barrier.operators._metrics import emit_commits
from airflow_barrier.operators.commit import CommitBarrierOperator
from airflow_barrier.operators.watch import WatchBarriersOperator
from airflow_barrier.protocol.errors import ConfigurationError
from tests.metaservice.test_deliveries import register
from tests.metaservice.world import World
from tests.support.mail import mailbox, text_of
from tests.support.metrics import NoStatsLogger, metrics_by
from tests.support.supervising import KeptXComs, supervised
from tests.support.waiting import patience

CONN = "barrier_notifying"
NOON = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)
FIVE = timedelta(minutes=5)
DAG_FILE = DAG("watching", schedule=None, start_date=NOON)


class Telling(BaseNotifier):
    """Remembers what it was told, by its template."""

    template_fields = ("text",)
    told: list[str]

    def __init__(self, text: str, told: list[str]) -> None:
        super().__init__()
        self.text = text
        self.told = told

    def notify(self, context: Any) -> None:
        self.told.append(self.text)


class Broken(BaseNotifier):
    def notify(self, context: Any) -> None:
        raise RuntimeError("the line is dead")

    async def async_notify(self, context: Any) -> None:
        raise RuntimeError("the line is dead")


class TellingInTime(Telling):
    """Has both ways."""

    async def async_notify(self, context: Any) -> None:
        await asyncio.sleep(0)
        self.told.append(f"{self.text}, in time")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """Barrier 1 was committed, and 2 and 3 were given up at 12:03."""
    extras = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path)}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(extras))
    from airflow_barrier.metaservice.store import MetaService

    MetaService(Settings.embedded(str(tmp_path)).metaservice_url).open()
    meta = BarrierHook(CONN).get_meta_service()
    world = World(meta)
    world.committed(1)
    world.open(2)
    world.open(3)
    world.abort(2)
    with meta._db.transaction(write=True) as connection:
        connection.execute(update(schema.audit).values(at=NOON + timedelta(minutes=3)))
    yield world
    meta.close()


def scheduled(end: datetime, begin: datetime | None = None, kind: str = "scheduled") -> dict[str, Any]:
    """A run of a cron's trigger timetable, which is of one moment, unless it has a ``begin``."""
    return {
        "dag_id": "watching",
        "run_id": f"{kind}__{end}",
        "logical_date": begin or end,
        "data_interval_start": begin or end,
        "data_interval_end": end,
        "run_after": end,
        "start_date": end,
        "end_date": None,
        "run_type": kind,
        "state": "success",
        "consumed_asset_events": [],
        "partition_key": None,
    }


class Runs:
    """Airflow's answers about the runs of a DAG."""

    def __init__(self, *runs: dict[str, Any]) -> None:
        self._runs = runs

    def __call__(self, msg: Any) -> Any:
        assert isinstance(msg, GetPreviousDagRun), msg
        before = [run for run in self._runs if run["logical_date"] < msg.logical_date]
        newest = max(before, key=lambda run: run["logical_date"], default=None)
        return PreviousDagRunResult.model_validate({"dag_run": newest})


def context(run: dict[str, Any]) -> Any:
    return {"dag_run": SimpleNamespace(**run), "dag": DAG_FILE}


SUMMARIES = [
    "barrier 2 was aborted by test: bad input",
    "barrier 3 was aborted by test: with barrier 2: bad input",
]


def test_a_schedules_runs_tile_the_time_and_each_signal_is_told_once(world: World) -> None:
    told: list[str] = []
    ends = [NOON + FIVE * number for number in (-1, 0, 1, 2, 3)]
    # somebody triggers one meanwhile, and the scheduler leaves one out
    runs = [scheduled(end) for end in ends if end != ends[2]]
    with supervised(Runs(*runs, scheduled(NOON + timedelta(minutes=1), kind="manual"))):
        tiles = [interval_of(context(run), NOON) for run in runs]
        for run in runs:
            text = "{{ signal.topology }} {{ signal.kind }} {{ signal.barrier_id }}"
            BarrierNotifier(Telling(text, told), barrier_conn_id=CONN)(context(run))
            told.append("|")
    assert told == ["|", "|", "shopping aborted 2", "shopping aborted 3", "|", "|"]
    assert [end for _, end in tiles] == [run["data_interval_end"] - SETTLED for run in runs]
    assert [begin for begin, _ in tiles[1:]] == [end for _, end in tiles[:-1]]


def test_what_a_run_looks_at() -> None:
    now = NOON + timedelta(minutes=7)
    with supervised(Runs()):
        assert interval_of(context(scheduled(NOON)), now) == (NOON - timedelta(hours=1) - SETTLED, NOON - SETTLED)
        first = scheduled(NOON, NOON - FIVE)
        assert interval_of(context(first), now) == (NOON - FIVE - SETTLED, NOON - SETTLED)
        assert interval_of(context(scheduled(NOON, kind="manual")), now) == (now - timedelta(hours=1), now)
    with supervised(Runs(scheduled(NOON))):
        manual = scheduled(NOON + timedelta(minutes=6), kind="manual")
        assert interval_of(context(manual), now) == (NOON - SETTLED, now)
        as_json = {"dag_run": {**manual, "data_interval_end": "2026-11-26T12:06:00Z", "logical_date": None}}
        assert interval_of(as_json, now) == (NOON - SETTLED, now)  # type: ignore[arg-type]
    assert interval_of({}, now) == (now - timedelta(hours=1), now)  # type: ignore[typeddict-item]


def test_one_that_fails_keeps_no_other_from_being_called(world: World) -> None:
    told: list[str] = []
    notifier = BarrierNotifier(
        Broken(), Telling("{{ signal.summary }}", told), topologies=["shopping"], barrier_conn_id=CONN
    )
    with (
        supervised(Runs(scheduled(NOON))),
        pytest.raises(AirflowException, match=r"2 calls failed: Broken of shopping: aborted \(RuntimeError: the line"),
    ):
        notifier(context(scheduled(NOON + FIVE)))
    assert told == SUMMARIES


def test_in_an_event_loop_each_is_called_in_the_way_that_it_has(world: World) -> None:
    told: list[str] = []
    text = "{{ signal.barrier_id }}"

    async def story() -> None:
        run = context(scheduled(NOON + FIVE))
        await BarrierNotifier(
            Telling(text, told), Broken(), TellingInTime(text, told), barrier_conn_id=CONN, context=run
        )

    with supervised(Runs(scheduled(NOON))), pytest.raises(AirflowException, match="2 calls failed: Broken"):
        asyncio.run(story())
    assert told == ["2", "2, in time", "3", "3, in time"]


def test_only_what_is_wanted_is_told(world: World) -> None:
    told: list[str] = []
    with supervised(Runs(scheduled(NOON))):
        run = context(scheduled(NOON + FIVE))
        BarrierNotifier(Telling("x", told), on=["late", "revised"], barrier_conn_id=CONN)(run)
        BarrierNotifier(Telling("x", told), topologies=[], barrier_conn_id=CONN)(run)
    assert told == []
    with pytest.raises(ConfigurationError, match="found 'latest'"):
        BarrierNotifier(Telling("x", told), on=["latest"])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="expected a list of names"):
        WatchBarriersOperator(task_id="watch", topologies="shopping")
    with pytest.raises(ConfigurationError, match="expected notifiers of Airflow's, found 'me'"):
        WatchBarriersOperator(task_id="watch", notifiers=["me"])  # type: ignore[list-item]


def test_a_mail_has_the_signal_in_its_subject_and_text(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with mailbox() as box, supervised(Runs(scheduled(NOON))):
        mail = {"conn_type": "smtp", "host": "127.0.0.1", "port": box.port}
        extra = {"disable_ssl": True, "disable_tls": True}
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps({**mail, "extra": extra}))
        notifier = SmtpNotifier(
            to="data@example.com",
            from_email="airflow@example.com",
            subject="{{ signal.topology }}: {{ signal.kind }}",
            html_content="{{ signal.summary | e }}",
        )
        watch = WatchBarriersOperator(task_id="watch", notifiers=[notifier], barrier_conn_id=CONN)
        watch.execute(context(scheduled(NOON + FIVE)))
        assert [each["Subject"] for each in box.mails] == ["shopping: aborted"] * 2
        assert [text_of(each) for each in box.mails] == SUMMARIES


# --- numbers ------------------------------------------------------------------------------------------

#: A process in which a task runs, as Airflow's task runner begins one.
_TASK = """
import sys
from airflow.sdk import DAG
from tests.airflow.test_notifying import FIVE, NOON, Runs, context, scheduled
from tests.support.metrics import begin_metrics
from tests.support.supervising import KeptXComs, supervised
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.operators._metrics import emit_commits
from airflow_barrier.operators.commit import CommitBarrierOperator
from airflow_barrier.operators.watch import WatchBarriersOperator
begin_metrics()
with supervised(Runs()):
    WatchBarriersOperator(task_id="watch", barrier_conn_id=sys.argv[1]).execute(context(scheduled(NOON)))
    emit_commits([BarrierHook(sys.argv[1]).get_meta_service().barriers.get("shopping", 1)])
"""


class Collector(BaseHTTPRequestHandler):
    """Takes metrics as OpenTelemetry's exporters send them."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.server.taken.append(ExportMetricsServiceRequest.FromString(body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def run_task(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _TASK, CONN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_numbers_reach_a_collector(world: World) -> None:
    register(world)
    world.committed(4)
    barrier = world.open(5)
    world.request(barrier.barrier_id, "load")
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        taken: list[ExportMetricsServiceRequest] = []
        server.taken = taken  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            run_task(
                AIRFLOW__METRICS__OTEL_ON="True",
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_address[1]}",
                OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            )
        finally:
            server.shutdown()
            thread.join()
    found = {
        (metric.name, *sorted(f"{tag.key}={tag.value.string_value}" for tag in point.attributes)): (
            point.as_double or point.as_int
        )
        for request in taken
        for resource in request.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.gauge.data_points
    }
    tag = "topology=shopping"
    assert found.pop(("airflow.barrier.age_seconds", tag)) > 9 * 365 * 86_400  # its days are of 2017
    assert found.pop(("airflow.barrier.commit_seconds", tag)) > 9 * 365 * 86_400
    assert found == {
        ("airflow.barrier.open", tag): 1,
        ("airflow.barrier.failed", tag): 0,
        ("airflow.barrier.late", tag): 0,
        ("airflow.barrier.waiting_tasks", tag): 1,
        ("airflow.barrier.sinks_behind", "sink=prices", tag): 1,
    }


def test_numbers_that_cannot_be_sent_fail_no_task(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def dead() -> NoStatsLogger:
        raise OSError("no route to the collector")

    with metrics_by(dead), supervised(Runs(scheduled(NOON))):
        told: list[str] = []
        notifier = Telling("{{ signal.summary }}", told)
        watch = WatchBarriersOperator(task_id="watch", notifiers=[notifier], barrier_conn_id=CONN)
        watch.execute(context(scheduled(NOON + FIVE)))
        emit_commits([world.barrier(1)])
    assert told == SUMMARIES
    assert caplog.messages.count("Metrics were not sent: OSError: no route to the collector") == 2


class Gauges(NoStatsLogger):
    """Keeps what is set."""

    found: ClassVar[list[tuple[str, float, dict[str, str]]]] = []

    def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False, *, tags: Any = None) -> None:
        self.found.append((stat, value, tags))


def test_a_commit_task_sends_how_long_its_barrier_took(world: World) -> None:
    barrier = world.barrier(1)
    assert barrier.commit_at is not None
    run = {
        **scheduled(barrier.timestamp),
        "run_id": barrier.run.run_id,
        "dag_id": barrier.run.dag_id,
        "run_type": DagRunType.SCHEDULED,
    }
    task = CommitBarrierOperator(task_id="commit", topology="shopping", barrier_conn_id=CONN, dag=DAG_FILE)
    ti = SimpleNamespace(
        dag_id=barrier.run.dag_id,
        run_id=barrier.run.run_id,
        task_id="commit",
        map_index=-1,
        try_number=1,
        xcom_push=lambda *_, **__: None,
    )
    given: Any = {"ti": ti, "task": task, "dag_run": SimpleNamespace(**run, conf={}, clear_number=0)}
    with metrics_by(Gauges), supervised(KeptXComs()):
        assert task.execute(given) == 1
    took = (barrier.commit_at - barrier.timestamp).total_seconds()
    assert Gauges.found == [("barrier.commit_seconds", took, {"topology": "shopping"})]
