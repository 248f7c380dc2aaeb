"""Unchanged SQL and DataFrames on a real Spark, at one barrier while others are committed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.errors import LeaseLostError, NotAReadError, SqlSyntaxError, UnpinnableError
from airflow_barrier.protocol.leases import Hold
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.metadata import METADATA_TABLES
from airflow_barrier.reading.handing_out import hand_out
from airflow_barrier.reading.session import ConsistentSession, consistent_session
from airflow_barrier.reading.spark_session import ConsistentSpark
from airflow_barrier.spark.connect import connect_session, stop_session
from tests.metaservice.test_metadata import SEEDS_QUERY
from tests.support.shop import AMOUNT, COLUMNS, PRICE, Shop, make_shop
from tests.support.spark import APART, SparkServer

JOINED = "SELECT sum(a.amount), sum(p.price) FROM apart.shop.user_item_amount a, apart.shop.user_item_price p"


@pytest.fixture(scope="module")
def shop(spark_server: SparkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Barrier 1 is COMMIT, with 25 and 250 in the tables."""
    folder = spark_server.warehouse.parent / APART
    settings = Settings(
        f"sqlite:///{tmp_path_factory.mktemp('reading')}/meta.db",
        f"sqlite:///{folder}/catalog.db",
        folder.as_uri(),
        catalog_name=APART,
        spark_catalog=APART,
    )
    _clear(settings, folder)
    shop = make_shop(settings)
    bring(shop, 1, 25)
    yield shop
    shop.deployment.close()
    _clear(settings, folder)


def _clear(settings: Settings, folder: Path) -> None:
    """Whoever uses the catalog next has a MetaService of his own, and tables of the same names."""
    from airflow_barrier.coordinator.deployment import Deployment

    deployment = Deployment.connect(settings)
    for table in COLUMNS:
        with suppress(NoSuchTableError):
            deployment.tables.catalog.drop_table(table)
    deployment.close()
    shutil.rmtree(folder / "_barrier", ignore_errors=True)


def bring(shop: Shop, day: int, amount: int) -> None:
    barrier = shop.open(day)
    shop.process_all(barrier, [{"amount": amount, "price": 10 * amount}])
    shop.commit(barrier)


@pytest.fixture
def plain(spark_server: SparkServer) -> Iterator[SparkSession]:
    """A session of its own: it stands somewhere, and has temporary views."""
    session = connect_session(spark_server.url)
    yield session
    stop_session(session)


@pytest.fixture
def first(shop: Shop) -> Iterator[ConsistentSession]:
    """At barrier 1, while the tables are further."""
    if shop.deployment.meta.answers.resolve("shopping", Level.REPEATABLE_READ).barrier_id == 1:
        bring(shop, 2, 75)
    with consistent_session(shop.deployment, "shopping", at=1) as session:
        yield session


