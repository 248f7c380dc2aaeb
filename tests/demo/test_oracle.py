"""After every committed barrier each table equals its full recomputation over the input up to that barrier's cut.

Real files, real Spark, real Iceberg tables of versions 2 and 3; the input corrects lines, voids others and moves
products to other categories. On the way one attempt is abandoned after it staged, and one barrier is aborted.
"""

from __future__ import annotations

import runpy
import shutil
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.delivering import deliver
from airflow_barrier.coordinator.staging import Asking, Ready, begin
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.delivering import write_extracts
from demo.cast import DAGS, barrier_time
from demo.poller import QUESTION, ask
from demo.reports import Expected, InFiles, InPostgreSQL, Reports, join
from demo.steps import commit, open_at, process, run_barrier
from demo.verify import committed_barriers, expectations, verify
from tests.demo.conftest import SAMPLE, Shopping
from tests.support.postgresql import PostgreSQL

pytestmark = [pytest.mark.timeout(600), pytest.mark.drawn("demo")]


@pytest.fixture(scope="module")
def barriers(shopping: Shopping) -> list[Barrier]:
    """The topology over the whole sample, at the ends of days 1, 3, 4, 8 and 12: the committed barriers."""
    _run_to(shopping, 1)
    _run_to(shopping, 3)
    _run_with_abandoned_attempt(shopping, 4)
    _abort_half_way(shopping, 6)
    _run_to(shopping, 8)
    _run_to(shopping, 12)
    return committed_barriers(shopping.deployment)


def test_every_table_equals_its_recomputation_at_every_barrier(shopping: Shopping, barriers: list[Barrier]) -> None:
    equality = verify(shopping.deployment, expectations(shopping.deployment, SAMPLE))
    assert equality.differences == ()
    assert (equality.tables, equality.barriers) == (6, 5)
    assert [barrier.timestamp for barrier in barriers] == [barrier_time(day) for day in (1, 3, 4, 8, 12)]


def test_the_sample_takes_back_what_it_said(shopping: Shopping, barriers: list[Barrier]) -> None:
    """Otherwise equality would say nothing about retractions."""
    first, last = (_rows(shopping, "user_item_amount", barrier, ("userId", "itemId")) for barrier in barriers[::4])
    assert first - last, "no pair of user and item vanished"
    first, last = (_rows(shopping, "products", barrier, ("itemId", "category")) for barrier in barriers[::4])
    assert first - last, "no product moved to another category"


def test_days_without_new_products_leave_the_table_alone(shopping: Shopping, barriers: list[Barrier]) -> None:
    snapshots = [_snapshot(shopping, "products", barrier) for barrier in barriers]
    assert snapshots[1] == snapshots[0]  # nothing landed on days 2 and 3
    assert len(set(snapshots)) == 3  # it changed on days 4 and 8


def test_what_an_abandoned_attempt_staged_never_counts(shopping: Shopping, barriers: list[Barrier]) -> None:
    meta = shopping.deployment.meta
    attempts = [a for a in meta.attempts.of("shopping", barriers[2].barrier_id) if a.job == "amount"]
    assert [attempt.state for attempt in attempts] == [AttemptState.FENCED, AttemptState.PROCESSED]
    counted = attempts[1].staged["shop.user_item_amount"].snapshot_id
    assert _snapshot(shopping, "user_item_amount", barriers[2]) == counted


def test_an_aborted_barriers_files_are_in_the_next_cut(shopping: Shopping, barriers: list[Barrier]) -> None:
    cut = shopping.deployment.meta.cuts.of("shopping", barriers[3].barrier_id)["shopping"]
    assert [item.partition("/")[0] for item in cut.items] == [f"date=2017-01-0{day}" for day in (5, 6, 7, 8)]


def test_reads_agree_at_one_barrier_and_not_across_two(shopping: Shopping, barriers: list[Barrier]) -> None:
    """The demo's question finds a torn read when there is one."""
    tables = shopping.deployment.tables
    for barrier in barriers:
        answer = ask(tables, "shop", {table: _snapshot(shopping, table, barrier) for table in QUESTION})
        assert not answer.torn
        assert Decimal(answer.money["shopping"]) > 0
    for late in QUESTION:
        mixed = {table: _snapshot(shopping, table, barriers[3 if table == late else 4]) for table in QUESTION}
        assert ask(tables, "shop", mixed).torn, late


