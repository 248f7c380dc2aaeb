"""Spark takes out exactly the snapshots that it is told, and files go when nobody can see them any more."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.connect.session import SparkSession

from airflow_barrier.protocol.errors import ExpiryError
from airflow_barrier.spark.expiring import ExpiredFiles, expire_snapshots
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.spark import SparkServer

ODD = "expiring.it's `odd`"
NAME = "lake.expiring.`it's ``odd```"


@pytest.fixture
def tables(spark_server: SparkServer) -> IcebergTables:
    return IcebergTables.connect(f"sqlite:///{spark_server.catalog_db}", str(spark_server.warehouse))


@pytest.fixture
def table(request: pytest.FixtureRequest, spark: SparkSession) -> str:
    """Snapshots 1 to 5, of which each replaces the row of the one before."""
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.expiring")
    spark.sql(f"DROP TABLE IF EXISTS {NAME} PURGE")
    version = getattr(request, "param", "2")
    spark.sql(f"CREATE TABLE {NAME} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version'='{version}')")
    for number in range(1, 6):
        spark.sql(f"INSERT OVERWRITE {NAME} VALUES ({number})")
    return ODD


def snapshots(spark: SparkSession) -> list[int]:
    return [row[0] for row in spark.sql(f"SELECT snapshot_id FROM {NAME}.snapshots ORDER BY committed_at").collect()]


def data_files(tables: IcebergTables) -> int:
    return len(list((Path(tables.load(ODD).location().removeprefix("file:")) / "data").glob("*.parquet")))


@pytest.mark.parametrize("table", ["2", "3"], indirect=True)
def test_exactly_the_snapshots_that_are_named_go(spark: SparkSession, tables: IcebergTables, table: str) -> None:
    first, second, third, fourth, fifth = snapshots(spark)
    tables.drop_tags([table], ["nobody's"])
    spark.sql(f"ALTER TABLE {NAME} CREATE TAG held AS OF VERSION {second}")
    verdicts = {verdict.snapshot_id: verdict.keep for verdict in tables.snapshot_verdicts(table, None)}
    assert verdicts == dict.fromkeys((first, second, third, fourth, fifth), True)
    spark.sql(f"ALTER TABLE {NAME} CREATE TAG window AS OF VERSION {fourth}")
    verdicts = {verdict.snapshot_id: verdict.keep for verdict in tables.snapshot_verdicts(table, "window")}
    assert verdicts == {first: False, second: True, third: False, fourth: True, fifth: True}
    files = expire_snapshots(spark, "lake", table, [first, third])
    assert (files.data, files.deletes) == (2, 0)
    assert snapshots(spark) == [second, fourth, fifth]
    assert data_files(tables) == 3
    for snapshot, row in ((second, 2), (fourth, 4), (fifth, 5)):
        assert spark.sql(f"SELECT * FROM {NAME} VERSION AS OF {snapshot}").collect() == [(row,)]


def test_what_has_got_a_ref_meanwhile_stays(spark: SparkSession, tables: IcebergTables, table: str) -> None:
    first, second, *_ = before = snapshots(spark)
    spark.sql(f"ALTER TABLE {NAME} CREATE TAG held AS OF VERSION {second}")
    with pytest.raises(
        ExpiryError, match=f"expiry of 2 snapshots of .* found .*Cannot expire {second}. Still referenced by refs"
    ):
        expire_snapshots(spark, "lake", table, [first, second])
    assert snapshots(spark) == before
    assert data_files(tables) == 5
    tables.drop_tags([table], ["held"])
    assert expire_snapshots(spark, "lake", table, [first, second]).data == 2


def test_nothing_to_take_out_asks_nobody() -> None:
    assert expire_snapshots(None, "lake", ODD, []) == ExpiredFiles(0, 0, 0)  # type: ignore[arg-type]
