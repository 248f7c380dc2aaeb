"""The metadata tables beside the tables of an answer, in DuckDB and in the text of queries; on Spark they are tested
with the rest of what Spark reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.metadata import METADATA_TABLES
from airflow_barrier.reading.rewriting import Pin, Place, View, rewrite
from airflow_barrier.reading.session import ConsistentSession, consistent_session
from tests.metaservice.test_metadata import SEEDS_QUERY
from tests.support.shop import AMOUNT, PRICE, Shop, make_shop

ROWS = [{"amount": 25, "price": 250}]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings.embedded(str(tmp_path_factory.mktemp("metadata")))


@pytest.fixture(scope="module")
def shop(settings: Settings) -> Iterator[Shop]:
    """Barrier 1 is COMMIT."""
    shop = make_shop(settings)
    barrier = shop.open(1)
    shop.process_all(barrier, ROWS)
    shop.commit(barrier)
    yield shop
    shop.deployment.close()


@pytest.fixture
def session(shop: Shop) -> Iterator[ConsistentSession]:
    with consistent_session(shop.deployment, "shopping", holder="ada") as session:
        yield session


def test_the_seeds_own_query_in_duckdb_and_in_the_database(session: ConsistentSession, settings: Settings) -> None:
    expected = [(AMOUNT,), (PRICE,)]
    with session.duckdb() as connection:
        assert sorted(connection.sql(SEEDS_QUERY).fetchall()) == expected
    database = Path(settings.metaservice_url.removeprefix("sqlite:///"))
    with closing(sqlite3.connect(database)) as plain:
        assert sorted(plain.execute(SEEDS_QUERY).fetchall()) == expected


def test_every_metadata_table_is_there_beside_the_data(session: ConsistentSession, shop: Shop) -> None:
    with session.duckdb() as connection:
        for name, table in METADATA_TABLES.items():
            columns, rows = shop.deployment.meta.audit.metadata(name)
            found = connection.sql(f"SELECT * FROM {name.lower()}")
            assert found.columns == [column.name for column in columns]
            expected = {column.name: "VARCHAR" for column in columns}
            expected |= {column.name: "BIGINT" for column in columns if column.type == "bigint"}
            expected |= {column.name: "TIMESTAMP WITH TIME ZONE" for column in columns if column.type == "timestamp"}
            assert dict(zip(found.columns, map(str, found.types), strict=True)) == expected, table
            assert sorted(found.fetchall(), key=repr) == sorted(rows, key=repr)
        joined = connection.sql(
            "SELECT amount, __META_TABLE_VERSION.version FROM shop.user_item_amount, __META_TABLE_VERSION "
            f"WHERE table_name = '{AMOUNT}'"
        )
        assert joined.fetchall() == [(25, 1)]


def test_it_is_read_as_it_is_by_then(session: ConsistentSession, shop: Shop) -> None:
    with session.duckdb() as connection, consistent_session(shop.deployment, "shopping", holder="bob"):
        holders = connection.sql("SELECT holder FROM __META_LEASE ORDER BY lease_id").fetchall()
        assert holders == [("ada",), ("bob",)]
        assert connection.sql(
            "SELECT count(*) FROM __META_LEASE a JOIN __META_LEASE b USING (lease_id)"
        ).fetchall() == [(2,)]
    assert session.metadata("__meta_lease")["holder"].to_pylist() == ["ada"]
    opened = session.metadata("__META_BARRIER")["opened_at"].to_pylist()
    assert opened[1] == shop.deployment.meta.barriers.get("shopping", 1).opened_at


@pytest.mark.parametrize(
    "write",
    [
        "INSERT INTO shop.shopping VALUES (1, 2)",
        "DELETE FROM lake.shop.shopping",
        "UPDATE shop.shopping SET amount = 1",
        "MERGE INTO shop.shopping t USING shop.shopping s ON t.amount = s.amount WHEN MATCHED THEN DELETE",
        "DELETE FROM __META_LEASE",
    ],
)
def test_nothing_is_written_through_a_connection(session: ConsistentSession, write: str) -> None:
    with session.duckdb() as connection:
        with pytest.raises(duckdb.Error, match=r"not an table|base table"):
            connection.sql(write)
        assert connection.sql("SELECT * FROM shop.shopping").fetchall() == [(25, 250)]


def test_names_of_metadata_become_what_they_are_called_where_the_query_runs() -> None:
    found = rewrite(
        "SELECT s.job_id, __META_ETL_SINK.table_name, lake.__META_ETL_SINK.job FROM `__meta_etl_source` AS s "
        "JOIN lake.__META_ETL_SINK, c",
        "spark",
        {"shop.a": Pin(7)},
        catalog="lake",
        metadata=str.lower,
    )
    assert found.sql == (
        "SELECT s.job_id, __META_ETL_SINK.table_name, __META_ETL_SINK.job "
        "FROM (SELECT * FROM `__meta_etl_source`\n) AS s "
        "JOIN ((SELECT * FROM `__meta_etl_sink`\n) AS `__META_ETL_SINK`), c"
    )
    assert found.meta == ("__META_ETL_SINK", "__META_ETL_SOURCE")
    assert found.outside == ("lake.c",)


def test_views_may_read_metadata() -> None:
    outlets = View("SELECT table_name FROM __META_ETL_SINK", Place("lake", "shop"))
    found = rewrite(
        "SELECT * FROM v", "spark", {}, catalog="lake", views={("lake", "v"): outlets}.get, metadata=lambda _: "x"
    )
    assert "FROM ((SELECT * FROM `x`\n) AS `__META_ETL_SINK`)" in found.sql
    assert found.views == ("lake.v",)


def test_a_name_that_is_none_is_told_which_there_are() -> None:
    with pytest.raises(ConfigurationError, match="'__META_JOB': expected one of __META_ETL_SOURCE, __META_JOB_SOURCE"):
        rewrite("SELECT * FROM __META_JOB", "spark", {}, catalog="lake")


def test_a_table_of_the_topology_may_be_called_like_metadata_and_is_pinned() -> None:
    found = rewrite("SELECT * FROM shop.__META_x", "spark", {"shop.__META_x": Pin(7)}, catalog="lake")
    assert found.pinned == {"shop.__META_x": 7}
