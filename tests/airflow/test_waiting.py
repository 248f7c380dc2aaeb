"""What deferred tasks wait with: the triggers, run as the triggerer runs them, on a real MetaService."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.sdk import DAG, TaskInstanceState
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.execution_time.comms import SetXCom
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance, finalize
from airflow.triggers.base import TriggerEvent
from sqlalchemy import create_engine, text

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.waiting import Condition, Found, Room, TopologyView, Unseen, Wait, look
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.metaservice.barriers import Opening
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.metaservice.versions import EXPECTED, VERSION_TABLE
from airflow_barrier.operators._waiting import check_event, defer
from airflow_barrier.operators.compact import CompactTablesOperator
from airflow_barrier.operators.start import StartBarrierOperator
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.deliveries import Counts, Position, SinkDeclaration
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    StoreUnavailableError,
    UnknownTableError,
    WaitTimeoutError,
)
from airflow_barrier.protocol.records import Barrier, StagedTable
from airflow_barrier.protocol.topology import Job
from airflow_barrier.sensors.barrier import BarrierSensor
from airflow_barrier.triggers import _watcher
from airflow_barrier.triggers import barrier as triggers
from airflow_barrier.triggers._watcher import REACHED, Outcome, watcher
from airflow_barrier.triggers.barrier import BarrierTrigger
from tests.metaservice.world import joining
from tests.support.runs import run_of
from tests.support.supervising import KeptXComs, supervised

DAY = datetime(2025, 1, 1, tzinfo=timezone.utc)
TABLE = "shop.shopping"
CONN = "barrier_waiting"


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler is there to be waited for."""
    monkeypatch.setattr(_watcher, "POLL_INTERVAL", 0.01)
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "0")
    monkeypatch.setenv("AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME", "0")


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MetaService]:
    extras = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path)}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps(extras))
    MetaService(Settings.embedded(str(tmp_path)).metaservice_url).open()
    meta = BarrierHook(CONN).get_meta_service()
    meta.topologies.register("shopping", "dag", [Job("load", "dag", outlets=(TABLE,))], "test")
    yield meta
    meta.close()


def open_barrier(meta: MetaService, day: int = 0) -> Barrier:
    head, baseline = meta.barriers.head("shopping"), dict.fromkeys(meta.barriers.unjoined("shopping"))
    return meta.barriers.open(
        Opening(
            "shopping",
            DAY + timedelta(days=day),
            topology_version=meta.topologies.version("shopping"),
            cuts=(),
            predecessor=head.barrier_id if head else 0,
            run=run_of(f"dag/{day}"),
            timestamp_from="test",
            max_open=4,
            baseline=baseline,
            starts=joining(meta.topologies.get("shopping").jobs, baseline),
            actor="test",
        ),
    )


def request(meta: MetaService, barrier: Barrier) -> int:
    asked = meta.attempts.request(
        Request("shopping", barrier.barrier_id, "load", request_key="dag/0/load", generation="0", actor="test")
    )
    return asked.attempt_id


def process(meta: MetaService, barrier: Barrier) -> None:
    attempt = request(meta, barrier)
    meta.attempts.start(attempt)
    meta.attempts.close(attempt, {TABLE: StagedTable(TABLE, 1)}, "test")
    meta.attempts.report(attempt, "test")


def commit(meta: MetaService, barrier: Barrier) -> None:
    process(meta, barrier)
    meta.publishing.begin("shopping", barrier.barrier_id, {TABLE: None}, "test")
    with meta.publishing.swapping("shopping", barrier.barrier_id, "test"):
        pass


def trigger(*conditions: Condition, **options: Any) -> BarrierTrigger:
    made = BarrierTrigger(topology="shopping", barrier_conn_id=CONN, conditions=conditions, **options)
    # the triggerer makes it anew from what the database keeps
    _, arguments = made.serialize()
    return BarrierTrigger(**json.loads(json.dumps(arguments)))


def seen(meta: MetaService, condition: Condition, topology: str = "shopping") -> Found:
    return look(TopologyView(meta, topology), condition)


