"""A delivery to PostgreSQL beside what it could be without a ledger: the same batches, the same server, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from sqlalchemy import make_url

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.deliveries import CHANGE, UPDATE, Rows, SinkDeclaration
from airflow_barrier.sinks.ledger import Deliverer
from airflow_barrier.sinks.port import Delivery
from airflow_barrier.sinks.postgresql import PostgreSQLSink
from airflow_barrier.sinks.postgresql.rows import csv_of
from benchmarks.report import Measured

_SIZES, _QUICK = (1_000, 100_000, 1_000_000), (1_000,)
_BATCH = 50_000
_SCHEMA = pa.schema(
    [("userId", pa.int64()), ("itemId", pa.int32()), ("price", pa.decimal128(10, 2)), ("note", pa.string())]
)
_COLUMNS = '"userId", "itemId", price, note'
_WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Batches:
    """So many rows, made once."""

    schema: pa.Schema
    all: list[pa.RecordBatch]

    @classmethod
    def of(cls, count: int, change: str | None = None, note: str = "first") -> Batches:
        schema = _SCHEMA if change is None else _SCHEMA.insert(0, pa.field(CHANGE, pa.string()))
        made = []
        for start in range(0, count, _BATCH):
            ids = list(range(start, min(start + _BATCH, count)))
            columns: list[Any] = [
                pa.array(ids, pa.int64()),
                pa.array([each % 1000 for each in ids], pa.int32()),
                pa.array([each % 100_000 for each in ids], pa.int64())
                .cast(pa.decimal128(19, 0))
                .cast(pa.decimal128(10, 2)),
                pa.array([f"{note} {each}" for each in ids], pa.string()),
            ]
            if change is not None:
                columns.insert(0, pa.array([change] * len(ids), pa.string()))
            made.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return cls(schema, made)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.all)

    def rows(self) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in _SCHEMA.names) for batch in self.all for row in batch.to_pylist()]


@dataclass
class Target:
    """An empty table of a database, and ways to fill and change it."""

    credentials: Credentials
    connection: psycopg.Connection[Any]

    def empty(self) -> None:
        """As new, the ledger too."""
        self.connection.execute("DROP TABLE IF EXISTS prices, airflow_barrier_ledger")
        self.connection.execute(
            'CREATE TABLE prices ("userId" bigint, "itemId" integer, price numeric(10, 2), note text, '
            'PRIMARY KEY ("userId", "itemId"))'
        )

    def delivered(self, rows: Batches) -> None:
        """By us: with the ledger and the fence, from opening on."""
        sink = PostgreSQLSink(self.credentials.conn_id, table="prices")
        declared: SinkDeclaration = sink.declare("shop.prices", Rows.CHANGES, "benchmark")
        with sink.connect(declared, self.credentials) as channel:
            channel.validate({"shop.prices": _SCHEMA})
            after = channel.open(Deliverer("shop", "one", "prices", "benchmark")).position
            number = 1 if after is None else after.barrier_id + 1
            tables = {"shop.prices": rows}
            whole = tables if after is None else ()
            channel.deliver(Delivery(number, 0, _WHEN, after, Rows.CHANGES, whole, tables))

    def copied(self, rows: Batches) -> None:
        """Plain COPY, which knows of nothing."""
        copy = f"COPY prices ({_COLUMNS}) FROM STDIN (FORMAT csv)"
        with self._session() as connection, connection.cursor() as cursor, cursor.copy(copy) as stream:
            for batch in rows:
                stream.write(csv_of(batch, ()))

    def merged(self, rows: Batches) -> None:
        """The same staging and merge, without ledger and fence."""
        with self._session() as connection:
            connection.execute(
                "CREATE TEMPORARY TABLE stage ON COMMIT DROP AS "
                f"SELECT ''::text AS _change, {_COLUMNS} FROM prices LIMIT 0"
            )
            with connection.cursor() as cursor, cursor.copy("COPY stage FROM STDIN (FORMAT csv)") as stream:
                for batch in rows:
                    stream.write(csv_of(batch, ()))
            connection.execute("ANALYZE stage")
            same = 't."userId" = s."userId" AND t."itemId" = s."itemId"'
            connection.execute(f"DELETE FROM prices t USING stage s WHERE _change = 'delete' AND {same}")
            connection.execute(
                f"UPDATE prices t SET price = s.price, note = s.note FROM stage s WHERE _change = 'update' AND {same}"
            )
            connection.execute(
                f"INSERT INTO prices ({_COLUMNS}) SELECT {_COLUMNS} FROM stage s WHERE _change = 'insert'"
            )

    def upserted(self, rows: Batches) -> None:
        """Batched upserts, as most sinks do it."""
        statement = (
            f'INSERT INTO prices ({_COLUMNS}) VALUES (%s, %s, %s, %s) ON CONFLICT ("userId", "itemId") '
            "DO UPDATE SET price = excluded.price, note = excluded.note"
        )
        with self._session() as connection, connection.cursor() as cursor:
            cursor.executemany(statement, rows.rows())

    def _session(self) -> psycopg.Connection[Any]:
        at = self.credentials
        return psycopg.connect(host=at.host, port=at.port, user=at.login, password=at.password, dbname=at.schema)


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    from tests.support.postgresql import USER, PostgreSQL

    rows = []
    with PostgreSQL() as server, server.database(migrated=False) as url:
        server.run(f"GRANT CREATE ON SCHEMA public TO {USER}", database=url)
        at = make_url(url)
        credentials = Credentials("benchmark", at.host, at.port, at.username, str(at.password), at.database)
        with psycopg.connect(
            host=at.host, port=at.port, user=at.username, password=str(at.password), dbname=at.database, autocommit=True
        ) as connection:
            target = Target(credentials, connection)
            for size in _QUICK if quick else _SIZES:
                rows += _at(target, size, repeats=1 if quick else 5 if size < 1_000_000 else 3)
    return [
        Measured(
            "Delivering to PostgreSQL, in seconds",
            "One process, Arrow batches of 50,000 rows that are there already, four columns, a key of two. Ours "
            "includes connecting, looking at the target, opening the ledger, and the ledger's record; the others' "
            "includes connecting. Median of 5 in turns, of 3 at a million. Changes update every row of a target of "
            "that size. The server does not sync to disk.",
            ["", "rows", "ours", "without ledger and fence", "ratio", "batched upserts"],
            rows,
        )
    ]


def _at(target: Target, size: int, repeats: int) -> list[list[str]]:
    first = Batches.of(size)
    loads: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(repeats):
        for name, load in (("ours", target.delivered), ("plain", target.copied)):
            target.empty()
            loads[name].append(_seconds(lambda load=load: load(first)))  # type: ignore[misc]
    changes: dict[str, list[float]] = {"ours": [], "plain": [], "upserts": []}
    for number in range(repeats):
        for name, change in (("ours", target.delivered), ("plain", target.merged), ("upserts", target.upserted)):
            target.empty()
            target.delivered(first)
            target.connection.execute("VACUUM ANALYZE prices")
            changed = Batches.of(size, None if name == "upserts" else UPDATE, note=f"change {number}")
            changes[name].append(_seconds(lambda change=change, changed=changed: change(changed)))  # type: ignore[misc]
    return [_row("first load", size, loads), _row("changes", size, changes)]


def _row(what: str, size: int, seconds: dict[str, list[float]]) -> list[str]:
    median = {name: statistics.median(each) for name, each in seconds.items()}
    upserts = f"{median['upserts']:.2f}" if "upserts" in median else ""
    ratio = f"{median['plain'] / median['ours']:.2f}"
    return [what, f"{size:,}", f"{median['ours']:.3f}", f"{median['plain']:.3f}", ratio, upserts]


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
