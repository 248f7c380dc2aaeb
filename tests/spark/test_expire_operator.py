"""The operator on a real Spark, called as Airflow calls it: readers keep what they hold, files of the rest are gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_barrier.operators.expire import ExpireSnapshotsOperator
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.spark.procedures import call
from tests.spark.test_connect import LONG, Monitor
from tests.support.shop import AMOUNT, COLUMNS, Shop
from tests.support.waiting import patience, wait_for


def made(**arguments: Any) -> ExpireSnapshotsOperator:
    return ExpireSnapshotsOperator(task_id="expire", topology="shopping", **arguments)


def execute(operator: ExpireSnapshotsOperator) -> dict[str, Any]:
    task = SimpleNamespace(dag_id="keeping", run_id="today", task_id="expire", try_number=1)
    context: Any = {"ti": task}
    return operator.execute(context)


def run(**arguments: Any) -> dict[str, Any]:
    return execute(made(**arguments))


def metadata_files(shop: Shop) -> set[str]:
    location = Path(shop.deployment.tables.load(AMOUNT).location().removeprefix("file://"))
    return {file.name for file in (location / "metadata").glob("snap-*.avro")}


def test_expiry_deletes_what_nobody_holds(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    held = shop.deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=2, hold=Hold("report", 600))
    planned = run(keep=1, explain_only=True)
    assert planned == {"barriers": [1, 3], "snapshots": dict.fromkeys(COLUMNS, 3)}
    assert "leased by report" in capsys.readouterr().out
    before = metadata_files(shop)
    assert run(keep=1) == planned
    assert len(before - metadata_files(shop)) == 3
    assert [shop.total(table, one.snapshot_id) for table, one in held.tables.items()] == [2, 2, 2]
    assert set(shop.main_totals().values()) == {4}
    assert run(keep="1", keep_for=timedelta(days=1)) == {"barriers": [], "snapshots": {}}


def test_killing_the_task_stops_the_work_and_the_next_goes_on(
    shop: Shop, spark_ui: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(int(spark_ui.rpartition(":")[2]))
    operator = made(keep=1)

    def active_tasks() -> int | None:
        with suppress(OSError):  # a busy server takes its time to answer
            return monitor.active_tasks(operator._spark._where[1]) if operator._spark._where else 0
        return None

    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        # so few files are deleted in no time: another statement in place of Iceberg's
        patch.setattr("airflow_barrier.spark.expiring.call", lambda session, _, *rest: call(session, LONG, *rest))
        work = pool.submit(execute, operator)
        try:
            wait_for("Spark to be at work", active_tasks)
        finally:
            operator.on_kill()
        assert work.exception(patience()) is not None
    wait_for("no task to be running", lambda: active_tasks() == 0)
    with pytest.raises(AirflowException, match="task expire was killed"):
        execute(operator)
    assert run(keep=1) == {"barriers": [], "snapshots": dict.fromkeys(COLUMNS, 4)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": 0}, "expected to keep 1 barrier or more, found 0"),
        ({"keep": "0"}, "expected to keep 1 barrier or more, found 0"),
        ({"keep": "abc"}, "keep: expected a whole number, found 'abc'"),
        ({"keep": 1, "explain_only": "yes"}, "explain_only: expected True or False, found 'yes'"),
    ],
)
def test_what_cannot_be_is_said_when_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made(**arguments)
    operator = made(keep="{{ params.keep }}", explain_only="{{ params.dry }}")
    for name, value in {"keep": 1, "explain_only": "false", **arguments}.items():
        setattr(operator, name, value)  # as Airflow does when it has rendered them
    with pytest.raises(AirflowFailException, match=message):
        execute(operator)
