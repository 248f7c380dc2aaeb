"""What a DAG's jobs say is looked at before a run: while the file is parsed, or by `validate` and `doctor`."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_barrier.cli.job_text import remarks_on
from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.metaservice.migrate import migrate
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.protocol.errors import BarrierError, ConfigurationError
from airflow_barrier.sources.files import Files
from airflow_barrier.sources.kafka import Kafka

START = datetime(2025, 1, 1, tzinfo=timezone.utc)
LOAD = "INSERT INTO {target:shop.clicks} SELECT * FROM {source:clicks}"


@pytest.fixture
def dag() -> DAG:
    return DAG("shop", schedule="@daily", start_date=START)


def load(group: BarrierGroup, statement: str, **declared: Any) -> None:
    declared = {"inlets": [Files("/in", schema="id BIGINT", name="clicks")], "outlets": ["shop.clicks"], **declared}
    group.job(SparkEpochOperator(task_id="load", sql=statement), **declared)


# --- while the file is parsed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "declared", "message"),
    [
        (LOAD.replace("source:clicks", "source:click"), {}, r"uses external source 'click'.*Did you mean 'clicks'\?"),
        (LOAD.replace("source:clicks", "read:shop.users"), {}, r"inlets; declared: none\. Add inlets=\[\.\.\., 'shop"),
        (
            LOAD.replace("shop.clicks", "shop.cliks"),
            {},
            r"table 'shop\.cliks'.* outlets; .*Did you mean 'shop\.clicks'",
        ),
        ("INSERT INTO lake.shop.clicks SELECT 1", {}, r"job load: SQL job: expected \{target:ns\.table\}"),
        (
            LOAD,
            {"outlets": ["shop.clicks", "shop.users"]},
            r"its SQL to write each.*no \{target:shop\.users\}",
        ),
    ],
)
def test_sql_that_does_not_fit_is_an_import_error(
    dag: DAG, statement: str, declared: dict[str, Any], message: str
) -> None:
    with dag, pytest.raises(BarrierError, match=message), BarrierGroup("shop") as group:
        load(group, statement, **declared)


def test_sql_with_a_table_that_the_driver_writes(dag: DAG) -> None:
    clicks = Kafka("clicks", conn_id="kafka_default", schema="id BIGINT", dead_letters="shop.letters")
    with dag, BarrierGroup("shop") as group:
        load(group, LOAD, inlets=[clicks], outlets=["shop.clicks", "shop.letters"])
    assert remarks_on([group]) == []


def test_a_function_that_nobody_called_is_no_task(dag: DAG) -> None:
    @task.pyspark
    def alerts() -> None: ...

    with dag:
        group = BarrierGroup("shop")
    with pytest.raises(ConfigurationError, match=r"call it: barrier\.job\(alerts\(\), \.\.\.\)"):
        group.job(alerts, outlets=["shop.alerts"])
    with pytest.raises(ConfigurationError, match="expected a task, found 'load'"):
        group.job("load", outlets=["shop.alerts"])


# --- by the commands ------------------------------------------------------------------------------

PROJECT = """
from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sensors.barrier import BarrierSensor
from airflow_barrier.tables import Table

def job(task_id, **what):
    barrier.job(SparkEpochOperator(task_id=task_id, **what), outlets=[Table(f"shop.{task_id}", "id BIGINT")])

with DAG("shop", schedule=None, default_args={"retries": 2}), BarrierGroup("shop", barrier_conn_id="told") as barrier:
    job("right", sql="right.sql")
    job("typo", sql="typo.sql")
    job("absent", sql="absent.sql")
    job("jinja", sql="INSERT INTO {target:shop.jinja} SELECT '{{ ds }}' FROM {read:shop.x} JOIN {read:{{ params.t }}}")
    job("later", sql="{{ params.file }}.sql")
    job("grammar", sql="INSRT INTO {target:shop.grammar} SELECT {timestamp}")
    job("program", application="/nowhere/program.py")
    barrier.job(
        SparkSqlOperator(task_id="plain", sql="INSERT INTO lake.shop.plain SELECT count( FROM lake.shop.right"),
        inlets=["shop.right"],
        outlets=[Table("shop.plain", "id BIGINT")],
    )
    EmptyOperator(task_id="check") >> barrier.commit
    BarrierSensor.partial(task_id="sense", barrier_conn_id="told").expand(topology=["till"]) >> barrier.start
"""
#: What is said of each job; the first three keep it from running.
SAID = {
    "job typo uses table 'shop.tipo', which is not among its outlets; declared: shop.typo. Did you mean": True,
    "job absent: expected the template absent.sql in the folder of its DAG or in template_searchpath, found no": True,
    "job later: expected the template {{ params.file }}.sql in": True,
    "job jinja uses table 'shop.x', which is not among its inlets": False,
    "job grammar: expected SQL that Spark can read, found Invalid expression / Unexpected token at 'INTO'": False,
    "job program: expected its application /nowhere/program.py on this host": False,
    "job plain: expected SQL that Spark can read, found Expecting ) at 'right' in line 1": False,
}


def test_what_only_the_commands_can_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(PROJECT)
    (tmp_path / "right.sql").write_text("INSERT INTO {target:shop.right} SELECT 1")
    (tmp_path / "typo.sql").write_text("INSERT INTO {target:shop.tipo} SELECT 1")
    migrate(Settings.embedded(str(tmp_path)).metaservice_url)
    connection = {"conn_type": "barrier", "extra": {"warehouse": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_TOLD", json.dumps(connection))
    monkeypatch.chdir(tmp_path)  # a DAG file may be named by a relative path

    assert main(["topology", "validate", "shop.py", "--json"]) == 1
    plan = json.loads(capsys.readouterr().out)["plan"]
    for said, hinders in ((plan["problems"], True), (plan["notes"], False)):
        expected = [f"DAG shop: {text}" for text, so in SAID.items() if so is hinders]
        assert len(said) == len(expected), said
        assert all(any(line.startswith(text) for line in said) for text in expected), said

    main(["doctor", "shop.py", "--conn-id", "told", "--json"])
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["about"] == "DAG shop"]
    for text, hinders in SAID.items():
        (line,) = [one for one in found if one["text"].startswith(text)]
        assert line["verdict"] == ("FAIL" if hinders else "warn")
