"""Real PostgreSQL servers on loopback: one for the whole test run, and ones that a test may kill.

Each test gets databases of its own on the shared server. Passwords are asked for, so what loses one fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, make_url

from demo.local_postgresql import ADMIN, LocalPostgreSQL, as_server, binary
from tests.support.ports import free_port
from tests.support.waiting import patience

#: Neither of them goes through a URL unless it is escaped.
PASSWORD = "geheim @:/?#&=%s+'\"\\"
_ADMIN_PASSWORD = f"admin {PASSWORD}"
#: Owner of the tests' databases: no superuser, as in production.
USER = "barrier"
_TEMPLATE = "migrated"

# Durability against a loss of power is not tested, and costs most of the time. Killing the server loses nothing.
_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "logical",
    "max_replication_slots": "50",
    "max_wal_senders": "0",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "deadlock_timeout": "50ms",
    "log_min_messages": "warning",
}


class PostgreSQL(LocalPostgreSQL):
    """One server, which the first database starts.

    ``options`` are settings that differ from those of the tests.

    >>> with PostgreSQL() as server, server.database() as url:  # doctest: +SKIP
    ...     MetaService(url).check()
    """

    def __init__(self, **options: str) -> None:
        super().__init__(free_port(), _ADMIN_PASSWORD, **(_OPTIONS | options))
        self.patience = patience()

    # --- databases --------------------------------------------------------------------------------

    def url(self, database: str) -> str:
        """As a person writes it, without the driver; with the password. The first one starts the server."""
        if not self._data.exists():
            self.start()
            self.run(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(USER), sql.Literal(PASSWORD)))
        return URL.create("postgresql", USER, PASSWORD, "127.0.0.1", self.port, database).render_as_string(False)

    def create(self, name: str, *, migrated: bool = True) -> str:
        """The URL of a new database, to be dropped with the server; ``migrated``: with the MetaService's schema."""
        url = self.url(name)
        self._create(name, self._template() if migrated else "template0")
        return url

    @contextmanager
    def database(self, *, migrated: bool = True, like: str | None = None) -> Iterator[str]:
        """The URL of a database of one's own, which is dropped afterwards, whoever is still connected to it.

        ``migrated``: with the MetaService's schema, and an incarnation of its own. ``like``: URL of a database to copy,
        to which nobody may be connected.
        """
        url = self.url(f"barrier_{uuid4().hex}")
        if like is not None:
            self._create(_name(url), _name(like))
        elif migrated:
            self._create(_name(url), self._template())
            self.run("UPDATE barrier_service SET incarnation = gen_random_uuid()", database=_name(url))
        else:
            self._create(_name(url), "template0")
        try:
            yield url
        finally:
            self.run(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(_name(url))))

    def _create(self, name: str, template: str) -> None:
        statement = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}")
        self.run(statement.format(*map(sql.Identifier, (name, USER, template))))

    def _template(self) -> str:
        """A database with the MetaService's schema: copying it takes a tenth of the time that migrating takes."""
        from airflow_barrier.metaservice.migrate import migrate

        if not self.run(f"SELECT 1 FROM pg_database WHERE datname = '{_TEMPLATE}'"):
            self._create(_TEMPLATE, "template0")
            migrate(self.url(_TEMPLATE))
        return _TEMPLATE

    def admin(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the superuser, in autocommit. ``database``: its name, or its URL."""
        return super().admin(_name(database))

    @contextmanager
    def copied_disk(self) -> Iterator[Callable[[], None]]:
        """Keep its data as they are now; what is yielded puts them back, as a person does with a copy of a disk."""
        copy = self._folder / "copy"
        self.stop()
        shutil.copytree(self._data, copy, symlinks=True)
        self.start()

        def put_back() -> None:
            self.stop()
            shutil.rmtree(self._data)
            copy.rename(self._data)
            self._own(self._data, *self._data.rglob("*"))
            self.start()

        yield put_back

    # --- standbys ---------------------------------------------------------------------------------

    @contextmanager
    def standby(self) -> Iterator[PostgreSQL]:
        """Another server, which follows this one. The options of this one let it: see `max_wal_senders`."""
        with PostgreSQL(**self._options) as other:
            self._own(other._folder)
            subprocess.run(
                [
                    *as_server(),
                    binary("pg_basebackup"),
                    *("--pgdata", other._data, "--host", "127.0.0.1", "--port", str(self.port), "--username", ADMIN),
                    *("--write-recovery-conf", "--checkpoint", "fast", "--wal-method", "fetch", "--no-sync"),
                ],
                check=True,
                capture_output=True,
                timeout=self.patience,
                env={**os.environ, "PGPASSWORD": _ADMIN_PASSWORD},
            )
            other.start()
            yield other

    def follow(self, primary: PostgreSQL) -> None:
        """Follow another server from now on, which has taken over."""
        self.stop()
        self._options["primary_conninfo"] = make_conninfo(
            host="127.0.0.1", port=primary.port, user=ADMIN, password=_ADMIN_PASSWORD
        )
        self.start()

    def copy_slot(self, name: str, standby: PostgreSQL) -> None:
        """Put a slot into a standby that is stopped, as Patroni does: by its file."""
        where = standby._data / "pg_replslot" / name
        shutil.copytree(self._data / "pg_replslot" / name, where)
        self._own(where, *where.rglob("*"))

    def demote(self) -> None:
        """From now on it only reads, as a server does that another one has taken over from."""
        self.stop()
        signal_file = self._data / "standby.signal"
        signal_file.touch()
        self._own(signal_file)
        self.start()


def without_password(url: str) -> str:
    """As it stands in an Airflow connection, whose password is a field of its own."""
    parts = make_url(url)
    return URL.create(
        parts.drivername, parts.username, None, parts.host, parts.port, parts.database, parts.query
    ).render_as_string()


def with_driver(url: str) -> str:
    """For SQLAlchemy itself, whose own choice of a driver is another."""
    return url.replace("postgresql://", "postgresql+psycopg://")


def _name(url: str) -> str:
    """The database of a URL; a name as it is."""
    return make_url(url).database or "" if "://" in url else url


# --- fixtures -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    """The server that tests share: they make databases on it and leave it alone otherwise."""
    with PostgreSQL() as server:
        yield server


@pytest.fixture
def own_postgresql() -> Iterator[PostgreSQL]:
    """A server of the test's own, which it may kill and start again."""
    with PostgreSQL() as server:
        yield server
