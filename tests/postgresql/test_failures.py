"""What PostgreSQL refuses or breaks off by itself: provoked for real, tried again, and passing."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import Connection, make_url, text
from sqlalchemy import text as sql_text

from airflow_barrier.metaservice.database import Database
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import CatalogUnavailableError, StoreUnavailableError
from airflow_barrier.systems import sql
from airflow_barrier.tables.iceberg import IcebergTables
from tests.metaservice.auditing import check_audit
from tests.metaservice.world import World
from tests.support.postgresql import PostgreSQL
from tests.support.proxy import Proxy, through
from tests.support.waiting import patience, wait_for
from tests.tables.lake import stamp_of

LOCK_TOPOLOGY = "SELECT FROM barrier_topology WHERE name = 'shopping' FOR UPDATE"
LOCK_SERVICE = "SELECT FROM barrier_service FOR UPDATE"
CHANGE = sql_text("UPDATE barrier_service SET incarnation = incarnation || '!'")
READ = sql_text("SELECT incarnation FROM barrier_service")


@pytest.fixture
def url(postgresql: PostgreSQL) -> Iterator[str]:
    with postgresql.database() as url:
        yield url
        check_audit(url)


@pytest.fixture
def world(url: str) -> Iterator[World]:
    meta = MetaService(url)
    yield World(meta)
    meta.close()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url)
    database.open()
    yield database
    database.close()


def once(disturb: Callable[[], object]) -> Callable[[], None]:
    """``disturb``, but only the first time."""
    left = [disturb]

    def disturb_once() -> None:
        if left:
            left.pop()()

    return disturb_once


def waiting_for_locks(postgresql: PostgreSQL, url: str) -> int:
    """How many sessions in the database do."""
    name = make_url(url).database
    ((count,),) = postgresql.run(
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND wait_event_type = 'Lock'"
    )
    return int(count)


def change_after(disturb: Callable[[], None]) -> Callable[[Connection], str]:
    """A transaction that looks, is disturbed, and then changes what it looked at."""

    def work(connection: Connection) -> str:
        connection.execute(READ)
        disturb()
        connection.execute(CHANGE)
        return str(connection.execute(READ).scalar_one())

    return work


def test_a_serialisation_failure(
    postgresql: PostgreSQL, url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40001 comes from an isolation that we do not ask for, unless somebody changes that."""
    begin = text("BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT NULL, NULL")
    monkeypatch.setattr(database, "_beginning", lambda write, of_this_version: [begin])
    monkeypatch.setattr("airflow_barrier.metaservice.database.require_version", lambda found, where: None)
    before = database.read(lambda c: c.execute(READ).scalar_one())
    tries: list[None] = []
    disturb = once(lambda: postgresql.run(CHANGE.text, database=url))

    def work(connection: Connection) -> str:
        tries.append(None)
        return change_after(disturb)(connection)

    assert database.write(work) == f"{before}!!"
    assert len(tries) == 2


def test_a_strict_default_isolation_of_the_database_is_not_ours(postgresql: PostgreSQL, url: str) -> None:
    """Whoever waits for a lock has to see what the other did, or every race would end in a 40001."""
    postgresql.run(f"ALTER DATABASE {make_url(url).database} SET default_transaction_isolation = 'serializable'")
    database = Database(url)
    before = database.read(lambda c: c.execute(READ).scalar_one())
    tries: list[None] = []
    disturb = once(lambda: postgresql.run(CHANGE.text, database=url))

    def work(connection: Connection) -> str:
        tries.append(None)
        return change_after(disturb)(connection)

    assert database.write(work) == f"{before}!!"
    assert len(tries) == 1
    database.close()


def test_a_strict_default_isolation_of_the_catalog_is_not_ours(
    postgresql: PostgreSQL, url: str, tmp_path: Path
) -> None:
    postgresql.run(f"ALTER DATABASE {make_url(url).database} SET default_transaction_isolation = 'serializable'")
    with catalog(url, tmp_path) as tables, ThreadPoolExecutor(4) as pool:
        tables.prepare({"shop.t": None}, stamp_of(1))
        root = tables.load("shop.t").metadata.refs[stamp_of(1).branch].snapshot_id

        def pin(number: int) -> None:
            tables.pin("shop.t", f"pin_{number}", root)

        list(pool.map(pin, range(20), timeout=patience()))
        assert {f"pin_{number}" for number in range(20)} < set(tables.load("shop.t").metadata.refs)


