"""Iceberg's REST reference server: keeps branches, and takes `transactions/commit` without being atomic.

with reference_server(folder) as server:
    IcebergTables.connect(server.uri, server.warehouse)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.jars import resolved
from tests.support.ports import free_port
from tests.support.serving import JARS, serving

#: Names the server of another process of the same test run, to be used instead of one's own.
SHARED_SERVER = "BARRIER_TEST_REST_SERVER"
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
    from airflow_barrier.project.java import find_java

    java = find_java()
    warehouse = (folder / "warehouse").as_uri()
    port = free_port()
    environment = {
        "CATALOG_WAREHOUSE": warehouse,
        "CATALOG_REST_PORT": str(port),
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
    }
    command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, _jars())), _MAIN]
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


def _jars() -> list[Path]:
    """The server's class path."""
    import pyspark

    spark = Path(pyspark.__file__).parent / "jars"
    own = resolved(Path(__file__).with_name("rest_catalog.ivy.xml"), JARS)
    return [*own, *(jar for pattern in _OF_SPARK for jar in spark.glob(pattern))]
