"""Real PostgreSQL servers on loopback: one for the whole test run, and ones that a test may kill.

Each test gets databases of its own on the shared server. Passwords are asked for, so what loses one fails.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import URL, make_url

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
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "replica",
    "max_wal_senders": "0",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "deadlock_timeout": "50ms",
    "log_min_messages": "warning",
}


class PostgreSQL:
    """One server and its data, which it keeps when it is killed and started again, on the same port.

    ``options`` are settings that differ from those of the tests.

    >>> with PostgreSQL() as server, server.database() as url:  # doctest: +SKIP
    ...     MetaService(url).check()
    """

    def __init__(self, **options: str) -> None:
        self.port = free_port()
        self._options = {**_OPTIONS, **options}
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-barrier-postgresql-"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgreSQL:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self._folder)

    # --- databases --------------------------------------------------------------------------------

    def url(self, database: str) -> str:
        """As a person writes it, without the driver; with the password. The first one starts the server."""
        if not self._data.exists():
            self._initialise()
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

    def run(self, *statements: str | sql.Composed, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Plain SQL as the superuser, each statement a transaction of its own; returns the last one's rows."""
        with self.admin(database) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def admin(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of the superuser, in autocommit."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="admin",
            password=_ADMIN_PASSWORD,
            dbname=_name(database),
            autocommit=True,
            connect_timeout=10,
        )

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

    # --- the server -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, or start again, and wait until it answers."""
        deadline = time.monotonic() + patience()
        options = [f"-c{name}={value}" for name, value in {**self._options, "port": self.port}.items()]
        while True:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*_not_root(), "--pdeathsig", "INT", binary("postgres"), "-D", str(self._data), *options],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl+C is for the tests, which stop it
                )
            if self._answers(deadline):
                return
            # What a killed server left behind, such as shared memory, goes a moment after its last process.
            assert time.monotonic() < deadline, f"PostgreSQL does not start:\n{self._log.read_text()}"

    def kill(self) -> None:
        """SIGKILL for all of its processes, as when the machine is lost."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._process.kill()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        self._process.wait(patience())
        self._process = None

    def stop(self) -> None:
        """As an operator does: connections are cut, nothing is lost."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(patience())
        self._process = None

    def demote(self) -> None:
        """From now on it only reads, as a server does that another one has taken over from."""
        self.stop()
        signal_file = self._data / "standby.signal"
        signal_file.touch()
        self._own(signal_file)
        self.start()

    def _answers(self, deadline: float) -> bool:
        """Whether it does before it gives up or the time is over."""
        assert self._process is not None
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                self.run("SELECT")
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        return False

    def _initialise(self) -> None:
        secret = self._folder / "password"
        secret.write_text(_ADMIN_PASSWORD)
        self._own(self._folder, secret)
        command = [
            *_not_root(),
            binary("initdb"),
            *("--pgdata", self._data, "--username", "admin", "--pwfile", secret, "--auth", "scram-sha-256"),
            *("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync", "--no-instructions"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience())
        assert done.returncode == 0, f"initdb failed:\n{done.stdout}{done.stderr}"

    def _own(self, *paths: Path) -> None:
        if os.getuid() == 0:
            for path in paths:
                shutil.chown(path, _SERVER_USER, pwd.getpwnam(_SERVER_USER).pw_gid)


#: Who runs the server where the tests run as root, whom PostgreSQL refuses.
_SERVER_USER = "postgres"


def binary(name: str) -> str:
    """Debian keeps the server's programs off the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    path = os.pathsep.join((os.environ.get("PATH", ""), *map(str, reversed(installed))))
    found = shutil.which(name, path=path)
    assert found, (
        f"tests on PostgreSQL: expected its program {name} on the PATH or in /usr/lib/postgresql/*/bin, found none; "
        "install the server: apt-get install postgresql"
    )
    return found


def _not_root() -> list[str]:
    assert shutil.which("setpriv"), "util-linux's setpriv ties a server to the test run: install util-linux"
    if os.getuid() != 0:
        return ["setpriv"]
    return ["setpriv", "--reuid", _SERVER_USER, "--regid", _SERVER_USER, "--clear-groups"]


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
