"""The shopping topology of tests/crash with a person who corrects history: real tables, written without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped, publish_revision
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import Revision
from tests.crash.shopping import COLUMNS, TASKS, Shop, purchases, rows_of
from tests.support.deployments import SHARED, is_in_files, settings_in_files, settings_on
from tests.support.kept import Kept
from tests.support.postgresql import PostgreSQL

JOBS = ("load", "amount", "price")


@dataclass
class RevisedShop:
    """A shop, one connection to its deployment, and what has landed on each day."""

    shop: Shop
    deployment: Deployment
    landed: dict[int, list[dict[str, int]]]
    #: has its first days, where they are all that happened yet
    kept: Kept | None = None

    @classmethod
    @contextmanager
    def on(cls, folder: str, settings: Settings) -> Iterator[RevisedShop]:
        with cls.of(Shop(folder, settings)) as shop:
            yield shop

    @classmethod
    @contextmanager
    def in_kept(cls, kept: Kept, kind: str = SHARED[0]) -> Iterator[RevisedShop]:
        """On a kind of deployment whose databases are files; its first days are computed once."""
        shop = Shop(str(kept.folder), settings_in_files(kind, kept.folder))
        kept.put_back((shop, 0), shop.create)
        found = cls(shop, Deployment.connect(shop.settings), {}, kept)
        yield found
        found.deployment.close()

    @classmethod
    @contextmanager
    def of(cls, shop: Shop) -> Iterator[RevisedShop]:
        shop.create()
        deployment = Deployment.connect(shop.settings)
        yield cls(shop, deployment, {})
        deployment.close()

    # --- days as they come ------------------------------------------------------------------------

    def day(self, day: int, tasks: Sequence[str] = TASKS, *, priced: bool = True) -> None:
        """The run of a day, or some of its tasks."""
        if day not in self.landed:
            self.landed[day] = self.shop.land(day, priced)
        for task in tasks:
            self.shop.run_on(self.deployment, task, day)

    def days(self, first: int, last: int) -> None:
        if self.kept is not None and not self.landed:
            self._begin_with(self.kept, last)
            return
        for day in range(first, last + 1):
            self.day(day)

    def _begin_with(self, kept: Kept, last: int) -> None:
        self.deployment.close()
        kept.put_back((self.shop, last), lambda: self._make(last))
        self.deployment = Deployment.connect(self.shop.settings)
        self.landed = {day: purchases(day, priced=True) for day in range(1, last + 1)}

    def _make(self, last: int) -> None:
        with RevisedShop.of(self.shop) as shop:
            shop.days(1, last)

    # --- a person ---------------------------------------------------------------------------------

    def correct(self, day: int, rows: list[dict[str, int]]) -> None:
        """Other purchases in the file that landed on a day."""
        import pyarrow as pa

        path = self.file(day)
        assert path.exists(), path
        pq.write_table(pa.Table.from_pylist(rows), path)
        self.landed[day] = rows

    def deliver(self, day: int, rows: list[dict[str, int]], name: str) -> None:
        """Another file of a day."""
        import pyarrow as pa

        pq.write_table(pa.Table.from_pylist(rows), self.file(day, name))

    def file(self, day: int, name: str = "part.parquet") -> Path:
        return self.shop.file(day, name)

    def begin(self, first: int, last: int | None = None, **wanted: Any) -> Revision:
        plan = plan_revision(self.deployment, Wanted(self.shop.name, first, last, **wanted))
        return begin_revision(self.deployment, plan, reason="corrected", actor="person")

    def replay(self, revision: Revision, barrier_id: int, jobs: Sequence[str] = JOBS, generation: str = "1/1") -> None:
        """The jobs of a run that computes a barrier of the revision."""
        barrier = self.deployment.meta.barriers.get(self.shop.name, barrier_id, revision.revision)
        for job in jobs:
            if job in revision.jobs:
                self.shop._work(self.deployment, barrier, job, generation)

    def replay_all(self, revision: Revision) -> None:
        for barrier in self.deployment.meta.revisions.barriers(self.shop.name, revision.revision):
            self.replay(revision, barrier.barrier_id)

    def publish(self, revision: Revision) -> Swapped | NotStaged:
        return publish_revision(self.deployment, self.shop.name, revision.revision, actor="publisher")

    # --- looking ----------------------------------------------------------------------------------

    def expected(self, day: int, landed: Mapping[int, list[dict[str, int]]] | None = None) -> dict[str, Counter[Any]]:
        """What a recomputation from scratch gives at the barrier of a day."""
        landed = self.landed if landed is None else landed
        purchased = [row for each in range(1, day + 1) for row in landed[each]]
        return {self.shop.table(table): Counter(rows_of(table, purchased)) for table in COLUMNS}

    def at(self, barrier_id: int | None = None, revision: int | None = None) -> dict[str, Counter[Any]]:
        """What a reader gets at a barrier (None: the newest that is COMMIT), all tables."""
        found = self.deployment.meta.answers.resolve(
            self.shop.name, Level.REPEATABLE_READ, at=barrier_id, revision=revision
        )
        return {name: self.rows(name, one.snapshot_id) for name, one in found.tables.items()}

    def at_level(self, level: Level) -> tuple[int | None, dict[str, Counter[Any]]]:
        found = self.deployment.meta.answers.resolve(self.shop.name, level)
        return found.barrier_id, {name: self.rows(name, one.snapshot_id) for name, one in found.tables.items()}

    def mains(self) -> dict[str, Counter[Any]]:
        """What somebody who knows of no barriers reads."""
        tables = self.deployment.tables
        return {name: self.rows(name, head) for name, head in tables.mains(self.shop.tables()).items()}

    def rows(self, table: str, snapshot_id: int | None) -> Counter[Any]:
        if snapshot_id is None:
            return Counter()
        arrow = self.deployment.tables.load(table).scan(snapshot_id=snapshot_id).to_arrow()
        return Counter(tuple(row[name] for name in COLUMNS[table.rpartition(".")[2]]) for row in arrow.to_pylist())

    def by_tag(self, table: str, tag: str) -> Counter[Any]:
        snapshot = self.deployment.tables.load(table).metadata.snapshot_by_name(tag)
        assert snapshot is not None, f"{table} has no tag {tag}"
        return self.rows(table, snapshot.snapshot_id)

    def barrier(self, barrier_id: int) -> Barrier:
        return self.deployment.meta.barriers.get(self.shop.name, barrier_id)


@contextmanager
def shop_on(kind: str, folder: Path, postgresql: PostgreSQL, kept: Kept) -> Iterator[RevisedShop]:
    """A shop on any kind of deployment; in ``folder``, if it cannot be kept."""
    if is_in_files(kind):
        with RevisedShop.in_kept(kept, kind) as shop:
            yield shop
        return
    with settings_on(kind, folder, postgresql) as settings, RevisedShop.on(str(folder), settings) as shop:
        yield shop
