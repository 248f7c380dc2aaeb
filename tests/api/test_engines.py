"""Engines as people start them, by the address of the REST catalog: Spark's SQL shell, its JDBC server, and dbt.

Each is asked the seeds' query: before the second epoch, amid it, and after it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from venv import EnvBuilder

import duckdb
import pyspark
import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.spark_conf import reader_conf
from airflow_barrier.project.java import find_java
from airflow_barrier.project.local import QUICK_JAVA
from demo.jars import downloading
from tests.support.ports import free_port
from tests.support.seeds import AFTER, BEFORE, SECOND, TORN, average_in
from tests.support.serving import JARS, serving
from tests.support.shop import Shop
from tests.support.spark import IVY, SparkServer
from tests.support.waiting import patience, wait_for

SPARK = Path(pyspark.__file__).parent
THRIFT_SERVER = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"


def _conf(**options: str) -> list[str]:
    """Options of Spark's command line for catalogs of these names, each with its warehouse, as `spark-conf --reader`
    says them; and for a quick start.
    """
    uri = options.pop("uri")
    conf = {
        "spark.jars.ivy": str(IVY),
        "spark.ui.enabled": "false",
        "spark.master": "local[2]",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "1",
    }
    for name, warehouse in options.items():
        conf |= reader_conf(Settings.embedded("/not asked", spark_catalog=name), uri, warehouse).conf
    return [f"--conf={name}={value}" for name, value in conf.items()]


@pytest.fixture
def own_spark(spark_server: SparkServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of Spark's programs. The server has downloaded their jars: two at once disturb each other."""
    # A process that has had a session of Spark Connect says so to its children.
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    return {"SPARK_HOME": str(SPARK), "JAVA_HOME": str(Path(find_java()).resolve().parents[1])}


def _said(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-5000:]}"
    return done.stdout


class Connected:
    """The barriers that catalogs were given, by the server's log."""

    def __init__(self, log: pytest.LogCaptureFixture) -> None:
        log.set_level("INFO", "airflow_barrier.reading.catalog_pins")
        self._log = log

    def since(self) -> list[str]:
        """Return those since the last look."""
        found = [
            barrier
            for record in self._log.records
            for barrier in re.findall(r"reads (\S+)\.900s\.\d+$", record.message)
        ]
        self._log.clear()
        return found


@pytest.fixture
def connected(caplog: pytest.LogCaptureFixture) -> Connected:
    return Connected(caplog)


# --- Spark's SQL shell ------------------------------------------------------------------------------


def test_spark_sql_on_the_command_line(
    shop: Shop, catalog_uri: str, own_spark: dict[str, str], connected: Connected, tmp_path: Path
) -> None:
    conf = _conf(uri=catalog_uri, pinned="shopping", torn="shopping@ReadUncommitted")

    def averages(*catalogs: str) -> list[float]:
        query = "; ".join(average_in(catalog) for catalog in catalogs)
        said = _said([str(SPARK / "bin" / "spark-sql"), *conf, "-e", query], tmp_path, own_spark)
        return [float(line) for line in said.splitlines()]

    second = shop.open(2)
    shop.process(second, "load", SECOND)
    shop.process(second, "price", SECOND)
    assert averages("pinned", "torn", "pinned") == [BEFORE, TORN, BEFORE]
    assert connected.since() == ["shopping.repeatable_read.b1.r0", "shopping.read_uncommitted"]
    shop.process(second, "amount", SECOND)
    shop.commit(second)
    assert averages("pinned") == [AFTER]
    assert connected.since() == ["shopping.repeatable_read.b2.r0"]


# --- Spark's JDBC server ----------------------------------------------------------------------------


