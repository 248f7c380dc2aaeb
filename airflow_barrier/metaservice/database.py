"""The database under the MetaService: connections, short transactions, retries and what a failure is called."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, OperationalError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from airflow_barrier.metaservice.versions import EXPECTED, check_version, found_version, upgrade
from airflow_barrier.protocol.errors import ConfigurationError, StoreUnavailableError

_R = TypeVar("_R")

#: Seconds that a writer waits for another one's (short) transaction.
_LOCK_TIMEOUT = 30
_WRITE = "barrier_write"


class Database:
    """One MetaService database, SQLite or PostgreSQL; usable by many threads.

    ``create``: whether :meth:`open` may create and upgrade the schema. None: only the embedded one (SQLite) does,
    since an upgrade of a shared database is for its operator to time.
    """

    def __init__(self, url: str, create: bool | None = None) -> None:
        self._url = _parse(url)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        self._create = self._sqlite if create is None else create
        self._engine = _sqlite_engine(self._url) if self._sqlite else _postgresql_engine(self._url)
        self._opening = threading.Lock()
        self._process = os.getpid()
        self._open = False

    @property
    def url(self) -> str:
        """Where it is, without password and options."""
        url = self._url
        return URL.create(url.drivername, url.username, None, url.host, url.port, url.database).render_as_string()

    def open(self) -> None:
        """Create or upgrade the schema where that is allowed, then check its version. The first use does it."""
        with self._opening:
            if self._process != os.getpid():
                # A fork's copies of our connections are not its own: it leaves them alone and makes new ones.
                self._engine.dispose(close=False)
                self._process = os.getpid()
            if not self._open:
                self._retried(self._prepare)
                self._open = True

    def close(self) -> None:
        self._engine.dispose()

    def read(self, work: Callable[[Connection], _R]) -> _R:
        """``work`` in one read-only transaction: all its queries see one state."""
        self.open()
        return self._retried(lambda: self._run(work, write=False))

    def write(self, work: Callable[[Connection], _R]) -> _R:
        """``work`` in one write transaction. It may run again if the connection breaks: it must only use that."""
        self.open()
        return self._retried(lambda: self._run(work, write=True))

    @contextmanager
    def transaction(self, write: bool) -> Iterator[Connection]:
        """One transaction, not retried: committed at the end of the block, rolled back by any exception.

        Raises :class:`StoreUnavailableError` for what the driver says about locks, connections and the server.
        """
        try:
            with self._engine.connect() as raw:
                connection = raw.execution_options(**self._options(write))
                with connection.begin():
                    if write and not self._sqlite:
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}s'")
                    yield connection
        except DBAPIError as error:
            if not _is_outage(error):
                raise
            raise StoreUnavailableError(
                f"MetaService database {self.url}: expected an answer, found: {error.orig}; check that it runs and "
                "can be reached from here, then try again"
            ) from error

    def _run(self, work: Callable[[Connection], _R], write: bool) -> _R:
        with self.transaction(write) as connection:
            return work(connection)

    def _options(self, write: bool) -> dict[str, Any]:
        if self._sqlite:
            return {_WRITE: write}
        if write:
            # Row locks make writers wait for one another, and after the wait they must see what the other did.
            return {"isolation_level": "READ COMMITTED"}
        return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    def _prepare(self) -> None:
        if self._sqlite:
            self._prepare_file()
        with self.transaction(write=False) as connection:
            found = found_version(connection)
        if found != EXPECTED and self._create:
            with self.transaction(write=True) as connection:
                if not self._sqlite:
                    # SQLite's writers are alone anyhow; here two upgrades at once have to queue as well.
                    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('airflow_barrier'))")
                upgrade(connection, self.url)
        with self.transaction(write=False) as connection:
            check_version(connection, self.url)

    def _prepare_file(self) -> None:
        path = Path(self._url.database or "")
        if not self._create and not path.is_file():
            raise ConfigurationError(f"MetaService database {self.url}: expected a file at {path}, found none")
        if not path.parent.is_dir():
            raise ConfigurationError(
                f"MetaService database {self.url}: expected a folder {path.parent} to make the file in, found none; "
                "make it, or correct the path"
            )

    def _retried(self, call: Callable[[], _R]) -> _R:
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_attempt(3),
            wait=wait_random_exponential(multiplier=0.1, max=2),
            reraise=True,
        )
        return retrying(call)


def _is_outage(error: DBAPIError) -> bool:
    """Locks, connections and servers; also a file that is damaged. Not statements that are refused."""
    return (
        error.connection_invalidated
        or isinstance(error, (OperationalError, InterfaceError))
        or type(error) is DatabaseError
    )


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text itself stays out of the message: it may hold a password.
        raise ConfigurationError(
            "MetaService database: expected an SQLAlchemy URL such as sqlite:////folder/barrier.db or "
            "postgresql://user@host/database, found text that is none; correct the connection"
        ) from None
    backend = parsed.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ConfigurationError(
            f"MetaService database: expected SQLite or PostgreSQL, found {backend}; use one of these two"
        )
    if not parsed.database or ":memory:" in parsed.database or parsed.database.startswith("file:"):
        raise ConfigurationError(
            "MetaService database: expected the path of an SQLite file, which many processes can open; found "
            f"{parsed.database or 'no path'}; give one: sqlite:////folder/barrier.db"
        )
    return parsed


def _postgresql_engine(url: URL) -> Engine:
    # Statements are planned each time: a generic plan compares long IN lists one by one, and takes minutes for them.
    arguments = {"connect_timeout": 10, "prepare_threshold": None}
    try:
        return create_engine(url, pool_pre_ping=True, connect_args=arguments)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"MetaService database on PostgreSQL: expected the driver psycopg, found none ({error}); install "
            "airflow-provider-barrier[postgres]"
        ) from error


def _sqlite_engine(url: URL) -> Engine:
    timeout = {} if "timeout" in url.query else {"timeout": _LOCK_TIMEOUT}
    engine = create_engine(url, connect_args=timeout)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        # The driver's own BEGIN comes late and takes no lock; ours is emitted below instead.
        connection.isolation_level = None
        # Readers do not wait for a writer, nor a writer for readers. It stays in the file: later it changes nothing.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer that first read and then upgrades its lock fails at once if another was faster; so lock first.
        write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
