"""Each adapter on the released operator: what it is refused for, and exactly what it submits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.amazon.aws.operators.emr import (
    EmrAddStepsOperator,
    EmrContainerOperator,
    EmrServerlessStartJobOperator,
)
from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from airflow.providers.databricks.operators.databricks import (
    DatabricksCreateJobsOperator,
    DatabricksJobRunLink,
    DatabricksRunNowOperator,
    DatabricksSubmitRunOperator,
)
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, task

from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.operators.handover.finding import ADAPTERS, adapter_of, registered
from airflow_barrier.operators.handover.local_spark import installed_version
from airflow_barrier.operators.handover.placeholder import BARRIER_CONF
from airflow_barrier.operators.handover.port import Handing
from airflow_barrier.operators.job import as_job
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.systems.spark_versions import is_too_old
from tests.support.cases import cases
from tests.support.dags import stored

HANDING = Handing({"spark.wap.branch": "b1", "spark.airflow_barrier.spec.digest": "d1"}, "/opt/guard.jar", "b1")
CONF = dict(HANDING.conf)
AS_TEXT = "--conf spark.wap.branch=b1 --conf spark.airflow_barrier.spec.digest=d1"
AS_ARGUMENTS = AS_TEXT.split()

NEW_CLUSTER = {"spark_version": "17.3.x-scala2.13", "num_workers": 1, "spark_conf": {"spark.own": "1"}}
SPARK_TASK = {"spark_python_task": {"python_file": "s3://jobs/load.py"}}
STEP = {"Name": "load", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit", "s3://jobs/load.py"]}}
APPLICATION = {
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
    "kind": "SparkApplication",
    "metadata": {"name": "load"},
    "spec": {"sparkVersion": "4.1.1", "sparkConf": {"spark.own": "1"}},
}
EKS = {"name": "load", "virtual_cluster_id": "v", "execution_role_arn": "arn", "release_label": "emr-spark-8.0.0"}


def handed(operator: Any) -> Any:
    adapter = adapter_of(operator)
    assert adapter is not None
    assert adapter.refusal(operator) is None
    adapter.hand_over(operator, HANDING)
    return operator


def test_every_adapter_is_of_a_class_that_is_there() -> None:
    """A provider that moves a class would otherwise be noticed by users."""
    for name in ADAPTERS:
        module, _, cls = name.rpartition(".")
        assert issubclass(getattr(import_module(module), cls), BaseOperator)


def test_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    operator = handed(SparkSubmitOperator(task_id="a", application="/a.py", conf={"spark.own": "1"}))
    command = operator._get_hook()._build_spark_submit_command("/a.py")
    for conf in ("spark.own=1", "spark.wap.branch=b1", "spark.yarn.maxAppAttempts=1"):
        assert command[command.index(conf) - 1] == "--conf"
    assert command[command.index("--jars") + 1] == "/opt/guard.jar"
    operator = handed(SparkSubmitOperator(task_id="b", application="/a.py", jars="/own.jar"))
    command = operator._get_hook()._build_spark_submit_command("/a.py")
    assert command[command.index("--jars") + 1] == "/own.jar,/opt/guard.jar"
    assert not any("spark.jars=" in argument for argument in command)


@pytest.mark.parametrize("conf", [{"spark.own": "1", "spark.jars": "/own.jar"}, "spark.own=1,spark.jars=/own.jar"])
def test_spark_sql(conf: Any) -> None:
    operator = handed(SparkSqlOperator(task_id="a", sql="SELECT 1", conf=conf, master="local[1]"))
    command = operator._get_hook()._prepare_command("")
    for each in ("spark.own=1", "spark.wap.branch=b1", "spark.jars=/own.jar,/opt/guard.jar"):
        assert command[command.index(each) - 1] == "--conf"


@pytest.mark.parametrize(("kind", "jars"), [("spark", "/own.jar,/opt/guard.jar"), ("spark_connect", None)])
def test_pyspark_task(monkeypatch: pytest.MonkeyPatch, kind: str, jars: str | None) -> None:
    connection = {"conn_type": kind, "host": "local", "extra": {"spark.jars": "/own.jar"}}
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps(connection))

    @task.pyspark(conn_id="here", config_kwargs={"spark.own": "1"})
    def load(spark: Any) -> None:
        raise AssertionError

    with DAG("d", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc)), BarrierGroup("t") as group:
        called = load()
        assert group.job(called, outlets=["n.t"]) is called
    operator = handed(called.operator)
    assert operator.config_kwargs == {"spark.own": "1", **CONF, **({"spark.jars": jars} if jars else {})}
    assert type(operator).__name__ == "_PySparkDecoratedOperator"


@pytest.mark.parametrize("by_file", [False, True])
def test_kubernetes(tmp_path: Path, by_file: bool) -> None:
    file = tmp_path / "app.json"
    file.write_text(json.dumps(APPLICATION))
    given: Any = {"application_file": file.read_text()} if by_file else {"template_spec": {"spark": APPLICATION}}
    operator = handed(SparkKubernetesOperator(task_id="a", **given))
    assert operator.template_body["spark"]["spec"]["sparkConf"] == {"spark.own": "1", **CONF}
    assert operator.reattach_on_restart is False
    assert "spark.wap.branch" not in APPLICATION["spec"]["sparkConf"]  # type: ignore[index]
    # a file that is yet to be rendered says nothing while the DAG is parsed
    as_job(SparkKubernetesOperator(task_id="b", application_file="app.yaml"))


@pytest.mark.parametrize(
    "run",
    [
        {"json": {"new_cluster": NEW_CLUSTER, **SPARK_TASK}},
        {"new_cluster": NEW_CLUSTER, **SPARK_TASK},
        {"tasks": [{"task_key": "a", "new_cluster": NEW_CLUSTER, **SPARK_TASK}]},
    ],
)
def test_databricks(run: dict[str, Any]) -> None:
    operator = handed(DatabricksSubmitRunOperator(task_id="a", **run))
    submitted = operator._get_merged_json() if hasattr(operator, "_get_merged_json") else operator._build_json()
    (part,) = submitted.get("tasks") or [submitted]
    assert part["new_cluster"]["spark_conf"] == {"spark.own": "1", **CONF}
    assert submitted["idempotency_token"] == HANDING.token
    assert NEW_CLUSTER["spark_conf"] == {"spark.own": "1"}


def test_emr_steps() -> None:
    other = {"Name": "copy", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["s3-dist-cp"]}}
    for steps in ([STEP, other], str([STEP, other])):
        operator = handed(EmrAddStepsOperator(task_id="a", job_flow_id="j", steps=steps, wait_for_completion=True))
        assert operator.steps[0]["HadoopJarStep"]["Args"] == [
            "spark-submit", *AS_ARGUMENTS, "--conf", "spark.yarn.maxAppAttempts=1", "s3://jobs/load.py",
        ]  # fmt: skip
        assert operator.steps[1] == other


def test_emr_serverless_and_containers() -> None:
    submit = {"entryPoint": "s3://jobs/load.py", "sparkSubmitParameters": "--name a"}
    serverless = handed(
        EmrServerlessStartJobOperator(
            task_id="a", application_id="i", execution_role_arn="arn", job_driver={"sparkSubmit": submit}
        )
    )
    assert serverless.job_driver["sparkSubmit"]["sparkSubmitParameters"] == f"--name a {AS_TEXT}"
    containers = handed(EmrContainerOperator(task_id="b", job_driver={"sparkSubmitJobDriver": submit}, **EKS))
    assert containers.job_driver["sparkSubmitJobDriver"]["sparkSubmitParameters"] == f"--name a {AS_TEXT}"
    assert {serverless.client_request_token, containers.client_request_token} == {HANDING.token}
    assert submit["sparkSubmitParameters"] == "--name a"


def test_livy() -> None:
    operator = handed(LivyOperator(task_id="a", file="s3://jobs/load.py", conf={"spark.own": "1"}, polling_interval=9))
    assert operator.hook.build_post_batch_body(**operator.spark_params)["conf"] == {"spark.own": "1", **CONF}


def test_an_author_says_where_the_conf_goes() -> None:
    operator = handed(BashOperator(task_id="a", bash_command=f"spark-submit {BARRIER_CONF} a.py", env={"C": "x"}))
    assert operator.bash_command == f"spark-submit {AS_TEXT} a.py"

    class Own(BaseOperator):
        template_fields = ("arguments", "body")

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.arguments = ["spark-submit", BARRIER_CONF, "a.py"]
            self.body = {"spec": {"conf": BARRIER_CONF, "size": 1}}

    own = handed(Own(task_id="b"))
    assert own.arguments == ["spark-submit", *AS_ARGUMENTS, "a.py"]
    assert own.body == {"spec": {"conf": CONF, "size": 1}}


NIGHTLY = """
from airflow.sdk import BaseOperator


