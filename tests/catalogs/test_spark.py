"""Spark stages on an attempt's branch in another catalog than an SQL one, and reads what was published."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.spark_conf import spark_conf
from airflow_barrier.protocol.errors import CatalogUnavailableError
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.spark.catalog_errors import catalog_error
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.tables.port import Publication
from tests.catalogs.lake import connect, stamp_of
from tests.support.metastores import METASTORES, Metastore
from tests.support.ports import free_port
from tests.support.rest_catalog import RestServer


@pytest.fixture(params=["rest", METASTORES[0]])
def catalog(request: pytest.FixtureRequest) -> RestServer | Metastore:
    server: RestServer | Metastore = request.getfixturevalue({"rest": "rest_server"}.get(request.param, request.param))
    return server


@pytest.fixture
def other_spark(spark_server: Any, catalog: RestServer | Metastore, tmp_path: Path) -> Iterator[SparkSession]:
    """Catalogs are a session's own: another one than the server's needs no other server."""
    session = connect_session(spark_server.url)
    settings = Settings(f"sqlite:///{tmp_path}/meta.db", catalog.uri, str(tmp_path), spark_catalog="other")
    for key, value in spark_conf(settings).conf.items():
        if key.startswith("spark.sql.catalog.other"):
            session.conf.set(key, value)
    yield session
    stop_session(session)


@pytest.mark.parametrize("version", [2, 3])
def test_spark_writes_to_the_branch_and_reads_what_was_published(
    other_spark: SparkSession, catalog: RestServer | Metastore, tmp_path: Path, version: int
) -> None:
    namespace = f"n{uuid.uuid4().hex[:8]}"
    other_spark.sql(f"CREATE NAMESPACE other.{namespace}")
    names = [f"{namespace}.{name}" for name in ("a", "b")]
    for name in names:
        other_spark.sql(
            f"CREATE TABLE other.{name} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version'='{version}')"
        )

    def read(name: str, ref: str = "main") -> list[int]:
        rows = other_spark.sql(f"SELECT id FROM other.{name} VERSION AS OF '{ref}'").collect()
        return sorted(row.id for row in rows)

    with connect(catalog, str(tmp_path)) as tables:
        tables.take_in(names)

        def stage(barrier_id: int, bases: dict[str, int | None]) -> list[Publication]:
            stamp = stamp_of(barrier_id)
            for name in names:
                tables.prepare({name: bases[name]}, stamp)
            # an unchanged job: it names the tables as it always did, the session's conf says where that is
            other_spark.conf.set("spark.wap.branch", stamp.branch)
            for key, value in stamp.properties().items():
                other_spark.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)
            for name in names:
                other_spark.sql(f"INSERT INTO other.{name} VALUES ({barrier_id})")
            other_spark.conf.unset("spark.wap.branch")
            return [
                Publication(
                    name,
                    stamp.topology,
                    barrier_id,
                    bases[name],
                    tables.staged(name, stamp, bases[name]),
                    tag_name(stamp.topology, barrier_id, 0),
                )
                for name in names
            ]

        first = stage(1, dict.fromkeys(names))
        assert set(tables.mains(names).values()) == {None}, "nobody reads it"
        tables.publish(first)
        assert [read(name) for name in names] == [[1], [1]]
        second = stage(2, {each.table: each.new for each in first})
        other_spark.sql(
            f"MERGE INTO other.{names[0]}.branch_{stamp_of(2).branch} t USING (SELECT 3 AS id) s ON false "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        second[0] = dataclasses.replace(second[0], new=tables.staged(names[0], stamp_of(2), first[0].new))
        assert [read(name) for name in names] == [[1], [1]]
        tables.publish(second)
        assert [read(name) for name in names] == [[1, 2, 3], [1, 2]]
        assert [read(name, first[0].tag) for name in names] == [[1], [1]]
        assert {tables._committer.read([name])[name]["format-version"] for name in names} == {version}


@pytest.mark.parametrize("by", ["lock", "comparison"])
@pytest.mark.parametrize("catalog", [METASTORES[0]], indirect=True)
def test_spark_and_a_committer_take_turns(
    other_spark: SparkSession, catalog: Metastore, tmp_path: Path, by: str
) -> None:
    """Neither loses what the other did. Spark locks a table until it had its first attempt, and then compares."""
    table = f"n{uuid.uuid4().hex[:8]}.a"
    other_spark.sql(f"CREATE NAMESPACE other.{table.partition('.')[0]}")
    other_spark.sql(f"CREATE TABLE other.{table} (id BIGINT) USING iceberg")
    other_spark.sql(f"INSERT INTO other.{table} VALUES (0)")
    with connect(catalog, str(tmp_path)) as tables:
        first = tables.mains([table])[table]
        assert first is not None
        if by == "comparison":
            tables.prepare({table: first}, stamp_of(1))

        def pin() -> None:
            for number in range(20):
                tables.pin(table, f"pin_{number}", first)

        pinning = threading.Thread(target=pin)
        pinning.start()
        for number in range(1, 6):
            other_spark.sql(f"INSERT INTO other.{table} VALUES ({number})")
        pinning.join()
        refs = set(tables.load(table).refs())
    assert refs - {stamp_of(1).branch} == {"main", *(f"pin_{number}" for number in range(20))}
    assert sorted(row.id for row in other_spark.sql(f"SELECT id FROM other.{table}").collect()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("catalog", [METASTORES[0]], indirect=True)
def test_on_tables_with_attempts_spark_compares_and_takes_no_lock(
    other_spark: SparkSession, catalog: Metastore, tmp_path: Path
) -> None:
    """So a driver that wakes after its lock has gone cannot put `main` back."""
    table = f"n{uuid.uuid4().hex[:8]}.a"
    other_spark.sql(f"CREATE NAMESPACE other.{table.partition('.')[0]}")
    other_spark.sql(f"CREATE TABLE other.{table} (id BIGINT) USING iceberg")
    with connect(catalog, str(tmp_path)) as tables:
        tables.prepare({table: None}, stamp_of(1))
        pointers = tables._committer._pointers  # type: ignore[attr-defined]
        with pointers._servers as client, pointers._locked(client, table):
            other_spark.sql(f"INSERT INTO other.{table} VALUES (1)")
        assert tables.mains([table])[table] is not None


@pytest.mark.parametrize("catalog", [METASTORES[0]], indirect=True)
def test_a_metastore_that_spark_does_not_reach_is_named(other_spark: SparkSession) -> None:
    other_spark.conf.set("spark.sql.catalog.gone", "org.apache.iceberg.spark.SparkCatalog")
    other_spark.conf.set("spark.sql.catalog.gone.type", "hive")
    other_spark.conf.set("spark.sql.catalog.gone.uri", f"thrift://127.0.0.1:{free_port()}")
    with pytest.raises(Exception, match="Meta") as refused:
        other_spark.sql("SELECT * FROM gone.shop.a").collect()
    said = catalog_error(refused.value, "gone")
    assert isinstance(said, CatalogUnavailableError)
    assert "expected an answer from its Hive Metastore or AWS Glue, found RuntimeMetaException: Failed to" in str(said)
