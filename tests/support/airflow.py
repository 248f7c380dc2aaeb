"""A real Airflow for the whole test run: scheduler, triggerer, DAG processor, API server and LocalExecutor.

Tests drive it over its REST API, and look at its effects in the MetaService and in the tables. DAG files of tests lie
in `tests/airflow/dags`; they are paused until a test wants them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import make_url

from airflow_barrier.links.barrier import URL_PREFIX
from airflow_barrier.project.local import QUICK_JAVA
from demo.local_airflow import LocalAirflow
from demo.local_spark import PACKAGES, catalog_conf
from tests.support.lineage import LINEAGE
from tests.support.postgresql import USER, with_driver
from tests.support.spark import IN_AIRFLOW, conf_of
from tests.support.waiting import patience

if TYPE_CHECKING:
    from tests.support.kafka import Kafka
    from tests.support.postgresql import PostgreSQL
    from tests.support.spark import SparkServer
    from tests.support.vault import Vault

DAGS = Path(__file__).parents[1] / "airflow" / "dags"
#: Seconds for `pytest.mark.timeout` of a test that drives Airflow; the longest takes a quarter of it.
LONG = 600.0
#: A database that tables are delivered to, by connection `reporting`.
REPORTING = "reporting"
#: Seconds that anything may take to happen; only reached when it does not happen at all.
_PATIENCE = LONG / 2
#: Seconds for an answer of the API server, which is also asked once a wait is over.
_ANSWER = 180.0
#: Users that may read: everything, and one DAG (:mod:`tests.support.reading_rights`).
READERS = ("viewer", "only_joined", "only_catchup")
_ENDED = frozenset({"success", "failed"})
_STARTED = pytest.StashKey["AirflowUnderTest"]()


class AirflowUnderTest(LocalAirflow):
    """What tests do to Airflow. ``folder`` is where the DAGs of tests find and leave files."""

    takes_ui_port = False  # of two that start in the same moment, both would find the known port free

    def __init__(
        self, home: Path, folder: Path, environment: dict[str, str], dags: Path = DAGS, database: str | None = None
    ) -> None:
        super().__init__(home, dags, home / "plugins", home / "component-logs", environment, database)
        self.seconds_to_start = patience(_PATIENCE)
        # Set by any Spark Connect session of an earlier test; a driver that a task submits would take it for itself.
        self._environment.pop("SPARK_CONNECT_MODE_ENABLED", None)
        self._environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)  # is of tests (conftest.py): Airflow has gRPC's default
        self.folder = folder
        self._client: httpx.Client | None = None

    # --- a person's command line ------------------------------------------------------------------

    @property
    def connections(self) -> dict[str, str]:
        """Variables of the environment with the connections that all components have."""
        return {name: value for name, value in self._environment.items() if name.startswith("AIRFLOW_CONN_")}

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a terminal in which somebody types commands for this Airflow."""
        return self._environment

    def command(self, *arguments: str) -> str:
        """`airflow`, with arguments; what it prints."""
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=patience(_PATIENCE)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def commanded(self, name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """The same while a test goes on: the process, and where it prints to. It ends with the block."""
        process = self._spawn(name, list(arguments))
        try:
            yield process, self._log(name)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(timeout=patience(_PATIENCE))

    # --- components -------------------------------------------------------------------------------

    def stop_component(self, component: str, *, hard: bool = False) -> None:
        """End one component; ``hard``: as if its machine had lost power, with everything that it runs."""
        process = self._processes.pop(component)
        if hard:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGTERM)
        process.wait(timeout=patience(_PATIENCE))

    def start_component(self, component: str) -> None:
        self._processes[component] = self._spawn(component, [component])

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
        super().stop()

    # --- REST -------------------------------------------------------------------------------------

    @property
    def api(self) -> httpx.Client:
        """A client that is logged in as admin."""
        if self._client is None:
            login = {"username": "admin", "password": self.password}
            answer = httpx.post(f"{self.url}/auth/token", json=login, timeout=_ANSWER).raise_for_status()
            self._client = httpx.Client(
                base_url=f"{self.url}/api/v2",
                headers={"Authorization": f"Bearer {answer.json()['access_token']}"},
                timeout=_ANSWER,
            )
        return self._client

    def told(self, user: str, path: str) -> httpx.Response:
        """What our API tells one of :data:`READERS`; ``path``: below its deployments, with its slash."""
        return httpx.get(f"{self.barriers}{path}", headers=self.login_of(user), timeout=_ANSWER)

    def asked(self, user: str, path: str, reason: str) -> httpx.Response:
        """What our API answers to whom that asks for something to be done; ``path`` as for :meth:`told`."""
        return httpx.post(
            f"{self.barriers}{path}", headers=self.login_of(user), json={"reason": reason}, timeout=_ANSWER
        )

    def password_of(self, user: str) -> str:
        return str(json.loads((self.home / "passwords.json").read_text())[user])

    def login_of(self, user: str) -> dict[str, str]:
        """Headers of requests by that user, of a login of their own."""
        return {"Authorization": f"Bearer {self.token_of(user)}"}

    def token_of(self, user: str) -> str:
        login = {"username": user, "password": self.password_of(user)}
        answer = httpx.post(f"{self.url}/auth/token", json=login, timeout=_ANSWER).raise_for_status()
        return str(answer.json()["access_token"])

    @property
    def barriers(self) -> str:
        """Where our API has its deployments."""
        return f"{self.url}{URL_PREFIX}/v1/deployments"

    def page(self, topology: str, page: str) -> str:
        """Where tasks link to; ``page`` as in :func:`airflow_barrier.links.barrier.page_url`."""
        return f"{self.url}/plugin/barriers?deployment=barrier_default&topology={topology}&{page}"

    def get(self, path: str, **params: Any) -> Any:
        return self.api.get(path, params=params).raise_for_status().json()

    def wait_for_dag(self, dag_id: str) -> None:
        """The DAG processor has parsed the DAG."""
        self.until(lambda: self.api.get(f"/dags/{dag_id}").status_code == 200, f"DAG {dag_id} to be parsed")

    def unpause(self, dag_id: str) -> None:
        """Let a DAG run, once it is parsed."""
        self.wait_for_dag(dag_id)
        self.api.patch(f"/dags/{dag_id}", json={"is_paused": False}).raise_for_status()

    def pause(self, dag_id: str) -> None:
        self.api.patch(f"/dags/{dag_id}", json={"is_paused": True}).raise_for_status()

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The DAG's runs, in the order of their times."""
        return list(self.get(f"/dags/{dag_id}/dagRuns", order_by="run_after", limit=100)["dag_runs"])

    def run_ids(self, dag_id: str) -> list[str]:
        return [run["dag_run_id"] for run in self.runs(dag_id)]

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """The run's task instances by task id."""
        found = self.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", limit=100)["task_instances"]
        return {one["task_id"]: one for one in found}

    def state(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        state: str | None = self.tasks(dag_id, run_id)[task_id]["state"]
        return state

    def log(self, dag_id: str, run_id: str, task_id: str) -> str:
        """The log of the task's newest try, as text."""
        newest = self.tasks(dag_id, run_id)[task_id]["try_number"]
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{newest}"
        return json.dumps(self.get(path, full_content="true")["content"])

    def link(self, dag_id: str, run_id: str, task_id: str) -> str | None:
        """Where the task links to as its barrier's page."""
        links = self.get(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links")["extra_links"]
        url: str | None = links["Barrier"]
        return url

    def trigger(self, dag_id: str, **body: Any) -> str:
        """Start a manual run; its id."""
        answer = self.api.post(f"/dags/{dag_id}/dagRuns", json={"logical_date": None, **body}).raise_for_status()
        return str(answer.json()["dag_run_id"])

    def clear(self, dag_id: str, run_id: str, *task_ids: str, **body: Any) -> list[str]:
        """Clear tasks of a run, with those downstream of them unless ``include_downstream=False``."""
        options = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "include_downstream": True,
            "reset_dag_runs": True,
            **body,
        }
        answer = self.api.post(f"/dags/{dag_id}/clearTaskInstances", json=options).raise_for_status()
        return [one["task_id"] for one in answer.json()["task_instances"]]

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """As a person does in the UI: ``success`` or ``failed``."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self.api.patch(path, json={"new_state": state}).raise_for_status()

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Ask until ``holds`` is true, and return what it said; a failure says what Airflow was doing instead."""
        seconds = patience(_PATIENCE)
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            self.check()
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds:.0f} s in vain for {what}; {self._doing()}")
            time.sleep(0.3)
        return found

    def wait_for_task(self, dag_id: str, run_id: str, task_id: str, *states: str) -> str:
        """The first of ``states`` that the task is in."""
        found = self.until(
            lambda: (state := self.state(dag_id, run_id, task_id)) in states and state,
            f"{dag_id}/{run_id}/{task_id} to be {' or '.join(states)}",
        )
        return str(found)

    def wait_for_run(self, dag_id: str, run_id: str, state: str = "success") -> None:
        """The run has ended, and as expected."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}"
        found = self.until(lambda: (now := self.get(path)["state"]) in _ENDED and now, f"{dag_id}/{run_id} to end")
        assert found == state, f"{dag_id}/{run_id} ended as {found}; {self._doing()}"

    def wait_for_runs(self, dag_id: str, count: int, state: str = "success") -> list[str]:
        """So many runs, all ended as expected; their ids in order."""
        self.until(lambda: len(self.runs(dag_id)) >= count, f"{count} runs of {dag_id}")
        run_ids = self.run_ids(dag_id)
        for run_id in run_ids:
            self.wait_for_run(dag_id, run_id, state)
        return run_ids

    def _doing(self) -> str:
        """States of all tasks that have not succeeded, for a failure's message."""
        lines: list[str] = []
        for dag in self.get("/dags", paused=False)["dags"]:
            for run_id in self.run_ids(dag["dag_id"]):
                tasks = self.tasks(dag["dag_id"], run_id).values()
                lines += [f"{dag['dag_id']}/{run_id}/{t['task_id']}={t['state']}" for t in tasks if not _done(t)]
        return "not done: " + (", ".join(lines) or "nothing") + f"; logs: {self.home}"


