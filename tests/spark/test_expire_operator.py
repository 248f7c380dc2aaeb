"""The operator on a real Spark, called as Airflow calls it: readers keep what they hold, files of the rest are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from tests.support.shop import AMOUNT, COLUMNS, Shop, make_shop
from tests.support.spark import APART

if TYPE_CHECKING:
    from demo.local_spark import LocalConnectServer

ROWS = [{"amount": 1, "price": 1}]


@pytest.fixture
def shop(spark_server: LocalConnectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Four barriers, COMMIT, in the catalog that Spark calls `apart`."""
    from airflow_barrier.coordinator.settings import Settings
    from airflow_barrier.hooks.barrier import BarrierHook

    folder = spark_server.warehouse.parent / APART
    extra = {
        "metaservice_url": f"sqlite:///{tmp_path}/meta.db",
        "catalog_uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": folder.as_uri(),
        "catalog_name": APART,
        "spark_catalog": APART,
        "tag_policy": "all",
    }
    host, _, port = spark_server.url.removeprefix("sc://").partition(":")
    monkeypatch.setenv("AIRFLOW_CONN_EXPIRY", json.dumps({"conn_type": "barrier", "extra": extra}))
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT",
        json.dumps({"conn_type": "spark_connect", "host": host, "port": int(port)}),
    )
    assert isinstance(BarrierHook("expiry").get_settings(), Settings)
    deployment = BarrierHook("expiry").get_deployment()
    for table in COLUMNS:
        if deployment.tables.catalog.table_exists(table):
            deployment.tables.catalog.drop_table(table)
    shop = make_shop(BarrierHook("expiry").get_settings())
    for day in range(1, 5):
        barrier = shop.open(day)
        shop.process_all(barrier, ROWS)
        shop.commit(barrier)
    yield shop
    for table in COLUMNS:
        shop.deployment.tables.catalog.drop_table(table)
    shop.deployment.close()


def run(**arguments: Any) -> dict[str, Any]:
    from airflow_barrier.operators.expire import ExpireSnapshotsOperator

    operator = ExpireSnapshotsOperator(task_id="expire", topology="shopping", barrier_conn_id="expiry", **arguments)
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
