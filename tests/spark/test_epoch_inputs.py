"""An epoch's other inputs: external sources by their cut, joins of two tables' deltas, jobs that use both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.files import Files
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.identifiers import table_name
from airflow_barrier.spark.sql import SqlJob
from tests.sources.landing import Cutter, day, land
from tests.support.epochs import CATALOG, SHOPPING, Barriers, shop_for_a_day, shopping_barriers
from tests.support.spark import SINCE_4

ITEMS = "shop.items"
NAMED = "shop.named_amounts"


@pytest.fixture
def barriers(spark: SparkSession, tmp_path: Path) -> Barriers:
    barriers = shopping_barriers(spark, tmp_path)
    barriers.create(ITEMS, "itemId BIGINT, name STRING")
    barriers.create(NAMED, "name STRING, amount DECIMAL(38, 2)")
    return barriers


def test_a_root_job_loads_exactly_its_cut_by_sql_and_by_code(
    session: SparkSession, barriers: Barriers, tmp_path: Path
) -> None:
    source = Files(str(tmp_path / "landing"), name="landing", format="json", schema="itemId BIGINT, name STRING")
    cutter = Cutter(source)

    def load(epoch: Epoch) -> None:
        epoch.source("landing").writeTo(epoch.target(ITEMS)).append()

    jobs = (SqlJob("INSERT INTO {target:shop.items} SELECT itemId, name FROM {source:landing}"), load)
    for barrier, job in enumerate(jobs, start=1):
        landed = json.dumps({"itemId": barrier, "name": f"item {barrier}"})
        land(tmp_path / "landing" / f"{barrier}.json", landed + "\n", day(barrier - 0.5))
        cut = cutter.cut(day(barrier))
        assert isinstance(cut, Cut)
        land(tmp_path / "landing" / f"late{barrier}.json", landed + "\n", day(barrier + 90))
        spec = barriers.begin(barrier, outlets=[ITEMS], externals={"landing": (source.declare(), cut)})
        barriers.publish(spec, run_epoch(session, type(spec).loads(spec.dumps()), job))
    assert barriers.rows(ITEMS) == [(1, "item 1"), (2, "item 2")]


@SINCE_4  # mergeInto
def test_a_join_is_kept_up_to_date_from_both_sides_deltas(session: SparkSession, barriers: Barriers) -> None:
    def join(epoch: Epoch) -> None:
        joined = epoch.delta_join(SHOPPING, ITEMS, on="itemId")
        delta = joined.groupBy("name").agg(F.sum(F.expr("amount * _weight")).alias("d"))
        t = epoch.target(NAMED)
        (
            delta.alias("d")
            .mergeInto(t, F.expr(f"{t}.name = d.name"))
            .whenMatched()
            .update({"amount": F.expr(f"{t}.amount + d.d")})
            .whenNotMatched()
            .insert({"name": F.col("d.name"), "amount": F.col("d.d")})
            .merge()
        )

    items = {
        1: ("INSERT INTO {t} VALUES (1, 'bread'), (2, 'milk')",),
        2: ("UPDATE {t} SET name = 'oats' WHERE itemId = 2", "INSERT INTO {t} VALUES (3, 'salt')"),
    }
    recomputed = (
        f"SELECT name, CAST(sum(amount) AS DECIMAL(38, 2)) FROM {table_name(CATALOG, SHOPPING)} "
        f"JOIN {table_name(CATALOG, ITEMS)} USING (itemId) GROUP BY name"
    )
    for barrier, statements in items.items():
        shop_for_a_day(barriers, barrier)
        barriers.write(barrier, ITEMS, *statements)
        spec = barriers.begin(barrier, inlets=[SHOPPING, ITEMS], outlets=[NAMED])
        barriers.publish(spec, run_epoch(session, spec, join))
        expected = sorted(tuple(row) for row in barriers.spark.sql(recomputed).collect())
        assert [row for row in barriers.rows(NAMED) if row[1]] == expected
