"""A database whose changes are read, and who reads them: a role that owns its tables, and may replicate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pyarrow import parquet
from sqlalchemy import make_url

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.postgresql import PostgreSQL
from airflow_barrier.sources.postgresql.rows import PostgreSQLRows
from airflow_barrier.sources.postgresql.segments import files_of
from airflow_barrier.tables._documents import Documents
from airflow_barrier.tables._local_files import local_path
from tests.support.postgresql import PASSWORD
from tests.support.postgresql import PostgreSQL as Server

ROLE = "clerk"


class Beside:
    """The part of the tables' room that such a source needs: the files beside a warehouse."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse, self._documents = warehouse, Documents({})
        self.names, self.exists = self._documents.names, self._documents.exists
        self.created, self.delete = self._documents.created, self._documents.delete
        self.clear = self._documents.clear

    def location(self, *parts: str) -> str:
        return "/".join((str(self._warehouse), *parts))

    def read_text(self, uri: str) -> str:
        return local_path(uri).read_text()


class Database:
    """One database, of :data:`ROLE`."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.credentials = Credentials("shop", "127.0.0.1", server.port, ROLE, PASSWORD, name)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        at = self.credentials
        options = {"autocommit": True, **options}
        return psycopg.connect(
            host=at.host, port=at.port, user=at.login, password=at.password, dbname=at.schema, **options
        )

    def run(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[arg-type]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]

    def source(self, *tables: str, **settings: Any) -> PostgreSQL:
        return PostgreSQL("shop_db", "shop", tables, **settings).within(Limits(), self.credentials)

    def rows_source(self, *tables: str, by: str | dict[str, str] = "at", **settings: Any) -> PostgreSQLRows:
        return PostgreSQLRows("shop_db", "shop", tables, by=by, **settings).within(Limits(), self.credentials)


@contextmanager
def database_of(server: Server) -> Iterator[Database]:
    with server.database(migrated=False) as url:
        yield _owned(server, make_url(url).database or "")


def lasting_database_of(server: Server) -> Database:
    """One that goes with its server, which a test may kill for good."""
    server.create("shop", migrated=False)
    return _owned(server, "shop")


def _owned(server: Server, name: str) -> Database:
    if not server.run(f"SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}'"):
        role = sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}")
        server.run(role.format(sql.Identifier(ROLE), sql.Literal(PASSWORD)))
    server.run(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(sql.Identifier(name), sql.Identifier(ROLE)))
    return Database(server, name)


class Image:
    """The rows of a source's tables by their primary key, the first column, as its cuts' files tell: an oracle of few
    lines. Each change is taken once, in order. ``upserts``: a row that has changed is inserted again.
    """

    def __init__(self, *, upserts: bool = False) -> None:
        self._upserts = upserts
        self.tables: dict[str, dict[Any, tuple[Any, ...]]] = {}
        self.last = 0

    def take(self, cut: Cut) -> None:
        changes = [
            (row["_seq"], file.table, row)
            for file in files_of(cut)
            for row in parquet.read_table(file.uri).to_pylist()
            if row["_seq"] > file.after
        ]
        changes.sort(key=lambda change: change[0])
        numbers = [number for number, _, _ in changes]
        assert numbers == [*range(self.last + 1, self.last + 1 + len(numbers))], "each change once"
        self.last = cut.end["last"]
        assert not numbers or numbers[-1] == self.last
        for _, table, row in changes:
            rows = self.tables.setdefault(table, {})
            values = tuple(value for name, value in row.items() if not name.startswith("_"))
            if row["_change_type"] == "truncate":
                rows.clear()
            elif row["_weight"] > 0:
                assert self._upserts or values[0] not in rows, "an insertion of what is not there"
                rows[values[0]] = values
            else:
                del rows[values[0]]

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return sorted(self.tables.get(table, {}).values())
