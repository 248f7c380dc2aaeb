"""What Airflow's database says of work that does not begin: its own models, in databases of their own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
from airflow import settings
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import Engine, create_engine, delete, insert, update
from sqlalchemy.orm import sessionmaker

from airflow_barrier.api.access import Outlook
from airflow_barrier.coordinator.awaited import Awaited
from airflow_barrier.plugins import waits
from airflow_barrier.plugins.waits import AirflowWait, find_waits
from tests.api.live import statements
from tests.support.postgresql import PostgreSQL, with_driver

DUE = datetime(2025, 1, 2, 3, 4, tzinfo=timezone.utc)
PRICE = Awaited("crm", None, "g.price")


class Airflow:
    """Its database. DAG `crm` has one run, `r1`, and a pool of two slots."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        with engine.begin() as connection:
            for model in (TaskInstance, DagRun, DagModel, DagBundleModel, Pool):
                connection.execute(delete(model.__table__))
        self.add(DagBundleModel, name="files")
        for dag in ("crm", "hog", "other"):
            self.add(DagModel, dag_id=dag, bundle_name="files", max_active_tasks=9, max_active_runs=1,
                     max_consecutive_failed_dag_runs=0, has_task_concurrency_limits=False, is_stale=False,
                     is_paused=False, next_dagrun_create_after=DUE)  # fmt: skip
        self.add(Pool, pool="tiny", slots=2, include_deferred=False)

    def add(self, model: Any, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(insert(model.__table__).values(**values))

    def set(self, dag_id: str, **values: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(update(DagModel.__table__).where(DagModel.dag_id == dag_id).values(**values))

    def run(self, dag_id: str, run_id: str, state: str, **tasks: str | None) -> None:
        """With tasks of group `g`, each in a state."""
        self.add(DagRun, dag_id=dag_id, run_id=run_id, state=state, run_type="manual", run_after=DUE)
        for task, its in tasks.items():
            self.add(TaskInstance, id=uuid4(), dag_id=dag_id, run_id=run_id, task_id=f"g.{task}", state=its,
                     pool="tiny", pool_slots=1, map_index=-1, max_tries=0, try_number=1)  # fmt: skip

    def wait(self, awaited: Awaited = PRICE) -> AirflowWait | None:
        waits._kept.clear()
        return find_waits([awaited]).get(awaited)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, postgresql: PostgreSQL) -> Iterator[Engine]:
    """To a database with Airflow's tables."""
    import_all_models()
    with TemporaryDirectory() as folder, postgresql.database(migrated=False) as url:
        engine = create_engine(f"sqlite:///{folder}/airflow.db" if request.param == "sqlite" else with_driver(url))
        Base.metadata.create_all(engine)
        yield engine
        engine.dispose()


@pytest.fixture
def airflow_database(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """This process's Airflow has it."""
    monkeypatch.setattr(settings, "Session", sessionmaker(engine))
    return Airflow(engine)


#: States of tasks in the DAG's run, and what is said of `price`.
STATES: dict[str, tuple[dict[str, str | None], str | None, Outlook | None]] = {
    "not reached": ({"price": None, "load": "running"}, None, None),
    "a free slot": ({"price": "scheduled"}, None, None),
    "done": ({"price": "success"}, None, None),
    "retried": ({"price": "up_for_retry"}, "task g.price is to be tried again after it failed", Outlook.PASSES),
    "asleep": ({"price": "deferred"}, "task g.price is deferred", Outlook.PASSES),
    "looks": ({"price": "up_for_reschedule"}, "task g.price is to look again after a while", Outlook.PASSES),
    "queued": ({"price": "queued"}, "task g.price is queued, and no worker has begun it", Outlook.PASSES),
    "lost": ({"price": "failed"}, "task g.price failed", Outlook.FAILED),
    "upstream": (
        {"price": "upstream_failed", "load": "failed", "sum": "upstream_failed"},
        "task g.price did not begin, since its run failed before it at g.load",
        Outlook.FAILED,
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_a_task(airflow_database: Airflow, case: str) -> None:
    states, said, outlook = STATES[case]
    airflow_database.run("crm", "r1", "running", **states)
    wait = airflow_database.wait()
    assert (None if wait is None else (wait.summary, wait.outlook)) == (None if said is None else (said, outlook))
    assert airflow_database.wait(Awaited("crm", "r1", "g.price")) == wait


def test_a_full_pool(airflow_database: Airflow) -> None:
    airflow_database.run("crm", "r1", "running", price="scheduled")
    airflow_database.run("hog", "r1", "running", one="running")
    airflow_database.run("other", "r1", "running", one="queued", two="deferred")
    for awaited in (PRICE, Awaited("crm"), Awaited("crm", "r1")):  # true also if the task is not known
        wait = airflow_database.wait(awaited)
        assert wait is not None
        assert wait.told({"hog", "other", "crm"}) == (
            Outlook.PASSES, "task g.price waits for pool tiny, whose 2 slots are taken, by DAGs hog, other"
        )  # fmt: skip
        assert wait.told({"hog"}).summary.endswith("taken, by DAG hog")
        assert wait.told(set()).summary.endswith("taken")
    with airflow_database.engine.begin() as connection:
        connection.execute(update(Pool.__table__).values(slots=3))
    assert airflow_database.wait() is None
    with airflow_database.engine.begin() as connection:
        connection.execute(update(Pool.__table__).values(include_deferred=True))
    assert airflow_database.wait() is not None
    with airflow_database.engine.begin() as connection:
        connection.execute(update(Pool.__table__).values(slots=-1))
    assert airflow_database.wait() is None, "there is no end of them"


def test_a_paused_dag(airflow_database: Airflow) -> None:
    airflow_database.set("crm", is_paused=True)
    paused = AirflowWait(Outlook.STOPPED, "DAG crm is paused")
    assert airflow_database.wait() == paused
    airflow_database.run("crm", "r1", "running", price="scheduled", sum="running")
    assert airflow_database.wait() == airflow_database.wait(Awaited("crm", "r1", "g.price")) == paused
    assert airflow_database.wait(Awaited("crm", "r1", "g.sum")) is None, "what runs goes on"
    airflow_database.set("crm", is_stale=True)
    assert airflow_database.wait() == AirflowWait(Outlook.STOPPED, "DAG crm is in no DAG file any more")


def test_no_run(airflow_database: Airflow) -> None:
    assert airflow_database.wait(Awaited("nobodys")) is None, "another Airflow's, perhaps"
    none = "no run of DAG crm is under way"
    due = AirflowWait(Outlook.PASSES, f"{none}, and the next one is due at 2025-01-02 03:04 UTC")
    assert airflow_database.wait() == due
    airflow_database.run("crm", "r1", "success", price="success")
    assert airflow_database.wait() == due
    assert airflow_database.wait(Awaited("crm", "gone", "g.price")) is None
    airflow_database.set("crm", next_dagrun_create_after=None)
    assert airflow_database.wait() == AirflowWait(Outlook.PASSES, f"{none}, and none is scheduled")
    # of another barrier, perhaps: nobody is called for it
    airflow_database.run("crm", "r2", "failed", price="upstream_failed", load="failed")
    failed = f"{none}, the last one failed at g.load, and none is scheduled"
    assert airflow_database.wait() == AirflowWait(Outlook.PASSES, failed)
    # of the one that is to do it, it is
    upstream = "task g.price did not begin, since its run failed before it at g.load"
    assert airflow_database.wait(Awaited("crm", "r2", "g.price")) == AirflowWait(Outlook.FAILED, upstream)
    assert airflow_database.wait(Awaited("crm", "r2")) == (Outlook.FAILED, "the run of DAG crm failed at g.load", ())


def test_runs(airflow_database: Airflow) -> None:
    airflow_database.run("crm", "r1", "queued", price=None)
    assert airflow_database.wait() == AirflowWait(Outlook.PASSES, "the run of DAG crm is queued")
    airflow_database.run("crm", "r2", "running", price="deferred")
    full = "the run of DAG crm is queued, as 1 of 1 are running (max_active_runs)"
    assert airflow_database.wait(Awaited("crm", "r1", "g.price")) == AirflowWait(Outlook.PASSES, full)
    deferred = AirflowWait(Outlook.PASSES, "task g.price is deferred")
    assert airflow_database.wait() == deferred
    airflow_database.run("crm", "r3", "running", price="up_for_retry")
    assert airflow_database.wait() is None, "which run it is to be nobody knows"
    assert airflow_database.wait(Awaited("crm", "r2", "g.price")) == deferred


def test_many_cost_no_more_and_are_asked_for_once(airflow_database: Airflow) -> None:
    airflow_database.run("crm", "r1", "running", price="scheduled")
    many = [PRICE, *(Awaited(dag, "r1", f"g.t{n}") for n in range(50) for dag in ("crm", "hog"))]
    waits._kept.clear()
    with statements() as executed:
        find_waits(many[:1])
        few = len(executed)
        find_waits(many[1:])
        assert len(executed) == 2 * few
        find_waits(many)
    assert len(executed) == 2 * few <= 10


def test_a_database_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = create_engine(f"sqlite:///{tmp_path}/no_such_folder/airflow.db")
    monkeypatch.setattr(settings, "Session", sessionmaker(nowhere))
    waits._kept.clear()
    assert find_waits([PRICE]) == {}
    assert "cannot be asked why nothing runs" in caplog.text
