"""The database under the MetaService: connections, short transactions, retries and what a failure is called."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import URL, Connection, Engine, Insert, TextClause, create_engine, event, make_url, text
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
    found_version,
    is_no_schema,
    require_version,
    upgrade,
)
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    MetaServiceMissingError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from airflow_barrier.systems import sql

_R = TypeVar("_R")

#: Seconds that a database which went away in the middle of a commit has to come back and say what became of it.
_OUTCOME_PATIENCE = 30
#: Where a connection has what its transaction keeps of what it has read.
_KEPT = "barrier_kept"
#: Where it has what the transaction inserts at its end.
_LAST = "barrier_last"

# Codes of PostgreSQL's errors.
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
        self._engine = _forgetting(_sqlite_engine(self._url) if self._sqlite else _postgresql_engine(self._url))
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
        """``work`` in a read-only transaction: all its queries see one state.

        It is a transaction of its own, unless this thread is within a :meth:`look`.
        """
        self.open()
        look = self._look
        return self._retried(lambda: self._run(work, write=False) if look is None else look.read(work))

    def write(self, work: Callable[[Connection], _R]) -> _R:
        """``work`` in one write transaction, which happens once, whatever breaks.

        It may run again if it certainly did not happen: it must only use the connection.
        """
        self.open()
        return self._retried(lambda: self._run(work, write=True))

    @contextmanager
    def look(self) -> Iterator[None]:
        """Let all reads of this thread share a transaction until the end of the block, and so see one state.

        It ends before each write, and the next read begins another one. Within another look it is a part of that one.
        """
        if self._look is not None:
            yield
            return
        token = _LOOK.set(_Look(self))
        try:
            yield
        finally:
            self._end_look()
            _LOOK.reset(token)

    @property
    def _look(self) -> _Look | None:
        look = _LOOK.get()
        return look if look is not None and look.database is self else None

    def _end_look(self) -> None:
        if self._look is not None:
            self._look.end()

    @contextmanager
    def transaction(self, write: bool) -> Iterator[Connection]:
        """One transaction, not retried: committed at the end of the block, rolled back by any exception.

        Raises :class:`StoreUnavailableError` for what the driver says about locks, connections and the server; its
        subclass :class:`OutcomeUnknownError` if nobody can tell whether it was committed; and
        :class:`~airflow_barrier.protocol.errors.SchemaVersionError` if somebody has upgraded the database meanwhile.
        """
        if write:
            self._end_look()  # safety: look-ends-before-a-write
        with self._begun(write, of_this_version=True) as connection:
            yield connection

    @contextmanager
    def _begun(self, write: bool, *, of_this_version: bool = False) -> Iterator[Connection]:
        """Begin a :meth:`transaction`; without ``of_this_version``: on a schema of any version, or on none."""
        transaction_id = None
        deciding = False
        try:
            with sql.begun(self._engine, self._beginning(write, of_this_version)) as (connection, found):
                version, transaction_id = cast(tuple[str | None, str | None], found.one())
                if of_this_version:
                    # Until it ends nobody else can upgrade the schema under it: see `_be_alone`.
                    require_version(version, self.url)  # safety: schema-at-each-transaction
                with working(connection):
                    yield connection
                deciding = True
        except DBAPIError as error:
            if of_this_version and is_no_schema(error):
                require_version(None, self.url)
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

    def _beginning(self, write: bool, of_this_version: bool) -> list[TextClause]:
        """Return what begins a transaction. Each item is one request; the last one finds the schema's version, and
        PostgreSQL's id of a transaction that writes.
        """
        version = f"(SELECT version_num FROM {VERSION_TABLE})" if of_this_version else "NULL"
        if self._sqlite:
            # A writer that first read and then upgrades its lock fails at once if another was faster; so lock first.
            begin = "BEGIN IMMEDIATE" if write else "BEGIN"  # safety: write-lock-first
            return [text(begin), text(f"SELECT {version}, NULL")]
        # Row locks make writers wait for one another, and after the wait they must see what the other did.
        begin = "READ COMMITTED" if write else "REPEATABLE READ READ ONLY"
        # Waits for an upgrade in progress, and holds the next one up. It comes before the first query, whose state
        # a reader sees from then on: that must not be the one from before the wait.
        hold = f"LOCK TABLE {VERSION_TABLE} IN ACCESS SHARE MODE; " if of_this_version else ""
        transaction_id = "CAST(pg_current_xact_id() AS text)" if write else "NULL"
        return [text(f"BEGIN ISOLATION LEVEL {begin}; {hold}SELECT {version}, {transaction_id}")]

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
            advice = f"something holds a lock for more than {sql.LOCK_TIMEOUT} s: end that transaction"
        return StoreUnavailableError(
            f"MetaService database {self.url}: expected an answer, found: {error.orig}; {advice}, then try again"
        )

    def _run(self, work: Callable[[Connection], _R], write: bool) -> _R:
        with self.transaction(write) as connection:
            return work(connection)

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
            require_version(found_version(connection), self.url)

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


class _Look:
    """The transaction that the reads of one thread share; none before the first of them."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._transaction = ExitStack()
        self._connection: Connection | None = None

    def read(self, work: Callable[[Connection], _R]) -> _R:
        if self._connection is None:
            self._connection = self._transaction.enter_context(self.database.transaction(write=False))
        try:
            return work(self._connection)
        except DBAPIError as error:
            # it can read no more, and who began it says what the error means
            self._connection = None
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise

    def end(self) -> None:
        self._connection = None
        with suppress(StoreUnavailableError):  # it was only to be let go of: what was read was read
            self._transaction.close()


