"""One Spark Connect server for the whole test run, started when the first test asks for it.

Sessions are Spark Connect's only: a process that has made one cannot make a classic one as well. Each test makes
tables in a namespace of its own. ``BARRIER_TEST_IVY`` names another cache of jars than the checkout's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from demo.local_spark import LocalConnectServer

#: Names the server of another process of the same test run, to be used instead of one's own.
SHARED_SERVER = "BARRIER_TEST_SPARK_SERVER"
#: A second catalog of the server, for a topology whose name and tables another test uses in the first one. It lies in
#: the folder of this name beside the server's warehouse, its database `catalog.db` in it.
APART = "apart"
#: A third one, for the topology of the demo with a history that is corrected.
REVISED = "revised"
IVY = Path(os.environ.get("BARRIER_TEST_IVY") or Path(__file__).parents[2] / ".demo" / "ivy")


@pytest.fixture(scope="session")
def spark_ui() -> str:
    """Where the server's own pages are: they know what runs."""
    from demo.local_airflow import free_port

    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory, spark_ui: str) -> Iterator[LocalConnectServer]:
    """The server; ``.url`` for further sessions, ``.warehouse`` and ``.catalog_db`` for other engines."""
    from airflow_barrier.spark.guard import guard_jar
    from demo.local_spark import CATALOG, QUICK_JAVA, LocalConnectServer, catalog_conf

    if SHARED_SERVER in os.environ:
        url, warehouse, catalog_db = json.loads(os.environ[SHARED_SERVER])
        yield SimpleNamespace(url=url, warehouse=Path(warehouse), catalog_db=Path(catalog_db))  # type: ignore[misc]
        return
    folder = tmp_path_factory.mktemp("spark")
    others = {}
    for name in (APART, REVISED):
        (folder / name).mkdir()
        for key, value in catalog_conf(folder / name, folder / name / "catalog.db").items():
            others[key.replace(f".catalog.{CATALOG}", f".catalog.{name}")] = value
    conf = {
        **others,
        "spark.jars": guard_jar(),
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "true",
        "spark.ui.port": spark_ui.rpartition(":")[2],
    }
    with LocalConnectServer(folder / "warehouse", folder / "catalog.db", IVY, conf=conf) as server:
        yield server


def shared(server: LocalConnectServer) -> str:
    """What :data:`SHARED_SERVER` is for another process."""
    return json.dumps([server.url, str(server.warehouse), str(server.catalog_db)])


@pytest.fixture(scope="session")
def spark(spark_server: LocalConnectServer) -> Iterator[SparkSession]:
    """A session that tests share. What changes a session's conf takes one of its own."""
    from airflow_barrier.spark.connect import connect_session, stop_session

    session = connect_session(spark_server.url)
    yield session
    stop_session(session)  # while the server is there: a client that has lost its server hangs at exit
