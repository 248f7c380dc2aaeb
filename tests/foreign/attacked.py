"""The shop with two committed barriers and a third under way, made once and put back for every test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_barrier.coordinator.deployment import tables_of
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import MissingTableError
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.tables.iceberg import IcebergTables
from tests.foreign.hands import NOTE, Hands
from tests.support.metastores import Metastore, settings_in
from tests.support.shop import AMOUNT, COLUMNS, PRICE, SHOPPING, Shop, make_shop

TABLES = (SHOPPING, AMOUNT, PRICE)
#: The barrier that is attacked, and the one after it.
UNDER_WAY, NEXT = 3, 4


def epoch(number: int) -> list[dict[str, int]]:
    """The one row of barrier ``number``: told apart by its amount."""
    return [{"amount": 100 * number, "price": 1000 * number}]


class Attacked:
    """Steps of barriers 3 and 4, and what readers must find: ``oracle`` is barrier -> amounts of the AMOUNT table."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.meta: MetaService = shop.deployment.meta
        self.barrier = self.meta.barriers.get("shopping", UNDER_WAY)
        self.hands = Hands(shop, self.barrier, self.meta.barriers.get("shopping", UNDER_WAY - 1))
        self.oracle = {n: [100 * each for each in range(1, n + 1)] for n in range(NEXT + 1)}
        #: Whether AMOUNT, or an old snapshot of it, may be gone: then a reader gets an error, and never a torn answer.
        self.destroyed = False
        self._served = UNDER_WAY - 1
        self._read: dict[tuple[str, int], list[int]] = {}

    def stage_next(self) -> Barrier:
        """Barrier 4 from opening to PRECOMMIT."""
        barrier = self.shop.open(NEXT)
        return self.shop.process_all(barrier, epoch(NEXT))

    def commit(self) -> None:
        self.shop.commit(self.barrier)

    def read(self) -> None:
        """What readers find at the two levels: all tables at one barrier, and repeatable read never back."""
        for level in (Level.REPEATABLE_READ, Level.READ_COMMITTED):
            resolved = self.meta.answers.resolve("shopping", level)
            assert resolved.barrier_id is not None
            if level is Level.REPEATABLE_READ:
                assert resolved.barrier_id >= self._served, "repeatable read fell back"
                self._served = resolved.barrier_id
            for table, where in resolved.tables.items():
                assert self.rows_are_right(table, resolved.barrier_id, where.snapshot_id), (level, table)

    def rows_are_right(self, table: str, barrier_id: int, snapshot_id: int | None) -> bool:
        found = self.rows(table, snapshot_id, again=False)
        if found is None:
            return self.destroyed and table == AMOUNT
        return found == self.expected(table, barrier_id)

    def expected(self, table: str, barrier_id: int) -> list[int]:
        if table == AMOUNT:
            return sorted(self.oracle[barrier_id])
        return [1000 * each for each in range(1, barrier_id + 1)]

    def rows(self, table: str, snapshot_id: int | None, again: bool = True) -> list[int] | None:
        """The table's rows at a snapshot (by the column that tells epochs apart); None if it is not there any more.

        Without ``again``, what was read of the same snapshot before will do.
        """
        if snapshot_id is None:
            return []
        try:
            iceberg = self.shop.deployment.tables.load(table)
        except MissingTableError:
            return None
        if iceberg.snapshot_by_id(snapshot_id) is None:
            return None
        if again or (table, snapshot_id) not in self._read:
            column = iceberg.scan(snapshot_id=snapshot_id).to_arrow().column(COLUMNS[table][-1])
            self._read[table, snapshot_id] = sorted(column.to_pylist())
        return self._read[table, snapshot_id]

    def main(self, table: str = AMOUNT) -> int | None:
        return self.shop.deployment.tables.mains([table])[table]

    def check_mains(self, barrier_id: int) -> None:
        """Who reads `main`, without a MetaService, finds the whole barrier."""
        for table in TABLES:
            assert self.rows(table, self.main(table)) == self.expected(table, barrier_id), table
            metadata = self.shop.deployment.tables.load(table).metadata
            there = {snapshot.snapshot_id for snapshot in metadata.snapshots}
            assert {ref.snapshot_id for ref in metadata.refs.values()} <= there, "engines refuse refs into the void"

    def others_are_at(self, barrier_id: int) -> None:
        """The tables that nobody attacked."""
        for table in (SHOPPING, PRICE):
            assert self.rows(table, self.main(table)) == self.expected(table, barrier_id), table

    @contextmanager
    def interrupted(self, moment: str, hand: Callable[[], None]) -> Iterator[None]:
        """Within the block, the hand acts once, at that moment of the commit."""
        done: list[str] = []

        def act() -> None:
            if not done:
                done.append(moment)
                hand()

        begin_commit, publishing = self.meta.publishing.begin, self.meta.publishing.swapping

        def begun(*args: Any) -> Barrier:
            if moment == "looked":
                act()
            barrier = begin_commit(*args)
            if moment == "committing":
                act()
            return barrier

        @contextmanager
        def swapping(*args: Any) -> Iterator[Any]:
            if moment == "publishing":
                act()
            with publishing(*args) as connection:
                yield connection

        self.meta.publishing.begin, self.meta.publishing.swapping = begun, swapping  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            del self.meta.publishing.begin, self.meta.publishing.swapping  # type: ignore[method-assign]
        assert done == [moment], "the moment never came"


