"""Tables of a PostgreSQL database: what any sink does."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import Rows
from airflow_barrier.sinks.port import Channel
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from tests.sinks.behaviour import TABLES, ComparingBehaviour, Places
from tests.support.postgresql import USER, PostgreSQL


@dataclass(frozen=True)
class Tables:
    """Two targets in a schema of their own, with the ledger beside them."""

    rows: ClassVar = (Rows.CHANGES, Rows.APPENDS)

    url: str
    schema: str

    def channel(self, rows: Rows, tables: Sequence[str] = TABLES, key: str = "id") -> Channel:
        named = {"key": [key]} if key != "id" else {}
        sink = PostgreSQLSink("reporting", name="out", schema=self.schema, **named)
        targets = {table: self._target(table.rpartition(".")[2], rows) for table in tables}
        return sink.connect(sink.declare(targets, rows, "dag"), self._credentials)

    def contents(self, table: str, rows: Rows) -> list[dict[str, Any]]:
        target = self._target(table.rpartition(".")[2], rows)
        with self._connect() as connection:
            cursor = connection.execute(f"SELECT * FROM {self.schema}.{target} ORDER BY id")
            assert cursor.description is not None
            return [dict(zip([each.name for each in cursor.description], row, strict=True)) for row in cursor]

    def left_over(self) -> list[str]:
        with self._connect() as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (self.schema,))
            ours = {"airflow_barrier_ledger", "prices", "amounts", "prices_log", "amounts_log"}
            return sorted({name for (name,) in found} - ours)

    def watch(self, tell: Callable[[str], None]) -> None:
        wait = psycopg.Connection.wait

        def told(self: psycopg.Connection[Any], answer: Generator[Any, Any, Any], *options: Any, **more: Any) -> Any:
            # what a statement leaves behind without COMMIT is gone with the session, so before the next one is enough
            tell(f"before {answer.__qualname__}")
            return wait(self, answer, *options, **more)

        psycopg.Connection.wait = told  # type: ignore[method-assign,assignment]

    def forge(self, entry: str, value: object) -> None:
        with self._connect() as connection:
            connection.execute(f"UPDATE {self.schema}.airflow_barrier_ledger SET {entry} = %s", (value,))

    def make(self) -> Tables:
        with self._connect() as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}")
            for target, columns in (
                ("prices", "name text, price numeric(10, 2), at timestamptz"),
                ("amounts", "amount bigint"),
            ):
                connection.execute(f"CREATE TABLE {self.schema}.{target} (id bigint PRIMARY KEY, {columns})")
                connection.execute(f"CREATE TABLE {self.schema}.{target}_log (id bigint, {columns})")
        return self

    @staticmethod
    def _target(name: str, rows: Rows) -> str:
        """What is appended has no key."""
        return f"{name}_log" if rows is Rows.APPENDS else name

    @property
    def _credentials(self) -> Credentials:
        at = make_url(self.url)
        return Credentials("reporting", at.host, at.port, at.username, str(at.password), at.database)

    def _connect(self) -> psycopg.Connection[Any]:
        at = self._credentials
        return psycopg.connect(
            host=at.host,
            port=at.port,
            user=at.login,
            password=at.password,
            dbname=at.schema,
            autocommit=True,
            options="-c TimeZone=UTC",
        )


@pytest.mark.kills(
    "ledger-of-this-format", "ledger-of-this-incarnation", method="test_a_ledger_that_somebody_else_wrote_is_told"
)
@pytest.mark.kills("ledger-moves-from-its-position", method="test_what_comes_out_of_order_is_refused")
class TestPostgreSQL(ComparingBehaviour):
    files = ("sinks/postgresql/channel.py", "sinks/postgresql/rows.py", "sinks/postgresql/targets.py")

    @pytest.fixture
    def places(self, postgresql: PostgreSQL) -> Generator[Places, None, None]:
        with postgresql.database(migrated=False) as url:
            postgresql.run(f"GRANT CREATE ON DATABASE {make_url(url).database} TO {USER}", database=url)
            yield lambda: Tables(url, f"place_{uuid4().hex}").make()