def _done(task: dict[str, Any]) -> bool:
    return task["state"] in ("success", "skipped")


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """It ends with the last test that asks for it: even an idle one takes a good part of a core from all the others."""
    started = item.session.stash.get(_STARTED, None)
    if started is not None and item is next(filter(_asks_for_airflow, reversed(item.session.items))):
        started.stop()


def _asks_for_airflow(item: pytest.Item) -> bool:
    return "airflow" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def airflow(
    request: pytest.FixtureRequest,
    spark_place: SparkServer,
    postgresql: PostgreSQL,
    vault: Vault,
    kafka: Kafka,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[AirflowUnderTest]:
    """Airflow with connections ``barrier_default``, ``spark_connect_default``, ``spark_default``, ``kafka_default``
    (of a user with the rights that a test grants), and the vault's.

    A story whose tasks use the Spark Connect server asks for `spark_server` or `spark`, which start it.
    """
    home = tmp_path_factory.mktemp("airflow")
    folder = home / "folder"
    folder.mkdir()
    config = home / "config"
    config.mkdir()
    shutil.copy(Path(__file__).with_name("reading_rights.py"), config)
    host, _, port = spark_place.url.removeprefix("sc://").partition(":")
    # Airflow's own database as in production: SQLite has one lock for all who write.
    database = with_driver(postgresql.create("airflow", migrated=False))
    reporting = make_url(postgresql.create(REPORTING, migrated=False))
    postgresql.run(f"GRANT CREATE ON SCHEMA public TO {USER}", database=REPORTING)
    lake = spark_place.warehouse.parent / IN_AIRFLOW
    barrier = {
        "warehouse": lake.as_uri(),
        "metaservice_url": f"sqlite:///{lake}/catalog.db",
        "catalog_name": IN_AIRFLOW,
        "spark_catalog": IN_AIRFLOW,
    }
    under_test = AirflowUnderTest(
        home,
        folder,
        {
            "AIRFLOW_CONN_BARRIER_DEFAULT": json.dumps({"conn_type": "barrier", "extra": barrier}),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": json.dumps(
                {"conn_type": "spark_connect", "host": host, "port": int(port)}
            ),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__AUTH_MANAGER": "reading_rights.ReadingRights",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                ["admin:admin", *(f"{one}:viewer" for one in READERS)]
            ),
            # DAG files stay as they are, and parsing all of them anew twice a minute takes a quarter of a core
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
            # a worker that is lost is noticed in seconds
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            # of DAGs that ask for it, to LINEAGE
            "AIRFLOW__OPENLINEAGE__SELECTIVE_ENABLE": "True",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(home / LINEAGE), "append": True}
            ),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
            "AIRFLOW_CONN_REPORTING": json.dumps(
                {
                    "conn_type": "postgres",
                    "host": reporting.host,
                    "port": reporting.port,
                    "login": reporting.username,
                    "password": str(reporting.password),
                    "schema": reporting.database,
                }
            ),
            "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
                {"conn_type": "kafka", "extra": dict(kafka.user_credentials.extra)}
            ),
            **vault.environment(),
            # the MetaService beside the catalog's database, not in it
            "AIRFLOW_CONN_CRASHES": json.dumps(
                {
                    "conn_type": "barrier",
                    "extra": {
                        **barrier,
                        "metaservice_url": f"sqlite:///{folder}/crashes.db",
                        "catalog_uri": barrier["metaservice_url"],
                    },
                }
            ),
            "BARRIER_TEST_FOLDER": str(folder),
            "BARRIER_TEST_SUBMIT_CONF": json.dumps(_submit_conf(spark_place)),
            "PYSPARK_PYTHON": sys.executable,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        },
        database=database,
    )
    try:
        under_test.start()
        request.session.stash[_STARTED] = under_test
        yield under_test
    finally:
        under_test.stop()


def _submit_conf(server: SparkServer) -> dict[str, str]:
    """What a driver of its own needs to work on the server's catalog."""
    return {
        **catalog_conf(server.warehouse, server.catalog_db),
        **conf_of(server.warehouse.parent, IN_AIRFLOW),
        "spark.jars.packages": PACKAGES,
        "spark.jars.ivy": str(server.ivy),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.sql.shuffle.partitions": "2",
    }