class NightlyOperator(BaseOperator):
    def __init__(self, conf=None, **kwargs):
        super().__init__(**kwargs)
        self.conf = conf or {}


class WeeklyOperator(NightlyOperator):
    pass
"""
NIGHTLY_ADAPTER = """
def refusal(operator):
    return "a nightly job has a conf of its own: give it one" if not operator.conf else None


def spark_version(operator):
    return None


def hand_over(operator, handing):
    operator.conf = {**operator.conf, **handing.conf}
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """A distribution with operators of its own, whose adapter is where its entry point says; returns its module."""
    (tmp_path / "barrier_nightly.py").write_text(NIGHTLY)
    (tmp_path / "barrier_nightly_adapter.py").write_text(NIGHTLY_ADAPTER)
    metadata = tmp_path / "barrier_nightly-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: barrier-nightly\nVersion: 1.0\n")

    def install(adapter: str) -> Any:
        entry = f"[airflow_barrier.adapters]\nbarrier_nightly.NightlyOperator = {adapter}\n"
        (metadata / "entry_points.txt").write_text(entry)
        monkeypatch.syspath_prepend(str(tmp_path))
        registered.cache_clear()
        return import_module("barrier_nightly")

    yield install
    monkeypatch.undo()
    registered.cache_clear()
    for name in ("barrier_nightly", "barrier_nightly_adapter"):
        sys.modules.pop(name, None)