class Template:
    """A folder with everything in it (tables name their files by absolute paths, so it is always the same folder)."""

    def __init__(self, folder: Path, *, apart: bool = False) -> None:
        self.live, self._kept, self._apart = folder / "live", folder, apart
        self.live.mkdir(exist_ok=True)
        shop = make_shop(self._settings())
        _add_note(shop)
        for number in range(1, UNDER_WAY):
            shop.process_all(barrier := shop.open(number), epoch(number))
            shop.commit(barrier)
        barrier = shop.open(UNDER_WAY)
        shop.process(barrier, "load", epoch(UNDER_WAY))
        shop.process(barrier, "price", epoch(UNDER_WAY))
        self._keep(shop, "open")
        shop = Shop(self._connect())
        shop.process(barrier, "amount", epoch(UNDER_WAY))
        self._keep(shop, "staged")

    @contextmanager
    def put_back(self, state: str) -> Iterator[Attacked]:
        """``open``: job `amount` has not begun; ``staged``: the barrier is PRECOMMIT."""
        self._restore(state)
        with self.again() as shop:
            yield Attacked(shop)

    @contextmanager
    def again(self) -> Iterator[Shop]:
        """A deployment on the folder as it is now."""
        deployment = self._connect()
        try:
            yield Shop(deployment)
        finally:
            deployment.close()

    def _settings(self) -> Settings:
        if self._apart:
            return Settings(
                metaservice_url=f"sqlite:///{self.live}/meta.db",
                catalog_uri=f"sqlite:///{self.live}/catalog.db",
                warehouse=str(self.live),
            )
        return Settings.embedded(str(self.live))

    def _connect(self) -> Any:
        from airflow_barrier.coordinator.deployment import Deployment

        return Deployment.connect(self._settings())

    def _keep(self, shop: Shop, state: str) -> None:
        shop.deployment.close()
        shutil.copytree(self.live, self._kept / state)

    def _restore(self, state: str) -> None:
        shutil.rmtree(self.live)
        shutil.copytree(self._kept / state, self.live)


class MetastoreTemplate(Template):
    """The tables are in a metastore, whose pointers are put back as well."""

    def __init__(self, folder: Path, metastore: Metastore) -> None:
        self._metastore = metastore
        self._pointers: dict[str, Mapping[str, str]] = {}
        with self._tables(folder) as tables:
            self._empty(tables)
            tables.catalog.create_namespace_if_not_exists("shop")
            tables.catalog.drop_namespace("shop")
            tables.catalog.create_namespace("shop", {"location": (folder / "live" / "tables").as_uri()})
        super().__init__(folder)

    @contextmanager
    def put_back(self, state: str) -> Iterator[Attacked]:
        try:
            with super().put_back(state) as attacked:
                yield attacked
        finally:
            with self._tables(self.live) as tables:
                self._empty(tables)

    def _settings(self) -> Settings:
        return settings_in(self._metastore, self.live)

    def _keep(self, shop: Shop, state: str) -> None:
        self._pointers[state] = shop.deployment.tables.metadata_locations(TABLES)
        super()._keep(shop, state)

    def _restore(self, state: str) -> None:
        super()._restore(state)
        with self._tables(self.live) as tables:
            self._empty(tables)
            for table, location in self._pointers[state].items():
                tables.catalog.register_table(table, location)

    def _tables(self, folder: Path) -> IcebergTables:
        return tables_of(settings_in(self._metastore, folder))

    def _empty(self, tables: IcebergTables) -> None:
        if tables.catalog.namespace_exists("shop"):
            for table in tables.catalog.list_tables("shop"):
                tables.catalog.drop_table(table)


def _add_note(shop: Shop) -> None:
    from pyiceberg.types import StringType

    with shop.deployment.tables.load(AMOUNT).update_schema() as update:
        update.add_column(NOTE, StringType())