async def first(waiting: BarrierTrigger) -> Any:
    async for event in waiting.run():
        assert isinstance(event, TriggerEvent)
        return event.payload
    raise AssertionError("the trigger ended without an event")


def test_fires_when_all_conditions_hold(meta: MetaService) -> None:
    async def story() -> Any:
        waiting = asyncio.create_task(
            first(trigger(Condition("PROCESSED", timestamp=DAY, tables=(TABLE,)), Condition("PRECOMMIT", barrier_id=1)))
        )
        await asyncio.to_thread(open_barrier, meta)
        barrier = meta.barriers.get("shopping", 1)
        assert not waiting.done()
        await asyncio.to_thread(process, meta, barrier)
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(story()) == {"status": "reached"}


def test_a_triggerer_that_a_deploy_has_not_reached_waits_it_out(meta: MetaService, tmp_path: Path) -> None:
    process(meta, open_barrier(meta))
    version(tmp_path, "9999")

    async def story() -> list[Outcome]:
        told = []
        async for outcome in watcher(CONN, "shopping").follow(lambda _: REACHED, 60):
            told.append(outcome)
            await asyncio.to_thread(version, tmp_path, EXPECTED)
        return told

    missing, reached = asyncio.run(asyncio.wait_for(story(), 60))
    assert "a newer one has upgraded the database" in missing.waits_for
    assert reached == REACHED


def version(folder: Path, number: str) -> None:
    """Of the schema, as the database says it."""
    engine = create_engine(Settings.embedded(str(folder)).metaservice_url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = :number"), {"number": number})
    engine.dispose()


def test_is_told_that_a_barrier_was_aborted(meta: MetaService) -> None:
    barrier = open_barrier(meta)
    meta.barriers.abort("shopping", barrier.barrier_id, "bad file", "test")
    event = asyncio.run(first(trigger(Condition("COMMIT", barrier_id=1))))
    assert event["status"] == "never"
    assert "barrier 1 of shopping" in event["message"]
    assert "was aborted (bad file)" in event["message"]


def test_is_told_that_the_barrier_of_a_timestamp_was_aborted_or_passed_over(meta: MetaService) -> None:
    meta.barriers.abort("shopping", open_barrier(meta).barrier_id, "bad file", "test")
    event = asyncio.run(first(trigger(Condition("COMMIT", timestamp=DAY))))
    assert event["status"] == "never"
    assert "was aborted (bad file)" in event["message"]
    open_barrier(meta, day=2)
    passed = DAY + timedelta(days=1)
    event = asyncio.run(first(trigger(Condition("COMMIT", timestamp=passed))))
    assert event["status"] == "never"
    assert f"no barrier of shopping opens at {passed.isoformat()} any more, since barrier 2" in event["message"]


def test_a_member_is_woken_when_no_barrier_opens_at_its_timestamp_any_more(meta: MetaService) -> None:
    passed = DAY + timedelta(days=1)
    open_barrier(meta)

    async def story() -> Any:
        waiting = asyncio.create_task(first(trigger(Condition(None, timestamp=passed))))
        await asyncio.to_thread(open_barrier, meta, 2)
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(story()) == {"status": "reached"}


def test_a_timestamp_waits_for_the_barrier_that_reopens_it(meta: MetaService) -> None:
    meta.barriers.abort("shopping", open_barrier(meta).barrier_id, "bad file", "test")

    async def story() -> Any:
        waiting = asyncio.create_task(first(trigger(Condition(None, timestamp=DAY))))
        await asyncio.to_thread(open_barrier, meta)
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(story()) == {"status": "reached"}
    assert meta.barriers.at("shopping", DAY) == meta.barriers.get("shopping", 2)


def test_who_waits_may_come_before_who_registers(meta: MetaService) -> None:
    assert seen(meta, Condition("COMMIT", barrier_id=1), "tomorrow").waits_for == "barrier 1 of tomorrow to be opened"
    at = seen(meta, Condition("COMMIT", timestamp=DAY), "tomorrow").waits_for
    assert at == "barrier at 2025-01-01T00:00:00+00:00 of tomorrow to be opened"


def test_a_lost_database_is_survived_for_a_while_and_then_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "barrier.db").mkdir()  # a database that nobody can open
    extras = {"warehouse": "/w", "metaservice_url": f"sqlite:///{tmp_path}/barrier.db"}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps({"conn_type": "barrier", "extra": extras}))
    event = asyncio.run(first(trigger(Condition("COMMIT", barrier_id=1), patience=0.01)))
    assert event["status"] == "unavailable"
    assert "no answer from the MetaService for 0.01 s" in event["message"]