def test_an_author_registers_an_adapter(installed: Callable[[str], Any]) -> None:
    nightly = installed("barrier_nightly_adapter")
    for operator_class in (nightly.NightlyOperator, nightly.WeeklyOperator):
        operator = operator_class(task_id="a", conf={"spark.own": "1"})
        as_job(operator)
        assert handed(operator).conf == {"spark.own": "1", **CONF}
    with pytest.raises(ConfigurationError, match="has a conf of its own: give it one"):
        as_job(nightly.NightlyOperator(task_id="b"))


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        ("barrier_nightly_adaptor", "expected an adapter there, found No module named 'barrier_nightly_adaptor'"),
        ("barrier_nightly_adapter:Adapter", "found module 'barrier_nightly_adapter' has no attribute 'Adapter'"),
        ("barrier_nightly", "found none named refusal, spark_version, hand_over"),
    ],
)
def test_an_entry_point_that_leads_to_no_adapter(installed: Callable[[str], Any], adapter: str, says: str) -> None:
    operator = installed(adapter).NightlyOperator(task_id="a", conf={"spark.own": "1"})
    with pytest.raises(ConfigurationError, match=f"entry point barrier_nightly.NightlyOperator = {adapter} .*{says}"):
        as_job(operator)


class Stranger(BaseOperator):
    """That it has an attribute ``conf`` does not say whose it is."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.conf = {"spark.own": "1"}


REFUSED: list[tuple[Callable[[], BaseOperator], str]] = [
    (lambda: EmptyOperator(task_id="a"), "put BARRIER_CONF .* or register an adapter for its class"),
    (lambda: Stranger(task_id="a"), "an entry point of the group airflow_barrier.adapters"),
    (
        lambda: SparkSubmitOperator(task_id="a", conf={"spark.yarn.submit.waitAppCompletion": "false"}),
        "ends the task before its job",
    ),
    (lambda: LivyOperator(task_id="a", file="a"), "polling_interval"),
    (lambda: EmrAddStepsOperator(task_id="a", job_flow_id="j", steps=[STEP]), "wait_for_completion=True"),
    (lambda: EmrAddStepsOperator(task_id="a", job_flow_id="j", steps=[], wait_for_completion=True), "command-runner"),
    (
        lambda: EmrContainerOperator(task_id="a", job_driver={"sparkSqlJobDriver": {}}, **EKS),
        "give job_driver a sparkSubmitJobDriver",
    ),
    (
        lambda: EmrContainerOperator(
            task_id="a", job_driver={"sparkSubmitJobDriver": {}}, job_retry_max_attempts=2, **EKS
        ),
        "second driver",
    ),
    (
        lambda: EmrServerlessStartJobOperator(
            task_id="a",
            application_id="i",
            execution_role_arn="r",
            job_driver={"sparkSubmit": {}},
            config={"retryPolicy": {"maxAttempts": 3}},
        ),
        "second driver",
    ),
    (
        lambda: DatabricksSubmitRunOperator(task_id="a", json={"existing_cluster_id": "c", **SPARK_TASK}),
        "give the run a new_cluster",
    ),
    (
        lambda: DatabricksSubmitRunOperator(
            task_id="a", tasks=[{"task_key": "a", "new_cluster": NEW_CLUSTER, "max_retries": 2, **SPARK_TASK}]
        ),
        "max_retries",
    ),
    (
        lambda: DatabricksSubmitRunOperator(
            task_id="a", new_cluster=NEW_CLUSTER, wait_for_termination=False, **SPARK_TASK
        ),
        "does not wait",
    ),
    (lambda: DatabricksRunNowOperator(task_id="a", job_id=1), "use DatabricksSubmitRunOperator"),
    (lambda: DatabricksCreateJobsOperator(task_id="a", name="j"), "use DatabricksSubmitRunOperator"),
    (
        lambda: SparkKubernetesOperator(
            task_id="a",
            template_spec={"spark": {**APPLICATION, "spec": {"restartPolicy": {"type": "OnFailure"}}}},
        ),
        "set it to Never",
    ),
]


def test_what_cannot_be_a_job_is_refused_with_what_to_do() -> None:
    with cases() as case:
        for make, advice in REFUSED:
            operator = make()
            with case(f"{type(operator).__name__}: {advice}"), pytest.raises(ConfigurationError, match=advice):
                as_job(operator)


@pytest.mark.kills("spark-is-new-enough")
def test_the_spark_that_will_run_is_known_where_it_can_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert installed_version("spark-submit") == "4.1.3"
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.4.4.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert installed_version("spark-submit") == "3.4.4"
    task_ = SparkSubmitOperator(task_id="a", application="/a.py")
    as_job(task_)
    with pytest.raises(ConfigurationError, match=r"expected Spark 3\.5 or newer, found 3\.4\.4"):
        task_.epoch_work({})  # type: ignore[attr-defined]
    old: list[tuple[Any, str]] = [
        (
            EmrContainerOperator(task_id="b", job_driver={}, **{**EKS, "release_label": "emr-6.15.0-latest"}),
            "3.4 or older of emr-6.15",
        ),
        (
            DatabricksSubmitRunOperator(
                task_id="c", new_cluster={**NEW_CLUSTER, "spark_version": "13.3.x-scala2.12"}, **SPARK_TASK
            ),
            "3.4 or older of Databricks",
        ),
        (SparkKubernetesOperator(task_id="d", template_spec={"spark": {"spec": {"sparkVersion": "3.4.4"}}}), "3.4.4"),
    ]
    for operator, version in old:
        adapter = adapter_of(operator)
        assert adapter is not None
        assert (adapter.spark_version(operator) or "").startswith(version)
        assert is_too_old(adapter.spark_version(operator) or "")


class Computing(SparkSubmitOperator):
    """An author's own, whose class computes what each task links to."""

    @property
    def operator_extra_links(self) -> Any:  # type: ignore[override]
        return (DatabricksJobRunLink(),)


