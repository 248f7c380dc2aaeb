"""A database's changes: taking them out beside only reading them, putting them on a table, and what the slot holds."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.port import CutRequest
from airflow_barrier.sources.postgresql import PostgreSQL
from airflow_barrier.sources.postgresql.rows import PostgreSQLRows
from airflow_barrier.sources.postgresql.tables_in_files import TablesInFiles
from airflow_barrier.spark.applying import apply_changes
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.tables.iceberg import IcebergTables
from benchmarks.report import Measured
from demo.local_airflow import free_port
from demo.local_postgresql import ADMIN, LocalPostgreSQL
from demo.local_spark import CATALOG, LocalConnectServer
from demo.places import Places

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIZES, _QUICK = (1_000, 100_000, 1_000_000), (1_000,)
_IDLE = 20
_PASSWORD = "benchmark"
_WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_MB = 2**20


def measure(folder: Path, *, quick: bool) -> list[Measured]:
    ivy = Path(os.environ.get("BARRIER_TEST_IVY") or Places().ivy)
    warehouse = folder / "warehouse"
    warehouse.mkdir(parents=True)
    conf = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
    with (
        LocalPostgreSQL(free_port(), _PASSWORD, wal_level="logical") as server,
        LocalConnectServer(warehouse, folder / "barrier.db", ivy, conf=conf) as connect,
        IcebergTables.connect(f"sqlite:///{folder}/barrier.db", str(warehouse)) as tables,
    ):
        server.start()
        spark = connect_session(connect.url)
        try:
            taken = [_taken(server, tables, spark, size) for size in (_QUICK if quick else _SIZES)]
        finally:
            stop_session(spark)
        read = [_read(server, tables, size) for size in (_QUICK if quick else _SIZES)]
        held = _held(server, tables, 1_000)
    return [
        Measured(
            "Taking changes out of PostgreSQL, in seconds",
            "Rows of five columns in transactions of 1,000 that are inserted, and 250 of them updated. *Cut* is all "
            "that a barrier's opening does: look at slot and server, read the changes, write Parquet files, move the "
            "slot. *Only read*: the same query by psycopg, with messages that nobody decodes. *Applied* is one MERGE "
            "in Spark into an empty table, the first one with what a new session costs. *Worker*: the most memory that "
            "the process has had so far, with all of the benchmark in it; *backend*: the most that a process of the "
            "server had for itself. PostgreSQL with fsync, on the same machine; each once.",
            ["changes", "cut", "changes a second", "only read", "applied", "worker", "backend"],
            taken,
        ),
        Measured(
            "Reading rows of PostgreSQL by their times, in seconds",
            "Tables of the same five columns, with an index on the time. *All*: the cut of the first barrier. *1,000 "
            "changed*: the cut of the next one, after so many rows were updated. *Only read*: all rows by COPY and "
            "psycopg, as text that nobody looks at. *Worker*: as above. On the same machine; each once.",
            ["rows", "all", "rows a second", "only read", "1,000 changed", "worker"],
            read,
        ),
        Measured(
            "Log that PostgreSQL keeps for us, in kB",
            f"{_IDLE} barriers of 1,000 rows each, none of which is committed. A slot's log can go from where the "
            "server has last noted which transactions are open, which it does every 15 seconds; here a checkpoint "
            "before each cut stands for that.",
            ["barriers", "written for one", "held after a cut, at most"],
            [held],
        ),
    ]


def _credentials(server: LocalPostgreSQL) -> Credentials:
    return Credentials("shop", "127.0.0.1", server.port, ADMIN, _PASSWORD, "postgres")


def _cut(source: TablesInFiles, tables: IcebergTables, before: Cut | None, until: datetime = _WHEN) -> Cut:
    start = before.end if before else None
    nothing: Any = None
    found = source.cut(CutRequest("shop", 1, None, until, start, nothing, until, tables))
    assert isinstance(found, Cut)
    return found


def _write(connection: psycopg.Connection[Any], table: str, rows: int) -> None:
    for begin in range(0, rows, 1_000):
        with connection.transaction():
            connection.execute(
                f"INSERT INTO {table} SELECT g, g % 100, 'note ' || g, now(), g / 100.0 "
                f"FROM generate_series({begin + 1}, {begin + 1_000}) g"
            )
            connection.execute(f"UPDATE {table} SET item = item + 1 WHERE id > {begin} AND id <= {begin + 250}")


def _taken(server: LocalPostgreSQL, tables: IcebergTables, spark: SparkSession, size: int) -> list[str]:
    table, at = f"t{size}", _credentials(server)
    with server.admin() as connection:
        columns = "id BIGINT PRIMARY KEY, item INT, note TEXT, at TIMESTAMPTZ, price NUMERIC(10,2)"
        connection.execute(f"CREATE TABLE {table} ({columns})")
        source = PostgreSQL(table, "shop", [f"public.{table}"]).within(Limits(), at)
        before = _cut(source, tables, None)
        _write(connection, table, size * 2 // 3)  # an update is two changes
        with _backend(server) as backend:
            began = time.perf_counter()
            _only_read(server, before)
            read = time.perf_counter() - began
            began = time.perf_counter()
            cut = _cut(source, tables, before)
            took = time.perf_counter() - began
    changes = sum(file["rows"] for file in cut.end["files"])
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.shop")
    target = f"{CATALOG}.shop.{table}"
    spark.sql(
        f"CREATE TABLE {target} (id BIGINT, item INT, note STRING, at TIMESTAMP, price DECIMAL(10,2)) USING iceberg"
    )
    began = time.perf_counter()
    nobody: Any = None
    apply_changes(source.load(spark, cut, None, _WHEN, CATALOG, nobody, {}), f"shop.{table}", target, ["id"])
    applied = time.perf_counter() - began
    worker = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        f"{changes:,}",
        f"{took:.2f}",
        f"{changes / took:,.0f}",
        f"{read:.2f}",
        f"{applied:.2f}",
        f"{worker:,.0f} MB",
        f"{max(backend) / _MB:,.0f} MB",
    ]


def _only_read(server: LocalPostgreSQL, before: Cut) -> None:
    query = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
        "'publication_names', %s)"
    )
    with server.admin() as connection, connection.transaction(), connection.cursor("read", binary=True) as cursor:
        cursor.itersize = 5_000
        cursor.execute(query, [before.end["slot"], before.end["publication"]])
        for _ in cursor:
            pass


def _read(server: LocalPostgreSQL, tables: IcebergTables, size: int) -> list[str]:
    table = f"rows{size}"
    source = PostgreSQLRows(table, "shop", [f"public.{table}"], by="at", margin=timedelta(0))
    source = source.within(Limits(), _credentials(server))
    with server.admin() as connection:
        columns = "id BIGINT PRIMARY KEY, item INT, note TEXT, at TIMESTAMPTZ NOT NULL, price NUMERIC(10,2)"
        connection.execute(f"CREATE TABLE {table} ({columns})")
        connection.execute(f"CREATE INDEX ON {table} (at)")
        _write(connection, table, size)
        connection.execute(f"ANALYZE {table}")
        began = time.perf_counter()
        with connection.cursor() as cursor, cursor.copy(f"COPY {table} TO STDOUT") as copy:
            for _ in copy.rows():
                pass
        read = time.perf_counter() - began
        began = time.perf_counter()
        cut = _cut(source, tables, None, datetime.now(timezone.utc))
        took = time.perf_counter() - began
        connection.execute(f"UPDATE {table} SET item = 0, at = clock_timestamp() WHERE id <= 1000")
        began = time.perf_counter()
        changed = _cut(source, tables, cut, datetime.now(timezone.utc))
        took_changed = time.perf_counter() - began
    assert [sum(file["rows"] for file in each.end["files"]) for each in (cut, changed)] == [size, 1_000]
    worker = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        f"{size:,}",
        f"{took:.2f}",
        f"{size / took:,.0f}",
        f"{read:.2f}",
        f"{took_changed:.2f}",
        f"{worker:,.0f} MB",
    ]


@contextmanager
def _backend(server: LocalPostgreSQL) -> Iterator[list[int]]:
    """The memory, in bytes, that each of the server's processes had for itself, again and again."""
    found, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            for process in psutil.process_iter():
                try:
                    if process.name() == "postgres":
                        found.append(process.memory_full_info().uss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _held(server: LocalPostgreSQL, tables: IcebergTables, rows: int) -> list[str]:
    with server.admin() as connection:
        connection.execute("CREATE TABLE idle (id BIGINT, item INT, note TEXT, at TIMESTAMPTZ, price NUMERIC(10,2))")
        connection.execute("ALTER TABLE idle REPLICA IDENTITY FULL")
        source = PostgreSQL("idle", "shop", ["public.idle"]).within(Limits(), _credentials(server))
        cut = _cut(source, tables, None)
        held, written = [], []
        for _ in range(_IDLE):
            (before,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone() or ("0/0",)
            _write(connection, "idle", rows)
            query = "SELECT pg_current_wal_lsn() - %s::pg_lsn"
            written.append(int((connection.execute(query, [before]).fetchone() or (0,))[0]))
            connection.execute("CHECKPOINT")
            cut = _cut(source, tables, cut)
            query = "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = %s"
            held.append(int((connection.execute(query, [cut.end["slot"]]).fetchone() or (0,))[0]))
    return [str(_IDLE), f"{sum(written) / len(written) / 1024:,.0f}", f"{max(held) / 1024:,.0f}"]
