"""FLIP-276's own example, through the coordinator and Spark: what a reader sees at each level while a barrier runs.

A user has bought 100 items for 1000; then come 200 more for 1500. The average price is 10 before and 8.33333 after; a
reader who sees the new price over the old amount gets 25, which was never true.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.sql import SqlJob
from demo.steps import commit, open_at, process, run_barrier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPOLOGY = "seeds"
SHOPPING, AMOUNT, PRICE = "seeds.shopping", "seeds.user_item_amount", "seeds.user_item_price"
_COLUMNS = {
    SHOPPING: "userId BIGINT, itemId BIGINT, amount BIGINT, price DECIMAL(12, 2)",
    AMOUNT: "userId BIGINT, itemId BIGINT, totalAmount BIGINT",
    PRICE: "userId BIGINT, itemId BIGINT, totalPrice DECIMAL(18, 2)",
}
_MERGE = """
    MERGE INTO {{target:{outlet}}} t
    USING (SELECT userId, itemId, sum({column}) AS d FROM {{appends:{shopping}}} GROUP BY userId, itemId) s
    ON t.userId <=> s.userId AND t.itemId <=> s.itemId
    WHEN MATCHED THEN UPDATE SET {total} = t.{total} + s.d
    WHEN NOT MATCHED THEN INSERT (userId, itemId, {total}) VALUES (s.userId, s.itemId, s.d)
"""
JOBS = {
    "load": SqlJob(f"INSERT INTO {{target:{SHOPPING}}} SELECT userId, itemId, amount, price FROM {{source:seeds}}"),
    "price": SqlJob(_MERGE.format(outlet=PRICE, shopping=SHOPPING, column="price", total="totalPrice")),
    "amount": SqlJob(_MERGE.format(outlet=AMOUNT, shopping=SHOPPING, column="amount", total="totalAmount")),
}
_BEFORE = {"userId": 1, "itemId": 1, "amount": 100, "price": 1000.00}
_AFTER = {"userId": 1, "itemId": 1, "amount": 200, "price": 1500.00}

#: level -> the average price a reader gets
Seen = dict[Level, Decimal]


@dataclass(frozen=True)
class SeedsExample:
    """What each level saw: while only the price is PROCESSED, once the barrier is PRECOMMIT, and once it is COMMIT."""

    half: Seen
    precommit: Seen
    commit: Seen

    @property
    def holds(self) -> bool:
        old, new, never = Decimal("10.00000"), Decimal("8.33333"), Decimal("25.00000")
        uncommitted, committed, repeatable = Level.READ_UNCOMMITTED, Level.READ_COMMITTED, Level.REPEATABLE_READ
        return (
            self.half == {uncommitted: never, committed: old, repeatable: old}
            and self.precommit == {uncommitted: new, committed: new, repeatable: old}
            and self.commit == {uncommitted: new, committed: new, repeatable: new}
        )


def run_seeds(deployment: Deployment, spark: SparkSession, spark_url: str, landing: Path) -> SeedsExample:
    """Run the example's two barriers in topology `seeds`; ``landing`` is an empty folder or none yet."""
    _create_tables(spark, deployment.spark_catalog)
    files = Files(
        str(landing),
        name="seeds",
        format="json",
        schema=_COLUMNS[SHOPPING],
        attribute_by="path",
        path_date="date=%Y-%m-%d",
    )
    jobs = (
        Job("load", "seeds", outlets=(SHOPPING,), externals=(files.declare(),)),
        Job("price", "seeds", inlets=(SHOPPING,), outlets=(PRICE,)),
        Job("amount", "seeds", inlets=(SHOPPING,), outlets=(AMOUNT,)),
    )
    fragment = Fragment(TOPOLOGY, "seeds", jobs)

    _land(landing, "2022-12-01", _BEFORE)
    run_barrier(deployment, spark_url, fragment, datetime(2022, 12, 2, tzinfo=timezone.utc), JOBS)
    _land(landing, "2022-12-02", _AFTER)
    barrier = open_at(deployment, fragment, datetime(2022, 12, 3, tzinfo=timezone.utc))
    for name in ("load", "price"):
        process(deployment, spark_url, barrier, name, JOBS[name])
    half = _look(deployment)
    process(deployment, spark_url, barrier, "amount", JOBS["amount"])
    precommit = _look(deployment)
    commit(deployment, barrier)
    return SeedsExample(half, precommit, _look(deployment))


def _look(deployment: Deployment) -> Seen:
    """`totalPrice / totalAmount` at each level."""
    seen = {}
    for level in Level:
        tables = deployment.meta.answers.resolve(TOPOLOGY, level, [AMOUNT, PRICE]).tables
        price, amount = (
            deployment.tables.load(table).scan(snapshot_id=tables[table].snapshot_id).to_arrow()[column][0].as_py()
            for table, column in ((PRICE, "totalPrice"), (AMOUNT, "totalAmount"))
        )
        seen[level] = (price / amount).quantize(Decimal("0.00001"), rounding=ROUND_HALF_UP)
    return seen


def _create_tables(spark: SparkSession, catalog: str) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS `{catalog}`.`seeds`")
    for table, columns in _COLUMNS.items():
        spark.sql(
            f"CREATE TABLE `{catalog}`.{table} ({columns}) USING iceberg "
            "TBLPROPERTIES ('format-version'='3', 'write.metadata.delete-after-commit.enabled'='true')"
        )


def _land(landing: Path, day: str, line: dict[str, float]) -> None:
    folder = landing / f"date={day}"
    folder.mkdir(parents=True)
    (folder / "lines.json").write_text(json.dumps(line) + "\n")
