"""The way out where main cannot be set back: the table leaves the topology and joins it again as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_barrier.coordinator.aborting import abort_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import ForeignWriteError
from airflow_barrier.protocol.topology import Fragment
from tests.foreign.attacked import Attacked, Template, epoch
from tests.foreign.hands import Hands
from tests.support.shop import AMOUNT, JOBS, SHOPPING, Shop, make_shop

WITHOUT = Fragment("shopping", "shopping_dag", tuple(job for job in JOBS if AMOUNT not in job.outlets))
#: What somebody else wrote counts for all that was there; see `start_from`.
AGAIN = Fragment(
    "shopping",
    "shopping_dag",
    tuple(replace(job, start_from={SHOPPING: "latest"}) if AMOUNT in job.outlets else job for job in JOBS),
)
ADVICE = "let the table leave the topology and join it again"


@pytest.fixture
def attacked(template: Template) -> Iterator[Attacked]:
    with template.put_back("staged") as attacked:
        yield attacked


def leave_and_join(shop: Shop, day: int) -> None:
    """Barrier of ``day`` without the table, then one with it."""
    barrier = shop.open(day, WITHOUT)
    for job in ("load", "price"):
        shop.process(barrier, job, epoch(day))
    shop.commit(barrier)
    shop.process_all(barrier := shop.open(day + 1, AGAIN), epoch(day + 1))
    shop.commit(barrier)


def amounts(shop: Shop) -> list[int]:
    return sorted(shop.deployment.tables.load(AMOUNT).scan().to_arrow().column("amount").to_pylist())


def test_a_table_that_was_made_anew_after_a_commit(attacked: Attacked) -> None:
    attacked.commit()
    attacked.hands.recreate()
    barrier = attacked.shop.open(4)
    attacked.shop.process(barrier, "load", epoch(4))
    with pytest.raises(ForeignWriteError, match=ADVICE):
        attacked.shop.begin(barrier, "amount")
    abort_barrier(attacked.shop.deployment, "shopping", 4, reason="made anew", actor="test")
    leave_and_join(attacked.shop, 5)
    assert amounts(attacked.shop) == [7, 600]


def test_an_empty_table_that_somebody_filled_before_the_first_barrier_was_committed(tmp_path: Path) -> None:
    shop = make_shop(Settings.embedded(str(tmp_path)))
    shop.process_all(barrier := shop.open(1), epoch(1))
    Hands(shop, barrier, barrier).append()
    with pytest.raises(ForeignWriteError, match=f"expected main at no snapshot.*{ADVICE}"):
        shop.commit(barrier)
    abort_barrier(shop.deployment, "shopping", 1, reason="somebody filled it", actor="test")
    leave_and_join(shop, 2)
    assert amounts(shop) == [7, 300]
    assert shop.total(SHOPPING, shop.deployment.tables.mains([SHOPPING])[SHOPPING]) == 2000 + 3000
    shop.deployment.close()