@pytest.fixture
def jdbc(catalog_uri: str, own_spark: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """The address of a Thrift server of Spark's, whose catalog `pinned` is the topology's newest barrier."""
    port = free_port()
    (folder := tmp_path / "thrift").mkdir()
    command = [
        str(SPARK / "bin" / "spark-submit"),
        *("--class", THRIFT_SERVER),
        *_conf(uri=catalog_uri, pinned="shopping"),
        "spark-internal",
        *("--hiveconf", f"hive.server2.thrift.port={port}"),
        *("--hiveconf", "hive.server2.thrift.bind.host=127.0.0.1"),
    ]
    with serving(command, f"tcp://127.0.0.1:{port}", folder / "thrift.log", own_spark):
        yield f"jdbc:hive2://127.0.0.1:{port}/"


class Beeline:
    """A JDBC connection."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._folder, self._process = folder, process
        self._asked = 0

    def average(self) -> float:
        """Ask, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{average_in('pinned')};\n")
        self._process.stdin.flush()
        self._asked += 1
        return wait_for("beeline's answer", self._answers)[self._asked - 1]

    def _answers(self) -> list[float]:
        """What it has said, once it has answered all that it was asked."""
        said = (self._folder / "said").read_text()
        assert self._process.poll() is None, said
        answers = [float(line) for line in re.findall(r"^\d+\.\d+$", said, re.MULTILINE)]
        return answers if len(answers) == self._asked else []


@contextmanager
def _beeline(url: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Beeline]:
    folder.mkdir()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [str(SPARK / "bin" / "beeline"), "--silent=true", "--showHeader=false", "--outputformat=csv2", "-u", url],
            cwd=folder,
            # It keeps what it was asked in the home directory.
            env={**os.environ, **environment, "SPARK_BEELINE_OPTS": f"{QUICK_JAVA} -Duser.home={folder}"},
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Beeline(folder, process)
        process.communicate("!quit\n", timeout=patience())
    finally:
        process.kill()
        process.communicate(timeout=patience())


def test_a_jdbc_connection_stays_at_its_barrier(
    shop: Shop, jdbc: str, own_spark: dict[str, str], connected: Connected, tmp_path: Path
) -> None:
    amid = f"{jdbc}?spark.sql.catalog.pinned.warehouse=shopping@ReadUncommitted"
    with _beeline(jdbc, tmp_path / "first", own_spark) as first:
        assert first.average() == BEFORE
        second = shop.open(2)
        shop.process(second, "load", SECOND)
        shop.process(second, "price", SECOND)
        assert first.average() == BEFORE
        with _beeline(amid, tmp_path / "torn", own_spark) as torn:
            assert torn.average() == TORN
        shop.process(second, "amount", SECOND)
        shop.commit(second)
        assert first.average() == BEFORE, "a connection stays where it is"
        with _beeline(jdbc, tmp_path / "anew", own_spark) as anew:
            assert anew.average() == AFTER, "a new one asks anew"
            assert first.average() == BEFORE
    assert connected.since() == [
        "shopping.repeatable_read.b1.r0",
        "shopping.read_uncommitted",
        "shopping.repeatable_read.b2.r0",
    ]


# --- dbt --------------------------------------------------------------------------------------------

#: A version whose packages PyPI has altogether: those of dbt-core 1.12 fetch a program from elsewhere.
DBT = ("dbt-core==1.11.16", "dbt-duckdb==1.11.1")
EXTENSIONS = ("httpfs", "avro", "iceberg")
PROJECT = {
    "dbt_project.yml": """
name: reports
profile: reports
models: {+materialized: table}
flags: {send_anonymous_usage_stats: false}
""",
    "profiles.yml": """
reports:
  target: dev
  outputs:
    dev:
      type: duckdb
      path: reports.duckdb
      threads: 2
      extensions: [httpfs, avro, iceberg]
      config_options: {extension_directory: EXTENSIONS}
      attach:
        - path: shopping@RepeatableRead
          alias: pinned
          type: iceberg
          options: {endpoint: URI, authorization_type: none}
""",
    "models/shop.yml": """
sources:
  - name: shop
    database: pinned
    tables: [{name: user_item_price}, {name: user_item_amount}]
""",
    "models/price.sql": "SELECT sum(price) AS price FROM {{ source('shop', 'user_item_price') }}",
    "models/amount.sql": "SELECT sum(amount) AS amount FROM {{ source('shop', 'user_item_amount') }}",
    "models/average.sql": "SELECT round(price / amount, 5) AS average FROM {{ ref('price') }}, {{ ref('amount') }}",
}


@pytest.fixture
def dbt() -> Path:
    """The program, in an environment of its own: it needs other versions than Airflow. Installed once a machine."""
    versions = [f"{each}=={version(each)}" for each in ("duckdb", *(f"duckdb-extension-{name}" for name in EXTENSIONS))]
    folder, said = IVY / "dbt", IVY / "dbt" / "installed"
    wanted = "\n".join([sys.base_prefix, str(folder), *DBT, *versions])  # its programs name the folder
    with downloading(JARS) as patiently:
        if not said.exists() or said.read_text() != wanted:
            EnvBuilder(clear=True, with_pip=True).create(folder)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *DBT, *versions]
            patiently(_said, pip, folder, {})
            said.write_text(wanted)
    return folder / "bin" / "dbt"


def test_a_run_of_dbt_reads_one_barrier(
    shop: Shop, catalog_uri: str, connected: Connected, dbt: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "reports"
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("EXTENSIONS", str(_extensions(tmp_path))).replace("URI", catalog_uri))

    def average() -> float:
        _said([str(dbt), "run", "--no-version-check"], folder, {})
        with duckdb.connect(str(folder / "reports.duckdb")) as connection:
            ((found,),) = connection.sql("SELECT average FROM average").fetchall()
        return float(found)

    second = shop.open(2)
    shop.process(second, "load", SECOND)
    shop.process(second, "price", SECOND)
    assert average() == BEFORE
    assert connected.since() == ["shopping.repeatable_read.b1.r0"], "once for all models"
    shop.process(second, "amount", SECOND)
    shop.commit(second)
    assert average() == AFTER
    assert connected.since() == ["shopping.repeatable_read.b2.r0"]


def _extensions(folder: Path) -> Path:
    """A folder in which DuckDB finds its extensions installed, so that it fetches none."""
    with duckdb.connect() as connection:
        ((platform,),) = connection.sql("PRAGMA platform").fetchall()
    there = folder / "extensions" / f"v{duckdb.__version__}" / platform
    there.mkdir(parents=True, exist_ok=True)
    for name in EXTENSIONS:
        package = files(f"duckdb_extension_{name}")
        file = f"{name}.duckdb_extension"
        shutil.copy(str(package / "extensions" / f"v{duckdb.__version__}" / file), there / file)
    return folder / "extensions"