def test_a_connection_that_airflow_cannot_give_just_now_is_asked_for_again(
    meta: MetaService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow says of a connection that it cannot reach that it is not defined."""
    open_barrier(meta)
    asked: list[str] = []
    given = BarrierHook.aget_connection

    async def away_at_first(conn_id: str) -> Any:
        asked.append(conn_id)
        if len(asked) < 3:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return await given(conn_id)

    monkeypatch.setattr(BarrierHook, "aget_connection", staticmethod(away_at_first))
    assert asyncio.run(first(trigger(Condition(None, barrier_id=1)))) == {"status": "reached"}
    assert len(asked) == 3
    asked.clear()
    event = asyncio.run(first(trigger(Condition(None, barrier_id=1), patience=0)))
    assert event["status"] == "unavailable"
    assert "AirflowNotFoundException: The conn_id" in event["message"]


def test_the_connection_is_asked_for_once(meta: MetaService, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    given = BarrierHook.aget_connection

    async def counted(conn_id: str) -> Any:
        asked.append(conn_id)
        return await given(conn_id)

    monkeypatch.setattr(BarrierHook, "aget_connection", staticmethod(counted))

    async def story() -> Any:
        conditions = (
            Condition("PROCESSED", barrier_id=1),
            Condition("PRECOMMIT", barrier_id=1),
            Condition(None, timestamp=DAY),
        )
        waiting = [asyncio.create_task(first(trigger(condition))) for condition in conditions]
        await asyncio.to_thread(open_barrier, meta)
        await asyncio.to_thread(process, meta, meta.barriers.get("shopping", 1))
        return await asyncio.wait_for(asyncio.gather(*waiting), 60)

    assert asyncio.run(story()) == [{"status": "reached"}] * 3
    assert asked == [CONN]


def test_a_person_who_ends_the_waiting_ends_the_attempt(meta: MetaService) -> None:
    barrier = open_barrier(meta)
    attempt = request(meta, barrier)
    asyncio.run(trigger(Condition("PROCESSED", barrier_id=1), attempt_ids=[attempt]).on_kill())
    assert meta.attempts.get(attempt).state.value == "ABORTED"


def test_a_person_who_ends_a_waiting_compaction_lets_go_of_its_tables(meta: MetaService) -> None:
    """Nothing else would: later barriers would wait for them."""
    open_barrier(meta)
    context: Any = {
        "ti": SimpleNamespace(
            dag_id="upkeep",
            run_id="today",
            task_id="compact",
            try_number=1,
            map_index=-1,
            max_tries=0,
            start_date=DAY,
        ),
        "task": SimpleNamespace(retries=0),
        "dag_run": SimpleNamespace(run_type=DagRunType.SCHEDULED, logical_date=DAY),
    }
    compact = CompactTablesOperator(task_id="compact", topology="shopping", tables=[TABLE], barrier_conn_id=CONN)
    with pytest.raises(TaskDeferred) as deferred:
        compact.execute(context)
    assert meta.barriers.get("shopping", 2).is_maintenance
    again = BarrierTrigger(**json.loads(json.dumps(deferred.value.trigger.serialize()[1])))
    assert [attempt.state.value for attempt in meta.attempts.of("shopping", 2)] == ["REQUESTED"]
    asyncio.run(again.on_kill())
    assert [attempt.state.value for attempt in meta.attempts.of("shopping", 2)] == ["ABORTED"]


def test_a_trigger_fires_no_sooner_than_airflow_bears(meta: MetaService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for is there at its first look, so what it slept it slept before: as long as its worker says."""
    open_barrier(meta)
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "3600")
    deferred = trigger(Condition(None, barrier_id=1))
    monkeypatch.setenv("AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL", "7")  # the triggerer's, which no task runs by
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    of_asyncio = {"wait_for": asyncio.wait_for, "TimeoutError": asyncio.TimeoutError}
    monkeypatch.setattr(triggers, "asyncio", SimpleNamespace(sleep=sleep, **of_asyncio))
    assert asyncio.run(first(deferred)) == {"status": "reached"}
    assert slept == [3600]


