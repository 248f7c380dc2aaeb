"""What jobs do on the other versions of Spark that they run on, in environments that have these."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_barrier.operators.handover.local_spark import spark_defaults, with_guard
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.systems.spark_versions import GUARD_CLASS, NEWEST, SPARK_VERSIONS, check_version, spark_version
from tests.support.airflow import LONG
from tests.support.drawing import drawn
from tests.support.versions import CHECKOUT, play_on

#: Before 4.0 sessions are of the test's own process; see tests/support/spark.py.
CASES = [
    ("3.5", "tests/airflow/test_unchanged.py"),
    ("3.5", "tests/batching/test_drivers.py"),
    ("3.5", "tests/spark/test_guard.py"),
    ("3.5", "tests/spark/test_submit.py"),
    ("3.5", "tests/spark/test_unchanged.py"),
    ("3.5", "tests/spark/test_epoch_run.py"),
    ("3.5", "tests/spark/test_changes.py"),
    ("3.5", "tests/sources/test_text_records.py"),
    ("4.0", "tests/spark/test_guard.py"),
    ("4.0", "tests/spark/test_connect.py"),
    ("4.0", "tests/spark/test_submit.py"),
    ("4.0", "tests/spark/test_epoch_run.py"),
]


@pytest.mark.every_landing
@pytest.mark.timeout(LONG * len(CASES))
def test_the_same_on_other_versions() -> None:
    for version, story in drawn(CASES, "versions of Spark"):
        play_on(f"spark-{version}", story)


def test_each_version_has_an_environment_and_its_place_in_the_documents() -> None:
    told = (CHECKOUT / "docs/install.md").read_text()
    for version, packages in SPARK_VERSIONS.items():
        assert re.search(rf"\n\| {version} \| .* \| {packages.iceberg}, {packages.scala} \|\n", told)
        assert version == NEWEST or (CHECKOUT / f"requirements/spark-{version}.txt").exists()


def test_a_version_that_no_job_runs_on() -> None:
    for unknown in ("3.4.4", "4.2.0-preview1", "spark"):
        with pytest.raises(ConfigurationError, match=f"expected Spark 3.5, 4.0, 4.1, found {unknown}"):
            spark_version(unknown)
    with pytest.raises(ConfigurationError, match=r"task load: expected Spark 3\.5 or newer, found 3\.4\.4"):
        check_version("3.4.4", "task load")
    for known in (None, "3.5.0", "4.2.0", "unknown"):
        check_version(known, "task load")


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Spark's command, beside which its conf lies."""
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    conf = tmp_path / "conf" / "spark-defaults.conf"
    conf.parent.mkdir()
    conf.write_text("# ours\n\nspark.jars  /own.jar, /b.jar\nspark.sql.extensions=org.Own\nspark.x:1 2\nspark.empty\n")
    return "spark-submit"


def test_what_sparks_own_file_names_goes_along_with_the_guard(
    binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = spark_defaults(binary)
    assert defaults == {"spark.jars": "/own.jar, /b.jar", "spark.sql.extensions": "org.Own", "spark.x": "1 2"}
    jars = {"spark.jars": "/own.jar,/b.jar,/guard.jar"}
    extensions = {"spark.sql.extensions": f"org.Own,{GUARD_CLASS}"}
    cases: list[tuple[dict[str, Any], str | None, dict[str, Any]]] = [
        ({}, "4.1.3", jars),
        ({}, None, jars),
        ({}, "3.5.9", {**jars, **extensions}),
        ({"spark.jars": "/c.jar"}, "4.0.5", {"spark.jars": "/c.jar,/guard.jar"}),
        ({"spark.sql.extensions": "org.C"}, "3.5.9", {**jars, "spark.sql.extensions": f"org.C,{GUARD_CLASS}"}),
        (extensions, "3.5.9", {**jars, **extensions}),
    ]
    for conf, version, expected in cases:
        assert with_guard(conf, "/guard.jar", version, defaults) == {**conf, **expected}
    other = tmp_path / "other.conf"
    other.write_text("spark.jars /d.jar\n")
    assert spark_defaults(binary, str(other)) == {"spark.jars": "/d.jar"}
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert spark_defaults(binary) == {}, "Spark looks nowhere else then"
