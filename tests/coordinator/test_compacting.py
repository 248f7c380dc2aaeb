"""Compaction as a barrier of its own, on each kind of deployment. Iceberg's own rewriting is in tests/spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.compacting import Compactor, compact, let_go, open_compaction
from airflow_barrier.coordinator.journal import read_head
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.recovering import recover
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import BarrierAbortedError, CompactionError, FencedAttemptError, StagedTableError
from airflow_barrier.protocol.names import parse_branch
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.iceberg_table import IcebergTable
from tests.support.replacing import replace_files
from tests.support.runs import run_of
from tests.support.shop import AMOUNT, JOBS, PRICE, SHOPPING, Shop

ROWS = [{"amount": 1, "price": 2}]
NIGHTLY = Compactor(run_of("upkeep/tonight"), "upkeep/tonight", "g0", "test")


def opened(shop: Shop, tables: list[str] | None = None, compactor: Compactor = NIGHTLY) -> Barrier:
    barrier = open_compaction(shop.deployment, "shopping", tables, compactor)
    assert isinstance(barrier, Barrier), barrier
    return barrier


def rewriting(shop: Shop) -> Any:
    return lambda table, branch: replace_files(shop.deployment.tables, table, branch)


def day(shop: Shop, number: int) -> Barrier:
    barrier = shop.open(number)
    shop.process_all(barrier, ROWS)
    shop.commit(barrier)
    return barrier


def test_epochs_stand_on_it_and_nobody_sees_rows_change(shop: Shop) -> None:
    day(shop, 1)
    before = shop.deployment.tables.mains([AMOUNT, PRICE])
    barrier = opened(shop, [AMOUNT])
    done = compact(shop.deployment, barrier, rewriting(shop), NIGHTLY)
    assert (done.over, done.barrier.state) == (True, BarrierState.COMMIT)
    after = shop.deployment.tables.mains([AMOUNT, PRICE])
    assert after[AMOUNT] != before[AMOUNT]
    assert after[PRICE] == before[PRICE]
    branches = shop.deployment.tables.load(AMOUNT).metadata.refs
    assert not any(parse_branch(name) for name in branches), "attempt branches go with the publish"
    day(shop, 2)
    assert shop.main_totals() == {SHOPPING: 4, AMOUNT: 2, PRICE: 4}


@pytest.mark.kills("compaction-changes-no-row")
def test_a_rewriting_that_changes_rows_is_refused(shop: Shop) -> None:
    day(shop, 1)
    barrier = opened(shop, [AMOUNT])

    def append(table: str, branch: str) -> str:
        stamp = shop.deployment.meta.attempts.of("shopping", barrier.barrier_id)[-1].stamp
        iceberg = shop.deployment.tables.load(table)
        rows = pa.Table.from_pylist([{"amount": 9}], iceberg.schema().as_arrow())
        iceberg.append(rows, snapshot_properties=stamp.properties(), branch=branch)
        return "appended"

    with pytest.raises(StagedTableError, match="that change no row"):
        compact(shop.deployment, barrier, append, NIGHTLY)
    let_go(shop.deployment, barrier, "it appended", NIGHTLY)
    assert compact(shop.deployment, barrier, rewriting(shop), NIGHTLY).over
    assert shop.main_totals()[AMOUNT] == 1


def test_one_table_that_cannot_be_rewritten_keeps_no_other_from_it(shop: Shop) -> None:
    day(shop, 1)

    def rewrite(table: str, branch: str) -> int:
        if table == AMOUNT:
            raise CompactionError(f"table {table}: out of memory")
        return replace_files(shop.deployment.tables, table, branch)

    before = shop.deployment.tables.mains([AMOUNT, PRICE])
    barrier = opened(shop)
    with pytest.raises(CompactionError, match=f"1 could not be: table {AMOUNT}: out of memory. They stand as they"):
        compact(shop.deployment, barrier, rewrite, NIGHTLY)
    after = shop.deployment.tables.mains([AMOUNT, PRICE])
    assert (after[AMOUNT] == before[AMOUNT], after[PRICE] == before[PRICE]) == (True, False)
    assert shop.deployment.meta.barriers.get("shopping", 2).state is BarrierState.COMMIT


def test_whoever_was_taken_over_from_changes_nothing(shop: Shop) -> None:
    day(shop, 1)
    barrier = opened(shop, [AMOUNT])
    other = replace(NIGHTLY, run=run_of("upkeep/tomorrow"), request_key="upkeep/tomorrow")

    def slow(_table: str, _branch: str) -> int:
        assert opened(shop, [AMOUNT], other) == barrier
        compact(shop.deployment, barrier, rewriting(shop), other)
        return 0

    with pytest.raises(FencedAttemptError, match=r"superseded by task upkeep/tomorrow\)"):
        compact(shop.deployment, barrier, slow, NIGHTLY)
    let_go(shop.deployment, barrier, "fenced", NIGHTLY)
    main = shop.deployment.tables.mains([AMOUNT])[AMOUNT]
    (row,) = (row for row in shop.deployment.meta.barriers.progress("shopping", 2) if row.table == AMOUNT)
    assert row.snapshot_id == main
    assert shop.deployment.meta.barriers.get("shopping", 2).state is BarrierState.COMMIT


def test_whoever_takes_over_can_let_go_of_all_of_it(shop: Shop) -> None:
    """Of the tables whose turn had not come yet, too: the first of them to be rewritten kills it."""
    meta = shop.deployment.meta
    shop.process(shop.open(1), "load", ROWS)
    barrier = opened(shop)
    waits = compact(shop.deployment, barrier, rewriting(shop), NIGHTLY)
    assert len(waits.waiting) == len(waits.needs) == 2
    assert {meta.attempts.get(attempt_id).job for attempt_id in waits.waiting} == {
        f"compaction of {table}" for table in (AMOUNT, PRICE)
    }
    shop.process(meta.barriers.get("shopping", 1), "amount", ROWS)

    def killed(_table: str, _branch: str) -> int:
        raise KeyboardInterrupt

    other = replace(NIGHTLY, run=run_of("upkeep/tomorrow"), request_key="upkeep/tomorrow")
    assert opened(shop, None, other) == barrier
    with pytest.raises(KeyboardInterrupt):
        compact(shop.deployment, barrier, killed, other)
    let_go(shop.deployment, barrier, "killed", other)
    assert {a.state for a in meta.attempts.of("shopping", 2)} == {
        AttemptState.PROCESSED,
        AttemptState.FENCED,
        AttemptState.ABORTED,
    }
    shop.process(meta.barriers.get("shopping", 1), "price", ROWS)
    third = shop.open(3)
    shop.process_all(third, ROWS)
    shop.commit(third)
    assert set(shop.main_totals().values()) == {2, 4}


def test_what_it_stands_on_may_be_aborted(shop: Shop) -> None:
    shop.open(1)
    barrier = opened(shop)
    waits = compact(shop.deployment, barrier, rewriting(shop), NIGHTLY)
    assert sorted(need.table for need in waits.needs) == sorted((SHOPPING, AMOUNT, PRICE))
    shop.deployment.meta.barriers.abort("shopping", 1, "bad input", "test")
    assert compact(shop.deployment, barrier, rewriting(shop), NIGHTLY).over
    with pytest.raises(BarrierAbortedError):
        shop.commit(barrier)
    day(shop, 1)


def test_an_outside_table_is_held_until_the_next_epoch_is_published(shop: Shop) -> None:
    """What the cut of the epoch before holds is where the next one starts, and a compaction lies between the two."""
    catalog = shop.deployment.tables.catalog
    catalog.create_namespace_if_not_exists("outside")
    outside = catalog.create_table("outside.orders", pa.schema([("id", pa.int64())]))
    source = IcebergTable("outside.orders")
    load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(source.declare(),))
    fragment = Fragment("shopping", "shopping_dag", (load, *JOBS[1:]))
    now = datetime(2100, 1, 1, tzinfo=timezone.utc)

    def a_day(number: int) -> Barrier:
        outside.refresh().append(pa.table({"id": [number]}))
        found = open_barrier(
            shop.deployment,
            fragment,
            now + timedelta(days=number),
            timestamp_from="test",
            run=run_of(f"day-{number}"),
            actor="test",
            now=now + timedelta(days=number),
        )
        assert isinstance(found, Opened), found
        shop.process_all(found.barrier, ROWS)
        shop.commit(found.barrier)
        return found.barrier

    def held() -> set[int]:
        return {ref.snapshot_id for name, ref in outside.refresh().metadata.refs.items() if name != "main"}

    a_day(1)
    first = held()
    assert len(first) == 1
    assert compact(shop.deployment, opened(shop), rewriting(shop), NIGHTLY).over
    assert held() == first, "the next epoch starts there"
    third = a_day(2)
    cut = shop.deployment.meta.cuts.of("shopping", third.barrier_id)["outside.orders"]
    assert cut.start is not None
    assert len(held()) == 1
    assert held() != first, "let go once that epoch is published"


def test_a_lost_metaservice_is_rebuilt_past_it(shop_apart: Shop, tmp_path: Path) -> None:
    shop = shop_apart
    day(shop, 1)
    assert compact(shop.deployment, opened(shop), rewriting(shop), NIGHTLY).over
    mains = shop.deployment.tables.mains([AMOUNT, PRICE, SHOPPING])
    head = read_head(shop.deployment, "shopping")
    assert head is not None
    assert head.barrier_id == 2
    lost = replace(shop.deployment, meta=MetaService(f"sqlite:///{tmp_path}/another.db"))
    recover(lost, "shopping", actor="test", reason="test")
    barrier = lost.meta.barriers.get("shopping", 2)
    assert (barrier.is_maintenance, barrier.state) == (True, BarrierState.COMMIT)
    assert {job.name for job in lost.meta.topologies.get("shopping").jobs} == {job.name for job in JOBS}
    assert {row.table: row.snapshot_id for row in lost.meta.barriers.progress("shopping", 2)} == mains
    day(Shop(lost), 2)
    assert Shop(lost).main_totals() == {SHOPPING: 4, AMOUNT: 2, PRICE: 4}
    lost.meta.close()