def test_a_wait_for_what_only_the_task_can_see_ends_by_the_clock(meta: MetaService) -> None:
    """Such as the end of another run: the task looks again every few seconds, and not for ever."""
    runs_end = Unseen("pricing/monday to end")
    again = trigger(runs_end, look_again=0.05, until=datetime.now(timezone.utc) + timedelta(hours=1))
    assert asyncio.run(first(again)) == {"status": "reached"}
    event = asyncio.run(first(trigger(runs_end, look_again=3600.0, until=DAY)))
    with pytest.raises(WaitTimeoutError, match=r"expected pricing/monday to end by 2025-01-01 00:00.*longer wait"):
        check_event(event)


def test_a_start_that_failed_says_that_it_holds_up_later_ones(
    meta: MetaService, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow starts them not, and so they cannot."""
    open_barrier(meta, day=1)
    run = SimpleNamespace(
        run_type=DagRunType.SCHEDULED,
        logical_date=DAY,
        data_interval_start=DAY,
        data_interval_end=DAY,
        conf=None,
        clear_number=0,
    )
    ti = SimpleNamespace(dag_id="dag", run_id="late", task_id="start", try_number=1, map_index=-1)
    with DAG("dag"):
        start = StartBarrierOperator(
            task_id="start",
            topology="shopping",
            jobs=[Job("load", "dag", outlets=(TABLE,))],
            barrier_conn_id=CONN,
        )
    context: Any = {"ti": ti, "dag_run": run}
    with pytest.raises(AirflowFailException):
        start.execute(context)
    assert "later runs of DAG dag do not begin" in capsys.readouterr().out


def test_a_task_that_waits_without_retries_says_so(meta: MetaService, capsys: pytest.CaptureFixture[str]) -> None:
    for retries, said in ((0, True), (1, False)):
        start = StartBarrierOperator(task_id="start", topology="shopping", jobs=[], retries=retries)
        who = SimpleNamespace(barrier_conn_id=CONN, wait_timeout=timedelta(hours=1))
        context: Any = {"ti": SimpleNamespace(start_date=DAY)}
        with pytest.raises(TaskDeferred):
            defer(start, who, "shopping", Wait((Condition(None, barrier_id=1),), "a barrier"), context, "resume")
        assert ("Task start has no retries" in capsys.readouterr().out) is said


def test_a_wait_has_an_end(meta: MetaService) -> None:
    """As long as the task's operator says, from the beginning of its try, however often it is deferred."""
    open_barrier(meta)
    who = SimpleNamespace(barrier_conn_id=CONN, wait_timeout=timedelta(hours=1))
    context: Any = {"ti": SimpleNamespace(start_date=DAY)}

    def deferred(*conditions: Condition) -> BarrierTrigger:
        start = StartBarrierOperator(task_id="start", topology="shopping", jobs=[])
        with pytest.raises(TaskDeferred) as waits:
            defer(start, who, "shopping", Wait(conditions, "a barrier"), context, "resume")
        return cast("BarrierTrigger", waits.value.trigger)

    late = deferred(Condition("COMMIT", barrier_id=1))
    assert late.until == DAY + timedelta(hours=1)
    event = asyncio.run(first(BarrierTrigger(**json.loads(json.dumps(late.serialize()[1])))))
    with pytest.raises(WaitTimeoutError, match=r"expected COMMIT of barrier 1 .* by 2025-01-01 01:00:00.* longer wait"):
        check_event(event)
    there = deferred(Condition(None, barrier_id=1))
    assert asyncio.run(first(there)) == {"status": "reached"}, "what has come is not late"


def test_an_event_brings_back_what_the_task_has_to_know(meta: MetaService) -> None:
    """``dag.test()`` drops what Airflow keeps for a task that defers."""
    open_barrier(meta)
    for number, status in ((1, "reached"), (2, "late")):
        waiting = trigger(Condition(None, barrier_id=number), until=DAY, kept={"done": [7]})
        assert {"status": status, "done": [7]}.items() <= asyncio.run(first(waiting)).items()


def test_opening_waits_for_room_and_for_its_time(meta: MetaService) -> None:
    open_barrier(meta)

    def opening(max_open: int, not_before: datetime) -> BarrierTrigger:
        made = BarrierTrigger(
            topology="shopping",
            barrier_conn_id=CONN,
            conditions=[Room(max_open)],
            not_before=not_before,
        )
        return BarrierTrigger(**json.loads(json.dumps(made.serialize()[1])))

    async def story() -> Any:
        waiting = asyncio.create_task(first(opening(1, DAY)))
        await asyncio.to_thread(meta.barriers.abort, "shopping", 1, "bad file", "test")
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(story()) == {"status": "reached"}
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    assert opening(4, DAY)._look(TopologyView(meta, "shopping")).event is not None
    assert opening(4, tomorrow).not_before == tomorrow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "DONE", "barrier_id": 1}, "expected one of PROCESSED, PRECOMMIT, COMMIT, found 'DONE'"),
        ({"target": "COMMIT"}, "found id None and None"),
        ({"target": "COMMIT", "barrier_id": 1, "timestamp": DAY}, "found id 1 and 2025"),
    ],
)
def test_conditions_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Condition(**arguments)


