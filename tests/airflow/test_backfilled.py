"""What the scheduler tells a run of its backfill, and what its tasks make of that."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.models.backfill import Backfill
from airflow.models.dagrun import DagRun
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.utils.types import DagRunType

from airflow_barrier.coordinator.runs import ActiveBackfill
from airflow_barrier.operators._conf import backfill_of
from airflow_barrier.operators.start import StartBarrierOperator
from airflow_barrier.plugins.backfills import on_dag_run_running
from airflow_barrier.protocol.errors import ConfigurationError
from tests.support.dags import stored

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
FIRST, LAST = datetime(2017, 1, 5, tzinfo=timezone.utc), datetime(2017, 1, 6, tzinfo=timezone.utc)
TOLD = {
    "id": 12,
    "created_at": NOON.isoformat(),
    "from_date": FIRST.isoformat(),
    "to_date": LAST.isoformat(),
    "user": "ann",
}


def begun(conf: dict[str, Any], given: dict[str, Any] | None, *, ended: bool = False, ours: bool = True) -> Any:
    """The conf of a run that begins, of a backfill that was ``given`` one (None: the run is in no backfill)."""
    with DAG("shopping", schedule=None, start_date=FIRST) as dag:
        if ours:
            StartBarrierOperator(task_id="start", topology="shopping", jobs=[])
        else:
            EmptyOperator(task_id="start")
    run = DagRun("shopping", "scheduled__1", run_type=DagRunType.BACKFILL_JOB, conf=conf)
    run.dag = stored(dag)
    if given is not None:
        run.backfill_id = 12
        run.backfill = Backfill(
            id=12,
            dag_id="shopping",
            from_date=FIRST,
            to_date=LAST,
            dag_run_conf=given,
            created_at=NOON,
            completed_at=NOON if ended else None,
            triggering_user_name="ann",
        )
    on_dag_run_running(run, "started")
    return run.conf


def test_a_run_is_told_the_backfill_that_it_is_in() -> None:
    own = {"barrier_jobs": ["price"]}
    assert begun({"mine": 1}, own) == {"mine": 1, **own, "barrier_backfill": TOLD}
    # what an earlier backfill gave is none of this one's
    assert begun({"barrier_revision": 7, "barrier_rehearsal": True}, {}) == {"barrier_backfill": TOLD}
    assert begun({}, {"barrier_revision": 8}) == {"barrier_revision": 8, "barrier_backfill": TOLD}


def test_one_that_has_ended_is_told_of_no_more() -> None:
    for given in ({}, None):
        conf = {"barrier_backfill": TOLD, "barrier_rehearsal": True, "mine": 1}
        assert begun(conf, given, ended=True) == {"mine": 1}


def test_runs_of_other_dags_are_left_alone() -> None:
    assert begun({"mine": 1}, {}, ours=False) == {"mine": 1}
    assert begun({"mine": 1}, {"theirs": 2}, ours=False) == {"mine": 1}


def test_a_run_of_a_member_has_what_its_backfill_gives_for_a_revision() -> None:
    given = {"barrier_revision": 7, "theirs": 2}
    assert begun({"mine": 1, "barrier_revision": 6}, given, ours=False) == {"mine": 1, **given}
    assert begun({"mine": 1}, given, ended=True, ours=False) == {"mine": 1}


def test_a_task_knows_it_with_what_its_author_chose() -> None:
    conf = {"barrier_backfill": TOLD, "barrier_jobs": ["price"], "barrier_recut": [], "barrier_full": True}
    asked = ActiveBackfill("shopping", 12, NOON, FIRST, LAST, "ann", ("price",), (), full=True)
    assert backfill_of(conf, "shopping") == asked
    assert backfill_of({"barrier_jobs": ["price"]}, "shopping") is None
    for wrong in ({"barrier_jobs": "price"}, {"barrier_recut": [1]}, {"barrier_full": "perhaps"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))}.*expected|expected.*{next(iter(wrong))}"):
            backfill_of({"barrier_backfill": TOLD, **wrong}, "shopping")
