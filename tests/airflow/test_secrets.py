"""Passwords of connections are in no place that a person or another program can look into."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import httpx
import pytest

from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.hooks.barrier import BarrierHook
from tests.support.airflow import LONG, AirflowUnderTest
from tests.support.postgresql import PostgreSQL
from tests.support.reporting import report
from tests.support.vault import META, PLANTED, CommandLines, Vault, leaks
from tests.support.waiting import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.spark import SparkServer

ERRORS = ("wrong_password", "wrong_host", "wrong_database")


@pytest.mark.drawn("stories of Airflow")
@pytest.mark.timeout(LONG)
def test_planted_passwords_are_nowhere(
    airflow: AirflowUnderTest,
    vault: Vault,
    postgresql: PostgreSQL,
    spark: SparkSession,
    spark_server: SparkServer,
    spark_ui: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spark.sql("CREATE NAMESPACE lake.vault")
    for table in ("events", "totals", "told"):
        spark.sql(f"CREATE TABLE lake.vault.{table} (k INT, n BIGINT) USING iceberg")
    for dag in ("vault", "vault_tells", "vault_errors"):
        airflow.unpause(dag)
    shown: dict[str, str] = {}
    with CommandLines() as seen:
        run, told, failing = (airflow.trigger(dag) for dag in ("vault", "vault_tells", "vault_errors"))
        airflow.wait_for_run("vault", run)
        airflow.wait_for_run("vault_tells", told, "failed")
        airflow.wait_for_run("vault_errors", failing, "failed")
        # what people look at in Airflow
        for task in airflow.tasks("vault", run):
            shown[task] = airflow.log("vault", run, task)
            instance = f"/dags/vault/dagRuns/{run}/taskInstances/{task}"
            shown |= {f"{task} {what}": airflow.api.get(f"{instance}{what}").text for what in ("", "/xcomEntries")}
        for task in ERRORS:
            shown[task] = airflow.log("vault_errors", failing, task)
            assert "expected an answer" in shown[task], shown[task]
            assert "Traceback" in shown[task] or "OperationalError" in shown[task], shown[task]
        for connection in ("vault", *(f"vault_{error}" for error in ERRORS)):
            answer = airflow.api.get(f"{airflow.barriers}/{connection}/topologies/vault/barriers/1")
            assert answer.status_code == (200 if connection == "vault" else 503)
            shown[f"API {connection}"] = answer.text
        # a job's own error, which quotes a password that it has fetched
        failed = airflow.api.get(f"{airflow.barriers}/vault/topologies/vault_tells/barriers/1").text
        assert "RuntimeError: jdbc:postgresql://db/dwh?user=dwh&password=***" in failed
        shown |= {"failed job": failed, "its log": airflow.log("vault_tells", told, "vault_tells.tell")}
        # the command line, as on a worker
        for name, value in vault.environment().items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        for connection in ("vault", *(f"vault_{error}" for error in ERRORS)):
            for command in (["status"], ["database", "check"]):
                assert main([*command, "--conn-id", connection]) == (0 if connection == "vault" else 75)
            good, said = BarrierHook(connection).test_connection()
            assert good == (connection == "vault")
            shown[f"test {connection}"] = said
        printed = capfd.readouterr()
        shown |= {"out": printed.out, "err": printed.err}
        assert "expected an answer" in printed.err
        assert "vault" in printed.out

    # it was the vault that was used, with its password, and the job was submitted
    settings: Settings = BarrierHook("vault").get_settings()
    assert settings.metaservice_password == META
    assert any(b"vault.py" in line for line in seen.lines)
    assert {line for line in seen.lines if PLANTED in line} == set()
    for what, text in shown.items():
        assert PLANTED not in text.encode(), f"{what}: {text}"

    # Spark's pages; the submitted job has kept its own in the folder
    (application,) = httpx.get(f"{spark_ui}/api/v1/applications", timeout=patience()).json()
    api = f"api/v1/applications/{application['id']}"
    pages = ("environment/", "SQL/", "jobs/", "stages/", "executors/", "connect/", f"{api}/environment", f"{api}/sql")
    for page in pages:
        assert PLANTED not in httpx.get(f"{spark_ui}/{page}", timeout=patience()).raise_for_status().content, page

    # every file: logs of all components and tasks, Airflow's database, specs, journal and tables, Spark's log
    found, files = leaks(airflow.home, spark_server.warehouse.parent)
    assert [file for file in found if _told_by_us(file)] == []
    assert (airflow.folder / "vault" / "environment_").is_file()
    # and every row of the MetaService
    database = vault.url.rpartition("/")[2]
    tables = postgresql.run(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'", database=database
    )
    rows = [row for (table,) in tables for row in postgresql.run(f'SELECT t::text FROM "{table}" t', database=database)]
    assert len(rows) > 20
    assert [row for row in rows if PLANTED.decode() in row[0]] == []
    report(
        f"planted passwords: none in {files} files, {len(seen.lines)} command lines ({seen.looks} looks), "
        f"{len(shown) + len(pages)} pages and outputs, {len(rows)} rows"
    )


def _told_by_us(file: Path) -> bool:
    """Whether a planted password is told by anybody but Airflow, which prints what a task has raised, as it is, into
    the output of its scheduler.
    """
    lines = [line for line in file.read_bytes().splitlines() if PLANTED in line]
    return file.name != "airflow-scheduler.log" or any(b"Task failed with exception" not in line for line in lines)


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "log").write_bytes(b"\0 password=" + PLANTED)
    assert leaks(tmp_path) == ([tmp_path / "below" / "log"], 1)
    with CommandLines() as seen:
        command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", "found me"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        looks, deadline = seen.looks, time.monotonic() + patience()
        while seen.looks < looks + 2:
            assert time.monotonic() < deadline
            Event().wait(0.01)
        process.communicate()
    assert any(b"found me" in line for line in seen.lines)
