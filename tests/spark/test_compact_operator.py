"""Compaction on a real Spark, called as Airflow calls it: fewer files, the same rows, for readers and for jobs."""

from __future__ import annotations

import logging
import os
import signal
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_barrier.coordinator.waiting import Room
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.operators.compact import CompactTablesOperator
from airflow_barrier.protocol.compaction import Reading
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.names import parse_branch
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import Fragment
from airflow_barrier.spark.compacting import rewrite_files
from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.triggers.barrier import BarrierTrigger
from tests.races.racers import PROCESSES
from tests.spark.conftest import ROWS
from tests.spark.killed import compact_until_killed
from tests.support.shop import AMOUNT, COLUMNS, JOBS, PRICE, SHOPPING, Shop
from tests.support.spark import APART, SparkServer
from tests.support.supervising import KeptXComs, supervised
from tests.support.waiting import patience

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


def operator(**arguments: Any) -> CompactTablesOperator:
    """By itself of all tables, so that they need not have many files."""
    return CompactTablesOperator(task_id="compact", topology="shopping", **{"tables": list(COLUMNS), **arguments})


def context(run_id: str = "today", max_tries: int = 0) -> Any:
    task = SimpleNamespace(
        dag_id="upkeep",
        run_id=run_id,
        task_id="compact",
        try_number=1,
        map_index=-1,
        max_tries=max_tries,
        start_date=datetime.now(timezone.utc),
    )
    run = SimpleNamespace(run_type=SimpleNamespace(value="scheduled"), logical_date=None)
    return {"ti": task, "task": SimpleNamespace(retries=0), "dag_run": run}


def files(shop: Shop, table: str, ref: str = "main") -> int:
    iceberg = shop.deployment.tables.load(table)
    snapshot = iceberg.snapshot_by_name(ref)
    assert snapshot is not None
    return len(list(iceberg.scan(snapshot_id=snapshot.snapshot_id).plan_files()))


def test_tables_have_fewer_files_and_the_same_rows(shop: Shop) -> None:
    before = shop.main_totals()
    assert {table: files(shop, table) for table in COLUMNS} == dict.fromkeys(COLUMNS, 4)
    xcoms = KeptXComs()
    with supervised(xcoms):
        assert operator(tables=[AMOUNT, SHOPPING]).execute(context()) == 5
    assert xcoms.link == "deployment=barrier_default&topology=shopping&barrier=5"
    assert {table: files(shop, table) for table in COLUMNS} == {AMOUNT: 1, SHOPPING: 1, PRICE: 4}
    assert shop.main_totals() == before
    barrier = shop.deployment.meta.barriers.get("shopping", 5)
    assert (barrier.state, barrier.is_maintenance) == (BarrierState.COMMIT, True)
    now, then = (shop.deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=at) for at in (5, 4))
    for resolution in (now, then):
        assert {n: shop.total(n, one.snapshot_id) for n, one in resolution.tables.items()} == before
    refs = shop.deployment.tables.load(PRICE).metadata.refs
    assert refs[barrier.tag].snapshot_id == then.tables[PRICE].snapshot_id, "carried, and readable by its name"
    # the next epoch stands on it
    after = shop.open(5)
    assert after.predecessor == 5
    shop.process_all(after, ROWS)
    shop.commit(after)
    assert files(shop, AMOUNT) == 2
    assert shop.main_totals() == {table: total + 1 for table, total in before.items()}


