"""A job that comes back goes on where it left off, as long as no expiry has taken anything of what came since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_barrier.coordinator.compacting import Compactor, compact, open_compaction
from airflow_barrier.coordinator.expiring import expire, plan_expiry
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import StartFromError
from airflow_barrier.protocol.retention import Retention
from airflow_barrier.protocol.topology import Fragment
from tests.expiry.taking import Takes
from tests.support.runs import run_of
from tests.support.shop import JOBS, PRICE, SHOPPING, Shop, make_shop

ROWS = [{"amount": 1, "price": 1}]
ALL, BUT_PRICE = Fragment("shopping", "shopping_dag", JOBS), Fragment("shopping", "shopping_dag", JOBS[:2])
ANEW = Fragment("shopping", "shopping_dag", (*JOBS[:2], replace(JOBS[2], start_from={SHOPPING: "earliest"})))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Two barriers with all jobs."""
    shop = make_shop(Settings.embedded(str(tmp_path), tag_policy="every=1"))
    for day in (1, 2):
        run(shop, day, ALL)
    yield shop
    shop.deployment.close()


def run(shop: Shop, day: int, fragment: Fragment) -> None:
    barrier = shop.open(day, fragment)
    for job in fragment.jobs:
        shop.process(barrier, job.name, ROWS)
    shop.commit(barrier)


def expires(shop: Shop, keep: int = 1) -> None:
    expire(shop.deployment, "shopping", Retention(keep), Takes(shop), actor="test")


def without_price(shop: Shop, days: Sequence[int] = (3, 4, 5)) -> None:
    for day in days:
        run(shop, day, BUT_PRICE)


@pytest.mark.kills("resumes-from-what-is-there")
@pytest.mark.parametrize("expiries", [1, 2])
def test_what_has_expired_since_it_left_is_not_made_up_by_reading_all_again(shop: Shop, expiries: int) -> None:
    """The second expiry lets the MetaService forget where the job had read to."""
    without_price(shop)
    for _ in range(expiries):
        expires(shop)
    with pytest.raises(StartFromError, match=r"job price .* comes back .* since then, found that some of it has expir"):
        shop.open(6, ALL)
    assert shop.deployment.meta.barriers.uncommitted("shopping") == []
    shop.deployment.tables.load(PRICE).overwrite(pa.table({"price": pa.array([], pa.int64())}))
    sixth = shop.open(6, ANEW)
    shop.process(sixth, "load", ROWS)
    assert shop.begin(sixth, "price").spec.previous == {SHOPPING: None}


def test_what_is_kept_is_gone_on_with(shop: Shop) -> None:
    left_off = {row.table: row.snapshot_id for row in shop.deployment.meta.barriers.progress("shopping", 2)}[SHOPPING]
    without_price(shop)
    expires(shop, keep=4)
    sixth = shop.open(6, ALL)
    expires(shop)  # what the barrier that is open is about to read stays until it is committed
    plan = plan_expiry(shop.deployment, "shopping", Retention(1))
    assert [verdict.reason for verdict in plan.tables[SHOPPING] if verdict.keep] == [
        "a job of an open barrier reads from here on",
        *["a step of main in the recent window"] * 2,
        "tag barrier_shopping_b5_r0",
    ]
    shop.process(sixth, "load", ROWS)
    ready = shop.begin(sixth, "price")
    assert ready.spec.previous == {SHOPPING: left_off}
    assert left_off is not None
    assert shop.deployment.tables.has_steps_since(SHOPPING, left_off)
    shop.process(sixth, "amount", ROWS)
    shop.close(ready, shop.write(ready, ROWS))
    shop.commit(sixth)
    expires(shop)
    assert not shop.deployment.tables.has_steps_since(SHOPPING, left_off)


def test_a_maintenance_barrier_is_not_taken_for_a_jobs_last_epoch(shop: Shop) -> None:
    """Also where it is the newest that still has a table which has left."""
    somebody = Compactor(run_of("upkeep/1"), "upkeep/1", "g0", "test")
    third = open_compaction(shop.deployment, "shopping", None, somebody)
    assert third is not None
    compact(shop.deployment, third, lambda table, branch: "nothing to do", somebody)
    expires(shop)
    expires(shop)
    without_price(shop, (4, 5))
    expires(shop)
    expires(shop)
    last = shop.deployment.meta.starts.last_progress("shopping", PRICE)
    assert last is not None
    assert last.barrier_id == 2
    with pytest.raises(StartFromError, match="comes back and goes on where it left off, at barrier 2"):
        shop.open(6, ALL)
