"""The database under the MetaService: connections, short transactions, retries and what a failure is called."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, OperationalError
from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from airflow_barrier.metaservice.versions import (
    EXPECTED,
    VERSION_TABLE,
    check_version,
    found_version,
    require_version,
    upgrade,
)
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    MetaServiceMissingError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from airflow_barrier.systems.postgresql import CONNECT_ARGUMENTS

_R = TypeVar("_R")

#: Seconds that a writer waits for another one's (short) transaction.
_LOCK_TIMEOUT = 30
#: Seconds that a database which went away in the middle of a commit has to come back and say what became of it.
_OUTCOME_PATIENCE = 30
_WRITE = "barrier_write"

# Codes of PostgreSQL's errors.
#: A write on a server that only reads, which the second one says to the very BEGIN of one.
_DEMOTED = ("25006", "0A000")
_LOCKED = "55P03"
#: No rights on a table, or on any schema to make one in.
_NOT_ALLOWED = ("42501", "3F000")
_FUTURE_TRANSACTION = "22023"


class Database:
    """One MetaService database, SQLite or PostgreSQL; usable by many threads.

    ``create``: whether :meth:`open` may create and upgrade the schema. None: only the embedded one (SQLite) does,
    since an upgrade of a shared database is for its operator to time. ``new``: whether it may make an embedded one
    where there is none.
    """

    def __init__(self, url: str, create: bool | None = None, new: bool = True) -> None:
        self._url = _parse(url)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        self._create = self._sqlite if create is None else create
        self._new = new or not self._sqlite
        self._engine = _sqlite_engine(self._url) if self._sqlite else _postgresql_engine(self._url)
        # who asks for a connection's deployment anew, after its password changed, drops the old one
        weakref.finalize(self, _end, self._engine, os.getpid()).atexit = False
        self._opening = threading.Lock()
        self._process = os.getpid()
        self._open = False

    @cached_property
    def url(self) -> str:
        """The database's URL, without password and options."""
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
        _end(self._engine, self._process)

    def read(self, work: Callable[[Connection], _R]) -> _R:
        """``work`` in one read-only transaction: all its queries see one state."""
        self.open()
        return self._retried(lambda: self._run(work, write=False))

    def write(self, work: Callable[[Connection], _R]) -> _R:
        """``work`` in one write transaction, which happens once, whatever breaks.

        It may run again if it certainly did not happen: it must only use the connection.
        """
        self.open()
        return self._retried(lambda: self._run(work, write=True))

    @contextmanager
    def transaction(self, write: bool) -> Iterator[Connection]:
        """One transaction, not retried: committed at the end of the block, rolled back by any exception.

        Raises :class:`StoreUnavailableError` for what the driver says about locks, connections and the server; its
        subclass :class:`OutcomeUnknownError` if nobody can tell whether it was committed; and
        :class:`~airflow_barrier.protocol.errors.SchemaVersionError` if somebody has upgraded the database meanwhile.
        """
        with self._begun(write) as connection:
            # Until it ends nobody else can upgrade the schema under it: see `_be_alone`.
            require_version(connection, self.url)  # safety: schema-at-each-transaction
            yield connection

    @contextmanager
    def _begun(self, write: bool) -> Iterator[Connection]:
        """Begin a :meth:`transaction` on a schema of any version."""
        transaction_id = None
        deciding = False
        try:
            with self._engine.connect() as raw:
                connection = raw.execution_options(**self._options(write))
                with connection.begin():
                    if write and not self._sqlite:
                        transaction_id = str(connection.exec_driver_sql("SELECT pg_current_xact_id()").scalar_one())
                    yield connection
                    deciding = True
        except DBAPIError as error:
            if _sqlstate(error) in _NOT_ALLOWED:
                raise ConfigurationError(
                    f"MetaService database {self.url}: expected rights to read and write its tables (to upgrade it, "
                    f"also to make them), found: {error.orig}; grant them to this user, or connect as another"
                ) from error
            if not _is_outage(error):
                raise
            # An answer to COMMIT that is lost on the way does not mean that nothing happened.
            if deciding and transaction_id is not None and self._was_committed(transaction_id):
                return
            raise self._unavailable(error) from error

    def _was_committed(self, transaction_id: str) -> bool:
        """Return whether a transaction whose COMMIT was not answered happened; waits for a server that starts again."""

        def ask() -> str:
            with self._begun(write=False) as connection:
                try:
                    question = text("SELECT pg_xact_status(CAST(:transaction_id AS xid8))")
                    return str(connection.execute(question, {"transaction_id": transaction_id}).scalar_one())
                except DBAPIError as error:
                    if _sqlstate(error) != _FUTURE_TRANSACTION:
                        raise
                    # A standby that had not heard of it yet has taken over.
                    return "aborted"

        asking = Retrying(
            retry=retry_if_exception_type(StoreUnavailableError) | retry_if_result(lambda said: said == "in progress"),
            stop=stop_after_delay(_OUTCOME_PATIENCE),
            wait=wait_random_exponential(multiplier=0.05, max=2),
        )
        try:
            return asking(ask) == "committed"
        except RetryError as error:
            raise OutcomeUnknownError(
                f"MetaService database {self.url}: expected an answer to COMMIT, found none, and nobody who says "
                f"within {_OUTCOME_PATIENCE} s whether it happened; check that the database runs, then try again: a "
                "step that has happened is found, not repeated"
            ) from error

    def _unavailable(self, error: DBAPIError) -> StoreUnavailableError:
        advice = "check that it runs and can be reached from here, and that its login and password are right"
        if _sqlstate(error) == _LOCKED:
            advice = f"something holds a lock for more than {_LOCK_TIMEOUT} s: end that transaction"
        return StoreUnavailableError(
            f"MetaService database {self.url}: expected an answer, found: {error.orig}; {advice}, then try again"
        )

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
        with self._begun(write=False) as connection:
            found = found_version(connection)
        if found is None and not self._new:  # the catalog may have made the file
            raise self._missing()  # safety: no-empty-metaservice
        if found != EXPECTED and self._create:
            with self._begun(write=True) as connection:
                if not self._sqlite:
                    self._be_alone(connection)
                upgrade(connection, self.url)
        with self._begun(write=False) as connection:
            check_version(connection, self.url)

    @staticmethod
    def _be_alone(connection: Connection) -> None:
        """SQLite's writers are alone anyhow. Here upgrades queue, and wait for all transactions on the old schema."""
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('airflow_barrier'))")
        if found_version(connection) is not None:
            # Every transaction begins by looking at it, which this excludes until both have ended.
            connection.exec_driver_sql(f"LOCK TABLE {VERSION_TABLE} IN ACCESS EXCLUSIVE MODE")

    def _prepare_file(self) -> None:
        path = Path(self._url.database or "")
        if not (self._new and self._create) and not path.is_file():
            raise self._missing()  # safety: no-empty-metaservice
        if not path.parent.is_dir():
            raise ConfigurationError(
                f"MetaService database {self.url}: expected a folder {path.parent} to make the file in, found none; "
                "make it, or correct the path"
            )

    def _missing(self) -> MetaServiceMissingError:
        return MetaServiceMissingError(
            f"MetaService database {self.url}: expected one, found none on {socket.gethostname()}; it is made when a "
            "DAG opens its first barrier, or by airflow-barrier database migrate. Where that was done, this host does "
            "not see the folder: give all hosts the same one, or one database for all (metaservice_url)"
        )

    def _retried(self, call: Callable[[], _R]) -> _R:
        retrying = Retrying(
            retry=retry_if_exception(_certainly_did_not_happen),
            stop=stop_after_attempt(3),
            wait=wait_random_exponential(multiplier=0.1, max=2),
            reraise=True,
        )
        return retrying(call)