def rows(spark: ConsistentSpark, query: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def test_unchanged_sql_reads_one_barrier(first: ConsistentSession, plain: SparkSession) -> None:
    spark = first.spark(plain)
    assert rows(spark, JOINED) == [(25, 250)]
    assert [tuple(row) for row in plain.sql(JOINED).collect()] != [(25, 250)]
    plain.sql("USE apart.shop")
    assert rows(spark, "WITH a AS (SELECT amount FROM user_item_amount) SELECT * FROM a") == [(25,)]
    assert rows(spark, "SELECT user_item_price.price FROM shop.user_item_price") == [(250,)]
    (row,) = spark.sql("SELECT price FROM user_item_price WHERE price > :least", {"least": 1}).collect()
    assert row.price == 250


def test_tables_as_dataframes(first: ConsistentSession, plain: SparkSession) -> None:
    spark = first.spark(plain)
    assert spark.table(f"apart.{PRICE}").collect() == [(250,)]
    assert spark.table("`apart`.`shop`.`user_item_price`").join(spark.table(f"apart.{AMOUNT}")).count() == 1


def test_views_are_read_at_the_barrier_too(first: ConsistentSession, plain: SparkSession) -> None:
    """One that Spark keeps, in which names mean what they meant where it was made; and one of Iceberg's on top."""
    plain.sql("USE apart.shop")
    plain.sql("CREATE OR REPLACE VIEW spark_catalog.default.prices_view (p) AS SELECT price FROM user_item_price")
    plain.sql(
        "CREATE OR REPLACE VIEW apart.shop.doubled AS SELECT p + p AS twice FROM spark_catalog.default.prices_view"
    )
    spark = first.spark(plain)
    assert rows(spark, "SELECT v.p FROM spark_catalog.default.prices_view v") == [(250,)]
    assert rows(spark, "SELECT twice FROM doubled") == [(500,)]


def test_a_namespace_may_have_any_name(first: ConsistentSession, plain: SparkSession) -> None:
    """Spark quotes it where it says where a session stands, and where a view was made."""
    plain.sql("CREATE NAMESPACE IF NOT EXISTS apart.`my-shop`")
    plain.sql("CREATE OR REPLACE TABLE apart.`my-shop`.rates AS SELECT 2 AS rate")
    plain.sql("USE apart.`my-shop`")
    plain.sql("CREATE OR REPLACE VIEW spark_catalog.default.rated AS SELECT rate FROM rates")
    plain.sql("CREATE OR REPLACE VIEW apart.shop.rated AS SELECT rate FROM rates")
    spark = first.spark(plain)
    assert rows(spark, "SELECT * FROM rates, spark_catalog.default.rated, apart.shop.rated") == [(2, 2, 2)]
    assert first.outside == ("apart.my-shop.rates",)
    plain.sql("DROP TABLE apart.`my-shop`.rates PURGE")


def test_a_view_that_does_not_say_where_it_was_made_is_refused(first: ConsistentSession, plain: SparkSession) -> None:
    """As those do not that Hive made."""
    view = "spark_catalog.default.of_hive"
    plain.sql(f"CREATE OR REPLACE VIEW {view} AS SELECT price FROM apart.{PRICE}")
    plain.sql(f"ALTER VIEW {view} UNSET TBLPROPERTIES ('view.catalogAndNamespace.numParts')")
    with pytest.raises(UnpinnableError, match=r"view `spark_catalog`\.`default`\.`of_hive`: expected Spark to say"):
        first.spark(plain).table(view)
    plain.sql(f"DROP VIEW {view}")


def test_what_is_not_of_the_topology_is_left_alone_and_said_once(
    first: ConsistentSession, plain: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    plain.range(3).createOrReplaceTempView("three")
    plain.sql("CREATE OR REPLACE TABLE apart.shop.rates AS SELECT 2 AS rate")
    query = f"SELECT count(*), sum(price * rate) FROM three, apart.{PRICE}, apart.shop.rates, range(1)"
    for _ in range(2):
        assert rows(first.spark(plain), query) == [(3, 1500)]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "read as they are now, and not as of a barrier, since they are not tables of topology shopping: "
        "apart.shop.rates"
    ]
    assert first.outside == ("apart.shop.rates",)
    plain.sql("DROP TABLE apart.shop.rates PURGE")


@pytest.mark.kills("temporary-views-are-pinned")
def test_a_temporary_view_over_the_topology_is_refused(first: ConsistentSession, plain: SparkSession) -> None:
    """It reads what it was made of, whatever barrier the session is at."""
    spark = first.spark(plain)
    plain.table(f"apart.{PRICE}").filter("price > 1").createOrReplaceTempView("now")
    plain.sql("CREATE TEMPORARY VIEW `and again` AS SELECT max(price) FROM now WHERE price IN (SELECT 1)")
    plain.sql(f"CREATE GLOBAL TEMPORARY VIEW everywhere AS SELECT * FROM apart.{PRICE} p, range(1)")
    plain.sql(f"CREATE TEMPORARY VIEW branch AS SELECT * FROM apart.{PRICE}.branch_main")
    (newest,) = plain.sql(f"SELECT snapshot_id FROM apart.{PRICE}.refs WHERE name = 'main'").collect()
    plain.sql(f"CREATE TEMPORARY VIEW other AS SELECT * FROM apart.{PRICE} VERSION AS OF {newest[0]}")
    try:
        for view in ("now", "`And Again`", "global_temp.everywhere", "branch", "other"):
            with pytest.raises(UnpinnableError, match=f"which reads {PRICE} at another snapshot; make it of session"):
                spark.sql(f"WITH a AS (SELECT * FROM {view}) SELECT * FROM a, apart.{AMOUNT}")
        with pytest.raises(UnpinnableError, match=f"found `now`, which reads {PRICE} at another snapshot"):
            first.spark(plain, catalog="apart").table("now")
    finally:
        plain.sql("DROP VIEW global_temp.everywhere")


@pytest.mark.kills("plans-are-whole")
def test_a_plan_that_is_cut_off_says_not_what_a_view_reads(first: ConsistentSession, plain: SparkSession) -> None:
    plain.table(f"apart.{PRICE}").createOrReplaceTempView("now")
    for longest in (0, 100):
        plain.conf.set("spark.sql.maxPlanStringLength", longest)
        with pytest.raises(
            UnpinnableError, match=r"expected Spark to say all .* raise spark\.sql\.maxPlanStringLength"
        ):
            first.spark(plain).table("now")


def test_a_temporary_view_of_what_the_session_read_is_at_its_barrier(
    first: ConsistentSession, plain: SparkSession
) -> None:
    spark = first.spark(plain)
    spark.table(f"apart.{PRICE}").filter("price > 1").createOrReplaceTempView("pinned")
    plain.sql("CREATE TEMPORARY VIEW cheaper AS SELECT price - 1 AS price FROM pinned")
    plain.sql(f"CREATE TEMPORARY VIEW about AS SELECT * FROM apart.{PRICE}.snapshots")
    assert rows(spark, f"SELECT p.price, c.price, amount FROM pinned p, cheaper c, apart.{AMOUNT}") == [(250, 249, 25)]
    assert rows(spark, "SELECT count(*) > 1 FROM about") == [(True,)]


def test_a_table_by_another_catalog_is_never_read_as_it_is_now(first: ConsistentSession, plain: SparkSession) -> None:
    query = f"SELECT * FROM {PRICE}"
    plain.sql("USE lake")
    with pytest.raises(
        UnpinnableError, match=r"in catalog apart, found lake\.shop\.user_item_price, called as one of them"
    ):
        first.spark(plain).sql(query)
    with suppress(AnalysisException):  # whether there is such a table depends on the tests before
        first.spark(plain, catalog="apart").sql(query).collect()
    assert first.outside == ("lake.shop.user_item_price",)


@pytest.mark.parametrize("name", ["", "a b", "a; DROP TABLE b", "a.", "`a"])
def test_what_is_no_name_of_a_table(first: ConsistentSession, plain: SparkSession, name: str) -> None:
    with pytest.raises(SqlSyntaxError, match=r"expected a name such as catalog\.namespace\.table, found"):
        first.spark(plain).table(name)


def test_what_is_handed_out_is_read_as_a_session_is(shop: Shop, plain: SparkSession) -> None:
    given = hand_out(shop.deployment, "shopping", Hold("dashboard of ada", 600), at=1)
    assert rows(given.spark(plain), JOINED) == [(25, 250)]
    shop.deployment.meta.leases.release(given.lease.lease_id)


def test_the_seeds_own_query_about_metadata(first: ConsistentSession, plain: SparkSession) -> None:
    spark = first.spark(plain)
    assert sorted(rows(spark, SEEDS_QUERY)) == [(AMOUNT,), (PRICE,)]
    for name, table in METADATA_TABLES.items():
        columns, expected = first.metadata(name).column_names, first.metadata(name).to_pylist()
        found = spark.table(name)
        assert found.columns == columns
        kinds = {column.name: column.type for column in table.columns}
        assert dict(found.dtypes) == kinds
        assert sorted(map(repr, found.toArrow().to_pylist())) == sorted(map(repr, expected))
    assert plain.sql("SHOW VIEWS IN spark_catalog.global_temp").collect() == []


def test_metadata_beside_data_with_braces_and_parameters(first: ConsistentSession, plain: SparkSession) -> None:
    """In a view too; what is lazy goes on meaning the same."""
    plain.sql("CREATE OR REPLACE VIEW apart.shop.versions AS SELECT * FROM apart.shop.user_item_price")
    spark = first.spark(plain)
    found = spark.sql(
        "SELECT price, lake.__META_TABLE_VERSION.version, '{}{0}' AS braces "
        "FROM apart.shop.versions, lake.__meta_table_version WHERE table_name = :name",
        {"name": PRICE},
    )
    assert [tuple(row) for row in found.collect()] == [(250, 2, "{}{0}")] == [tuple(row) for row in found.collect()]


@pytest.mark.parametrize(
    "write",
    [
        f"INSERT INTO apart.{PRICE} VALUES (1)",
        f"MERGE INTO apart.{PRICE} t USING apart.{AMOUNT} s ON t.price = s.amount WHEN MATCHED THEN DELETE",
        "CREATE TABLE apart.shop.copied AS SELECT 1",
        "SET spark.sql.shuffle.partitions = 1",
    ],
)
def test_writes_are_refused(first: ConsistentSession, plain: SparkSession, write: str) -> None:
    with pytest.raises(NotAReadError, match="consistent reading changes nothing"):
        first.spark(plain).sql(write)


def test_time_travel_of_its_own_is_refused(first: ConsistentSession, plain: SparkSession) -> None:
    with pytest.raises(UnpinnableError, match="one query reads one barrier"):
        first.spark(plain).sql(f"SELECT * FROM apart.{PRICE} VERSION AS OF 1")


def test_a_session_that_has_ended_reads_nothing(shop: Shop, plain: SparkSession, tmp_path: Path) -> None:
    with consistent_session(shop.deployment, "shopping") as session:
        spark = session.spark(plain)
    with pytest.raises(LeaseLostError, match="expected an open session"):
        spark.sql(JOINED)
