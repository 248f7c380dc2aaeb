"""A shop with a long history whose days can be revised: its tables are written without Spark, and revised by it.

One job puts what has landed into a root table, and two derive a table each from what that brought.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.records import Attempt, Barrier, StagedTable
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.connect import ConnectRun
from airflow_barrier.spark.spec import ClosingRecord
from airflow_barrier.spark.sql import SqlJob
from tests.support.runs import run_of

if TYPE_CHECKING:
    from pyiceberg.table import Table

TOPOLOGY = "shopping"
PURCHASES, AMOUNT, PRICE = TABLES = ("shop.shopping", "shop.user_item_amount", "shop.user_item_price")


def _sums(table: str, column: str) -> str:
    """The statement of a job that adds what each user had of each item in the epoch."""
    return f"""
        INSERT INTO {{target:{table}}}
        SELECT userId, itemId, sum({column} * _weight), sum(_weight)
        FROM {{changes:{PURCHASES}}}
        GROUP BY userId, itemId
    """


#: What Spark does in them is little, so that a long history can be computed again. The first one is first, and the
#: others are beside each other.
JOBS = {
    "load": f"""
        INSERT INTO {{target:{PURCHASES}}}
        SELECT household_id, product_id, basket_id, quantity, sales_value, transaction_timestamp
        FROM {{source:shopping}}
    """,
    "amount": _sums(AMOUNT, "amount"),
    "price": _sums(PRICE, "price"),
}
#: What `load` asks for, and where its columns go.
_LANDED = pa.schema(
    [
        ("household_id", pa.int64()),
        ("basket_id", pa.int64()),
        ("product_id", pa.int64()),
        ("quantity", pa.int64()),
        ("sales_value", pa.decimal128(12, 2)),
        ("transaction_timestamp", pa.timestamp("us", tz="UTC")),
        ("sent_at", pa.timestamp("us", tz="UTC")),
        ("void", pa.bool_()),
    ]
)
_SOURCE = (
    "household_id BIGINT, basket_id BIGINT, product_id BIGINT, quantity BIGINT, sales_value DECIMAL(12, 2), "
    "transaction_timestamp TIMESTAMP, sent_at TIMESTAMP, void BOOLEAN"
)
_COLUMNS = {
    PURCHASES: pa.schema(
        [
            ("userId", pa.int64()),
            ("itemId", pa.int64()),
            ("basketId", pa.int64()),
            ("amount", pa.int64()),
            ("price", pa.decimal128(12, 2)),
            ("ts", pa.timestamp("us", tz="UTC")),
        ]
    ),
    AMOUNT: pa.schema(
        [("userId", pa.int64()), ("itemId", pa.int64()), ("totalAmount", pa.int64()), ("purchases", pa.int64())]
    ),
    PRICE: pa.schema(
        [
            ("userId", pa.int64()),
            ("itemId", pa.int64()),
            ("totalPrice", pa.decimal128(18, 2)),
            ("purchases", pa.int64()),
        ]
    ),
}
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_USERS, _ITEMS = 100, 50
_FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Line:
    """What somebody bought of an item."""

    user: int
    basket: int
    item: int
    quantity: int
    value: Decimal
    at: datetime

    def landed(self) -> dict[str, Any]:
        values = (self.user, self.basket, self.item, self.quantity, self.value, self.at, self.at, False)
        return dict(zip(_LANDED.names, values, strict=True))

    def row(self) -> tuple[Any, ...]:
        return (self.user, self.item, self.basket, self.quantity, self.value, self.at)


class Shop:
    """``lines``: what has landed on each day, a barrier a day; ``a_day`` of them."""

    def __init__(self, deployment: Deployment, landing: Path, a_day: int) -> None:
        self.deployment = deployment
        self.landing = landing
        self.a_day = a_day
        self.lines: dict[int, list[Line]] = {}
        deployment.tables.catalog.create_namespace("shop")
        for table, columns in _COLUMNS.items():
            deployment.tables.catalog.create_table(table, columns, properties=_PROPERTIES)
        files = Files(
            str(landing), name="shopping", schema=_SOURCE, attribute_by="path", path_date="date=%Y-%m-%d"
        ).declare()
        self._fragment = Fragment(
            TOPOLOGY,
            "shopping_dag",
            (
                Job("load", "shopping_dag", outlets=(PURCHASES,), externals=(files,)),
                Job("amount", "shopping_dag", inlets=(PURCHASES,), outlets=(AMOUNT,)),
                Job("price", "shopping_dag", inlets=(PURCHASES,), outlets=(PRICE,)),
            ),
        )

    @classmethod
    @contextmanager
    def connected(cls, settings: Settings, landing: Path, a_day: int) -> Iterator[Shop]:
        deployment = Deployment.connect(settings)
        try:
            yield cls(deployment, landing, a_day)
        finally:
            deployment.close()

    # --- days as they come, without Spark ---------------------------------------------------------

    def grow(self, days: int) -> None:
        """Up to that many barriers, each of them COMMIT."""
        for day in range(len(self.lines) + 1, days + 1):
            self._land(day, [self._line(day, number) for number in range(self.a_day)])
            opened = open_barrier(
                self.deployment,
                self._fragment,
                _FIRST + timedelta(days=day),
                timestamp_from="benchmark",
                run=run_of(f"shopping_dag/{day}"),
                actor="benchmark",
            )
            assert isinstance(opened, Opened), opened
            for job, (table, rows) in zip(JOBS, self._computed(day).items(), strict=True):
                ready = self._begin(opened.barrier, job)
                head = self._write(ready.attempt, table, rows)
                record = ClosingRecord(ready.attempt.attempt_id, {table: StagedTable(table, head)})
                close(self.deployment, ready.attempt, actor="benchmark", record=record)
            committed = commit_barrier(self.deployment, TOPOLOGY, opened.barrier.barrier_id, actor="benchmark")
            assert isinstance(committed, Committed), committed

    def _line(self, day: int, number: int) -> Line:
        """No two are in one basket."""
        return Line(
            user=(number * 7 + day) % _USERS,
            basket=day * 1_000_000 + number,
            item=(number * 13 + day * 5 + number // _USERS) % _ITEMS,
            quantity=1 + number % 4,
            value=Decimal(100 + number % 900) / 100,
            at=_FIRST + timedelta(days=day - 1, seconds=number),
        )

    def _land(self, day: int, lines: Sequence[Line]) -> None:
        path = self.landing / f"date={_FIRST + timedelta(days=day - 1):%Y-%m-%d}" / "part.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([line.landed() for line in lines], _LANDED), path)
        self.lines[day] = list(lines)

    def _write(self, attempt: Attempt, table: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Returns the branch's new head."""
        iceberg: Table = self.deployment.tables.load(table)
        columns = _COLUMNS[table]
        arrow = pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns)
        iceberg.append(arrow, snapshot_properties=attempt.stamp.properties(), branch=attempt.branch)
        head = iceberg.refresh().metadata.snapshot_by_name(attempt.branch)
        assert head is not None
        return head.snapshot_id

    # --- a person, and the replay -----------------------------------------------------------------

    def correct(self, day: int, lines: int) -> None:
        """So many lines of a day become others: the tills sent the wrong quantity and value."""
        wrong, right = self.lines[day][:lines], self.lines[day][lines:]
        mended = [replace(line, quantity=line.quantity + 1, value=line.value + 1) for line in wrong]
        self._land(day, [*mended, *right])

    def replay(self, barrier: Barrier, url: str) -> None:
        """The jobs of a barrier as Airflow runs them."""
        first, *others = JOBS
        self._replay(barrier, url, first)
        with ThreadPoolExecutor(len(others)) as pool:
            list(pool.map(lambda job: self._replay(barrier, url, job), others))

    def _replay(self, barrier: Barrier, url: str, job: str) -> None:
        ready = self._begin(barrier, job)
        run = ConnectRun(url, ready.spec, ready.heads, ready.attempt.session)
        record = run.run(SqlJob(JOBS[job]))
        with run.handing_over() as idle:
            close(self.deployment, ready.attempt, actor="benchmark", record=record, idle=idle)

    def _begin(self, barrier: Barrier, job: str) -> Ready:
        ready = begin(self.deployment, barrier, job, Asking(job, "g", "benchmark", server="spark"))
        assert isinstance(ready, Ready), ready
        return ready

    # --- looking ----------------------------------------------------------------------------------

    def mains(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """The rows of every table as they stand."""
        return {
            table: Counter(map(tuple, zip(*self._columns(table, head), strict=True)))
            for table, head in self.deployment.tables.mains(TABLES).items()
        }

    def _columns(self, table: str, snapshot_id: int | None) -> list[list[Any]]:
        arrow = self.deployment.tables.load(table).scan(snapshot_id=snapshot_id).to_arrow()
        return [arrow[name].to_pylist() for name in _COLUMNS[table].names]

    def recomputed(self) -> dict[str, Counter[tuple[Any, ...]]]:
        """The rows that a computation from scratch of all that has landed gives."""
        found: dict[str, Counter[tuple[Any, ...]]] = {table: Counter() for table in TABLES}
        for day in self.lines:
            for table, rows in self._computed(day).items():
                found[table].update(rows)
        return found

    def _computed(self, day: int) -> dict[str, list[tuple[Any, ...]]]:
        """What a day adds to each table."""
        lines = self.lines[day]
        totals: defaultdict[tuple[int, int], list[Line]] = defaultdict(list)
        for line in lines:
            totals[line.user, line.item].append(line)
        amounts = [(*pair, sum(line.quantity for line in its), len(its)) for pair, its in totals.items()]
        prices = [(*pair, sum((line.value for line in its), Decimal()), len(its)) for pair, its in totals.items()]
        return {PURCHASES: [line.row() for line in lines], AMOUNT: amounts, PRICE: prices}

    def rows_written(self, revision: int) -> int:
        """Rows in the data files that a revision's attempts have added."""
        return sum(
            int((snapshot.summary or {}).get("added-records") or 0)
            for table in TABLES
            for snapshot in self.deployment.tables.load(table).metadata.snapshots
            if (snapshot.summary or {}).get("barrier.revision") == str(revision)
        )
