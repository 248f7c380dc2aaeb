"""What a beginner gets wrong, and that `doctor` says so in one line that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
from airflow.api_fastapi.core_api.routes.public.monitor import monitor_router
from fastapi import FastAPI

from airflow_barrier.api.server import Served, create_server
from airflow_barrier.api.tokens import Tokens, add_token
from airflow_barrier.cli.doctor import CHECKS
from airflow_barrier.cli.doctor.check import Case, Check, Verdict, examine, ok
from airflow_barrier.cli.main import main
from airflow_barrier.coordinator.deployment import nobody_gets_in, tables_of
from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.coordinator.spark_conf import COMPILED, spark_conf
from airflow_barrier.hooks.deferral import triggerer_fault
from airflow_barrier.metaservice.migrate import migrate
from airflow_barrier.project.write import write_project
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.systems.spark_versions import installed_spark
from airflow_barrier.tables import Table
from demo.local_spark import LocalConnectServer
from tests.api.live import Live
from tests.support.epochs import AMOUNT, shopping_barriers
from tests.support.shop import Shop, make_shop
from tests.support.spark import APART, NO_DRIVER, NO_JAR
from tests.support.waiting import patience

if TYPE_CHECKING:
    from tests.support.spark import SparkServer

CONN_ID = "doctored"


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Define an Airflow connection, as a person does it by the environment."""

    def define(conn_id: str, conn_type: str = "barrier", **fields: Any) -> None:
        described = {"conn_type": conn_type, **fields}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(described))

    return define


def looked(*abouts: str, **of: Any) -> list[str]:
    """The lines of these checks, and of those that they need."""
    conn_id, spark_conn_ids = of.get("conn_id", CONN_ID), of.get("spark_conn_ids", ())
    case = Case(conn_id, spark_conn_ids, of.get("dag_files", ()), of.get("reader_uri"))
    wanted = set(abouts)
    for check in reversed(CHECKS):
        wanted |= set(check.needs) if check.about in wanted else set()
    found = examine(case, [check for check in CHECKS if check.about in wanted])
    return [f"{one.verdict.value} {one.about}: {one.text}" for one in found]


# --- the connection and what it names -------------------------------------------------------------


def test_no_connection(capsys: pytest.CaptureFixture[str]) -> None:
    lines = looked("MetaService", "catalog")
    assert "FAIL connection doctored: expected an Airflow connection" in lines[0]
    assert "airflow connections add doctored --conn-type barrier --conn-extra '{" in lines[0]
    assert lines[1:] == [f"skipped {one}: not looked at: connection failed" for one in ("MetaService", "catalog")]


def test_a_connection_of_another_type(define: Callable[..., None]) -> None:
    define(CONN_ID, "generic", password="geheim", extra={"warehouse": "/w"})
    (line,) = looked("connection")
    assert line.startswith("FAIL connection doctored: expected the type barrier, found generic; name another")
    assert "airflow connections add doctored --conn-type barrier" in line
    assert "geheim" not in line


def test_a_warehouse_that_cannot_be_written(define: Callable[..., None]) -> None:
    define(CONN_ID, extra={"warehouse": "/proc/warehouse"})
    (line,) = [line for line in looked("connection") if not line.startswith("ok")]
    assert line.startswith("FAIL warehouse: expected that this user may write to /proc/warehouse, found [Errno")


def test_the_catalogs_connection_is_missing(define: Callable[..., None]) -> None:
    define(CONN_ID, extra={"warehouse": "s3://w", "metaservice_url": "postgresql://b@db/b", "iceberg_conn_id": "ice"})
    (line,) = looked("connection")
    assert line.startswith("FAIL connection doctored: connection ice: expected")
    assert "--conn-type iceberg" in line


def test_a_new_warehouse_is_fine_and_stays_as_it_is(define: Callable[..., None], tmp_path: Path) -> None:
    define(CONN_ID, extra={"warehouse": str(tmp_path)})
    lines = looked("catalogs of readers", reader_uri="http://127.0.0.1:1")
    assert [line.partition(" ")[0] for line in lines[:3]] == ["ok"] * 3
    assert "run this on a worker, too" in lines[1]
    assert lines[3:] == ["skipped catalogs of readers: not looked at: the MetaService is not made yet"]
    assert list(tmp_path.iterdir()) == []


