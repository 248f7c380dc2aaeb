"""The operator on a real Spark, called as Airflow calls it: readers keep what they hold, files of the rest are gone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from tests.support.shop import AMOUNT, COLUMNS, Shop


def run(**arguments: Any) -> dict[str, Any]:
    from airflow_barrier.operators.expire import ExpireSnapshotsOperator

    operator = ExpireSnapshotsOperator(task_id="expire", topology="shopping", **arguments)
    task = SimpleNamespace(dag_id="keeping", run_id="today", task_id="expire", try_number=1)
    context: Any = {"ti": task}
    return operator.execute(context)


def metadata_files(shop: Shop) -> set[str]:
    location = Path(shop.deployment.tables.load(AMOUNT).location().removeprefix("file://"))
    return {file.name for file in (location / "metadata").glob("snap-*.avro")}


def test_expiry_deletes_what_nobody_holds(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    held = shop.deployment.meta.resolve("shopping", Level.REPEATABLE_READ, at=2, hold=Hold("report", 600))
    planned = run(keep=1, explain_only=True)
    assert planned == {"barriers": [1, 3], "snapshots": dict.fromkeys(COLUMNS, 3)}
    assert "leased by report" in capsys.readouterr().out
    before = metadata_files(shop)
    assert run(keep=1) == planned
    assert len(before - metadata_files(shop)) == 3
    assert [shop.total(table, one.snapshot_id) for table, one in held.tables.items()] == [2, 2, 2]
    assert set(shop.main_totals().values()) == {4}
    assert run(keep="1", keep_for=timedelta(days=1)) == {"barriers": [], "snapshots": {}}


def test_to_keep_nothing_is_refused_when_the_dag_is_parsed() -> None:
    with pytest.raises(ConfigurationError, match="expected to keep 1 barrier or more, found 0"):
        run(keep=0)
