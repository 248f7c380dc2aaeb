"""A Hive Metastore on this machine: its Thrift service, its database (Derby's) and its locks.

with hive_metastore(folder) as server:
    HiveCatalog("hive", uri=server.uri, warehouse=server.warehouse)
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from demo.local_airflow import free_port

#: Hive's own settings log into a folder of the user's.
_LOGGING = """\
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %5p [%t] %c{2}: %m%n
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
"""
_MAIN = "org.apache.hadoop.hive.metastore.HiveMetaStore"
#: Packages that Hive 2.3 looks into.
_OPENED = ("java.lang", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent")


class LocalHiveError(RuntimeError):
    """The metastore cannot be started; the message says what it said."""


@dataclass(frozen=True)
class HiveServer:
    """``uri`` is what clients connect to; ``warehouse`` the root of the tables."""

    uri: str
    warehouse: str
    properties: tuple[tuple[str, str], ...] = ()


@contextmanager
def hive_metastore(
    folder: Path,
    warehouse: str | None = None,
    jars: Sequence[Path] | None = None,
    lock_timeout: int = 10,
    patience: float = 120.0,
) -> Iterator[HiveServer]:
    """``folder`` gets its data and its log; ``warehouse``: by default a folder of it. ``jars``: its class path, by
    default those that the installed pyspark brings.

    A lock whose client has not been heard of for ``lock_timeout`` seconds is dropped, two seconds later at most.
    """
    from airflow_barrier.project.java import find_java

    port = free_port()
    warehouse = warehouse or (folder / "warehouse").as_uri()
    conf = folder / "conf"
    conf.mkdir(parents=True)
    database = f"jdbc:derby:{folder}/metastore;create=true"
    settings = {
        "hive.metastore.warehouse.dir": warehouse,
        "javax.jdo.option.ConnectionURL": database,
        "hive.metastore.schema.verification": "false",
        "datanucleus.connectionPoolingType": "HikariCP",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.async.log.enabled": "false",  # for lack of a jar
        "hive.hmshandler.retry.attempts": "1",  # of what its database refuses, two seconds apart
        "hive.txn.timeout": f"{lock_timeout}s",
        # These three start what drops locks.
        "hive.compactor.initiator.on": "true",
        "hive.support.concurrency": "true",
        "hive.txn.manager": "org.apache.hadoop.hive.ql.lockmgr.DbTxnManager",
        "hive.timedout.txn.reaper.start": "1s",
        "hive.timedout.txn.reaper.interval": "1s",
    }
    (conf / "hive-site.xml").write_text(_site(settings))
    (conf / "hive-log4j2.properties").write_text(_LOGGING)
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dderby.system.home={folder}"]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    java = [find_java(), *options, *opened, "-cp", ":".join(map(str, [conf, *(jars or sparks_jars())]))]
    _make_tables_of_locks(java, database, folder, patience)
    log = folder / "hive.log"
    # Where Linux's setpriv is there, a killed demo or test run takes its server along.
    dying_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*dying_with_us, *java, _MAIN, "-p", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,  # Ctrl+C is for us, who stop it
        )
    try:
        _await(process, port, log, patience)
        yield HiveServer(f"thrift://127.0.0.1:{port}", warehouse)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # nothing that it keeps is needed afterwards
        process.wait(timeout=patience)


def sparks_jars() -> list[Path]:
    """The jars of the installed pyspark, Hive's among them."""
    import pyspark

    return sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar"))


def _await(process: subprocess.Popen[bytes], port: int, log: Path, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            raise LocalHiveError(f"Hive's metastore does not start:\n{tail}\n(the whole log: {log})")
        time.sleep(0.1)


def _site(settings: Mapping[str, str]) -> str:
    properties = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    return f"<configuration>\n{chr(10).join(properties)}\n</configuration>\n"


def _make_tables_of_locks(java: Sequence[str], database: str, folder: Path, patience: float) -> None:
    """Hive would make them itself with `hive.in.test`, but then refuses the locks that pyiceberg asks for."""
    script = folder / "locks.sql"
    script.write_text(f"CONNECT '{database}';\n{Path(__file__).with_name('hive_locks.sql').read_text()}")
    command = [*java, "org.apache.derby.tools.ij", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False, cwd=folder)
    if done.returncode != 0 or "ERROR" in done.stdout:
        raise LocalHiveError(f"the tables of Hive's locks cannot be made:\n{done.stdout[-3000:]}{done.stderr}")
