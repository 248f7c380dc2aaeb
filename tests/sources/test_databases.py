"""A database's changes, as jobs read them and put them on tables: each transaction whole, at each barrier."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_barrier.coordinator.committing import Committed, commit_barrier
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.coordinator.opening import Opened, open_barrier
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.staging import Asking, Ready, begin, close
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import Fragment, Job
from airflow_barrier.sources.postgresql import PostgreSQL
from airflow_barrier.spark.applying import apply_changes
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.spec import EpochSpec
from airflow_barrier.spark.sql import SqlJob
from tests.sources.databases import Beside, Database
from tests.sources.landing import OTHER_MEANINGS, Cutter, day
from tests.support.runs import run_of
from tests.support.spark import session_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

pytestmark = [
    pytest.mark.drawn("databases"),
    pytest.mark.touches("sources/postgresql/cuts.py", "sources/postgresql/extraction.py", "spark/applying.py"),
]


@pytest.fixture(scope="module")
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    with session_on(spark_server, OTHER_MEANINGS) as session:
        session.sql("CREATE NAMESPACE IF NOT EXISTS lake.copies")
        yield session


@pytest.fixture
def beside(spark_server: SparkServer) -> Beside:
    return Beside(spark_server.warehouse / uuid4().hex)


class Copy:
    """A table of the lake that has each barrier's changes of a database's table."""

    def __init__(self, session: SparkSession, source: PostgreSQL, table: str, columns: str, key: str = "id") -> None:
        self.session, self.source, self.table, self.key = session, source, table, key
        self.name = f"lake.copies.t{uuid4().hex}"
        session.sql(f"CREATE TABLE {self.name} ({columns}) USING iceberg")

    def changes(self, cut: Cut) -> Any:
        nobody: Any = None
        of_table = self.source.of_table(self.table)
        return of_table.load(self.session, cut, None, day(1), "lake", nobody, {})

    def take(self, cut: Cut) -> bool:
        return apply_changes(self.changes(cut), self.table, self.name, self.key.split(","))

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in self.session.table(self.name).collect()), key=repr)


def rows_of(database: Database, table: str) -> list[tuple[Any, ...]]:
    return sorted(database.rows(f"SELECT * FROM {table}"), key=repr)


def test_transactions_over_tables_are_whole_at_each_barrier(
    database: Database, session: SparkSession, beside: Beside
) -> None:
    """Of interleaved clients with rollbacks, savepoints, and transactions that are open across barriers."""
    database.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, total NUMERIC(10,2), note TEXT)",
        "CREATE TABLE items (id INT PRIMARY KEY, order_id INT REFERENCES orders DEFERRABLE INITIALLY DEFERRED, n INT)",
        "INSERT INTO orders VALUES (0, 1.50, 'before')",
        "INSERT INTO items VALUES (0, 0, 1)",
    )
    draw = random.Random(7)
    tables = {"orders": "id INT, total DECIMAL(10,2), note STRING", "items": "id INT, order_id INT, n INT"}
    source = database.source(*(f"public.{table}" for table in tables))
    copies = {table: Copy(session, source, f"public.{table}", columns) for table, columns in tables.items()}
    barriers = Cutter(source, beside)
    clients = [database.connect(autocommit=False) for _ in range(4)]
    try:
        for barrier in range(6):
            for client in draw.sample(clients, 3) if barrier else []:
                for _ in range(draw.randint(1, 4)):
                    order = draw.randrange(1_000_000)
                    client.execute("SAVEPOINT s")
                    client.execute("INSERT INTO items VALUES (%s, %s, 1) ON CONFLICT DO NOTHING", [order, order])
                    client.execute("INSERT INTO orders VALUES (%s, 1, 'x') ON CONFLICT DO NOTHING", [order])
                    if draw.random() < 0.3:
                        client.execute("ROLLBACK TO s")
                if draw.random() < 0.7:
                    client.rollback() if draw.random() < 0.3 else client.commit()
            if barrier:
                database.run(f"UPDATE orders SET total = total + {barrier}", "DELETE FROM items WHERE n = 0")
            cut = barriers.cut(day(barrier + 1))
            there = {table: rows_of(database, table) for table in tables}
            for table, copy in copies.items():
                assert copy.take(cut) or barrier
                assert copy.rows() == there[table], (barrier, table)
    finally:
        for client in clients:
            client.close()
    anew = Copy(session, source, "public.orders", tables["orders"])
    anew.take(source.whole([cut for _, cut in barriers.cuts]))
    assert anew.rows() == copies["orders"].rows()


@pytest.mark.kills("values-fit-their-type")
def test_types(database: Database, session: SparkSession, beside: Beside) -> None:
    database.run(
        "CREATE DOMAIN cents AS NUMERIC(12,2)",
        "CREATE TYPE mood AS ENUM ('fine', 'ill')",
        "CREATE TABLE kinds (id BIGINT PRIMARY KEY, a SMALLINT, b INT, c REAL, d DOUBLE PRECISION, e NUMERIC, f cents, "
        "g BOOLEAN, h BYTEA, i DATE, j TIMESTAMP, k TIMESTAMPTZ, l JSONB, m INT[], n mood, o UUID, "
        "p INT GENERATED ALWAYS AS (b + 1) STORED, q TIMESTAMPTZ)",
        "INSERT INTO kinds (id, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, q) VALUES (1, -2, 3, 0.1, 'NaN', "
        r"123456789012345678901234567890.5, 1.25, true, '\x00ff', "
        "'0044-03-15', '1969-12-31 23:59:59.999999', '2026-03-29 02:30:00.5+01', '{\"a\": [1]}', '{1,NULL}', 'ill', "
        "'00000000-0000-0000-0000-000000000001', 'infinity')",
        "INSERT INTO kinds (id) VALUES (2)",
    )
    with pytest.raises(SourceDataError, match=r"column q.*as_text=\['public\.kinds\.q'\]"):
        Cutter(database.source("public.kinds"), beside).cut(day(1))
    source = database.source("public.kinds", as_text=["public.kinds.q"])
    barriers = Cutter(source, beside)
    copied = barriers.cut(day(1))
    database.run(
        "UPDATE kinds SET b = b",
        "INSERT INTO kinds SELECT 3, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o FROM kinds WHERE id = 1",
    )
    changed = barriers.cut(day(2))
    columns = (
        "id BIGINT, a SMALLINT, b INT, c FLOAT, d DOUBLE, e STRING, f DECIMAL(12,2), g BOOLEAN, h BINARY, i DATE, "
        "j TIMESTAMP_NTZ, k TIMESTAMP_LTZ, l STRING, m STRING, n STRING, o STRING, q STRING"
    )
    copy = Copy(session, source, "public.kinds", columns)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    copy.take(copied)
    told = "SELECT CAST(id AS STRING), a, b, CAST(c AS STRING), CAST(d AS STRING), e, f, g, hex(h), CAST(i AS STRING), "
    told += f"CAST(j AS STRING), CAST(k AS STRING), l, m, n, o, q FROM {copy.name} ORDER BY id"
    first = [tuple(row) for row in session.sql(told).collect()]
    assert [tuple(map(str, row)) for row in first] == [
        ("1", "-2", "3", "0.1", "NaN", "123456789012345678901234567890.5", "1.25", "True", "00FF", "0044-03-15",
         "1969-12-31 23:59:59.999999", "2026-03-29 01:30:00.5", '{"a": [1]}', "{1,NULL}", "ill",
         "00000000-0000-0000-0000-000000000001", "infinity"),
        ("2", *["None"] * 16),
    ]  # fmt: skip
    copy.take(changed)
    again = [tuple(row) for row in session.sql(told).collect()]
    assert again[:2] == first


def test_large_values_that_stay_and_keys_that_move(database: Database, session: SparkSession, beside: Beside) -> None:
    database.run(
        "CREATE TABLE notes (id INT PRIMARY KEY, n INT, text TEXT)",
        "ALTER TABLE notes ALTER text SET STORAGE EXTERNAL",
        "INSERT INTO notes SELECT g, 0, repeat(g::text, 5000) FROM generate_series(1, 3) g",
    )
    source = database.source("public.notes")
    barriers = Cutter(source, beside)
    copy = Copy(session, source, "public.notes", "id INT, n INT, text STRING")
    copy.take(barriers.cut(day(1)))
    database.run(
        "UPDATE notes SET n = 1 WHERE id = 1",
        "UPDATE notes SET text = repeat('x', 5000) WHERE id = 2",
        "UPDATE notes SET n = 2 WHERE id = 2",
        "UPDATE notes SET id = 4, text = repeat('y', 5000) WHERE id = 3",
    )
    copy.take(barriers.cut(day(2)))
    assert copy.rows() == rows_of(database, "notes")
    database.run("UPDATE notes SET id = 5 WHERE id = 1")
    with pytest.raises(ConfigurationError, match="REPLICA IDENTITY FULL"):
        copy.take(barriers.cut(day(3)))
    database.run("ALTER TABLE notes REPLICA IDENTITY FULL", "UPDATE notes SET id = 6 WHERE id = 5")
    cut = barriers.cut(day(4))
    before, after = copy.changes(cut).orderBy("_seq").collect()
    assert (before.id, before.n, after.id, after.n) == (5, 1, 6, 1)
    assert before.text == after.text == "1" * 5000
    assert list(before["_unsent"]) == list(after["_unsent"]) == []


@pytest.mark.kills("types-become-wider")
def test_columns_that_come_and_change_and_go(database: Database, session: SparkSession, beside: Beside) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO t VALUES (1, 1, 1)")
    source = database.source("public.t")
    barriers = Cutter(source, beside)
    copy = Copy(session, source, "public.t", "id INT, a BIGINT, b INT")
    copy.take(barriers.cut(day(1)))
    database.run(
        "INSERT INTO t VALUES (2, 2, 2)",
        "ALTER TABLE t ALTER a TYPE BIGINT",
        "ALTER TABLE t ADD c TEXT DEFAULT 'c'",
        "ALTER TABLE t DROP b",
        "INSERT INTO t VALUES (3, 5000000000, 'd')",
    )
    cut = barriers.cut(day(2))
    with pytest.raises(ConfigurationError, match=r"found c missing; add them, ALTER TABLE .* ADD COLUMNS \(`c` string"):
        copy.take(cut)
    session.sql(f"ALTER TABLE {copy.name} ADD COLUMN c STRING")
    copy.take(cut)
    found = session.table(copy.name).selectExpr("id", "a", "b", "c").collect()
    assert sorted(map(tuple, found)) == [(1, 1, 1, None), (2, 2, None, None), (3, 5000000000, None, "d")]
    database.run("INSERT INTO t VALUES (4, 4, 'e')", "ALTER TABLE t ALTER a TYPE TEXT", "INSERT INTO t VALUES (5, 'f')")
    with pytest.raises(SourceDataError, match=r"column a to become wider at most within an epoch, found BIGINT, and"):
        copy.take(barriers.cut(day(3)))
    database.run("INSERT INTO t VALUES (6, 'g')")
    assert dict(copy.changes(barriers.cut(day(4))).dtypes)["a"] == "string"


def test_a_table_that_is_emptied_and_a_partitioned_one(
    database: Database, session: SparkSession, beside: Beside
) -> None:
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1, 1), (11, 1)",
    )
    source = database.source("public.t")
    barriers = Cutter(source, beside)
    copy = Copy(session, source, "public.t", "id INT, a INT")
    copy.take(barriers.cut(day(1)))
    assert copy.rows() == [(1, 1), (11, 1)]
    database.run("UPDATE t SET id = 12 WHERE id = 1", "INSERT INTO t VALUES (2, 2)")
    copy.take(barriers.cut(day(2)))
    assert copy.rows() == rows_of(database, "t") == [(11, 1), (12, 1), (2, 2)]
    database.run("INSERT INTO t VALUES (3, 3)", "TRUNCATE t", "INSERT INTO t VALUES (4, 4)")
    copy.take(barriers.cut(day(3)))
    assert copy.rows() == rows_of(database, "t") == [(4, 4)]
    assert copy.take(barriers.cut(day(4))) is False


def test_rows_that_are_read_by_their_times(database: Database, session: SparkSession, beside: Beside) -> None:
    """A row that has changed is an insertion, which acts as an update where its key is there."""
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a TEXT, at TIMESTAMPTZ NOT NULL)",
        "INSERT INTO t VALUES (1, 'x', '2017-01-01 12:00+00'), (2, 'x', '2017-01-01 12:00+00')",
    )
    source = database.rows_source("public.t")
    barriers = Cutter(source, beside)
    copy = Copy(session, source, "public.t", "id INT, a STRING, at TIMESTAMP_LTZ")
    copy.take(barriers.cut(day(1)))
    database.run(
        "UPDATE t SET a = 'y', at = '2017-01-02 12:00+00' WHERE id = 2",
        "INSERT INTO t VALUES (3, NULL, '2017-01-02 12:00+00')",
        "DELETE FROM t WHERE id = 1",
    )
    copy.take(barriers.cut(day(2)))
    told = f"SELECT id, a FROM {copy.name} ORDER BY id"
    assert [tuple(row) for row in session.sql(told).collect()] == [(1, "x"), (2, "y"), (3, None)]
    assert copy.take(barriers.cut(day(3))) is False
    barriers.cuts[-1] = day(3), barriers.cuts[-1][1].then_anew("a row was deleted")
    copy.take(barriers.cut(day(4)))
    assert [tuple(row) for row in session.sql(told).collect()] == [(2, "y"), (3, None)]
    told_of = copy.changes(barriers.cuts[1][1]).select("_change_type", "_weight", "_xid", "_unsent").distinct()
    assert [tuple(row) for row in told_of.collect()] == [("insert", 1, None, [])]


def test_from_a_database_to_tables_that_are_published(
    database: Database, session: SparkSession, spark_server: SparkServer, tmp_path: Path
) -> None:
    """Two jobs in SQL, a barrier after the other; a job that died half-way begins anew and has the same changes."""
    name = f"n{uuid4().hex}"
    database.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, total INT)",
        "CREATE TABLE items (id INT PRIMARY KEY, order_id INT REFERENCES orders, price INT)",
    )
    columns = {"orders": "id INT, total INT", "items": "id INT, order_id INT, price INT"}
    settings = Settings(
        f"sqlite:///{tmp_path}/meta.db", f"sqlite:///{spark_server.catalog_db}", spark_server.warehouse.as_uri()
    )
    declared = PostgreSQL("shop_db", "shop", ["public.orders", "public.items"]).declare()
    jobs = [Job(table, "dag", outlets=(f"{name}.{table}",), externals=(declared,)) for table in columns]
    session.sql(f"CREATE NAMESPACE lake.{name}")
    for table, ddl in columns.items():
        session.sql(f"CREATE TABLE lake.{name}.{table} ({ddl}) USING iceberg")
    with closing(Deployment.connect(settings, credentials=lambda *_: database.credentials)) as deployment:
        for number in range(1, 4):
            with database.connect(autocommit=False) as buyer:
                buyer.execute("INSERT INTO orders VALUES (%s, 7)", [number])
                buyer.execute("INSERT INTO items VALUES (%s, %s, 7)", [number, number])
                buyer.execute("DELETE FROM items WHERE id < %s", [number - 1])
            opened = open_barrier(
                deployment,
                Fragment(name, "dag", tuple(jobs)),
                day(number),
                timestamp_from="test",
                run=run_of(f"dag/{number}"),
                actor="test",
            )
            assert isinstance(opened, Opened)
            for job in jobs:
                origin = f"{{source:shop_db.public.{job.name}}}"
                sql = f"APPLY CHANGES INTO {{target:{job.outlets[0]}}} FROM {origin} KEYS (id)"
                for generation in ("died", "again"):
                    asking = Asking(f"{number}/{job.name}", generation, "test", sql=sql)
                    ready = begin(deployment, opened.barrier, job.name, asking)
                    assert isinstance(ready, Ready)
                    text = deployment.tables.read_text(ready.spec_uri)
                    record = run_epoch(session, EpochSpec.loads(text, ready.digest), SqlJob(sql))
                close(deployment, ready.attempt, record=record, actor="test")
            assert isinstance(commit_barrier(deployment, name, number, actor="test"), Committed)
            for table in columns:
                session.sql(f"REFRESH TABLE lake.{name}.{table}")
                found = session.table(f"lake.{name}.{table}").collect()
                assert sorted(map(tuple, found)) == rows_of(database, table)
