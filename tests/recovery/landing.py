"""The shopping topology fed from a landing folder: what a file's rows are in tells in which epoch it was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Ready, close
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.spec import ClosingRecord
from tests.support.kept import Kept
from tests.support.shop import AMOUNT, JOBS, MONDAY, PRICE, SHOPPING, Shop, make_shop

TABLES = (SHOPPING, AMOUNT, PRICE)
DAYS = 12


@dataclass
class LandedShop:
    """One file a day, of one row: the amount is ``2 ** day``, so that a sum says which files are in it."""

    shop: Shop
    folder: Path
    settings: Settings
    #: has its first barriers, where they are all that happened yet
    kept: Kept | None = None

    @property
    def fragment(self) -> Fragment:
        source = Files(
            str(self.folder), name="purchases", schema="amount BIGINT, price BIGINT", attribute_by="path",
            path_date="date=%Y-%m-%d",
        )  # fmt: skip
        load = Job("load", "shopping_dag", outlets=(SHOPPING,), externals=(source.declare(),))
        return Fragment("shopping", "shopping_dag", (load, *JOBS[1:]))

    def open(self, day: int) -> Barrier:
        return self.shop.open(day, self.fragment)

    def rows(self, barrier: Barrier) -> list[dict[str, int]]:
        """What the files of the barrier's cut hold."""
        items = self.shop.deployment.meta.cuts.of("shopping", barrier.barrier_id)["purchases"].items
        days = [int(Path(item).stem.removeprefix("day-")) for item in items]
        return [{"amount": 2**day, "price": 2**day} for day in days]

    def stage(self, barrier: Barrier, job: str) -> tuple[Ready, ClosingRecord]:
        """A job's attempt up to where its driver has written everything."""
        ready = self.shop.begin(barrier, job)
        return ready, self.shop.write(ready, self.rows(barrier))

    def process(self, barrier: Barrier, *jobs: str) -> Barrier:
        for job in jobs or ("load", "amount", "price"):
            ready, record = self.stage(barrier, job)
            barrier = close(self.shop.deployment, ready.attempt, record=record, actor="test")
        return barrier

    def committed(self, *days: int) -> None:
        if self.kept is not None and self.shop.deployment.meta.topologies.names() == []:
            self._begin_with(self.kept, days)
            return
        for day in days:
            barrier = self.open(day)
            self.process(barrier)
            self.shop.commit(barrier)

    def _begin_with(self, kept: Kept, days: Sequence[int]) -> None:
        def make() -> None:
            landed = landed_shop(self.settings, kept.folder)
            landed.committed(*days)
            landed.close()

        self.close()
        kept.put_back((self.settings.catalog_uri, days), make)
        self.reconnect()

    def check_oracle(self, last_day: int) -> None:
        """All tables hold each day's file up to ``last_day`` exactly once."""
        expected = sum(2**day for day in range(1, last_day + 1))
        assert self.shop.main_totals() == dict.fromkeys(TABLES, expected)

    def reconnect(self) -> None:
        """As the next process does."""
        self.shop.deployment.close()
        self.shop = Shop(Deployment.connect(self.settings))

    def close(self) -> None:
        self.shop.deployment.close()


def landed_shop(settings: Settings, folder: Path) -> LandedShop:
    """Files for all days are there from the start: who forgets what he has read, reads it again."""
    shop = LandedShop(make_shop(settings), folder / "landing", settings)
    for day in range(1, DAYS + 1):
        path = shop.folder / f"date={MONDAY + timedelta(days=day - 1):%Y-%m-%d}" / f"day-{day}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"amount": [2**day], "price": [2**day]}), path)
    return shop