def test_what_is_delivered_to_postgresql_equals_the_recomputation(
    shopping: Shopping,
    barriers: list[Barrier],
    spark: SparkSession,
    postgresql: PostgreSQL,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    postgresql.url("reports")  # starts the server
    reports = InPostgreSQL(postgresql, "geheim")
    reports.create()
    expected = _delivered(shopping, barriers, spark, reports, monkeypatch)
    found = reports.check(expected)
    assert found.differences == ()
    assert found.rows > 100
    joined = join(reports.url)
    assert not joined.empty
    assert not joined.torn
    one = 'UPDATE amounts SET purchases = purchases + 1 WHERE "userId" = (SELECT min("userId") FROM amounts)'
    postgresql.run(one, database="reports")
    assert [difference for difference in reports.check(expected).differences if "amounts" in difference]
    assert join(reports.url).torn


def test_what_is_delivered_to_files_equals_the_recomputation(
    shopping: Shopping,
    barriers: list[Barrier],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports = InFiles(tmp_path / "reports")
    expected = _delivered(shopping, barriers, spark, reports, monkeypatch)
    found = reports.check(expected)
    assert found.differences == ()
    assert found.rows > 500
    shutil.rmtree(tmp_path / "reports" / "prices" / f"b{barriers[2].barrier_id:08}.r00000")
    assert {difference.partition(": ")[2][:6] for difference in reports.check(expected).differences} == {"prices"}


def _delivered(
    shopping: Shopping,
    barriers: list[Barrier],
    spark: SparkSession,
    reports: Reports,
    monkeypatch: pytest.MonkeyPatch,
) -> Expected:
    """What `dags/shopping_reporting.py` delivers, by the same steps as its task; returns what it should be."""
    for name, value in reports.environment.items():
        monkeypatch.setenv(name, value)
    task = runpy.run_path(str(DAGS / "shopping_reporting.py"))["dag"].get_task("deliver")
    deployment, meta = shopping.deployment, shopping.deployment.meta
    sink = meta.deliveries.register("shopping", task.declaration("shopping_reporting"), "test")
    for through in (barriers[0], barriers[-1]):  # the first delivery is the tables whole, later ones are changes
        sink = meta.deliveries.claim("shopping", sink.name, "deliverer", None)
        receipts = deliver(
            deployment,
            sink,
            through,
            task.credentials(),
            lambda extracts, folder: write_extracts(spark, deployment.spark_catalog, extracts, folder),
            request_key="deliverer",
            actor="test",
        )
    assert [receipt.barrier for receipt in receipts] == barriers[1:]
    meta.deliveries.release("shopping", sink.name, "test", "the next test's is another one")
    return list(expectations(deployment, SAMPLE))


def _run_to(shopping: Shopping, day: int) -> None:
    run_barrier(shopping.deployment, shopping.spark_url, shopping.fragment, barrier_time(day), shopping.jobs)


def _run_with_abandoned_attempt(shopping: Shopping, day: int) -> None:
    """Job `amount` stages everything and never reports, as if its worker had been lost; another try follows."""
    deployment = shopping.deployment
    barrier = open_at(deployment, shopping.fragment, barrier_time(day))
    process(deployment, shopping.spark_url, barrier, "load", shopping.jobs["load"])
    lost = begin(deployment, barrier, "amount", Asking(request_key="lost", generation="first", actor="test"))
    assert isinstance(lost, Ready)
    ConnectRun(shopping.spark_url, lost.spec).run(shopping.jobs["amount"])
    for name in [name for name in shopping.jobs if name != "load"]:
        process(deployment, shopping.spark_url, barrier, name, shopping.jobs[name])
    commit(deployment, barrier)


def _abort_half_way(shopping: Shopping, day: int) -> None:
    barrier = open_at(shopping.deployment, shopping.fragment, barrier_time(day))
    for name in ("load", "amount"):
        process(shopping.deployment, shopping.spark_url, barrier, name, shopping.jobs[name])
    abort_barrier(shopping.deployment, "shopping", barrier.barrier_id, reason="a test gives it up", actor="test")


def _snapshot(shopping: Shopping, table: str, barrier: Barrier) -> int:
    snapshot = shopping.deployment.tables.load(f"shop.{table}").snapshot_by_name(barrier.tag)
    assert snapshot is not None
    return snapshot.snapshot_id


def _rows(shopping: Shopping, table: str, barrier: Barrier, columns: tuple[str, ...]) -> set[tuple[object, ...]]:
    iceberg = shopping.deployment.tables.load(f"shop.{table}")
    found = iceberg.scan(snapshot_id=_snapshot(shopping, table, barrier), selected_fields=columns).to_arrow()
    return set(zip(*(found[column].to_pylist() for column in columns), strict=True))