#: The one that this thread is in.
_LOOK: ContextVar[_Look | None] = ContextVar("look", default=None)


@contextmanager
def working(connection: Connection) -> Iterator[None]:
    """Surround the work of a transaction that has begun: it ends with what is to be inserted last."""
    connection.info[_LAST] = {}
    yield
    for statement, rows in connection.info[_LAST].items():
        connection.execute(statement, rows)


def kept_by(connection: Connection, table: str) -> dict[Any, Any]:
    """Return the rows of a table that a transaction keeps, by their queries. It forgets them when it writes to it."""
    return cast(dict[Any, Any], connection.info.setdefault(_KEPT, {}).setdefault(table, {}))


def forget_kept(connection: Connection) -> None:
    """Let the transaction read everything anew, since it has waited for others."""
    connection.info[_KEPT] = {}


def insert_last(connection: Connection, statement: Insert, rows: Iterable[Mapping[str, Any]]) -> None:
    """Let the transaction insert these rows at its end, in one go with all others of the same statement."""
    connection.info[_LAST].setdefault(statement, []).extend(rows)


def _forgetting(engine: Engine) -> Engine:
    @event.listens_for(engine, "before_cursor_execute")
    def _forget(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            return
        if context.isinsert or context.isupdate:
            kept_by(connection, context.compiled.statement.table.name).clear()  # safety: kept-until-a-write
        else:  # BEGIN, too
            forget_kept(connection)  # safety: kept-in-one-transaction

    return engine


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
        return sql.postgresql_engine(url)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"MetaService database on PostgreSQL: expected the driver psycopg, found none ({error}); install "
            "airflow-provider-barrier[postgres]"
        ) from error


def _sqlite_engine(url: URL) -> Engine:
    timeout = {} if "timeout" in url.query else {"timeout": sql.LOCK_TIMEOUT}
    engine = create_engine(url, connect_args=timeout)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, record: Any) -> None:
        # The driver's own BEGIN comes late and takes no lock; we emit ours.
        connection.isolation_level = None
        # Readers do not wait for a writer, nor a writer for readers. It stays in the file: later it changes nothing.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA foreign_keys=ON")  # safety: foreign-keys

    return engine
