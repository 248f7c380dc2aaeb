"""History of real purchases corrected with real Spark: after each revision every table at every barrier equals its
full recomputation with the corrected input, and whoever read meanwhile saw the old revision whole, then the new one.

The cases correct one history, one after the other: revisions stack.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped
from airflow_barrier.coordinator.staging import Asking, Waiting, begin
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.revisions import RevisionMode, TableCorrection
from airflow_barrier.reading.correcting import correct_by_sql
from airflow_barrier.spark.corrections import ReplaceByFile
from airflow_barrier.spark.sql import SqlJob
from demo.cast import DAGS
from demo.landing import FIRST_DAY, LINES, published
from tests.demo.conftest import SAMPLE, shopping_in
from tests.demo.revised import DAYS, LEAST, SHOPPING, TOPOLOGY, Line, RevisedShopping, quick
from tests.support.spark import REVISED, SparkServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(600), pytest.mark.drawn("demo")]

#: Of whom the sample is: see tests/data/README.md.
HOUSEHOLDS = 170
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
    spark_server: SparkServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RevisedShopping]:
    """Four days, COMMIT, as they came."""
    landing, truth = (tmp_path_factory.mktemp("purchases") / name for name in ("landing", "truth"))
    for folder in (landing, truth):
        shutil.copytree(SAMPLE, folder)
    with shopping_in(REVISED, landing, spark_server, spark) as shopping:
        jobs = {name: quick(job) for name, job in shopping.jobs.items()}
        world = RevisedShopping(shopping, landing, truth, jobs)
        world.run_history()
        yield world


@pytest.fixture(scope="module")
def baskets() -> Callable[[int, int], set[int]]:
    """The baskets of a store on a day, which is not in what landed."""
    lines, _ = published()
    lines = lines[lines["household_id"] <= HOUSEHOLDS]

    def of(store: int, day: int) -> set[int]:
        then = FIRST_DAY + timedelta(days=day - 1)
        return {int(basket) for basket in lines.loc[(lines["store_id"] == store) & (lines["day"] == then), "basket_id"]}

    return of


def test_a_price_is_corrected_in_the_file_that_landed(world: RevisedShopping) -> None:
    price = Decimal("99.99")
    line = next(line for line in world.lines(3) if line["sent_at"] == line["transaction_timestamp"])
    product = line["product_id"]

    def correct(line: Line) -> Line:
        return {**line, "sales_value": price} if line["product_id"] == product else line

    before = [world.at(day) for day in (3, DAYS)]
    for folder in (world.landing, world.truth):
        assert world.correct(folder, 3, correct) > 0
    with world.watched():
        revision = world.begin(3, changed=["load"])
        assert "shop.products" not in revision.tables
        world.replay_all(revision)
        assert isinstance(world.publish(revision), Swapped)
    assert world.differences() == []
    assert [world.at(day, revision=revision.revision - 1) for day in (3, DAYS)] == before
    assert world.at(DAYS)["user_item_price"] != before[1]["user_item_price"]


def test_a_job_has_other_code(world: RevisedShopping) -> None:
    """From the middle on with its tables cleared, then from the first barrier on, barrier by barrier."""
    plain = (DAGS / "shopping_jobs" / "price.sql").read_text()
    source = "FROM {changes:shop.shopping}"
    assert source in plain
    world.jobs["price"] = quick(SqlJob(plain.replace(source, f"{source} WHERE price >= {LEAST}")))
    world.counts_dear_ones |= {3, DAYS}
    with world.watched():
        full = world.begin(3, changed=["price"], mode=RevisionMode.FULL)
        assert full.tables == ("shop.user_item_avg_price", "shop.user_item_price")
        world.replay_all(full)
        assert isinstance(world.publish(full), Swapped)
    assert world.differences() == []
    world.counts_dear_ones |= {1, 2}
    with world.watched():
        incremental = world.begin(1, changed=["price"])
        world.replay_all(incremental)
        assert isinstance(world.publish(incremental), Swapped)
    assert world.differences() == []
    for day in (3, DAYS):
        assert world.at(day) == world.at(day, revision=full.revision)


def test_two_days_of_which_the_second_comes_first_are_swapped_once(
    world: RevisedShopping, baskets: Callable[[int, int], set[int]]
) -> None:
    """On the first one a store's prices are raised, on the second the purchases of another store are deleted: those of
    them that were sent again on the next day come in then.
    """
    dearer, gone = baskets(406, 2), baskets(391, 3)

    def raised(line: Line) -> Line:
        return {**line, "sales_value": line["sales_value"] + 1} if line["basket_id"] in dearer else line

    assert world.correct(world.truth, 2, raised) == 32
    assert world.correct(world.truth, 3, lambda line: None if line["basket_id"] in gone else line) == 44
    assert {line["basket_id"] for line in world.lines(DAYS)} & gone
    corrections = [
        _by_sql(world, 2, f"UPDATE {SHOPPING} SET price = price + 1 WHERE {_are_in(dearer)}"),
        _by_sql(world, 3, f"DELETE FROM {SHOPPING} WHERE {_are_in(gone)}"),
    ]
    meta, before = world.deployment.meta, [world.at(day) for day in (2, 3, DAYS)]
    with world.watched():
        revision = world.begin(2, 3, corrections=corrections)
        second = meta.barriers.get(TOPOLOGY, 3, revision.revision)
        for job in revision.jobs:
            early = begin(
                world.deployment, second, job, Asking(request_key=f"3/{job}", generation="first", actor="task")
            )
            assert isinstance(early, Waiting), job
        for day in (2, 3, DAYS):  # the day after the window as well
            assert isinstance(world.publish(revision), NotStaged)
            world.replay(revision, day)
        assert isinstance(swapped := world.publish(revision), Swapped)
        assert [barrier.barrier_id for barrier in swapped.barriers] == [2, 3, DAYS]
    assert {meta.barriers.get(TOPOLOGY, day).computed_in for day in (2, 3, DAYS)} == {revision.revision}
    assert world.differences() == []
    assert [world.at(day, revision=revision.revision - 1) for day in (2, 3, DAYS)] == before


def test_epochs_replaced_by_files_and_reused_when_what_landed_is_gone(world: RevisedShopping, tmp_path: Path) -> None:
    replaced = {day: world.correct(world.truth, day, _other_purchases) for day in (2, 3)}
    assert all(replaced.values())
    by_file = []
    for day in replaced:
        file = tmp_path / f"mended-{day}.parquet"
        pq.write_table(_rows_of(world, day), file)
        by_file.append(TableCorrection(day, SHOPPING, encode(ReplaceByFile(SHOPPING, file.as_uri()))))
    shutil.rmtree(world.landing / "shopping")
    with pytest.raises(RevisionRefusedError, match=f"--reuse {SHOPPING}"):
        world.begin(2, 3, corrections=by_file)
    with world.watched():
        revision = world.begin(2, 3, corrections=by_file, reused=[SHOPPING])
        world.replay_all(revision)
        assert isinstance(world.publish(revision), Swapped)
    assert world.differences() == []


def _by_sql(world: RevisedShopping, day: int, sql: str) -> TableCorrection:
    pins = {row.table: row.snapshot_id for row in world.deployment.meta.barriers.progress(TOPOLOGY, day)}
    return TableCorrection(day, SHOPPING, encode(correct_by_sql(sql, SHOPPING, catalog=REVISED, pins=pins)))


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