def test_a_deadlock(postgresql: PostgreSQL, url: str, world: World, database: Database) -> None:
    other = postgresql.admin(url)
    other.execute("SET deadlock_timeout = '1h'")  # so that it is ours that is broken off
    with ThreadPoolExecutor(1) as pool:

        def cross() -> None:
            other.execute("BEGIN")
            other.execute(LOCK_TOPOLOGY)
            pool.submit(lambda: (other.execute(LOCK_SERVICE), other.execute("COMMIT")))
            wait_for("the other waits for us", lambda: waiting_for_locks(postgresql, url) == 1)

        tries: list[None] = []
        disturb = once(cross)

        def work(connection: Connection) -> str:
            tries.append(None)
            connection.exec_driver_sql(LOCK_SERVICE)
            disturb()
            connection.exec_driver_sql(LOCK_TOPOLOGY)
            return "done"

        assert database.write(work) == "done"
        assert len(tries) == 2
    other.close()


def test_an_administrator_ends_the_connection(postgresql: PostgreSQL, database: Database) -> None:
    before = database.read(lambda c: c.execute(READ).scalar_one())
    ended: list[int] = []

    def work(connection: Connection) -> str:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        if not ended:
            ended.append(pid)
            postgresql.run(f"SELECT pg_terminate_backend({pid}, 10000)")
        connection.execute(CHANGE)
        return str(connection.execute(READ).scalar_one())

    assert database.write(work) == f"{before}!"


def test_a_lock_that_is_held_for_too_long_is_named(
    postgresql: PostgreSQL, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "LOCK_TIMEOUT", 0.1)
    world = World(MetaService(url))
    with postgresql.admin(url) as other:
        other.execute("BEGIN")
        other.execute(LOCK_TOPOLOGY)
        with pytest.raises(StoreUnavailableError, match=r"holds a lock for more than 0\.1 s: end that transaction"):
            world.open(1)
        other.execute("ROLLBACK")
    assert world.open(1).barrier_id == 1
    world.meta.close()


def test_a_server_that_was_demoted_is_left_for_the_new_one(
    postgresql: PostgreSQL, own_postgresql: PostgreSQL, url: str
) -> None:
    """Behind one address, as after a failover: connections from before still lead to what only reads by now."""
    own_postgresql.create(make_url(url).database or "")
    own_postgresql.demote()
    with Proxy(own_postgresql.port) as proxy:
        meta = MetaService(through(proxy, url))
        assert meta.topologies.names() == []
        with pytest.raises(StoreUnavailableError, match="during recovery"):
            World(meta)
        assert meta.topologies.names() == [], "reading, it connects again"
        proxy.target = postgresql.port
        assert World(meta).open(1).barrier_id == 1
        meta.close()


def test_a_catalog_that_was_demoted_is_left_for_the_new_one(
    postgresql: PostgreSQL, own_postgresql: PostgreSQL, url: str, tmp_path: Path
) -> None:
    old = own_postgresql.create(make_url(url).database or "")
    for each in (old, url):
        with catalog(each, tmp_path):
            pass
    own_postgresql.demote()
    with Proxy(own_postgresql.port) as proxy, IcebergTables.connect(through(proxy, url), str(tmp_path)) as tables:
        with pytest.raises(CatalogUnavailableError, match="read-only transaction"):
            tables.prepare({"shop.t": None}, stamp_of(1))
        assert tables.mains(["shop.t"]) == {"shop.t": None}
        proxy.target = postgresql.port
        tables.prepare({"shop.t": None}, stamp_of(1))
    with IcebergTables.connect(url, str(tmp_path)) as tables:
        assert stamp_of(1).branch in tables.load("shop.t").metadata.refs


def test_a_lock_on_a_table_that_is_held_for_too_long_is_retryable(
    postgresql: PostgreSQL, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "LOCK_TIMEOUT", 0.1)
    with catalog(url, tmp_path) as tables, postgresql.admin(url) as other:
        other.execute("BEGIN")
        other.execute("SELECT FROM iceberg_tables FOR UPDATE")
        with pytest.raises(CatalogUnavailableError, match="lock timeout"):
            tables.prepare({"shop.t": None}, stamp_of(1))
        other.execute("ROLLBACK")
        tables.prepare({"shop.t": None}, stamp_of(1))


def test_a_server_that_vanishes_without_a_word_is_noticed_within_a_minute(url: str, tmp_path: Path) -> None:
    """By its system's own means, which are asked here: no test cuts a cable."""
    database = Database(url)
    with database.transaction(write=False) as connection:
        check_keepalive(connection)
    database.close()
    with catalog(url, tmp_path) as tables, tables._committer._pointers.transaction() as connection:
        check_keepalive(connection)


def check_keepalive(connection: Connection) -> None:
    driver = connection.connection.driver_connection
    assert driver is not None
    with socket.socket(fileno=socket.dup(driver.fileno())) as end:  # type: ignore[attr-defined]
        asked = [
            end.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        ]
    assert asked == [30, 10, 3, 60_000]


@contextmanager
def catalog(url: str, folder: Path) -> Iterator[IcebergTables]:
    with IcebergTables.connect(url, str(folder)) as tables:
        tables.catalog.create_namespace("shop")
        tables.catalog.create_table("shop.t", Schema(NestedField(1, "id", LongType())))
        yield tables
