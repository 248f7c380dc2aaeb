"""Barriers by hand, for tests of the Spark room alone: branches and publishing as the coordinator does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession

from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.spark.identifiers import quoted, table_name
from airflow_barrier.spark.spec import ClosingRecord, EpochSpec

CATALOG = "lake"
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
SHOPPING = "shop.shopping"
AMOUNT = "shop.user_item_amount"
_attempts = count(1)


@dataclass
class Barriers:
    """Staged heads of a few tables, barrier after barrier. ``spark`` does what the coordinator and other jobs would."""

    spark: SparkSession
    folder: Path
    at: dict[int, dict[str, int | None]] = field(default_factory=lambda: {0: {}})

    def create(self, table: str, columns: str, properties: Mapping[str, str] | None = None) -> None:
        name = table_name(CATALOG, table)
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
        self.spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
        settings = {"format-version": "3", **(properties or {})}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in settings.items())
        self.spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg TBLPROPERTIES ({listed})")

    def write(self, barrier: int, table: str, *statements: str) -> None:
        """Let another job bring ``table`` to ``barrier``: statements with ``{t}`` for the table."""
        for statement in statements:
            self.spark.sql(statement.replace("{t}", table_name(CATALOG, table)))
        self.at.setdefault(barrier, {})[table] = self.main(table)

    def main(self, table: str) -> int | None:
        rows = self.spark.sql(
            f"SELECT snapshot_id FROM {table_name(CATALOG, table, 'refs')} WHERE name = 'main'"
        ).collect()
        return int(rows[0][0]) if rows else None

    def begin(
        self,
        barrier: int,
        *,
        inlets: Sequence[str] = (),
        outlets: Sequence[str] = (),
        externals: Mapping[str, tuple[ExternalSource, Cut]] | None = None,
        job: str = "amount",
        sql: str | None = None,
    ) -> EpochSpec:
        """A new attempt, with its branch on every outlet at what the barrier before staged."""
        before = self.at.get(barrier - 1, {})
        attempt = next(_attempts)
        spec = EpochSpec(
            job=job,
            topology="shopping",
            barrier_id=barrier,
            revision=0,
            attempt_id=attempt,
            incarnation=str(self.folder),
            timestamp=FIRST + timedelta(days=barrier),
            previous_timestamp=FIRST + timedelta(days=barrier - 1) if barrier > 1 else None,
            catalog=CATALOG,
            inputs={table: self.at.get(barrier, {}).get(table) for table in inlets},
            previous={table: before.get(table) for table in inlets},
            bases={table: before.get(table) for table in outlets},
            externals={name: pair[0] for name, pair in (externals or {}).items()},
            cuts={name: pair[1] for name, pair in (externals or {}).items()},
            closing_uri=(self.folder / f"a{attempt}.closed.json").as_uri(),
            seed=7,
            nonce=f"nonce of {attempt}",
            sql=sql,
        )
        for outlet, base in spec.bases.items():
            version = "" if base is None else f" AS OF VERSION {base}"
            self.spark.sql(f"ALTER TABLE {table_name(CATALOG, outlet)} CREATE BRANCH {quoted(spec.branch)}{version}")
        return spec

    def publish(self, spec: EpochSpec, record: ClosingRecord) -> None:
        for table, staged in record.staged.items():
            self.at.setdefault(spec.barrier_id, {})[table] = staged.snapshot_id
            if not staged.unchanged:
                self.spark.sql(
                    f"CALL {quoted(CATALOG)}.system.fast_forward('{table}', 'main', '{spec.branch}')"
                ).collect()

    def rows(self, table: str, what: str = "*") -> list[tuple[object, ...]]:
        rows = self.spark.sql(f"SELECT {what} FROM {table_name(CATALOG, table)}").collect()
        return sorted(tuple(row) for row in rows)


def shopping_barriers(spark: SparkSession, folder: Path) -> Barriers:
    """Empty tables of the seeds' example."""
    barriers = Barriers(spark, folder)
    barriers.create(SHOPPING, "id BIGINT, userId BIGINT, itemId BIGINT, amount DECIMAL(18, 2)")
    barriers.create(AMOUNT, "userId BIGINT, itemId BIGINT, totalAmount DECIMAL(38, 2)")
    return barriers


def shop_for_a_day(barriers: Barriers, day: int) -> None:
    """Day 1 only adds; day 2 adds, corrects and takes back; day 3 only takes back and corrects."""
    days = {
        1: ("INSERT INTO {t} VALUES (1, 1, 1, 10.00), (2, 1, 2, 20.50), (3, 2, 1, 5.25), (4, 2, 1, 4.75)",),
        2: (
            "INSERT INTO {t} VALUES (5, 1, 1, 7.00), (6, 3, 3, 1.00)",
            "UPDATE {t} SET amount = 2.00 WHERE id = 3",
            "DELETE FROM {t} WHERE id = 2",
        ),
        3: ("UPDATE {t} SET itemId = 2 WHERE id = 1", "DELETE FROM {t} WHERE id = 6"),
    }
    barriers.write(day, SHOPPING, *days[day])


def recomputed_amount(barriers: Barriers) -> list[tuple[object, ...]]:
    """The oracle: everything from the start."""
    name = table_name(CATALOG, SHOPPING)
    rows = barriers.spark.sql(
        f"SELECT userId, itemId, CAST(sum(amount) AS DECIMAL(38, 2)) FROM {name} GROUP BY userId, itemId"
    ).collect()
    return sorted(tuple(row) for row in rows)
