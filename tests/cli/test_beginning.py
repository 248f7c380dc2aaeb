"""What a new user calls first: `spark-conf` and `init`. That Spark works by it, the tutorial's test shows."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.systems.spark_versions import GUARD_CLASS, NEWEST, SPARK_VERSIONS

SQLITE = {"warehouse": "/data/warehouse"}
POSTGRESQL = {
    "warehouse": "hdfs://nn/lake",
    "spark_catalog": "prod",
    "catalog_name": "prod",
    "metaservice_url": "postgresql://barrier@db:5433/barrier?sslmode=require",
}
REST = {"warehouse": "s3://lake/barrier", "iceberg_conn_id": "lake", "metaservice_url": "sqlite:////data/barrier.db"}
LAKE = {
    "conn_type": "iceberg",
    "host": "https://catalog.example.com/api",
    "login": "me",
    "password": "geheim-1",
    "extra": {"warehouse": "prod", "scope": "ALL", "header.X-Key": "geheim-2", "s3.secret-access-key": "geheim-3"},
}


def conf_of(patched: pytest.MonkeyPatch, extra: Mapping[str, str], *arguments: str) -> None:
    connection = {"conn_type": "barrier", "password": "geheim-4", "extra": extra}
    patched.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", json.dumps(connection))
    patched.setenv("AIRFLOW_CONN_LAKE", json.dumps(LAKE))
    assert main(["spark-conf", *arguments]) == 0


@pytest.mark.parametrize(
    ("extra", "options", "secrets"),
    [
        (
            SQLITE,
            {
                "lake.type": "jdbc",
                "lake.uri": "jdbc:sqlite:/data/warehouse/barrier.db?busy_timeout=60000",
                "lake.warehouse": "file:///data/warehouse",
            },
            set(),
        ),
        (
            POSTGRESQL,
            {
                "prod.type": "jdbc",
                "prod.uri": "jdbc:postgresql://db:5433/barrier?sslmode=require",
                "prod.jdbc.user": "barrier",
                "prod.warehouse": "hdfs://nn/lake",
            },
            {"prod.jdbc.password"},
        ),
        (
            REST,
            {
                "lake.type": "rest",
                "lake.uri": "https://catalog.example.com/api",
                "lake.warehouse": "prod",
                "lake.scope": "ALL",
            },
            {"lake.credential", "lake.header.X-Key"},
        ),
    ],
    ids=["a file", "a server", "rest"],
)
def test_spark_enters_the_same_catalog(
    extra: Mapping[str, str],
    options: Mapping[str, str],
    secrets: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conf_of(monkeypatch, extra, "--json")
    printed = capsys.readouterr().out
    said = json.loads(printed)
    catalogs = {name.removeprefix("spark.sql.catalog."): value for name, value in said["conf"].items()}
    assert {name: catalogs.get(name) for name in options} == options
    assert {name.removeprefix("spark.sql.catalog.") for name in said["secrets"]} == secrets
    assert "geheim" not in printed


def test_another_storage_is_told_to_need_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conf_of(monkeypatch, REST)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("# Spark needs a package, credentials and spark.sql.catalog.lake.io-impl for s3:// as well")


def test_a_spark_that_only_reads(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """That Spark reads by it: `tests/api/test_engines.py`."""
    conf_of(monkeypatch, POSTGRESQL, "--reader", "shopping@ReadCommitted")
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines() if not line.startswith("#")][1:] == [
        ["spark.sql.catalog.prod", "org.apache.iceberg.spark.SparkCatalog"],
        ["spark.sql.catalog.prod.type", "rest"],
        ["spark.sql.catalog.prod.uri", "http://localhost:8765/iceberg/barrier_default"],
        ["spark.sql.catalog.prod.warehouse", "shopping@ReadCommitted"],
        ["spark.sql.catalog.prod.cache-enabled", "false"],
    ]
    assert "# where callers have tokens: spark.sql.catalog.prod.token  <a token of yours>" in printed
    conf_of(monkeypatch, REST, "--reader", "shopping@b12", "--uri", "https://airflow/barrier/iceberg/lake", "--json")
    printed = capsys.readouterr().out
    assert json.loads(printed)["conf"]["spark.sql.catalog.lake.uri"] == "https://airflow/barrier/iceberg/lake"
    assert "spark.sql.catalog.lake.io-impl for s3:// as well" in printed
    assert "geheim" not in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reader", "shopping@newest"], "expected TOPOLOGY, or TOPOLOGY@ and one of"),
        (["--uri", "http://airflow"], "--uri: expected --reader"),
        (["--reader", "shopping", "--with", "kafka"], "--with: expected no --reader"),
        (["--spark", "3.5", "--format", "connect"], "--format connect: expected Spark 4.0 or newer, found 3.5"),
    ],
)
def test_what_cannot_be_printed(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", json.dumps({"conn_type": "barrier", "extra": SQLITE}))
    assert main(["spark-conf", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_packages_of_sources_are_added(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def packages(*arguments: str) -> list[str]:
        conf_of(monkeypatch, SQLITE, "--json", *arguments)
        found: str = json.loads(capsys.readouterr().out)["conf"]["spark.jars.packages"]
        return found.split(",")

    newest = SPARK_VERSIONS[NEWEST].source_packages
    plain = packages()
    assert packages("--with", "kafka", "--with", "avro") == [*plain, newest["kafka"], newest["avro"]]


def test_of_another_spark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    conf_of(monkeypatch, SQLITE, "--json", "--spark", "3.5", "--with", "avro")
    said = json.loads(capsys.readouterr().out)
    iceberg, *others = said["conf"]["spark.jars.packages"].split(",")
    assert iceberg.startswith("org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:")
    assert others[-1].startswith("org.apache.spark:spark-avro_2.12:3.5.")
    assert said["conf"]["spark.sql.extensions"].endswith(f",{GUARD_CLASS}")
    assert "airflow-barrier-guard.jar" in said["remarks"][0]


@pytest.mark.parametrize("extra", [SQLITE, POSTGRESQL], ids=["a file", "a server"])
def test_each_format_says_the_same(
    extra: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    conf_of(monkeypatch, extra, "--json")
    said = json.loads(capsys.readouterr().out)
    everything = {**said["conf"], **{name: f"<{what}>" for name, what in said["secrets"].items()}}

    conf_of(monkeypatch, extra)
    lines = [line.lstrip("# ").split(None, 1) for line in capsys.readouterr().out.splitlines()]
    assert dict(lines) == everything

    conf_of(monkeypatch, extra, "--format", "python")
    assert configured_by(capsys.readouterr().out) == everything

    conf_of(monkeypatch, extra, "--format", "connect")
    shown = tmp_path / "spark-submit"
    shown.write_text('#!/bin/sh\nfor each in "$@"; do echo "$each"; done\n')
    shown.chmod(shown.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    arguments = subprocess.check_output(["sh", "-c", capsys.readouterr().out], env=environment, text=True).splitlines()
    assert dict(one.split("=", 1) for one in arguments if one.startswith("spark.")) == everything
    assert arguments[arguments.index("--jars") + 1].endswith("airflow-barrier-guard.jar")


def configured_by(code: str) -> dict[str, str]:
    """What a SparkSession would be made with."""
    found: dict[str, str] = {}

    class Builder:
        def config(self, name: str, value: str) -> Builder:
            found[name] = value
            return self

        def getOrCreate(self) -> None:  # noqa: N802 - Spark's name
            return

    scope: dict[str, Any] = {"SparkSession": type("SparkSession", (), {"builder": Builder()})}
    exec(code.replace("from pyspark.sql import SparkSession", ""), scope)
    return found


def test_a_database_that_sparks_catalog_cannot_enter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = {**POSTGRESQL, "catalog_uri": "mysql://barrier@db/lake"}
    monkeypatch.setenv("AIRFLOW_CONN_BARRIER_DEFAULT", json.dumps({"conn_type": "barrier", "extra": extra}))
    assert main(["spark-conf"]) == 1
    assert "expected an SQL catalog in SQLite or PostgreSQL" in capsys.readouterr().err


# --- a project --------------------------------------------------------------------------------------


def test_a_project_goes_where_nothing_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "shop")]) == 0
    listed = capsys.readouterr().out
    files = [file.relative_to(tmp_path / "shop") for file in (tmp_path / "shop").rglob("*") if file.is_file()]
    assert len(files) == 10
    assert all(f"shop/{file}\n" in listed for file in files)

    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "shop").rglob("*")}
    assert main(["init", str(tmp_path / "shop")]) == 1
    assert "expected no such folder, or an empty one, found files; name another" in capsys.readouterr().err
    assert before == {file: file.stat().st_mtime_ns for file in (tmp_path / "shop").rglob("*")}


@pytest.mark.parametrize("name", ["a b", "ä", "a'b", "a?b", "a#b", "a%20b"])
def test_a_project_has_a_path_that_all_can_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / name)]) == 1
    assert "expected a path of letters, digits and the characters" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_a_project_without_java_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["init", str(tmp_path / "shop")]) == 0
    assert "Spark needs Java 17 or newer" in capsys.readouterr().err