def test_a_barrier_that_is_at_least_as_new(meta: MetaService) -> None:
    wanted = Condition("COMMIT", timestamp=DAY + timedelta(hours=30), tables=(TABLE,), or_newer=True)
    assert decode(Condition, json.loads(json.dumps(encode(wanted)))) == wanted
    assert seen(meta, wanted).waits_for == ("a barrier of shopping at 2025-01-02 06:00:00+00:00 or newer to be COMMIT")
    commit(meta, open_barrier(meta))
    assert (seen(meta, wanted).waits_for or "").endswith("the newest is 1 at 2025-01-01 00:00:00+00:00")
    process(meta, second := open_barrier(meta, 2))
    assert seen(meta, wanted).waits_for is not None
    early = Condition("PRECOMMIT", timestamp=wanted.timestamp, or_newer=True)
    assert seen(meta, early).barrier_id == second.barrier_id
    assert seen(meta, early).waits_for is None
    assert seen(meta, early, "nobody's").waits_for is not None


def test_a_table_that_joins_is_waited_for_and_an_unknown_one_is_not(meta: MetaService) -> None:
    commit(meta, open_barrier(meta))
    wanted = Condition("COMMIT", timestamp=DAY, tables=(TABLE, "shop.price"), or_newer=True)
    with pytest.raises(UnknownTableError, match=r"found shop\.price"):
        seen(meta, wanted)
    meta.topologies.register("shopping", "other", [Job("price", "other", outlets=("shop.price",))], "test")
    waits_for = "barrier of shopping at 2025-01-01 00:00:00+00:00 or newer to be COMMIT, with shop.shopping, shop.price"
    assert (seen(meta, wanted).waits_for or "").endswith(waits_for)
    process(meta, second := open_barrier(meta, 1))
    meta.topologies.leave("shopping", "other", None, "test", "test")
    assert (seen(meta, wanted).waits_for or "").endswith(waits_for), "the open barrier has it"
    meta.barriers.abort("shopping", second.barrier_id, "test", "test")
    with pytest.raises(UnknownTableError, match=r"found shop\.price"):
        seen(meta, wanted)


def test_at_least_as_new_needs_a_time_and_a_state_of_barriers() -> None:
    for arguments in ({"target": "PROCESSED", "timestamp": DAY}, {"target": "COMMIT", "barrier_id": 3}):
        with pytest.raises(ConfigurationError, match="to wait for a barrier that is at least as new"):
            Condition(**arguments, or_newer=True)
    with pytest.raises(ConfigurationError, match=r"either barrier_id=\.\.\. or at_least=\.\.\., found both"):
        BarrierSensor(task_id="wait", topology="shopping", barrier_id=3, at_least=DAY)