@task.pyspark(task_id="a")
def by_function() -> None:
    pass


SUBMIT = {"entryPoint": "s3://jobs/load.py"}


@pytest.mark.parametrize(
    ("operator", "own"),
    [
        (lambda: SparkEpochOperator(task_id="a", sql="SELECT 1"), set()),
        (lambda: SparkSubmitOperator(task_id="a", application="/a.py"), set()),
        (lambda: SparkSqlOperator(task_id="a", sql="SELECT 1"), set()),
        (lambda: by_function().operator, set()),
        (lambda: LivyOperator(task_id="a", file="s3://jobs/load.py", polling_interval=9), set()),
        (lambda: SparkKubernetesOperator(task_id="a", template_spec={"spark": APPLICATION}), set()),
        (
            lambda: EmrAddStepsOperator(task_id="a", job_flow_id="j", steps=[STEP], wait_for_completion=True),
            {"EMR Cluster", "EMR Cluster Logs"},
        ),
        (lambda: EmrContainerOperator(task_id="a", job_driver={"sparkSubmitJobDriver": SUBMIT}, **EKS), set()),
        (
            lambda: DatabricksSubmitRunOperator(task_id="a", json={"new_cluster": NEW_CLUSTER, **SPARK_TASK}),
            {"See Databricks Job Run"},
        ),
        (lambda: Computing(task_id="a", application="/a.py"), {"See Databricks Job Run"}),
    ],
)
def test_a_job_links_to_its_barrier_beside_what_its_operator_links_to(
    operator: Callable[[], Any], own: set[str]
) -> None:
    with DAG("dag", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=timezone.utc)) as dag:
        job = operator()
        as_job(job)
    # to the API server, and to the worker when the task ends
    shown = stored(dag).get_task("a").extra_links
    pushed = [link.name for link in job.prepare_for_execution().operator_extra_links]
    assert sorted(shown) == sorted(pushed) == sorted({*own, "Barrier"})
    with DAG("other"):
        assert {link.name for link in operator().operator_extra_links} == own, "another task of its class is no job"
