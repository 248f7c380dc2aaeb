"""Spark stages on an attempt's branch in a REST catalog, and reads what was published; versions 2 and 3."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

from airflow_barrier.protocol.names import tag_name
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.tables.port import Publication
from tests.catalogs.lake import connect, stamp_of
from tests.support.rest_catalog import RestServer


@pytest.fixture
def rest_spark(spark_server: Any, rest_server: RestServer) -> Iterator[SparkSession]:
    """Catalogs are a session's own: another one than the server's needs no other server."""
    session = connect_session(spark_server.url)
    conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": rest_server.uri}
    for key, value in {**conf, ".cache-enabled": "false"}.items():
        session.conf.set(f"spark.sql.catalog.rest{key}", value)
    yield session
    stop_session(session)


@pytest.mark.parametrize("version", [2, 3])
def test_spark_writes_to_the_branch_and_reads_what_was_published(
    rest_spark: SparkSession, rest_server: RestServer, tmp_path: Path, version: int
) -> None:
    namespace = f"n{uuid.uuid4().hex[:8]}"
    rest_spark.sql(f"CREATE NAMESPACE rest.{namespace}")
    names = [f"{namespace}.{name}" for name in ("a", "b")]
    for name in names:
        rest_spark.sql(
            f"CREATE TABLE rest.{name} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version'='{version}')"
        )

    def read(name: str, ref: str = "main") -> list[int]:
        rows = rest_spark.sql(f"SELECT id FROM rest.{name} VERSION AS OF '{ref}'").collect()
        return sorted(row.id for row in rows)

    with connect(rest_server, str(tmp_path)) as tables:
        tables.take_in(names)

        def stage(barrier_id: int, bases: dict[str, int | None]) -> list[Publication]:
            stamp = stamp_of(barrier_id)
            for name in names:
                tables.prepare({name: bases[name]}, stamp)
            # an unchanged job: it names the tables as it always did, the session's conf says where that is
            rest_spark.conf.set("spark.wap.branch", stamp.branch)
            for key, value in stamp.properties().items():
                rest_spark.conf.set(f"spark.sql.iceberg.snapshot-property.{key}", value)
            for name in names:
                rest_spark.sql(f"INSERT INTO rest.{name} VALUES ({barrier_id})")
            rest_spark.conf.unset("spark.wap.branch")
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
        rest_spark.sql(
            f"MERGE INTO rest.{names[0]}.branch_{stamp_of(2).branch} t USING (SELECT 3 AS id) s ON false "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        second[0] = dataclasses.replace(second[0], new=tables.staged(names[0], stamp_of(2), first[0].new))
        assert [read(name) for name in names] == [[1], [1]]
        tables.publish(second)
        assert [read(name) for name in names] == [[1, 2, 3], [1, 2]]
        assert [read(name, first[0].tag) for name in names] == [[1], [1]]
        assert {tables._committer.read([name])[name]["format-version"] for name in names} == {version}