def sensor(**arguments: Any) -> BarrierSensor:
    return BarrierSensor(
        task_id="wait", topology="shopping", barrier_conn_id=CONN, **{"poke_interval": 0.01, **arguments}
    )


def test_the_sensor_takes_a_time_as_text(meta: MetaService) -> None:
    commit(meta, open_barrier(meta))
    context: Any = {}
    assert sensor(at_least="2025-01-01T00:00:00Z").poke(context)
    assert not sensor(at_least="2025-01-01T00:00:01+00:00").poke(context)


def test_a_deferred_sensor_waits_for_a_barrier_that_is_new_enough(meta: MetaService) -> None:
    commit(meta, open_barrier(meta))
    waits = sensor(at_least="2025-01-02T06:00:00Z", deferrable=True, timeout=3600)
    context: Any = {}
    with pytest.raises(TaskDeferred) as deferred:
        waits.execute(context)
    assert deferred.value.timeout == 3600
    module, arguments = deferred.value.trigger.serialize()
    assert module.endswith(BarrierTrigger.__name__)
    again = BarrierTrigger(**json.loads(json.dumps(arguments)))

    async def story() -> Any:
        waiting = asyncio.create_task(first(again))
        await asyncio.to_thread(commit, meta, open_barrier(meta, 1))
        assert again._look(TopologyView(meta, "shopping")).event is None
        assert not waiting.done()
        await asyncio.to_thread(commit, meta, open_barrier(meta, 2))
        return await asyncio.wait_for(waiting, 60)

    event = asyncio.run(story())
    assert getattr(waits, deferred.value.method_name)(context, event) == 3


def test_a_deferred_sensor_waits_for_a_sink(meta: MetaService) -> None:
    commit(meta, open_barrier(meta))
    meta.deliveries.register("shopping", SinkDeclaration("prices", "dag", "files", {TABLE: "prices"}), "test")
    waits = sensor(target="DELIVERED", sink="prices", barrier_id="1", deferrable=True)
    context: Any = {}
    with pytest.raises(TaskDeferred) as deferred:
        waits.execute(context)
    again = BarrierTrigger(**json.loads(json.dumps(deferred.value.trigger.serialize()[1])))

    def deliver() -> None:
        meta.deliveries.delivered("shopping", "prices", Position(1, 0), counts=Counts(), seconds=1, actor="test")

    async def story() -> Any:
        waiting = asyncio.create_task(first(again))
        assert again._look(TopologyView(meta, "shopping")).event is None
        await asyncio.to_thread(deliver)
        return await asyncio.wait_for(waiting, 60)

    event = asyncio.run(story())
    assert getattr(waits, deferred.value.method_name)(context, event) == 1


def ended_as_failed(task: BarrierSensor, ti: RuntimeTaskInstance) -> None:
    """What Airflow does in the process of a task at its end."""
    context: Any = {"ti": ti, "task": task}
    finalize(ti, TaskInstanceState.FAILED, context, structlog.get_logger())


def test_a_sensor_links_to_its_barrier_as_soon_as_there_is_one(meta: MetaService) -> None:
    xcoms, waits = KeptXComs(), sensor(target="PROCESSED", deferrable=True)
    with DAG("dag"):
        ti = RuntimeTaskInstance.model_construct(
            dag_id="dag",
            run_id="today",
            task_id="wait",
            try_number=1,
            map_index=-1,
            task=waits,
            start_date=None,
            end_date=None,
        )
    context: Any = {**in_run(DAY), "ti": ti, "task": waits}
    with supervised(xcoms):
        with pytest.raises(TaskDeferred):
            waits.execute(context)
        assert xcoms.link is None
        open_barrier(meta)
        with pytest.raises(TaskDeferred):
            waits.execute(context)
        assert xcoms.link == f"deployment={CONN}&topology=shopping&barrier=1"
        # it resumes in another process, which ends before it has looked
        with pytest.raises(StoreUnavailableError):
            waits.resume(context, {"status": "unavailable", "message": "no answer"})
        ended_as_failed(waits, ti)
    assert xcoms.link == f"deployment={CONN}&topology=shopping&barrier=1"


