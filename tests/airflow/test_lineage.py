"""What a job is said to have read and made, by the names that others know it by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.operators._lineage import Listened, note_job
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Job
from airflow_barrier.sinks.files import FileSink
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.sources.kafka import Kafka
from tests.support.lineage import Told, listen, told_by
from tests.support.shop import AMOUNT, SHOPPING, Shop, make_shop

NOTED = Told(1, 0, "shopping")


class Task(Listened, BaseOperator):
    """It has done what the test says."""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    extra = {"warehouse": str(tmp_path)}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_LINEAGE", json.dumps({"conn_type": "barrier", "extra": extra}))
    hook = BarrierHook("barrier_lineage")
    make_shop(hook.get_settings()).deployment.close()
    return Shop(hook.get_deployment())


@pytest.fixture
def barrier(shop: Shop) -> Barrier:
    return shop.process_all(shop.open(1), [{"amount": 2, "price": 3}])


def snapshot(shop: Shop, table: str) -> str:
    (found,) = [row.snapshot_id for row in shop.deployment.meta.barriers.progress("shopping", 1) if row.table == table]
    return str(found)


def test_sources_are_inputs_and_nobody_who_enters_is_named(
    shop: Shop, barrier: Barrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = {"bootstrap.servers": "SASL_SSL://me:geheim@one:9093, two:9093", "sasl.password": "geheim"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka}))
    sources = (
        Kafka("purchases", schema="n BIGINT"),
        Files("hdfs://me:geheim@namenode:8020/in/", schema="n BIGINT"),
        Files("s3a://landing/shop/", name="objects", schema="n BIGINT"),
        Files("abfss://container@account.dfs.core.windows.net/in", name="azure", schema="n BIGINT"),
        Files(f"file://{tmp_path}/in", name="disk", schema="n BIGINT"),
        IcebergTable("crm.customers"),
    )
    job = Job("amount", "dag", (SHOPPING,), (AMOUNT,), tuple(source.declare() for source in sources))
    task = Task(task_id="amount")
    listen(monkeypatch)
    note_job(task, "barrier_lineage", shop.deployment, barrier, job)
    assert "geheim" not in repr(vars(task)["_lineage"])
    lake = f"file://{tmp_path}"
    folders = {table: shop.deployment.tables.load(table).location() for table in (SHOPPING, AMOUNT)}
    tables = {
        table: NOTED._replace(snapshot=snapshot(shop, table), folder=("file", folder.removeprefix("file://")))
        for table, folder in folders.items()
    }
    assert told_by(task) == (
        {
            (lake, SHOPPING): tables[SHOPPING],
            ("kafka://one:9093", "purchases"): NOTED,
            ("hdfs://namenode:8020", "/in"): NOTED,
            ("s3://landing", "shop"): NOTED,
            ("abfss://container@account.dfs.core.windows.net", "/in"): NOTED,
            ("file", f"{tmp_path}/in"): NOTED,
            (lake, "crm.customers"): NOTED,
        },
        {(lake, AMOUNT): tables[AMOUNT]},
    )
    # what one DAG writes and another reads is one dataset
    written = FileSink("hdfs://me:geheim@namenode:8020/", name="out", conn_id="hdfs", key=["n"]).dataset("in", None)
    assert written == ("hdfs://namenode:8020", "/in")


def test_what_cannot_be_named_fails_no_task(
    shop: Shop, barrier: Barrier, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = Kafka("purchases", schema="n BIGINT", conn_id="kafka_gone").declare()
    task = Task(task_id="load")
    listen(monkeypatch)
    note_job(task, "barrier_lineage", shop.deployment, barrier, Job("load", "dag", (), (SHOPPING,), (unknown,)))
    _, made = told_by(task)
    assert [name for _, name in made] == [SHOPPING]
    said = capsys.readouterr().out
    assert "OpenLineage is told less than was done" in said
    assert "expected connection kafka_gone" in said


def test_nothing_is_noted_where_nobody_listens(shop: Shop, barrier: Barrier) -> None:
    task = Task(task_id="load")
    note_job(task, "barrier_lineage", shop.deployment, barrier, Job("load", "dag", (), (SHOPPING,)))
    assert told_by(task) == ({}, {})
    assert "_lineage" not in vars(task)
