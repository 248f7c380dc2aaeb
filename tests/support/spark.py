"""One Spark Connect server for the whole test run, started by the process whose test asks for it first.

Sessions are Spark Connect's only: a process that has made one cannot make a classic one as well. With a Spark that jobs
do not reach by Spark Connect they are sessions of this process instead. Each test makes tables in a namespace of its
own. ``BARRIER_TEST_IVY`` names another cache of jars than the checkout's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_SH, flock
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from airflow_barrier.systems.spark_versions import is_before
from tests.support.ports import free_port
from tests.support.waiting import patience

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
#: A fourth one, of tests through Airflow, which run beside the others.
IN_AIRFLOW = "in_airflow"
#: A fifth one, of the topology whose questions to Spark are counted.
COUNTED = "counted"
#: Catalogs of the server that cannot work: Iceberg's jar, or the JDBC driver, is not there.
NO_JAR, NO_DRIVER = "no_jar", "no_driver"
IVY = Path(os.environ.get("BARRIER_TEST_IVY") or Path(__file__).parents[2] / ".demo" / "ivy")
#: Jobs do not reach a Spark before 4.0 by Spark Connect.
IN_THIS_PROCESS = is_before(version("pyspark"), "4.0")
SINCE_4_1 = pytest.mark.skipif(is_before(version("pyspark"), "4.1"), reason="older Sparks have no such thing")
SINCE_4 = pytest.mark.skipif(IN_THIS_PROCESS, reason="older Sparks have no such thing")
BEFORE_4 = pytest.mark.skipif(not IN_THIS_PROCESS, reason="of older Sparks: tests/spark/test_versions.py")


def pytest_configure(config: pytest.Config) -> None:
    if IN_THIS_PROCESS:
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")  # to its JVM


@dataclass(frozen=True)
class SparkServer:
    """``url`` is for further sessions, ``ui`` where the server's own pages are: they know what runs; ``warehouse`` and
    ``catalog_db`` are for other engines, ``ivy`` for further servers and drivers.
    """

    url: str
    ui: str
    warehouse: Path
    catalog_db: Path
    ivy: Path = IVY


def shared(server: SparkServer) -> str:
    """What :data:`SHARED_SERVER` is for another process."""
    return json.dumps([server.url, server.ui, str(server.warehouse), str(server.catalog_db)])


def _loaded(text: str) -> SparkServer:
    url, ui, warehouse, catalog_db = json.loads(text)
    return SparkServer(url, ui, Path(warehouse), Path(catalog_db))


@pytest.fixture(scope="session")
def spark_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SparkServer:
    """Where the server is as soon as a test asks for `spark_server`; its folders are there."""
    if SHARED_SERVER in os.environ:
        return _loaded(os.environ[SHARED_SERVER])
    # Each process of several has a folder of its own in the folder of the run.
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if hasattr(request.config, "workerinput") else own).resolve() / "spark"
    folder.mkdir(exist_ok=True)
    said = folder / "server.json"
    with _alone(folder):
        if not said.exists():
            for name in (APART, REVISED, IN_AIRFLOW, COUNTED):
                (folder / name).mkdir()
            urls = f"sc://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
            said.write_text(shared(SparkServer(*urls, folder / "warehouse", folder / "catalog.db")))
    return _loaded(said.read_text())


@pytest.fixture(scope="session")
def spark_server(request: pytest.FixtureRequest, spark_place: SparkServer) -> SparkServer:
    if SHARED_SERVER in os.environ:
        return spark_place
    if IN_THIS_PROCESS:
        request.config.add_cleanup(_start_in_this_process(spark_place).stop)
        return spark_place
    folder = spark_place.warehouse.parent
    users, started = (folder / "users").open("w"), folder / "started"
    # Whoever uses the server says so by a lock, until its process ends.
    request.config.add_cleanup(users.close)
    with _alone(folder):
        flock(users, LOCK_SH)
        if not started.exists():
            server = _start(spark_place)

            def stop() -> None:
                flock(users, LOCK_EX)
                server.stop()

            request.config.add_cleanup(stop)
            started.touch()
    return spark_place


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other process of this test run is in such a block."""
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        yield