def test_by_default_only_what_pays_is_compacted(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert operator(tables=None).execute(context()) is None
    said = f"{AMOUNT}: compaction does not pay: 4 data files where 1 would do, 0 files of deletes, 0% of the bytes"
    assert said in caplog.text
    fifth = shop.open(5)
    for job, appends in (("load", 1), ("amount", 20), ("price", 1)):
        ready = shop.begin(fifth, job)
        (record, *_) = [shop.write(ready, ROWS) for _ in range(appends)][::-1]
        shop.close(ready, record)
    assert operator(tables=None).execute(context()) is None, "`main` has none of it before the commit"
    shop.commit(fifth)
    before = shop.main_totals()
    assert operator(tables=None).execute(context()) == 6
    assert f"{AMOUNT}: compaction pays: 24 data files where 1 would do" in caplog.text
    assert {table: files(shop, table) for table in COLUMNS} == {SHOPPING: 5, AMOUNT: 1, PRICE: 5}
    assert shop.main_totals() == before
    assert operator(tables=None).execute(context("tomorrow")) is None
    head = shop.deployment.meta.barriers.head("shopping")
    assert head is not None
    assert head.barrier_id == 6, "there is no barrier at which nothing is compacted"


@pytest.mark.parametrize("version", [2, 3])
def test_what_made_it_pay_is_gone_afterwards(version: int, shop: Shop, session: SparkSession) -> None:
    """Small files and files with deletes, in partitions; the rows are the same."""
    table = f"shop.scattered{version}"
    name = f"{APART}.{table}"
    modes = ", ".join(f"'write.{command}.mode'='merge-on-read'" for command in ("delete", "update"))
    session.sql(
        f"CREATE TABLE {name} (part BIGINT, n BIGINT) USING iceberg PARTITIONED BY (part) TBLPROPERTIES "
        f"('format-version'='{version}', 'write.distribution-mode'='none', {modes})"
    )

    def reading() -> Reading:
        return shop.deployment.tables.readings([table])[table]

    def rows() -> list[Row]:
        return sorted(session.table(name).collect())

    try:
        session.range(0, 60, 1, 12).selectExpr("id % 2 AS part", "id AS n").writeTo(name).append()
        session.sql(f"DELETE FROM {name} WHERE n % 5 = 0")
        found, before = reading(), rows()
        assert (found.pays, found.files, found.needed, found.deletes) == (True, 24, 2, 12), found
        rewrite_files(session, APART, table, "main", {})
        found = reading()
        assert (found.pays, found.files) == (False, 2), found
        assert rows() == before
        session.sql(f"UPDATE {name} SET n = n + 1000 WHERE n % 7 = 0")
        assert not reading().pays
    finally:
        session.sql(f"DROP TABLE {name}")


def test_jobs_of_later_barriers_wait_for_their_own_tables_only(shop: Shop) -> None:
    """The barrier before it is still being processed; so is the one after it."""
    fifth = shop.open(5)
    shop.process(fifth, "load", ROWS)
    with pytest.raises(TaskDeferred) as deferred:
        operator(tables=[SHOPPING, PRICE]).execute(context())
    trigger = cast("BarrierTrigger", deferred.value.trigger)
    assert trigger.any_of
    assert [condition.tables for condition in trigger.conditions] == [(PRICE,)]
    reached = {"status": "reached", **trigger.kept}
    seventh = shop.open(6)
    assert seventh.predecessor == 6
    shop.process(seventh, "load", ROWS)
    shop.process(fifth, "amount", ROWS)
    shop.process(seventh, "amount", ROWS)
    shop.process(fifth, "price", ROWS)
    with pytest.raises(TaskDeferred) as deferred:
        operator().resume(context(), reached)
    assert "COMMIT" in str(cast("BarrierTrigger", deferred.value.trigger).conditions)
    shop.process(seventh, "price", ROWS)
    shop.commit(seventh)  # takes both before it along
    assert operator().resume(context(), reached) == 6
    assert {table: files(shop, table) for table in COLUMNS} == {SHOPPING: 2, PRICE: 2, AMOUNT: 6}
    assert set(shop.main_totals().values()) == {6}


def test_what_cannot_be_rewritten_stands_as_it_was(shop: Shop) -> None:
    with pytest.raises(AirflowFailException, match=r"barrier 5 of shopping.*no-such-option"):
        operator(options={"no-such-option": "1"}).execute(context())
    assert shop.deployment.meta.barriers.get("shopping", 5).state is BarrierState.COMMIT
    assert {table: files(shop, table) for table in COLUMNS} == dict.fromkeys(COLUMNS, 4)
    assert operator().execute(context()) == 6
    assert files(shop, PRICE) == 1


def test_a_killed_one_holds_up_nobody(shop: Shop) -> None:
    compact = operator()
    compact.on_kill()
    with pytest.raises(AirflowException, match="was killed"):
        compact.execute(context())
    assert shop.deployment.meta.barriers.get("shopping", 5).state is BarrierState.PRECOMMIT
    after = shop.open(5)
    shop.process_all(after, ROWS)
    shop.commit(after)
    assert set(shop.main_totals().values()) == {5}


def test_the_next_run_goes_on_with_one_whose_worker_was_killed(shop: Shop, spark_server: SparkServer) -> None:
    """When Spark had rewritten the second of its tables, on the attempt branch, and nobody knew yet."""
    before, mains = shop.main_totals(), shop.deployment.tables.mains(list(COLUMNS))
    ours, theirs = PROCESSES.Pipe()
    worker = PROCESSES.Process(
        target=compact_until_killed, args=(BarrierHook().get_settings(), spark_server.url, theirs), daemon=True
    )
    worker.start()
    assert ours.poll(patience()), "the worker does not answer"
    assert ours.recv() == "rewritten"
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    meta = shop.deployment.meta
    states = sorted(attempt.state.value for attempt in meta.attempts.of("shopping", 5))
    assert states == ["PROCESSED", "REQUESTED", "RUNNING"]
    assert meta.answers.resolve("shopping", Level.READ_COMMITTED).barrier_id == 4
    assert shop.deployment.tables.mains(list(COLUMNS)) == mains

    assert operator().execute(context()) == 5
    assert meta.barriers.get("shopping", 5).state is BarrierState.COMMIT
    assert {table: files(shop, table) for table in COLUMNS} == dict.fromkeys(COLUMNS, 1)
    assert shop.main_totals() == before
    then = meta.answers.resolve("shopping", Level.REPEATABLE_READ, at=4)
    assert {table: shop.total(table, one.snapshot_id) for table, one in then.tables.items()} == before
    refs = {ref for table in COLUMNS for ref in shop.deployment.tables.load(table).metadata.refs}
    assert not any(parse_branch(ref) for ref in refs)
    assert operator().execute(context()) is None, "a retry of the same finds nothing to do"


def test_a_job_that_reads_changes_sees_none_of_it(shop: Shop, spark_server: SparkServer) -> None:
    """One that follows it, and one that comes back and reads from before it on."""
    fifth = shop.open(5, Fragment("shopping", "shopping_dag", JOBS[:2]))
    for job in ("load", "amount"):
        shop.process(fifth, job, ROWS)
    shop.commit(fifth)
    assert operator(tables=[SHOPPING]).execute(context()) == 6
    assert files(shop, SHOPPING) == 1
    seventh = shop.open(6)
    shop.process(seventh, "load", ROWS)
    seen: dict[str, list[int]] = {}
    for job, outlet in (("amount", AMOUNT), ("price", PRICE)):

        def take_over(epoch: Epoch, outlet: str = outlet) -> None:
            changes = epoch.changes(SHOPPING)
            seen[outlet] = [row._weight for row in changes.collect()]
            changes.select(*COLUMNS[outlet]).writeTo(epoch.target(outlet)).append()

        ready = shop.begin(seventh, job)
        shop.close(ready, ConnectRun(spark_server.url, ready.spec).run(take_over))
    assert seen == {AMOUNT: [1], PRICE: [1, 1]}, "what was loaded at 7, and at 5 and 7"
    shop.commit(seventh)
    assert shop.main_totals() == dict.fromkeys(COLUMNS, 6)


def test_there_has_to_be_room_and_something_to_compact(shop: Shop) -> None:
    with pytest.raises(AirflowFailException, match=r"found shop\.absent"):
        CompactTablesOperator(task_id="compact", topology="shopping", tables=["shop.absent"]).execute(context())
    with pytest.raises(AirflowFailException, match=r"expected target-file-size-bytes in bytes, .* found '128 MB'"):
        operator(tables=None, options={"target-file-size-bytes": "128 MB"}).execute(context())
    for number in range(5, 5 + shop.deployment.max_open_barriers):
        shop.open(number)
    with pytest.raises(TaskDeferred) as deferred:
        operator().execute(context())
    assert cast("BarrierTrigger", deferred.value.trigger).conditions == (Room(shop.deployment.max_open_barriers),)
    shop.deployment.meta.topologies.register("empty", "dag", [], "test")
    assert CompactTablesOperator(task_id="compact", topology="empty").execute(context()) is None
