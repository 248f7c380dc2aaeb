"""The pointers of an SQL catalog: one row a table in `iceberg_tables`, swapped for many tables in one transaction.

The columns used here are in the catalog's schema V0 and V1 alike (V1 adds `iceberg_type`, which tells views from
tables and which nobody here writes), so both are served and neither is migrated.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import (
    CatalogRefusedError,
    CatalogUnavailableError,
    ConfigurationError,
    MissingTableError,
)
from airflow_barrier.systems import sql
from airflow_barrier.tables._catalog import split

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, Row, Select

log = logging.getLogger(__name__)

_POSTGRESQL = "postgresql+psycopg"

#: How many pointers one statement moves: of each it has six parameters, and older SQLite takes 999.
_MOVES = 100

#: Which database of which server that runs, which table `iceberg_tables` is there, and may the pointers in it be moved.
_POINTERS_SEEN = """
    SELECT extract(epoch FROM pg_postmaster_start_time())::text || ' ' || d.oid, t.oid,
    coalesce(has_table_privilege(t.oid, 'SELECT') AND has_table_privilege(t.oid, 'UPDATE'), false)
    FROM pg_database d CROSS JOIN (SELECT to_regclass('iceberg_tables')::oid AS oid) t
    WHERE d.datname = current_database()
"""
#: PostgreSQL's code of what the user may not do.
_NOT_ALLOWED = "42501"


class SqlPointers:
    """The rows that say where each table's current metadata document is.

    ``catalog_name`` is the name of the catalog in Spark, which is part of the key of every row. Raises
    :class:`ConfigurationError` for a URL that SQLAlchemy cannot use.
    """

    def __init__(self, uri: str, catalog_name: str) -> None:
        self.catalog_name = catalog_name
        self._engine = _engine(uri)
        # who asks for a connection's deployment anew, after its password changed, drops the old one
        weakref.finalize(self, _end, self._engine, os.getpid()).atexit = False

    @property
    def url(self) -> URL:
        return self._engine.url

    @property
    def database_url(self) -> str:
        """Return where the database is: without password and options, which may differ between those who share it."""
        from sqlalchemy import URL

        url = self.url
        return URL.create(url.drivername, url.username, None, url.host, url.port, url.database).render_as_string()

    def close(self) -> None:
        self._engine.dispose()

    def can_be_moved_by(self, connection: Connection) -> bool:
        """Return whether ``connection``, somebody else's to a PostgreSQL database of this name, has come to these
        pointers, and may move them.
        """
        with self.translated(), self._engine.connect() as own:
            server, ours, _ = own.exec_driver_sql(_POINTERS_SEEN).one()
        theirs = connection.exec_driver_sql(_POINTERS_SEEN).one()
        if theirs[0] != server:
            return False
        if (theirs[1], theirs[2]) == (ours, True):
            return ours is not None
        log.warning(
            "catalog %r: expected the MetaService's user to see and change the catalog's table iceberg_tables in %s, "
            "since both are in one database, found that it %s. So tables are published before COMMIT, and not in one "
            "transaction with it. GRANT USAGE on the table's schema and SELECT, UPDATE on the table to this user, and "
            "let both users have the same search_path",
            self.catalog_name,
            self._shown,
            "finds none or another one" if theirs[1] != ours else "may not",
        )
        return False

    def count(self) -> int:
        """Return how many tables the catalog has; none before an engine made the first one."""
        from sqlalchemy import func, inspect, select

        rows = _iceberg_tables()
        with self.translated(), self._engine.connect() as connection:
            if not inspect(connection).has_table(rows.name):
                return 0
            mine = select(func.count()).select_from(rows).where(rows.c.catalog_name == self.catalog_name)
            return int(connection.execute(mine).scalar_one())

    def read(self, tables: Iterable[str]) -> dict[str, str]:
        """Table -> location of its metadata document. Raises :class:`MissingTableError`."""
        with self.translated(), sql.begun(self._engine, [self._pointers_of(tables)]) as (_, rows):
            return self._found(rows, tables)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A write transaction of its own."""
        from sqlalchemy import text

        dialect = self._engine.dialect.name
        # A transaction of SQLite that reads first and writes later fails at once when another one wrote in between,
        # without waiting; one that says from the start that it will write waits its turn.
        begin = "BEGIN IMMEDIATE" if dialect == "sqlite" else "BEGIN"  # safety: pointer-write-lock
        if dialect == "postgresql":
            # Row locks make writers wait for one another, and after the wait they must see what the other did.
            begin += " ISOLATION LEVEL READ COMMITTED"
        with self.translated(), sql.begun(self._engine, [text(begin)]) as (connection, _):
            yield connection

    def lock(self, connection: Connection, tables: Iterable[str]) -> dict[str, str]:
        """Return what :meth:`read` returns; the rows are locked in the order of their names, so that no two
        deadlock.
        """
        with self.translated():
            return self._found(connection.execute(self._pointers_of(tables, lock=True)), tables)

    def move(self, connection: Connection, moves: Mapping[str, tuple[str, str]]) -> None:
        """Let tables, whose rows are locked, point elsewhere: table -> where it points to now, and where to then."""
        tables = sorted(moves)
        for first in range(0, len(tables), _MOVES):
            self._move(connection, {table: moves[table] for table in tables[first : first + _MOVES]})

    def _move(self, connection: Connection, moves: Mapping[str, tuple[str, str]]) -> None:
        from sqlalchemy import and_, case, or_, update

        rows = _iceberg_tables()
        unmoved, targets = [], []
        for table, (old, new) in moves.items():
            namespace, name = split(table)
            row = and_(rows.c.table_namespace == namespace, rows.c.table_name == name)
            targets.append((row, new))
            unmoved.append(
                and_(
                    row,
                    rows.c.metadata_location == old,  # safety: pointer-compare-and-set
                )
            )
        statement = (
            update(rows)
            .where(rows.c.catalog_name == self.catalog_name, or_(*unmoved))
            # MySQL goes by what an assignment before has changed
            .ordered_values(
                (rows.c.previous_metadata_location, rows.c.metadata_location),
                (rows.c.metadata_location, case(*targets)),
            )
        )
        with self.translated():
            moved = connection.execute(statement).rowcount
        if moved != len(moves):
            raise CatalogUnavailableError(  # safety: pointer-count
                f"table {', '.join(moves)}: expected each row in the catalog to stay locked, found "
                f"{len(moves) - moved} of {len(moves)} changed; the transaction is not isolated. Try again, and check "
                "the isolation level of the catalog's database"
            )

    def _pointers_of(self, tables: Iterable[str], lock: bool = False) -> Select[Any]:
        from sqlalchemy import and_, or_, select

        rows = _iceberg_tables()
        by_namespace: dict[str, list[str]] = {}
        for table in sorted(set(tables)):
            namespace, name = split(table)
            by_namespace.setdefault(namespace, []).append(name)
        pointers = (
            select(rows.c.table_namespace, rows.c.table_name, rows.c.metadata_location)
            .where(
                rows.c.catalog_name == self.catalog_name,
                or_(
                    *(
                        and_(rows.c.table_namespace == namespace, rows.c.table_name.in_(names))
                        for namespace, names in by_namespace.items()
                    )
                ),
            )
            .order_by(rows.c.table_namespace, rows.c.table_name)  # safety: pointer-lock-order
        )
        return pointers.with_for_update() if lock else pointers  # safety: pointer-row-lock

    def _found(self, rows: Iterable[Row[Any]], tables: Iterable[str]) -> dict[str, str]:
        found = {
            f"{row.table_namespace}.{row.table_name}": row.metadata_location
            for row in rows
            if row.metadata_location is not None
        }
        if missing := sorted(set(tables).difference(found)):
            raise MissingTableError(
                f"expected table {', '.join(missing)} in catalog {self.catalog_name!r} ({self._shown}), found no such "
                "row in iceberg_tables; create the table, or correct its name or the catalog's"
            )
        return found

    @property
    def _shown(self) -> str:
        return self.database_url

    @contextmanager
    def translated(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

        try:
            yield
        except (OperationalError, ProgrammingError) as error:
            if getattr(error.orig, "sqlstate", None) == _NOT_ALLOWED:
                raise CatalogRefusedError(
                    f"catalog {self.catalog_name!r}: expected to read and change the table iceberg_tables in "
                    f"{self._shown}, found {error.orig}; GRANT SELECT, UPDATE on it (and INSERT, where tables are "
                    "to be made, on iceberg_namespace_properties, too) to the user that the MetaService "
                    "and the catalog connect as, or let both connect as one user; then try again"
                ) from error
            if isinstance(error, ProgrammingError) or "no such table" in str(error.orig):
                raise MissingTableError(
                    f"catalog {self.catalog_name!r}: expected the table iceberg_tables in {self._shown}, found "
                    f"{error.orig}; let the engine create a first table there, or correct the catalog's URL"
                ) from error
            raise self._unavailable(error) from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise self._unavailable(error) from error

    def _unavailable(self, error: Any) -> CatalogUnavailableError:
        return CatalogUnavailableError(
            f"catalog {self.catalog_name!r}: expected {self._shown} to answer, found {error.orig}; check that the "
            "database runs, that its login and password are right, and that nothing holds its write lock, then try "
            "again"
        )


def _end(engine: Engine, process: int) -> None:
    """Close the connections that nobody uses just now; a fork's copies of those of ``process`` are not its own."""
    engine.dispose(close=process == os.getpid())


def _engine(uri: str) -> Engine:
    from sqlalchemy import create_engine, event, make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        url = make_url(uri)
        if url.drivername in ("postgresql", "postgres"):
            # SQLAlchemy's own choice would be a driver that is seldom there; the MetaService's is.
            url = url.set(drivername=_POSTGRESQL)
        if url.drivername == _POSTGRESQL:
            return sql.postgresql_engine(url)
        sqlite = url.get_backend_name() == "sqlite"
        engine = create_engine(url, connect_args={"timeout": sql.LOCK_TIMEOUT} if sqlite else {})
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, ValueError) as error:
        # Neither the URL nor what was said about it: both may show a password, and what cannot be parsed cannot be
        # masked.
        raise ConfigurationError(
            f"catalog URL: expected an SQLAlchemy URL such as sqlite:////path/catalog.db, or the address of a REST "
            "catalog (https://), a Hive Metastore (thrift://) or AWS Glue (glue://), found "
            f"{type(error).__name__} when using it; correct the URL or install the database's driver. Other kinds of "
            "catalogs are not served"
        ) from None
    if sqlite:

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _: Any) -> None:
            # Transactions are begun by us.
            connection.isolation_level = None

    return engine


def _iceberg_tables() -> Any:
    from sqlalchemy import column, table

    return table(
        "iceberg_tables",
        column("catalog_name"),
        column("table_namespace"),
        column("table_name"),
        column("metadata_location"),
        column("previous_metadata_location"),
    )