def _end(engine: Engine, process: int) -> None:
    """Close the connections that nobody uses just now; a fork's copies of those of ``process`` are not its own."""
    engine.dispose(close=process == os.getpid())


def _certainly_did_not_happen(error: BaseException) -> bool:
    return isinstance(error, StoreUnavailableError) and not isinstance(error, OutcomeUnknownError)


def _sqlstate(error: DBAPIError) -> str | None:
    """PostgreSQL's code of an error."""
    return getattr(error.orig, "sqlstate", None)


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
    try:
        engine = create_engine(url, pool_pre_ping=True, connect_args=dict(CONNECT_ARGUMENTS))
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"MetaService database on PostgreSQL: expected the driver psycopg, found none ({error}); install "
            "airflow-provider-barrier[postgres]"
        ) from error

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}s'")
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def _leave_demoted_server(context: ExceptionContext) -> None:
        if getattr(context.original_exception, "sqlstate", None) in _DEMOTED:
            # Another one has taken over. Connections from before would stay with this one.
            context.is_disconnect = True

    return engine


def _sqlite_engine(url: URL) -> Engine:
    timeout = {} if "timeout" in url.query else {"timeout": _LOCK_TIMEOUT}
    engine = create_engine(url, connect_args=timeout)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        # The driver's own BEGIN comes late and takes no lock; ours is emitted below instead.
        connection.isolation_level = None
        # Readers do not wait for a writer, nor a writer for readers. It stays in the file: later it changes nothing.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=ON")  # safety: foreign-keys

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer that first read and then upgrades its lock fails at once if another was faster; so lock first.
        write = connection.get_execution_options().get(_WRITE, False)
        begin = "BEGIN IMMEDIATE" if write else "BEGIN"  # safety: write-lock-first
        connection.exec_driver_sql(begin)

    return engine
