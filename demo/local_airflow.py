"""A real Airflow on this machine: scheduler, triggerer, DAG processor and API server as four processes of ours."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from airflow_barrier.project.local import airflow_settings

#: Airflow's local settings. Tasks run in forks of the scheduler, and DAG files are parsed in forks of their processor:
#: what the parent has imported, none of them imports again. Only tasks use engines.
_PRELOADED = """
import sys

import airflow.providers.apache.spark.hooks.spark_connect
import airflow.providers.apache.spark.operators.spark_submit
import airflow.sdk.execution_time.task_runner

import airflow_barrier.hooks.barrier
import airflow_barrier.operators.epoch
import airflow_barrier.operators.group

if "scheduler" in sys.argv:
    import pyiceberg.catalog.sql
    import pyspark.sql.connect.session
"""


#: Where people look for Airflow's UI.
UI_PORT = 8080


class LocalAirflowError(RuntimeError):
    """Airflow cannot be started, or a part of it died; the message says which and where its log is."""


class LocalAirflow:
    """Starts on :meth:`start`, ends on :meth:`stop`. ``url`` is the UI's; user ``admin`` with ``password``.

    ``home`` becomes Airflow's home, with its logs. ``database`` is the URL of its database, driver included; without
    it, one in SQLite lies there too. ``environment`` is added for all components (connections, what the DAGs read).
    ``python``: that of the environment which has the Airflow.
    Ports are free ones, except that the UI gets UI_PORT if nobody has it (``takes_ui_port``).
    """

    #: How long it may take until Airflow is healthy.
    seconds_to_start = 180.0
    #: Whether its UI gets UI_PORT, where people look for it, if nobody has that port.
    takes_ui_port = True

    def __init__(
        self,
        home: Path,
        dags: Path,
        plugins: Path,
        logs: Path,
        environment: Mapping[str, str],
        database: str | None = None,
        python: str = sys.executable,
    ) -> None:
        self.home, self.logs, self._database, self._python = home, logs, database, python
        self.port = UI_PORT if self.takes_ui_port and _is_free(UI_PORT) else free_port()
        self.url = f"http://localhost:{self.port}"
        self.password = secrets.token_urlsafe(9)
        self._environment = {**os.environ, **self._settings(dags, plugins), **environment}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._has_database = False

    @property
    def _sqlite(self) -> Path:
        return self.home / "airflow.db"

    def _settings(self, dags: Path, plugins: Path) -> dict[str, str]:
        passwords = self.home / "passwords.json"
        settings = {
            "CORE__PLUGINS_FOLDER": plugins,
            "CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": passwords,
            "API__SECRET_KEY": secrets.token_hex(16),
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            **({"DATABASE__SQL_ALCHEMY_CONN": self._database} if self._database else {}),
            # Airflow makes one out of the other only for drivers that it expects.
            **({"DATABASE__SQL_ALCHEMY_CONN_ASYNC": self._database} if self._database else {}),
            "LOGGING__WORKER_LOG_SERVER_PORT": free_port(),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": free_port(),
        }
        return {
            **airflow_settings(self.home, dags, self.port),
            **{f"AIRFLOW__{key}": str(value) for key, value in settings.items()},
        }

    def make_database(self) -> None:
        """Make home and database, while nothing else has to be there; :meth:`start` does it otherwise."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        (self.home / "passwords.json").write_text(json.dumps({"admin": self.password}))
        (self.home / "config").mkdir(exist_ok=True)
        (self.home / "config" / "airflow_local_settings.py").write_text(_PRELOADED)
        migrate = self._spawn("db migrate", ["db", "migrate"])
        if migrate.wait(timeout=self.seconds_to_start) != 0:
            raise LocalAirflowError(f"airflow db migrate failed: see {self._log('db migrate')}")
        if self._database is None:
            with closing(sqlite3.connect(self._sqlite)) as database:
                database.execute("PRAGMA journal_mode = WAL")  # for good: whoever reads is not in the way of who writes
        self._has_database = True

    def start(self) -> None:
        """Start everything, and wait until all of it is healthy."""
        if not self._has_database:
            self.make_database()
        for component in ("api-server", "dag-processor", "triggerer"):
            self._processes[component] = self._spawn(component, [component])
        self._wait(set())
        # last: tasks that start before they can reach the API server fail
        self._processes["scheduler"] = self._spawn("scheduler", ["scheduler"])
        self._wait({"scheduler", "triggerer", "dag_processor"})

    def check(self) -> None:
        """Raise :class:`LocalAirflowError` if a component has died."""
        for component, process in self._processes.items():
            if process.poll() is not None:
                raise LocalAirflowError(
                    f"Airflow's {component} ended with exit code {process.returncode}: see {self._log(component)}"
                )

    def stop(self) -> None:
        """End all components and the tasks they run. Again is fine."""
        processes, self._processes = self._processes, {}
        for signum, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
            for process in processes.values():
                _signal_group(process, signum)
            deadline = time.monotonic() + patience
            for process in processes.values():
                try:
                    process.wait(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue

    def _spawn(self, name: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                [self._python, "-m", "airflow", *arguments],
                env=self._environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own: tasks end with the component that runs them
            )

    def _log(self, name: str) -> Path:
        return self.logs / f"airflow-{name.replace(' ', '-')}.log"

    def _wait(self, parts: set[str]) -> None:
        """Until the API server answers and says that ``parts`` are healthy."""
        deadline = time.monotonic() + self.seconds_to_start
        while not self._healthy(parts):
            self.check()
            if time.monotonic() > deadline:
                raise LocalAirflowError(f"Airflow was not healthy after {self.seconds_to_start:.0f} s: see {self.logs}")
            time.sleep(0.5)

    def _healthy(self, parts: set[str]) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/api/v2/monitor/health", timeout=5) as answer:
                health = json.load(answer)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False
        return all(health[part]["status"] == "healthy" for part in parts)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _signal_group(process: subprocess.Popen[bytes], signum: int) -> None:
    try:
        os.killpg(process.pid, signum)
    except ProcessLookupError:
        return
