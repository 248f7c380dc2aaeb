"""A Hive Metastore, in a process of its own: its Thrift service, its database (Derby's) and its locks.

with hive_metastore(folder) as server:
    HiveCatalog("hive", uri=server.uri, warehouse=server.warehouse)
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from tests.support.ports import free_port
from tests.support.serving import downloaded, serving
from tests.support.waiting import patience

#: The one that Spark 4 brings: it refuses to alter a table whose metadata are others than expected (HIVE-26882).
VERSION = "2.3.10"
#: One that does not know of that.
OLD = "2.3.9"

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
#: Of each version the jars that set it apart, with their SHA-256; all others are those that Spark brings.
_JARS = {
    VERSION: {
        "org/apache/hive/hive-metastore/2.3.10/hive-metastore-2.3.10.jar": (
            "20786e707c40793b5e23688c61dc1959b3c828a821945712a530983cb7ea6c24"
        ),
        "org/apache/thrift/libthrift/0.16.0/libthrift-0.16.0.jar": (
            "b311ad08f7dc5ba90139910ec8619460914a4a2952f738603f1d7803ffdbe0a8"
        ),
    },
    OLD: {
        "org/apache/hive/hive-metastore/2.3.9/hive-metastore-2.3.9.jar": (
            "224b4a59344ff8136a68c0033801390f20d4d01c30ea5fd5dd9c4592f9c8a9ef"
        ),
        "org/apache/thrift/libthrift/0.12.0/libthrift-0.12.0.jar": (
            "28478ea7b296ff569aae07271ddaf1d2118bcb325495f25a2d323891cfc46c68"
        ),
    },
}
#: What Spark 3.5 does not bring, for its Derby.
_IJ = "org/apache/derby/derbytools/10.14.2.0/derbytools-10.14.2.0.jar"
_IJ_DIGEST = "3c695cbcde7e9e68156e55d6a0d85ddb8d8a0e770ef9b48375c07ec960574f56"
#: Packages that Hive 2.3 looks into.
_OPENED = ("java.lang", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent")


@dataclass(frozen=True)
class HiveServer:
    """``uri`` is what clients connect to; ``warehouse`` the root of the tables."""

    uri: str
    warehouse: str
    properties: tuple[tuple[str, str], ...] = ()


@contextmanager
def hive_metastore(folder: Path, version: str = VERSION, lock_timeout: int = 10) -> Iterator[HiveServer]:
    """A lock whose client has not been heard of for ``lock_timeout`` seconds is dropped, two seconds later at most."""
    from airflow_barrier.project.java import find_java

    port = free_port()
    warehouse = (folder / "warehouse").as_uri()
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
    java = [find_java(), *options, *opened, "-cp", ":".join(map(str, [conf, *_jars(version)]))]
    _make_tables_of_locks(java, database, folder)
    command = [*java, _MAIN, "-p", str(port)]
    with serving(command, f"tcp://127.0.0.1:{port}", folder / "hive.log"):
        yield HiveServer(f"thrift://127.0.0.1:{port}", warehouse)


@pytest.fixture(scope="session")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveServer]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as server:
        yield server


@pytest.fixture(scope="session")
def old_hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveServer]:
    with hive_metastore(tmp_path_factory.mktemp("old_hive"), OLD) as server:
        yield server


def _site(settings: Mapping[str, str]) -> str:
    properties = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    return f"<configuration>\n{chr(10).join(properties)}\n</configuration>\n"


def _make_tables_of_locks(java: Sequence[str], database: str, folder: Path) -> None:
    """Hive would make them itself with `hive.in.test`, but then refuses the locks that pyiceberg asks for."""
    script = folder / "locks.sql"
    script.write_text(f"CONNECT '{database}';\n{Path(__file__).with_name('hive_locks.sql').read_text()}")
    command = [*java, "org.apache.derby.tools.ij", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False, cwd=folder)
    if done.returncode != 0 or "ERROR" in done.stdout:
        raise RuntimeError(f"the tables of Hive's locks cannot be made:\n{done.stdout[-3000:]}{done.stderr}")


def _jars(version: str) -> list[Path]:
    """The server's class path."""
    import pyspark

    spark = Path(pyspark.__file__).parent / "jars"
    own = {path.rpartition("/")[2]: (path, digest) for path, digest in _JARS[version].items()}
    others = {path.rpartition("/")[2] for jars in _JARS.values() for path in jars} - set(own)
    brought = [jar for jar in sorted(spark.glob("*.jar")) if jar.name not in others]
    names = {jar.name for jar in brought}
    if not any(name.startswith("derbytools-") for name in names):
        own[_IJ] = (_IJ, _IJ_DIGEST)
    return [*brought, *(downloaded(*said) for name, said in own.items() if name not in names)]
