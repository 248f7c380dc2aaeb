"""Iceberg's REST reference server: keeps branches, and takes `transactions/commit` without being atomic.

with reference_server(folder) as server:
    IcebergTables.connect(server.uri, server.warehouse)
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.serving import JARS, downloading, serving
from tests.support.waiting import patience

#: Names the server of another process of the same test run, to be used instead of one's own.
SHARED_SERVER = "BARRIER_TEST_REST_SERVER"
_IVY = Path(__file__).with_name("rest_catalog.ivy.xml")
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
#: What the server needs and Spark brings.
_OF_SPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "jcl-over-slf4j-*.jar")


@dataclass(frozen=True)
class RestServer:
    """``uri`` is what clients connect to, with ``properties``; ``warehouse`` the root of its tables."""

    uri: str
    warehouse: str
    properties: tuple[tuple[str, str], ...] = ()


@contextmanager
def reference_server(folder: Path) -> Iterator[RestServer]:
    from demo.local_spark import find_java

    java = find_java()
    warehouse = (folder / "warehouse").as_uri()
    port = free_port()
    environment = {
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_REST_PORT": str(port),
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
    }
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, _jars(java))), _MAIN]
    uri = f"http://127.0.0.1:{port}"
    with serving(command, f"{uri}/v1/config", folder / "rest.log", environment):
        yield RestServer(uri, warehouse)


def shared(server: RestServer) -> str:
    """What :data:`SHARED_SERVER` is for another process."""
    return json.dumps([server.uri, server.warehouse])


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    if SHARED_SERVER in os.environ:
        yield RestServer(*json.loads(os.environ[SHARED_SERVER]))
        return
    with reference_server(tmp_path_factory.mktemp("rest")) as server:
        yield server


def _jars(java: str) -> list[Path]:
    """The server's class path: resolved by the Ivy that Spark brings, once a machine."""
    import pyspark

    spark = Path(pyspark.__file__).parent / "jars"
    folder = JARS / "reference-server"
    with downloading() as patiently:
        if not (folder / "resolved").exists():
            ivy = ":".join(str(jar) for jar in spark.glob("ivy-*.jar"))
            patiently(_resolve, [java, "-cp", ivy, "org.apache.ivy.Main"], folder)
    return [*folder.glob("*.jar"), *(jar for pattern in _OF_SPARK for jar in spark.glob(pattern))]


def _resolve(ivy: list[str], folder: Path) -> None:
    pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
    command = [*ivy, "-ivy", str(_IVY), "-cache", str(JARS / "ivy"), "-retrieve", pattern]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(), check=False)
    if done.returncode != 0 or "UNRESOLVED" in done.stdout:
        raise RuntimeError(f"the reference server's jars cannot be resolved:\n{done.stdout[-3000:]}{done.stderr}")
    (folder / "resolved").touch()
