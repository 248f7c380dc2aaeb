"""A real PostgreSQL server on loopback, with data of its own, which ends with the process that started it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from typing_extensions import Self

ADMIN = "admin"
#: Who runs the server where we are root, whom PostgreSQL refuses.
_SERVER_USER = "postgres"


class LocalPostgreSQLError(RuntimeError):
    """The server cannot be started; the message says what is missing or what the server said."""


class LocalPostgreSQL:
    """One server and its data, which it keeps when it is killed and started again, on the same port.

    ``password`` is that of the superuser, ADMIN; passwords are asked for, so what loses one fails. ``options`` are
    settings of the server. Leaving the context stops the server and takes its data away.

    >>> with LocalPostgreSQL(5432, "secret") as server:  # doctest: +SKIP
    ...     server.run("SELECT 1")
    [(1,)]
    """

    #: How long it may take until the server answers, and until it has stopped.
    patience = 60.0

    def __init__(self, port: int, password: str, **options: str) -> None:
        self.port = port
        self._password = password
        self._options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **options}
        self._folder = Path(tempfile.mkdtemp(prefix="airflow-barrier-postgresql-"))
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.stop()
        shutil.rmtree(self._folder)

    def start(self) -> None:
        """Start, or start again, and wait until it answers. The first start makes the data."""
        if not self._data.exists():
            self._initialise()
        deadline = time.monotonic() + self.patience
        options = [f"-c{name}={value}" for name, value in {**self._options, "port": self.port}.items()]
        while True:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*as_server(), "--pdeathsig", "INT", binary("postgres"), "-D", str(self._data), *options],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl+C is for us, who stop it
                )
            if self._answers(deadline):
                return
            # What a killed server left behind, such as shared memory, goes a moment after its last process.
            if time.monotonic() >= deadline:
                raise LocalPostgreSQLError(f"PostgreSQL does not start:\n{self._log.read_text()}")

    def kill(self) -> None:
        """SIGKILL for all of its processes, as when the machine is lost."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._process.kill()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        self._process.wait(self.patience)
        self._process = None

    def stop(self) -> None:
        """As an operator does: connections are cut, nothing is lost."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(self.patience)
        self._process = None

    def run(self, *statements: str | psycopg.sql.Composed, database: str = "postgres") -> list[tuple[Any, ...]]:
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
            user=ADMIN,
            password=self._password,
            dbname=database,
            autocommit=True,
            connect_timeout=10,
        )

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
        secret.write_text(self._password)
        self._own(self._folder, secret)
        command = [
            *as_server(),
            binary("initdb"),
            *("--pgdata", self._data, "--username", ADMIN, "--pwfile", secret, "--auth", "scram-sha-256"),
            *("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync", "--no-instructions"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.patience)
        if done.returncode != 0:
            raise LocalPostgreSQLError(f"initdb failed:\n{done.stdout}{done.stderr}")

    def _own(self, *paths: Path) -> None:
        if os.getuid() == 0:
            for path in paths:
                shutil.chown(path, _SERVER_USER, pwd.getpwnam(_SERVER_USER).pw_gid)


def binary(name: str) -> str:
    """The path of a program of the server's, which Debian keeps off the PATH. Raises LocalPostgreSQLError."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    path = os.pathsep.join((os.environ.get("PATH", ""), *map(str, reversed(installed))))
    found = shutil.which(name, path=path)
    if not found:
        raise LocalPostgreSQLError(
            f"expected PostgreSQL's program {name} on the PATH or in /usr/lib/postgresql/*/bin, found none; install "
            "the server: apt-get install postgresql"
        )
    return found


def as_server() -> list[str]:
    """What runs a program of the server's as a user that is not root, whom PostgreSQL refuses."""
    if not shutil.which("setpriv"):
        raise LocalPostgreSQLError("expected util-linux's setpriv on the PATH, found none; install util-linux")
    if os.getuid() != 0:
        return ["setpriv"]
    return ["setpriv", "--reuid", _SERVER_USER, "--regid", _SERVER_USER, "--clear-groups"]
