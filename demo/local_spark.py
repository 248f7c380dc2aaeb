"""A Spark Connect server on this machine, with an Iceberg catalog over one SQLite file: for the demo and the tests.

with LocalConnectServer(warehouse, catalog_db, ivy) as server:
    spark = connect_session(server.url)   # of airflow_barrier.spark.connect
    ...
    stop_session(spark)      # before the server goes: a session whose server is gone hangs at exit
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.spark_conf import spark_conf
from airflow_barrier.project.java import find_java
from airflow_barrier.project.local import CONNECT_SERVER, connect_server_conf
from airflow_barrier.systems.spark_versions import installed_spark
from airflow_barrier.tables.spark_catalog import SQLITE_DRIVER
from demo.local_airflow import free_port

_SPARK = installed_spark()
PACKAGES = ",".join((_SPARK.iceberg_runtime, SQLITE_DRIVER, *_SPARK.source_packages.values()))
CATALOG = "lake"


class LocalSparkError(RuntimeError):
    """The local Spark server died, or does not start; the message says why."""


def catalog_conf(warehouse: Path, catalog_db: Path) -> dict[str, str]:
    """The Spark conf of the catalog ``lake``: an SQLite file for the pointers, a folder for the data."""
    return _conf_of(_embedded(warehouse, catalog_db))


def _embedded(warehouse: Path, catalog_db: Path) -> Settings:
    database = f"sqlite:///{catalog_db}"
    return Settings(metaservice_url=database, catalog_uri=database, warehouse=warehouse.as_uri())


def _conf_of(settings: Settings) -> dict[str, str]:
    return {name: value for name, value in spark_conf(settings).conf.items() if name != "spark.jars.packages"}


class LocalConnectServer:
    """Starts on entering, stops on leaving. ``url`` is what clients connect to.

    ``warehouse``, ``catalog_db`` and ``ivy`` (the cache of downloaded jars) are made if absent; the log is
    ``connect.log`` beside the warehouse. ``conf`` is added to Spark's. ``settings``: of a deployment whose catalog is
    another one than that file. Raises ConfigurationError if there is no
    usable Java, and :class:`LocalSparkError` if the server does not accept connections within ``timeout`` seconds (the
    first start downloads jars).
    """

    def __init__(
        self,
        warehouse: Path,
        catalog_db: Path,
        ivy: Path,
        port: int | None = None,
        conf: Mapping[str, str] | None = None,
        timeout: float = 300.0,
        settings: Settings | None = None,
    ) -> None:
        self.warehouse, self.catalog_db, self.ivy = (Path(path).resolve() for path in (warehouse, catalog_db, ivy))
        self.port = port or free_port()
        self.url = f"sc://127.0.0.1:{self.port}"
        self.log = self.warehouse.parent / "connect.log"
        self._conf = dict(conf or {})
        self._settings = settings or _embedded(self.warehouse, self.catalog_db)
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> LocalConnectServer:
        """Start the server and wait until it accepts connections."""
        import pyspark

        java = find_java()
        for folder in (self.warehouse, self.catalog_db.parent, self.ivy):
            folder.mkdir(parents=True, exist_ok=True)
        conf = {
            **connect_server_conf(self.port),
            "spark.jars.packages": PACKAGES,
            "spark.jars.ivy": str(self.ivy),
            "spark.sql.warehouse.dir": str(self.warehouse.parent / "spark-warehouse"),
            **_conf_of(self._settings),
            **self._conf,
        }
        home = Path(pyspark.__file__).parent
        # Where Linux's setpriv is there, a killed demo or test run takes its server along.
        dying_with_us = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        command = [*dying_with_us, str(home / "bin" / "spark-submit"), "--class", CONNECT_SERVER]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        environment = {**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(Path(java).resolve().parents[1])}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "spark-internal"],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.warehouse.parent,  # Spark leaves folders in its working directory
                env=environment,
                start_new_session=True,  # a process group of its own: the launcher script and the JVM stop together
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def pid(self) -> int:
        """The number of the server's process, which is its JVM."""
        assert self._process is not None, "expected a server that was started"
        return self._process.pid

    def stop(self) -> None:
        """Stop the server and all that it started. Again is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        for signum in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, signum)
                process.wait(timeout=20)
                return
            except ProcessLookupError:
                process.wait(timeout=20)
                return
            except subprocess.TimeoutExpired:
                continue

    def _wait(self) -> None:
        process = self._process
        assert process is not None
        deadline = time.monotonic() + self._timeout
        while not _accepts(self.port):
            if process.poll() is not None:
                raise LocalSparkError(f"Spark ended with code {process.returncode} while starting:\n{self._tail()}")
            if time.monotonic() > deadline:
                raise LocalSparkError(
                    f"Spark did not accept connections at {self.url} within {self._timeout:.0f} s:\n{self._tail()}"
                )
            time.sleep(0.1)

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-25:]
        return "\n".join([*lines, f"(the whole log: {self.log})"])

    def __enter__(self) -> LocalConnectServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