def _start(place: SparkServer) -> LocalConnectServer:
    from demo.local_spark import LocalConnectServer

    return LocalConnectServer(
        place.warehouse, place.catalog_db, place.ivy, _port_of(place.url), conf=_conf(place), timeout=patience()
    ).start()


def _start_in_this_process(place: SparkServer) -> SparkSession:
    from pyspark.sql import SparkSession

    from demo.local_spark import PACKAGES, catalog_conf

    builder = SparkSession.builder.master("local[2]")
    conf = {
        **catalog_conf(place.warehouse, place.catalog_db),
        **_conf(place),
        "spark.jars.packages": PACKAGES,
        "spark.jars.ivy": str(place.ivy),
        "spark.sql.warehouse.dir": str(place.warehouse.parent / "spark-warehouse"),
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _conf(place: SparkServer) -> dict[str, str]:
    from airflow_barrier.project.local import QUICK_JAVA
    from airflow_barrier.spark.guard import guard_jar

    folder = place.warehouse.parent
    return {
        **conf_of(folder, APART),
        **conf_of(folder, REVISED),
        **conf_of(folder, IN_AIRFLOW),
        **conf_of(folder, COUNTED),
        f"spark.sql.catalog.{NO_JAR}": "org.apache.iceberg.spark.SparkCatalogOfNoJar",
        f"spark.sql.catalog.{NO_DRIVER}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{NO_DRIVER}.type": "jdbc",
        f"spark.sql.catalog.{NO_DRIVER}.uri": "jdbc:postgresql://127.0.0.1:1/lake",
        f"spark.sql.catalog.{NO_DRIVER}.warehouse": folder.as_uri(),
        "spark.jars": guard_jar(),
        # and not spark.sql.shuffle.partitions, since what a user says of that is no small epoch's
        "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2",
        "spark.default.parallelism": "2",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(_port_of(place.ui)),
    }


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def conf_of(folder: Path, name: str) -> dict[str, str]:
    """Spark's conf of a catalog beside the first one, which lies in ``folder``."""
    from demo.local_spark import CATALOG, catalog_conf

    conf = catalog_conf(folder / name, folder / name / "catalog.db")
    return {key.replace(f".catalog.{CATALOG}", f".catalog.{name}"): value for key, value in conf.items()}


@pytest.fixture(scope="session")
def spark_ui(spark_server: SparkServer) -> str:
    """Where the server's own pages are: they know what runs."""
    return spark_server.ui


@contextmanager
def session_on(server: SparkServer, conf: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """A session of one's own, with ``conf``."""
    session, stop = _beside_others() if IN_THIS_PROCESS else _connected(server)
    try:
        for name, value in conf.items():
            session.conf.set(name, value)
        yield session
    finally:
        stop()  # while the server is there: a client that has lost its server hangs at exit


def _connected(server: SparkServer) -> tuple[SparkSession, Callable[[], None]]:
    from airflow_barrier.spark.connect import connect_session, stop_session

    session = connect_session(server.url)
    return session, lambda: stop_session(session)


def _beside_others() -> tuple[SparkSession, Callable[[], None]]:
    from pyspark.sql import SparkSession

    first = SparkSession.getActiveSession()
    assert first is not None, "expected the fixture spark_server to have made one"
    return first.newSession(), lambda: None


@pytest.fixture(scope="session")
def spark(spark_server: SparkServer) -> Iterator[SparkSession]:
    """A session that tests share. What changes a session's conf takes one of its own."""
    with session_on(spark_server) as session:
        yield session


@pytest.fixture
def session(spark_server: SparkServer) -> Iterator[SparkSession]:
    """A session of the test's own, as an attempt gets it."""
    with session_on(spark_server) as session:
        yield session