@pytest.mark.parametrize("answers", [True, False])
def test_a_sensor_that_was_deferred_before_its_barrier_was_open_links_to_it(meta: MetaService, answers: bool) -> None:
    xcoms, waits = KeptXComs(), sensor(target="PROCESSED", deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        waits.execute(in_run(DAY))
    again = BarrierTrigger(**json.loads(json.dumps(deferred.value.trigger.serialize()[1])))
    task: Any = SimpleNamespace(dag_id="dag", run_id="today", task_id="wait", map_index=-1)
    again.task_instance = task

    def answering(msg: Any) -> Any:
        if not answers:
            raise OSError("no route to host")
        return xcoms(msg)

    async def story() -> Any:
        waiting = asyncio.create_task(first(again))
        barrier = await asyncio.to_thread(open_barrier, meta)
        while not any(isinstance(asked, SetXCom) for asked in supervisor.asked):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(process, meta, barrier)
        return await waiting

    with supervised(answering) as supervisor:
        assert asyncio.run(asyncio.wait_for(story(), 60)) == {"status": "reached"}
    assert xcoms.link == (f"deployment={CONN}&topology=shopping&barrier=1" if answers else None)


def test_a_sensor_that_pokes_says_once_where_it_links_to(meta: MetaService) -> None:
    commit(meta, open_barrier(meta))
    newer, named = sensor(at_least="2025-01-02T00:00:00Z"), sensor(barrier_id=2)
    context: Any = {"ti": SimpleNamespace(dag_id="dag", run_id="today", task_id="wait", map_index=-1)}
    xcoms = KeptXComs()
    with supervised(xcoms) as supervisor:
        assert not newer.poke(context)
        assert xcoms.link is None, "the newest barrier is not the one that it waits for"
        process(meta, open_barrier(meta, 1))
        assert [bool(named.poke(context)) for _ in range(3)] == [False] * 3
        assert xcoms.link == f"deployment={CONN}&topology=shopping&barrier=2"
        assert len([asked for asked in supervisor.asked if isinstance(asked, SetXCom)]) == 1


def test_a_sensor_of_a_sink_goes_by_its_run(meta: MetaService) -> None:
    meta.deliveries.register("shopping", SinkDeclaration("prices", "dag", "files", {TABLE: "prices"}), "test")
    waits = sensor(target="DELIVERED", sink="prices")
    context = in_run(DAY)
    assert not waits.poke(context)
    commit(meta, open_barrier(meta))
    assert not waits.poke(context)
    meta.deliveries.delivered("shopping", "prices", Position(1, 0), counts=Counts(), seconds=1, actor="test")
    assert waits.poke(context)
    meta.barriers.abort("shopping", open_barrier(meta, 1).barrier_id, "bad file", "test")
    with pytest.raises(
        AirflowFailException, match=r"to reach DELIVERED, .* or wait by barrier_id=\.\.\. for one that has"
    ):
        waits.poke(in_run(DAY + timedelta(days=1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"target": "DELIVERED"},
            r"expected sink=\.\.\. with target='DELIVERED', and with no other, found sink None and",
        ),
        ({"sink": "prices"}, "found sink 'prices' and target 'COMMIT'; add what is missing, or leave"),
        ({"target": "DELIVERED", "sink": "prices", "tables": [TABLE]}, r"expected no tables=\.\.\. and no at_least"),
        ({"target": "DELIVERED", "sink": "prices", "at_least": DAY}, r"expected no tables=\.\.\. and no at_least"),
    ],
)
def test_a_sink_and_its_target_go_together(meta: MetaService, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sensor(**arguments)
    templated = sensor(**{**arguments, "target": "{{ params.target }}"})
    templated.target = arguments.get("target", "COMMIT")
    context: Any = {}
    with pytest.raises(AirflowFailException, match=message):
        templated.poke(context)


def test_a_sensor_waits_out_a_metaservice_that_is_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "barrier.db").mkdir()  # a database that nobody can open
    extras = {"warehouse": "/w", "metaservice_url": f"sqlite:///{tmp_path}/barrier.db"}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN.upper()}", json.dumps({"conn_type": "barrier", "extra": extras}))
    context: Any = {}
    assert not sensor(barrier_id=1).poke(context)
    with pytest.raises(StoreUnavailableError):
        sensor(barrier_id=1, patience=-1).poke(context)
    waits = sensor(barrier_id=1, patience=0.01, deferrable=True)
    with pytest.raises(TaskDeferred) as deferred:
        waits.execute(context)
    again = BarrierTrigger(**json.loads(json.dumps(deferred.value.trigger.serialize()[1])))
    with pytest.raises(StoreUnavailableError, match=r"no answer from the MetaService for 0\.01 s"):
        waits.resume(context, asyncio.run(first(again)))


