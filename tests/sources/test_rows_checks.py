"""What keeps rows from being read by their times is told before the first barrier, with the statement that mends it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.sources import source_of
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.postgresql.rows import PostgreSQLRows
from tests.sources.databases import Beside, Database, database_of
from tests.sources.landing import Cutter, day
from tests.support.postgresql import PASSWORD, USER
from tests.support.postgresql import PostgreSQL as Server

pytestmark = [pytest.mark.drawn("databases"), pytest.mark.touches("sources/postgresql/checks.py")]


@pytest.fixture
def database(postgresql: Server) -> Iterator[Database]:
    with database_of(postgresql) as database:
        database.run("CREATE TABLE good (id INT, at TIMESTAMPTZ NOT NULL)", "CREATE INDEX ON good (at)")
        yield database


@pytest.mark.kills("changes-can-be-had")
@pytest.mark.parametrize(
    ("made", "said", "mended"),
    [
        ("SELECT 1", "expected table public.t, found none", "CREATE TABLE t (at TIMESTAMP)"),
        ("CREATE VIEW t AS SELECT 1", "found a relation of kind 'v'", "DROP VIEW t; CREATE TABLE t (at TIMESTAMP)"),
        (
            "CREATE TABLE t (at TIMESTAMP, _weight INT)",
            "expected no column _weight in public.t",
            "ALTER TABLE t RENAME _weight TO weight",
        ),
        (
            "CREATE TABLE t (at TIMESTAMP); ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "without row security",
            "ALTER TABLE public.t DISABLE ROW LEVEL SECURITY",
        ),
        (
            "CREATE TABLE t (id INT)",
            "expected a column at in public.t, found none; name another one by by=...",
            "ALTER TABLE t ADD at TIMESTAMP",
        ),
        (
            "CREATE TABLE t (at DATE)",
            "expected at of public.t to be a timestamp, found date",
            "ALTER TABLE t ALTER at TYPE TIMESTAMP",
        ),
        (
            "CREATE DOMAIN moment AS TIMESTAMPTZ; CREATE TABLE t (at moment); INSERT INTO t VALUES (NULL), (NULL)",
            "expected at in each row of public.t, found 2 rows without, which no barrier would read: UPDATE public.t "
            "SET at = now() WHERE at IS NULL, and ALTER TABLE public.t ALTER at SET NOT NULL",
            "UPDATE public.t SET at = now() WHERE at IS NULL; ALTER TABLE public.t ALTER at SET NOT NULL",
        ),
    ],
)
def test_a_table(made: str, said: str, mended: str, database: Database, tmp_path: Path) -> None:
    database.run(*made.split("; "))
    source = database.rows_source("public.good", "public.t")
    for refused in (lambda: source.look(Beside(tmp_path)), lambda: Cutter(source, Beside(tmp_path)).cut(day(1))):
        with pytest.raises(SourceDataError, match=r"^source shop_db, 127\.0\.0\.1:.*expected") as error:
            refused()
        assert said in str(error.value)
        assert "public.good" not in str(error.value)
    database.run(*mended.split("; "))
    source.look(Beside(tmp_path))


def test_a_column_without_an_index(database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database.run("CREATE TABLE t (id INT, at TIMESTAMPTZ NOT NULL)", "CREATE INDEX ON t (id, at)")
    source = database.rows_source("public.good", "public.t")
    with caplog.at_level(logging.WARNING):
        source.look(Beside(tmp_path))
        (said,) = caplog.messages
        assert "each barrier reads the whole table: CREATE INDEX ON public.t (at)" in said
        database.run(said.rpartition(": ")[2])
        caplog.clear()
        source.look(Beside(tmp_path))
    assert caplog.messages == []


def test_a_role_that_may_only_read(database: Database, tmp_path: Path) -> None:
    """It neither owns the tables nor may replicate."""
    reader = Credentials("shop", "127.0.0.1", database.server.port, USER, PASSWORD, database.name)
    source = PostgreSQLRows("shop_db", "shop", ["public.good"], by="at").within(Limits(), reader)
    with pytest.raises(SourceDataError, match=r"expected the right to read public\.good"):
        source.look(Beside(tmp_path))
    database.run(f"GRANT SELECT ON good TO {USER}", "INSERT INTO good VALUES (1, '2017-01-01')")
    source.look(Beside(tmp_path))
    assert Cutter(source, Beside(tmp_path)).cut(day(9)).end["last"] == 1
    with pytest.raises(ConfigurationError, match="expected a warehouse to put rows beside, found none"):
        Cutter(source).cut(day(9))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tables": "public.orders"}, r"^PostgreSQLRows\('shop_db'\): tables: expected a list, found a text"),
        ({"by": {"public.items": "at"}}, r"by: expected a column of each table \(public\.orders\), found those of pub"),
        ({"by": {}}, "found those of none"),
        ({"margin": timedelta(seconds=-1)}, "margin: expected a timedelta of 0 or more"),
        ({"margin": "1 minute"}, r"found '1 minute'; pass timedelta\(minutes=1\)"),
    ],
)
def test_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        PostgreSQLRows(**{"name": "shop_db", "conn_id": "shop", "tables": ["public.orders"], "by": "at", **settings})


def test_a_declaration_and_its_tables() -> None:
    by = {"public.orders": "at", "public.items": "changed"}
    source = PostgreSQLRows("shop_db", "shop", [*by], by=by, margin=timedelta(seconds=90))
    again = source_of(decode(type(source.declare()), encode(source.declare())))
    assert again == source
    assert source.of_table("public.items") == source
    with pytest.raises(ConfigurationError, match=r"expected one of its tables \(public\.orders, public\.items\)"):
        source.of_table(None)
