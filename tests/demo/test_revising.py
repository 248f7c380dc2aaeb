"""History of real purchases corrected with real Spark: after each revision every table at every barrier equals its
full recomputation with the corrected input, and whoever read meanwhile saw the old revision whole, then the new one.

The cases correct one history, one after the other: revisions stack.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_barrier.coordinator.by_hand import stage_by_hand
from airflow_barrier.coordinator.staging import Waiting, begin
from airflow_barrier.coordinator.swapping import NotStaged, Swapped
from airflow_barrier.protocol.errors import NotProcessedError, RevisionRefusedError
from airflow_barrier.protocol.revisions import RevisionMode, TableCorrection
from airflow_barrier.reading.correcting import correct_by_sql
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.corrections import ReplaceByFile, ReplaceByFrame, to_json
from airflow_barrier.spark.driver import run_corrections
from airflow_barrier.spark.sql import SqlJob
from demo.cast import DAGS
from demo.landing import LINES, published
from demo.local_spark import LocalConnectServer
from tests.demo.conftest import SAMPLE, shopping_in
from tests.demo.revised import DAYS, LEAST, SHOPPING, TOPOLOGY, Line, RevisedShopping, quick
from tests.support.spark import REVISED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

_COLUMNS = {
    "userId": "household_id",
    "itemId": "product_id",
    "basketId": "basket_id",
    "amount": "quantity",
    "price": "sales_value",
    "ts": "transaction_timestamp",
}


@pytest.fixture(scope="module")
def world(
    spark_server: LocalConnectServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RevisedShopping]:
    """Five days, COMMIT, as they came."""
    landing, truth = (tmp_path_factory.mktemp("purchases") / name for name in ("landing", "truth"))
    for folder in (landing, truth):
        shutil.copytree(SAMPLE, folder)
    with shopping_in(REVISED, landing, spark_server, spark) as shopping:
        jobs = {name: quick(job) for name, job in shopping.jobs.items()}
        world = RevisedShopping(shopping, landing, truth, jobs)
        world.run_history()
        yield world


@pytest.fixture(scope="module")
def baskets() -> Callable[[int], set[int]]:
    """The baskets of a store: what landed does not say."""
    lines, _ = published()

    def of(store: int) -> set[int]:
        return {int(basket) for basket in lines.loc[lines["store_id"] == store, "basket_id"]}

    return of


def test_a_price_is_corrected_in_the_file_that_landed(world: RevisedShopping) -> None:
    price = Decimal("99.99")
    line = next(line for line in world.lines(4) if line["sent_at"] == line["transaction_timestamp"])
    product = line["product_id"]

    def correct(line: Line) -> Line:
        return {**line, "sales_value": price} if line["product_id"] == product else line

    before = [world.at(day) for day in (4, DAYS)]
    for folder in (world.landing, world.truth):
        assert world.correct(folder, 4, correct) > 0
    with world.watched():
        revision = world.begin(4, changed=["load"])
        assert "shop.products" not in revision.tables
        world.replay_all(revision)
        assert isinstance(world.publish(revision), Swapped)
    assert world.differences() == []
    assert [world.at(day, revision=revision.revision - 1) for day in (4, DAYS)] == before
    assert world.at(DAYS)["user_item_price"] != before[1]["user_item_price"]


def test_the_purchases_of_one_store_on_one_day_are_deleted(
    world: RevisedShopping, baskets: Callable[[int], set[int]]
) -> None:
    """Two of them were sent again on the next day: these stay."""
    gone = baskets(421)
    assert world.correct(world.truth, 4, lambda line: None if line["basket_id"] in gone else line) == 29
    before = [world.at(day) for day in (4, DAYS)]
    with world.watched():
        revision = world.begin(4, corrections=[_by_sql(world, 4, f"DELETE FROM {SHOPPING} WHERE {_are_in(gone)}")])
        world.replay_all(revision)
        assert isinstance(world.publish(revision), Swapped)
    assert world.differences() == []
    assert [world.at(day, revision=revision.revision - 1) for day in (4, DAYS)] == before


def test_a_job_has_other_code(world: RevisedShopping) -> None:
    """From the middle on with its tables cleared, then from the first barrier on, barrier by barrier."""
    plain = (DAGS / "shopping_jobs" / "price.sql").read_text()
    source = "FROM {changes:shop.shopping}"
    assert source in plain
    world.jobs["price"] = quick(SqlJob(plain.replace(source, f"{source} WHERE price >= {LEAST}")))
    world.counts_dear_ones |= {4, DAYS}
    with world.watched():
        full = world.begin(4, changed=["price"], mode=RevisionMode.FULL)
        assert full.tables == ("shop.user_item_avg_price", "shop.user_item_price")
        world.replay_all(full)
        assert isinstance(world.publish(full), Swapped)
    assert world.differences() == []
    world.counts_dear_ones |= {1, 2, 3}
    with world.watched():
        incremental = world.begin(1, changed=["price"])
        world.replay_all(incremental)
        assert isinstance(world.publish(incremental), Swapped)
    assert world.differences() == []
    for day in (4, DAYS):
        assert world.at(day) == world.at(day, revision=full.revision)


def test_two_days_of_which_the_second_comes_first_are_swapped_once(
    world: RevisedShopping, baskets: Callable[[int], set[int]]
) -> None:
    gone, dearer = baskets(345), baskets(286)

    def raised(line: Line) -> Line:
        bought = line["basket_id"] in dearer and line["sent_at"] == line["transaction_timestamp"]
        return {**line, "sales_value": line["sales_value"] + 1} if bought else line

    assert world.correct(world.truth, 3, lambda line: None if line["basket_id"] in gone else line) == 36
    assert world.correct(world.truth, 4, raised) == 21
    corrections = [
        _by_sql(world, 3, f"DELETE FROM {SHOPPING} WHERE {_are_in(gone)}"),
        _by_sql(world, 4, f"UPDATE {SHOPPING} SET price = price + 1 WHERE {_are_in(dearer)}"),
    ]
    meta = world.deployment.meta
    with world.watched():
        revision = world.begin(3, 4, corrections=corrections)
        second = meta.barrier(TOPOLOGY, 4, revision.revision)
        for job in revision.jobs:
            early = begin(world.deployment, second, job, request_key=f"4/{job}", generation="first", actor="task")
            assert isinstance(early, Waiting), job
        for day in (3, 4):
            assert isinstance(world.publish(revision), NotStaged)
            world.replay(revision, day)
        assert isinstance(world.publish(revision), NotStaged)  # what follows the window is missing
        world.replay(revision, DAYS)
        assert isinstance(swapped := world.publish(revision), Swapped)
        assert [barrier.barrier_id for barrier in swapped.barriers] == [3, 4, DAYS]
    assert {meta.barrier(TOPOLOGY, day).revision for day in (3, 4, DAYS)} == {revision.revision}
    assert world.differences() == []


def test_epochs_replaced_by_a_file_and_a_frame_and_reused_when_what_landed_is_gone(
    world: RevisedShopping, spark_server: LocalConnectServer, tmp_path: Path
) -> None:
    replaced = {day: world.correct(world.truth, day, _other_purchases) for day in (3, 4)}
    assert all(replaced.values())
    file = tmp_path / "mended.parquet"
    pq.write_table(_rows_of(world, 3), file)
    shutil.rmtree(world.landing / "shopping")
    by_file = TableCorrection(3, SHOPPING, to_json(ReplaceByFile(SHOPPING, file.as_uri())))
    wanted: dict[str, Any] = {"corrections": [by_file, TableCorrection(4, SHOPPING, {"kind": "by hand"})]}
    with pytest.raises(RevisionRefusedError, match=f"--reuse {SHOPPING}"):
        world.begin(3, 4, **wanted)
    session = connect_session(spark_server.url)
    frame = session.createDataFrame(_rows_of(world, 4))
    with world.watched():
        revision = world.begin(3, 4, **wanted, reused=[SHOPPING])

        def stage() -> None:
            stage_by_hand(
                world.deployment,
                revision,
                4,
                SHOPPING,
                lambda spec: run_corrections(session, spec, ReplaceByFrame(SHOPPING, frame)),
                actor="person",
            )

        with pytest.raises(NotProcessedError):
            stage()  # on day 3, which is not there yet
        world.replay(revision, 3)
        stage()
        world.replay(revision, 4, without=["load"])
        world.replay(revision, DAYS)
        assert isinstance(world.publish(revision), Swapped)
    stop_session(session)
    assert world.differences() == []


def _by_sql(world: RevisedShopping, day: int, sql: str) -> TableCorrection:
    pins = {row.table: row.snapshot_id for row in world.deployment.meta.progress(TOPOLOGY, day)}
    return TableCorrection(day, SHOPPING, to_json(correct_by_sql(sql, SHOPPING, catalog=REVISED, pins=pins)))


def _are_in(baskets: set[int]) -> str:
    return f"basketId IN ({', '.join(map(str, sorted(baskets)))})"


def _other_purchases(line: Line) -> Line | None:
    """Half as many, and dearer; those that were sent again on the next day as they were, as that day knows them."""
    if line["sent_at"] != line["transaction_timestamp"]:
        return None
    if (line["basket_id"] + line["product_id"]) % 40 == 0:
        return line
    return {**line, "sales_value": line["sales_value"] + 2} if line["product_id"] % 2 else None


def _rows_of(world: RevisedShopping, day: int) -> pa.Table:
    """The lines of a day as the table has them."""
    landed = pa.Table.from_pylist(world.lines(day), schema=LINES)
    return pa.table({column: landed[name] for column, name in _COLUMNS.items()})