def test_a_sensor_ends_when_its_barrier_will_not_come_any_more(meta: MetaService) -> None:
    meta.barriers.abort("shopping", open_barrier(meta).barrier_id, "bad file", "test")
    with pytest.raises(AirflowFailException, match=r"was aborted \(bad file\); its epoch is part of the next"):
        sensor().poke(in_run(DAY))


def in_run(at: datetime) -> Any:
    """The context of a task of the run at that time."""
    scheduled = SimpleNamespace(value="scheduled")
    return {"dag_run": SimpleNamespace(data_interval_start=at, data_interval_end=at, run_type=scheduled)}


def ended(waits: BarrierSensor, event: dict[str, Any] | None = None) -> str:
    """What becomes of a task that looks; with ``event``, of one that was deferred."""
    context: Any = {}
    try:
        waits.execute(context) if event is None else waits.resume_execution("resume", {"event": event}, context)
    except AirflowSkipException:
        return "skipped"
    except TaskDeferred:
        return "waits"
    except AirflowFailException:
        return "failed"
    except Exception:
        return "failed, and is retried"
    return "reached"


@pytest.mark.parametrize(
    ("options", "aborted", "away"),
    [
        ({}, "failed", "failed, and is retried"),
        ({"soft_fail": True}, "skipped", "failed, and is retried"),
        ({"never_fail": True}, "skipped", "skipped"),
        ({"silent_fail": True}, "failed", "waits"),
    ],
)
def test_a_sensor_fails_alike_however_it_waits(
    meta: MetaService, options: dict[str, Any], aborted: str, away: str
) -> None:
    meta.barriers.abort("shopping", open_barrier(meta).barrier_id, "bad file", "test")
    never, gone = {"status": "never", "message": ""}, {"status": "unavailable", "message": ""}
    pokes, deferred = sensor(barrier_id=1, **options), sensor(barrier_id=1, deferrable=True, **options)
    assert [ended(pokes), ended(deferred), ended(deferred, never)] == [aborted] * 3
    lost = sensor(barrier_id=2, deferrable=True, **options)
    assert ended(lost, gone) == away


def test_a_sensor_that_pokes_looks_no_second_time(meta: MetaService) -> None:
    """Between two looks the barrier could be aborted."""
    process(meta, open_barrier(meta))
    waits = sensor(barrier_id=1, target="PROCESSED")
    context: Any = {}
    looked = waits.poke(context)
    meta.barriers.abort("shopping", 1, "bad file", "test")
    assert looked
    assert looked.xcom_value == 1
    committed = open_barrier(meta, 1)
    commit(meta, committed)
    assert sensor(barrier_id=committed.barrier_id).execute(context) == committed.barrier_id


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"at_least": "2025-01-01T00:00:01"},
            "at_least: expected a time in ISO 8601 with its zone, found '2025-01-01T",
        ),
        ({"at_least": "yesterday"}, "at_least: expected a time in ISO 8601 with its zone, found 'yesterday'; write"),
        ({"at_least": "None"}, "at_least: expected a time in ISO 8601 with its zone, found 'None'"),
        ({"barrier_id": "None"}, "barrier_id: expected a whole number, found 'None'; does the template"),
    ],
)
def test_text_that_is_neither_a_time_nor_a_number_is_not_tried_again(
    meta: MetaService, arguments: dict[str, Any], message: str
) -> None:
    context: Any = {}
    with pytest.raises(AirflowFailException, match=message):
        sensor(**arguments).poke(context)
