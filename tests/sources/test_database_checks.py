"""What keeps a database from giving its changes is told before the first barrier, with the statement that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, SourceUnavailableError
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.postgresql import PostgreSQL
from airflow_barrier.sources.postgresql.database import Database as Session
from airflow_barrier.sources.postgresql.pgoutput import events
from tests.sources.databases import Beside, Database, database_of
from tests.support.postgresql import PASSWORD, USER
from tests.support.postgresql import PostgreSQL as Server

pytestmark = [pytest.mark.drawn("databases"), pytest.mark.touches("sources/postgresql/checks.py")]


@pytest.fixture
def database(postgresql: Server) -> Iterator[Database]:
    with database_of(postgresql) as database:
        database.run("CREATE TABLE good (id INT PRIMARY KEY)")
        yield database


def found(database: Database, tmp_path: Path, *tables: str, **settings: Any) -> str:
    """What the source says of tables, and then nothing once the statements of the second part were run."""
    with pytest.raises(SourceDataError, match=r"^source shop_db, 127\.0\.0\.1:.*expected") as error:
        database.source(*tables, **settings).look(Beside(tmp_path))
    return str(error.value)


@pytest.mark.kills("changes-can-be-had")
@pytest.mark.parametrize(
    ("made", "said", "mended"),
    [
        ("SELECT 1", "expected table public.t, found none", "CREATE TABLE t (id INT PRIMARY KEY)"),
        (
            "CREATE VIEW t AS SELECT 1",
            "found a relation of kind 'v'",
            "DROP VIEW t; CREATE TABLE t (id INT PRIMARY KEY)",
        ),
        ("CREATE UNLOGGED TABLE t (id INT PRIMARY KEY)", "found it UNLOGGED", "ALTER TABLE public.t SET LOGGED"),
        (
            "CREATE TABLE t (id INT)",
            "expected public.t to have a primary key",
            "ALTER TABLE public.t REPLICA IDENTITY FULL",
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING",
            "or another replica identity",
            "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, _seq INT)",
            "expected no column _seq in public.t",
            "ALTER TABLE t RENAME _seq TO seq",
        ),
        (
            'CREATE TABLE t (id INT PRIMARY KEY, "ID" INT)',
            "differ in more than upper and lower case",
            'ALTER TABLE t RENAME "ID" TO other',
        ),
        (
            "CREATE TABLE t (id INT PRIMARY KEY); ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "without row security",
            "ALTER TABLE public.t DISABLE ROW LEVEL SECURITY",
        ),
    ],
)
def test_a_table(made: str, said: str, mended: str, database: Database, tmp_path: Path) -> None:
    database.run(*made.split("; "))
    text = found(database, tmp_path, "public.good", "public.t")
    assert said in text
    assert "public.good" not in text
    database.run(*mended.split("; "))
    database.source("public.good", "public.t").look(Beside(tmp_path))


@pytest.mark.parametrize(
    ("made", "said", "mended"),
    [
        (
            "CREATE PUBLICATION p FOR TABLE good",
            "found them missing: ALTER PUBLICATION",
            'ALTER PUBLICATION "p" ADD TABLE "public"."t"',
        ),
        (
            "CREATE PUBLICATION p FOR TABLE good, t WITH (publish = 'insert')",
            "found some left out: ALTER PUBLICATION",
            "ALTER PUBLICATION \"p\" SET (publish = 'insert, update, delete, truncate')",
        ),
        (
            "CREATE PUBLICATION p FOR TABLE good, t WHERE (id > 1)",
            "found one with a row filter or a list of columns",
            "ALTER PUBLICATION p SET TABLE good, t",
        ),
        (
            "CREATE PUBLICATION p FOR TABLE good (id), t",
            "found one with a row filter or a list of columns",
            "ALTER PUBLICATION p SET TABLE good, t",
        ),
        (
            "DROP TABLE t; CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY HASH (id); "
            "CREATE PUBLICATION p FOR TABLE good, t",
            "found that it publishes their partitions",
            'ALTER PUBLICATION "p" SET (publish_via_partition_root = true)',
        ),
    ],
)
def test_a_publication(made: str, said: str, mended: str, database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", *made.split("; "))
    text = found(database, tmp_path, "public.good", "public.t", publication="p")
    assert said in text
    assert mended in text or "name a publication of its own" in text
    database.run(mended)
    database.source("public.good", "public.t", publication="p").look(Beside(tmp_path))


@pytest.mark.kills("changes-can-be-had")
def test_a_table_that_goes_after_the_look(database: Database) -> None:
    gone = pytest.raises(SourceDataError, match=r"expected table public\.gone, found none")
    with Session("source shop_db", database.credentials) as session, gone:
        session.relation("public.gone")


def test_a_slot_of_another_kind(database: Database, tmp_path: Path) -> None:
    name = f"other_{database.name[-20:]}"
    database.run(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")
    assert "found one of test_decoding" in found(database, tmp_path, "public.good", slot=name)


def test_who_enters(database: Database, tmp_path: Path) -> None:
    """A role that neither owns the tables nor may replicate; and one that nobody lets in."""
    stranger = Credentials("shop", "127.0.0.1", database.server.port, USER, PASSWORD, database.name)
    source = PostgreSQL("shop_db", "shop", ["public.good"])
    with pytest.raises(SourceDataError) as error:
        source.within(Limits(), stranger).look(Beside(tmp_path))
    for said in (
        f"ALTER ROLE {USER} REPLICATION",
        "GRANT SELECT ON public.good",
        "found that it does not own public.good",
    ):
        assert said in str(error.value)
    for odd in (
        Credentials("shop", "127.0.0.1", stranger.port, USER, "wrong", "postgres"),
        Credentials("shop", "localhost", 1),
    ):
        with pytest.raises(SourceUnavailableError, match="expected PostgreSQL at") as refused:
            source.within(Limits(), odd).look(Beside(tmp_path))
        assert "wrong" not in str(refused.value)
    with pytest.raises(ConfigurationError, match="expected connection shop, found none"):
        source.look(Beside(tmp_path))


def test_a_server_that_keeps_no_changes(tmp_path: Path) -> None:
    with Server(wal_level="replica") as server, database_of(server) as database:
        database.run("CREATE TABLE good (id INT PRIMARY KEY)")
        assert "ALTER SYSTEM SET wal_level = logical" in found(database, tmp_path, "public.good")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "a/b"}, "expected a name of 1 to 60 letters"),
        ({"tables": "public.orders"}, "tables: expected a list, found a text"),
        ({"tables": ["orders"]}, "tables: expected schema.table, each once, found orders"),
        ({"tables": []}, "each once, found none"),
        ({"tables": ["a.b", "a.b"]}, "each once, found a.b, a.b"),
        ({"as_text": ["public.items.a"]}, "as_text: expected schema.table.column of its tables"),
        ({"slot": "Slot"}, "slot: expected 1 to 63 small letters"),
    ],
)
def test_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PostgreSQL(**{"name": "shop_db", "conn_id": "shop", "tables": ["public.orders"], **settings})


def test_a_declaration_and_its_tables() -> None:
    source = PostgreSQL("shop_db", "shop", ["public.orders", "public.items"], as_text=["public.items.at"])
    assert PostgreSQL.of(decode(type(source.declare()), encode(source.declare()))) == source
    assert source.connections == [("shop", "postgres")]
    at = Credentials("shop", "db", None, "clerk", schema="shop")
    assert source.within(Limits(), at).dataset("lake") == ("postgres://db:5432", "shop")
    for table in (None, "public.buyers"):
        with pytest.raises(ConfigurationError, match=r"expected one of its tables \(public\.orders, public\.items\)"):
            source.of_table(table)


def test_a_message_of_another_version() -> None:
    with pytest.raises(ValueError, match="found one of kind b'S'"):
        list(events([b"S\0\0\0\1"]))
    assert list(events([b"O\0\0\0\0\0\0\0\0other\0"])) == []