def test_a_metaservice_that_does_not_answer(define: Callable[..., None], tmp_path: Path) -> None:
    url = "postgresql://barrier@127.0.0.1:1/barrier"
    define(CONN_ID, password="geheim", extra={"warehouse": str(tmp_path), "metaservice_url": url})
    lines = looked("MetaService", "tables")
    assert any(line.startswith("FAIL MetaService: ") and "127.0.0.1" in line for line in lines)
    assert "geheim" not in "".join(lines)
    assert lines[-1] == "skipped tables: not looked at: MetaService failed"


def test_sqlite_where_tasks_run_elsewhere(
    define: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(Settings.embedded(str(tmp_path)).metaservice_url)
    define(CONN_ID, extra={"warehouse": str(tmp_path)})
    assert not [line for line in looked("MetaService") if line.startswith("warn")]
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    (line,) = [line for line in looked("MetaService") if line.startswith("warn")]
    assert "CeleryExecutor" in line
    assert "metaservice_url" in line


# --- readers' catalogs ----------------------------------------------------------------------------


def test_the_address_of_readers_catalogs(
    define: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """That it answers, that it wants a token, and that it is another deployment's."""
    token = add_token(tmp_path / "tokens", "doctor", [])
    shops = []
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        shops.append(make_shop(Settings.embedded(str(tmp_path / name))))
    ours, theirs = shops
    define(CONN_ID, extra={"warehouse": str(tmp_path / "ours")})

    def look(served: Shop) -> str:
        there = Served(CONN_ID, served.deployment.meta, nobody_gets_in, served.deployment)
        with Live(create_server(there, Tokens(tmp_path / "tokens"))) as live:
            uri = live.url.replace("/v1/deployments", f"/iceberg/{CONN_ID}")
            return looked("catalogs of readers", reader_uri=uri)[-1].replace(uri, "URI")

    assert look(ours) == "skipped catalogs of readers: not looked at: no barrier has been opened yet"
    for shop in shops:
        shop.process_all(first := shop.open(1), [{"amount": 1, "price": 1}])
        shop.commit(first)
    assert "expected a token" in look(ours)
    monkeypatch.setenv("AIRFLOW_BARRIER_TOKEN", token)
    assert look(ours).startswith(
        "ok catalogs of readers: URI answers; shopping is read at shopping.repeatable_read.b1.r0."
    )
    assert ours.deployment.meta.leases.of("shopping") == []
    said = look(theirs)
    assert said.startswith("FAIL catalogs of readers: expected URI to serve doctored, found another deployment")
    for shop in shops:
        shop.deployment.close()


# --- Spark ----------------------------------------------------------------------------------------


@pytest.fixture
def on_spark(spark_server: SparkServer, define: Callable[..., None]) -> Callable[..., list[str]]:
    """What is said of the server, for a deployment with these settings."""

    def look(folder: Path, database: Path, **extra: str) -> list[str]:
        url = f"sqlite:///{database}"
        define(CONN_ID, extra={"warehouse": str(folder), "metaservice_url": url, **extra})
        return said_of(spark_server.url, define)

    return look


def said_of(url: str, define: Callable[..., None], *abouts: str, **of: Any) -> list[str]:
    """Of the Spark Connect server there."""
    host, _, port = url.removeprefix("sc://").partition(":")
    define("spark_connect_default", "spark_connect", host=host, port=int(port))
    return [line for line in looked("Spark", *abouts, **of) if "Spark spark_connect_default" in line]


def test_spark_that_is_as_it_should_be(
    on_spark: Callable[..., list[str]], spark_server: SparkServer, spark: Any
) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.doctor")
    spark.sql("CREATE TABLE IF NOT EXISTS lake.doctor.healthy (id BIGINT) USING iceberg")
    lines = on_spark(spark_server.warehouse, spark_server.catalog_db)
    assert [line.partition(" ")[0] for line in lines] == ["ok"] * 4, lines
    for text in ("answers; Spark 4.1", "catalog lake works; Iceberg 1.", "in the same place", "the guard"):
        assert any(text in line for line in lines)


@pytest.mark.parametrize(
    ("catalog", "said"),
    [
        ("absent", "expected the connection's spark_catalog, absent, in Spark's conf"),
        (NO_JAR, "add org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 to spark.jars.packages"),
        (NO_DRIVER, "add org.postgresql:postgresql to spark.jars.packages"),
        (APART, "expected spark.sql.catalog.apart.uri to name the database"),
    ],
)
def test_spark_whose_catalog_is_wrong(
    on_spark: Callable[..., list[str]], tmp_path: Path, catalog: str, said: str
) -> None:
    lines = on_spark(tmp_path, tmp_path / "barrier.db", spark_catalog=catalog)
    assert lines[-1].startswith("FAIL")
    assert said in lines[-1]
    if catalog == "absent":
        assert "airflow-barrier spark-conf" in lines[-1]
        assert "lake" in lines[-1]


def test_tables_under_another_name(on_spark: Callable[..., list[str]], spark_server: SparkServer) -> None:
    lines = on_spark(spark_server.warehouse, spark_server.catalog_db, catalog_name="prod")
    assert "FAIL" in lines[-1]
    assert "catalog_name to be lake" in lines[-1]


def test_a_package_that_a_source_needs(define: Callable[..., None], spark_server: SparkServer, tmp_path: Path) -> None:
    """On a Spark as `spark-conf` configures it without ``--with``, whose jobs say the same, and on one that has it."""
    warehouse, file = tmp_path / "warehouse", tmp_path / "dag.py"
    warehouse.mkdir()
    settings = Settings.embedded(str(warehouse))
    migrate(settings.metaservice_url)
    define(CONN_ID, extra={"warehouse": str(warehouse)})
    file.write_text(OF_KAFKA)
    database = Path(settings.catalog_uri.removeprefix("sqlite:///"))
    packages = spark_conf(settings).conf["spark.jars.packages"]
    conf = {"spark.jars.packages": packages, "spark.driver.memory": "1g", COMPILED: "100"}
    with LocalConnectServer(warehouse, database, spark_server.ivy, conf=conf, timeout=patience()) as bare:
        lines = said_of(bare.url, define, "DAGs", dag_files=[str(file)])
        session = connect_session(bare.url)
        spec = shopping_barriers(session, tmp_path).begin(1, outlets=[AMOUNT])
        with pytest.raises(ConfigurationError) as raised:
            run_epoch(session, spec, lambda epoch: epoch.spark.read.format("kafka").load().show())
        stop_session(session)
    failed = [line for line in lines if line.startswith("FAIL")]
    assert len(failed) == len(installed_spark().source_packages)
    assert any(line.startswith("warn") and f"expected {COMPILED}=20000, found 100" in line for line in lines)
    for line, (name, package) in zip(failed, sorted(installed_spark().source_packages.items()), strict=True):
        assert f"expected the package of Spark's format {name}, {package}, among Spark's jars, found none" in line
        assert f"`airflow-barrier spark-conf --with {name}`" in line
    assert failed[-1].endswith(str(raised.value).partition(": ")[2])
    define(
        CONN_ID,
        extra={"warehouse": str(spark_server.warehouse), "metaservice_url": f"sqlite:///{spark_server.catalog_db}"},
    )
    lines = said_of(spark_server.url, define, "DAGs", dag_files=[str(file)])
    for name in installed_spark().source_packages:
        assert f"ok Spark spark_connect_default: the package of Spark's format {name} is there" in "\n".join(lines)


def test_no_spark(define: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(CONN_ID, extra={"warehouse": str(tmp_path)})
    define("some_spark", "spark", host="local")
    define("no_spark", "http", host="localhost")
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = looked("Spark", spark_conn_ids=("undefined", "some_spark", "no_spark"))[1:]
    assert "FAIL Spark undefined: " in lines[0]
    assert "--conn-type spark_connect --conn-host" in lines[0]
    assert lines[1].startswith("FAIL Spark some_spark: expected spark-submit on PATH")
    assert lines[2].startswith("FAIL Spark no_spark: expected the type spark_connect or spark, found http")


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ('SparkSubmitOperator(task_id="load", application="job.py")', "FAIL Spark spark_default: "),
        ('SparkSqlOperator(task_id="load", sql="SELECT 1")', "FAIL Spark spark_sql_default: "),
        (
            'LivyOperator(task_id="load", file="job.py", deferrable=True)',
            "skipped Spark: not looked at: the DAGs' jobs name no connection of it; ",
        ),
    ],
    ids=["submit", "sql", "livy"],
)
def test_the_spark_of_unchanged_jobs(job: str, said: str, define: Callable[..., None], tmp_path: Path) -> None:
    """The connections that these operators name, which are no others' defaults."""
    define(CONN_ID, extra={"warehouse": str(tmp_path)})
    migrate(Settings.embedded(str(tmp_path)).metaservice_url)
    file = tmp_path / "dag.py"
    file.write_text(OF_PLAIN_JOBS.format(job=job))
    (line,) = (line for line in looked("DAGs", "Spark", dag_files=[str(file)]) if " Spark" in line)
    assert line.startswith(said)


# --- Airflow and its DAGs -------------------------------------------------------------------------


DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.tables import Table

with DAG("doctored", schedule=None), BarrierGroup("doctored", barrier_conn_id="doctored") as barrier:
    job = SparkEpochOperator(task_id="load", application=__file__, retries=2)
    barrier.job(job, outlets=["shop.missing", Table("shop.other", "id BIGINT, n INT"), Table("shop.new", "id BIGINT")])
"""


OF_PLAIN_JOBS = """
from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.providers.apache.spark.operators.spark_sql import SparkSqlOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG
from airflow_barrier.operators.group import BarrierGroup

with DAG("plain", schedule=None), BarrierGroup("plain", barrier_conn_id="doctored") as barrier:
    barrier.job({job}, outlets=["shop.sold"])
"""


OF_KAFKA = """
from airflow.sdk import DAG
from airflow_barrier.operators.epoch import SparkEpochOperator
from airflow_barrier.operators.group import BarrierGroup
from airflow_barrier.sources.kafka import Kafka

PRICE = '{"type": "record", "name": "price", "fields": [{"name": "id", "type": "long"}]}'
PRICES = Kafka("prices", format="avro", avro_schema=PRICE)
SALES = Kafka("sales", format="binary")
with DAG("streams", schedule=None), BarrierGroup("streams", barrier_conn_id="doctored") as barrier:
    job = SparkEpochOperator(task_id="load", application=__file__)
    barrier.job(job, inlets=[PRICES, SALES], outlets=["shop.sold"])
"""


def test_a_dag_without_retries_and_without_its_tables(define: Callable[..., None], tmp_path: Path) -> None:
    settings = Settings.embedded(str(tmp_path))
    migrate(settings.metaservice_url)
    with closing(tables_of(settings)) as tables:
        tables.create(Table("shop.other", "id STRING, n INT"))
    define(CONN_ID, extra={"warehouse": str(tmp_path)})
    file = tmp_path / "dag.py"
    file.write_text(DAG)
    lines = looked("jobs", "tables", dag_files=[str(file)])
    (retries,) = [line for line in lines if line.startswith("warn")]
    assert "doctored.commit, doctored.start: " in retries
    assert "load" not in retries
    assert "retries=2" in retries
    missing, other = [line for line in lines if line.startswith("FAIL")]
    assert missing.startswith("FAIL table shop.missing (DAG doctored): expected")
    assert "declare its columns in its job, outlets=[Table(" in missing
    assert other.startswith("FAIL table shop.other (DAG doctored): ")
    assert "column id is string, declared long" in other
    assert "mend the declaration in the DAG" in other
    assert "ok table shop.new (DAG doctored): is made by its job's first barrier" in lines


def test_a_dag_that_does_not_run(tmp_path: Path) -> None:
    """For want of a schedule, since its time has not come, or since nobody has unpaused it."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.settings import engine
    from airflow.utils.session import create_session

    dated = DAG.replace('"doctored", schedule=None', '"later", schedule="@daily", start_date=datetime(2999, 1, 1)')
    (tmp_path / "later.py").write_text(f"from datetime import datetime\n{dated}")
    (tmp_path / "never.py").write_text(DAG)
    lines = looked("schedules", dag_files=[str(tmp_path)])[2:]
    assert lines[:2] == [
        "warn DAG doctored: it has no schedule: it runs when somebody says: airflow dags trigger doctored",
        "warn DAG later: its start_date is 2999-01-01 00:00:00+00:00, and it does not run before; correct it",
    ]
    assert lines[2].startswith("skipped paused DAGs: not looked at: Airflow's database does not answer here")
    of_airflow = [model.__table__ for model in (DagBundleModel, DagModel)]
    DagModel.metadata.create_all(engine, of_airflow)
    try:
        with create_session() as session:
            session.add(DagBundleModel(name="dags"))
            session.flush()
            session.add(DagModel(dag_id="later", bundle_name="dags", is_paused=True))
        (paused,) = [line for line in looked("schedules", dag_files=[str(tmp_path)]) if "paused" in line]
        assert paused == "warn DAG later: it is paused, and does not run; to let it: airflow dags unpause later"
    finally:
        DagModel.metadata.drop_all(engine, of_airflow)


def test_a_dag_file_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the project of `init` has it, whose DAG finds its data beside itself."""
    write_project(tmp_path / "project", spark_port=15002, airflow_port=8080)
    monkeypatch.chdir(tmp_path / "project")
    lines = looked("DAGs", dag_files=["dags/shop.py"], conn_id="barrier_default")
    assert lines == ["ok DAG shop: topology shop, 2 jobs"]


def test_a_dag_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "dag.py"
    file.write_text("import airflow_barrier.nothing  # DAG of airflow\n")
    (line,) = looked("DAGs", dag_files=[str(file)])
    assert line.startswith(f"FAIL DAGs: {file}")
    assert "airflow_barrier.nothing" in line


@pytest.fixture
def heartbeats() -> Iterator[Callable[[str, datetime], None]]:
    """Leave a heartbeat in the table by which Airflow knows its components."""
    from airflow.jobs.job import Job, JobState
    from airflow.settings import engine
    from airflow.utils.session import create_session

    Job.__table__.create(engine)

    def beat(component: str, at: datetime) -> None:
        with create_session() as session:
            job = Job(job_type=component, state=JobState.RUNNING, hostname="here")
            job.latest_heartbeat = at
            session.add(job)

    yield beat
    Job.__table__.drop(engine)


def test_no_triggerer(heartbeats: Callable[[str, datetime], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting task's log says it, too: it asks the API server, whose real answer is served here."""
    monitored = FastAPI()
    monitored.include_router(monitor_router, prefix="/api/v2")
    now = datetime.now(timezone.utc)
    heartbeats("SchedulerJob", now)
    heartbeats("DagProcessorJob", now)
    with Live(monitored) as live:
        url = live.url.removesuffix("/v1/deployments")
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", url)
        lines = looked("Airflow")
        assert [line.partition(":")[0] for line in lines[:3]] == ["ok scheduler", "FAIL triggerer", "ok dag-processor"]
        assert "found none ever: tasks that wait stay deferred for ever; start it: airflow triggerer" in lines[1]
        assert "there never was one" in str(triggerer_fault())
        heartbeats("TriggererJob", now - timedelta(days=1))
        assert "FAIL triggerer: expected a heartbeat, found the last one at" in looked("Airflow")[1]
        assert "start it: airflow triggerer" in str(triggerer_fault())
        heartbeats("TriggererJob", now)
        assert looked("Airflow")[1].startswith("ok triggerer: alive")
        assert triggerer_fault() is None
    assert triggerer_fault() is None  # nobody says it
    # one that does not answer may be starting, where the scheduler runs
    monkeypatch.setattr("airflow_barrier.cli.doctor.airflow._STARTING", 1.0)
    assert looked("Airflow")[-1].startswith(f"warn api-server: expected an answer at {url}, by which tasks find it, ")
    assert "found ConnectError for 1 s; start it: airflow api-server" in looked("Airflow")[-1]


# --- all of it ------------------------------------------------------------------------------------


def test_a_check_that_hangs_is_left_alone() -> None:
    def hangs(case: Case) -> Iterator[Any]:
        yield ok("slow", "begun")
        Event().wait()  # for ever

    found = list(examine(Case(CONN_ID, (), ()), [Check("slow", hangs), Check("next", hangs, needs=("slow",))], 0.2))
    assert [one.verdict for one in found] == [Verdict.OK, Verdict.FAIL, Verdict.SKIPPED]
    assert "within 0 s" in found[1].text


def test_the_command(define: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["doctor", str(tmp_path), "--conn-id", CONN_ID]
    assert main(arguments) == 1
    assert "FAIL    connection doctored: expected" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is False
    skipped = {"verdict": "skipped", "about": "catalog", "text": "not looked at: connection failed"}
    assert skipped in document["findings"]
