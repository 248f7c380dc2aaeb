"""Which runs compute for a revision, and what stands in for a job."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import DagRunStateResult, ErrorResponse, GetDagRunState, TriggerDagRun
from airflow.sdk.execution_time.context import set_current_context
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from sqlalchemy import text

from airflow_barrier.coordinator.revisions import runs as of_runs
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import Wanted
from airflow_barrier.coordinator.revisions.replay import corrections_of
from airflow_barrier.coordinator.revisions.runs import barrier_of_run, next_unstaged, runs_at
from airflow_barrier.metaservice.attempts import Request
from airflow_barrier.operators._waking import AirflowScheduler
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import RunRef
from airflow_barrier.protocol.revisions import RevisionMode, TableCorrection
from airflow_barrier.spark.corrections import CorrectBySql, ReuseRows
from tests.crash.shopping import FIRST_DAY
from tests.revising.world import RevisedShop
from tests.support.supervising import supervised

DAG = "shopping_dag"


def midnight_after(day: int) -> Any:
    return FIRST_DAY + timedelta(days=day)


@pytest.mark.kills("day-of-the-revision")
def test_a_run_of_a_day_that_is_not_in_the_revision_is_refused(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    revision = embedded.begin(2)
    for day in (1, 7):
        with pytest.raises(RevisionRefusedError, match="which begin with barrier 2, found"):
            barrier_of_run(embedded.deployment, revision, midnight_after(day), DAG)
    embedded.day(4)
    found = barrier_of_run(embedded.deployment, revision, midnight_after(4), DAG)
    assert (found.barrier_id, found.line) == (4, revision.revision)


@pytest.mark.kills("dag-of-the-revision")
def test_a_run_of_a_dag_that_has_no_part_in_it_is_refused(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    revision = embedded.begin(2)
    with pytest.raises(RevisionRefusedError, match=r"a part in it \(shopping_dag\), found another_dag"):
        barrier_of_run(embedded.deployment, revision, midnight_after(2), "another_dag")


def test_the_runs_that_computed_a_barrier_are_those_to_be_woken(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    revision = embedded.begin(2)
    runs = runs_at(embedded.deployment, revision, embedded.barrier(2))
    assert (dict(runs.of), runs.unknown, runs.staged) == ({DAG: "scheduled__2"}, (), frozenset())
    embedded.replay(revision, 2)
    assert runs_at(embedded.deployment, revision, embedded.barrier(2)).staged == {DAG}
    following = next_unstaged(embedded.deployment, revision, 2)
    assert following is not None
    assert (following.barrier_id, following.line) == (3, 0)


@pytest.mark.kills("baseline-is-not-cleared")
def test_rows_of_before_a_job_joined_are_not_cleared(embedded: RevisedShop) -> None:
    embedded.days(1, 2)
    there = next(row for row in embedded.deployment.meta.barriers.progress("shop", 1) if row.table == "shop.shopping")
    held = "UPDATE barrier_table_progress SET snapshot_id = :id WHERE barrier_id = 0 AND table_name = 'shop.shopping'"
    embedded.deployment.meta._db.write(lambda c: c.execute(text(held), {"id": there.snapshot_id}))
    with pytest.raises(RevisionRefusedError, match=r"found that shop.shopping held rows before job load joined"):
        embedded.begin(None, mode=RevisionMode.FULL)


def correction(embedded: RevisedShop, barrier_id: int, table: str) -> TableCorrection:
    name = embedded.shop.table(table)
    return TableCorrection(barrier_id, name, encode(CorrectBySql(name, f"DELETE FROM {{target:{name}}} WHERE id = 21")))


@pytest.mark.kills("stands-in-for-a-whole-job")
def test_what_stands_in_for_a_job_stands_in_for_all_of_it(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    deployment, name = embedded.deployment, embedded.shop.name
    corrections = [correction(embedded, 2, "shopping"), correction(embedded, 3, "shopping")]
    plan = plan_revision(
        deployment, Wanted(name, 2, 3, corrections=corrections, reused=[embedded.shop.table("receipts")])
    )
    revision = begin_revision(deployment, plan, reason="test", actor="test")
    job = deployment.meta.topologies.get(name).job("load")
    attempt = deployment.meta.attempts.request(
        Request(name, 2, "load", request_key="r", generation="g", actor="test", line=revision.revision)
    )
    started = deployment.meta.attempts.start(attempt.attempt_id)
    assert not isinstance(started, tuple)
    with pytest.raises(RevisionRefusedError, match="its code knows nothing of its epoch"):
        corrections_of(deployment, started, job, by_branch=True)
    found = corrections_of(deployment, started, job, by_branch=False)
    # the first barrier's is changed as it stands, its own base
    assert [type(each) for each in found] == [ReuseRows, CorrectBySql]
    assert started.bases[embedded.shop.table("shopping")] == next(
        row.snapshot_id
        for row in deployment.meta.barriers.progress(name, 2)
        if row.table == embedded.shop.table("shopping")
    )


@pytest.mark.kills("corrections-are-whole")
def test_a_correction_of_half_a_job_is_refused(embedded: RevisedShop) -> None:
    """What the error advises is a plan."""
    embedded.days(1, 2)
    for last in (2, 3):
        wanted = Wanted(embedded.shop.name, 2, corrections=[correction(embedded, 2, "shopping")])
        with pytest.raises(RevisionRefusedError, match=r"none of shop.receipts at barrier 2") as refused:
            plan_revision(embedded.deployment, wanted)
        reused = tuple(str(refused.value).partition("--reuse ")[2].split(" --reuse "))
        assert reused == (("shop.receipts",) if last == 2 else ("shop.receipts", "shop.shopping"))
        plan_revision(embedded.deployment, replace(wanted, reused=reused))
        embedded.days(3, 3)


def test_the_ends_of_all_who_were_left_out_are_waited_for_a_minute(
    embedded: RevisedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded.days(1, 3)
    revision, revisions = embedded.begin(2), embedded.deployment.meta.revisions
    runs = [f"scheduled__{day}" for day in (4, 5, 6)]
    for run in runs:
        revisions.bind_run("shop", revision.revision, of_runs.AFTERWARDS, DAG, run, None)
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(of_runs, "time", clock)
    said = logging.getLogger("task")
    ti = SimpleNamespace(task=SimpleNamespace(log=said), get_dagrun_state=RuntimeTaskInstance.get_dagrun_state)
    context: Any = {"ti": ti}

    def woken(state: str) -> list[str]:
        def answer(message: Any) -> Any:
            return DagRunStateResult(state=state) if isinstance(message, GetDagRunState) else None

        with set_current_context(context), supervised(answer) as supervisor:
            of_runs.wake_those_left_out(embedded.deployment, revision, AirflowScheduler(context))
        return [message.run_id for message in supervisor.asked if isinstance(message, TriggerDagRun)]

    assert woken("running") == []
    assert 58 <= sum(slept) <= 62
    assert len(revisions.runs("shop", revision.revision)) == len(runs)
    assert woken("success") == runs
    assert revisions.runs("shop", revision.revision) == []


@pytest.mark.parametrize("bound", [True, False], ids=["by another task", "by nobody"])
def test_a_run_that_another_task_wakes_in_this_moment_stays_the_revisions(embedded: RevisedShop, bound: bool) -> None:
    """Airflow refuses the second of two that clear a run, and each of them has to look again."""
    embedded.days(1, 3)
    revision, revisions = embedded.begin(2), embedded.deployment.meta.revisions
    if bound:
        revisions.bind_run("shop", revision.revision, 2, DAG, "scheduled__2", None)

    def answer(message: Any) -> Any:
        if isinstance(message, GetDagRunState):
            return DagRunStateResult(state="success")
        detail = {"status_code": 409, "message": "Serious error"}
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))

    task = SimpleNamespace(log=logging.getLogger("task"))
    state = RuntimeTaskInstance.get_dagrun_state
    context: Any = {"ti": SimpleNamespace(task=task, dag_id=DAG, run_id="another", get_dagrun_state=state)}
    with set_current_context(context), supervised(answer):
        woken = of_runs.wake_runs(
            embedded.deployment,
            revision,
            embedded.barrier(2),
            RunRef(DAG, "another", "scheduled"),
            AirflowScheduler(context),
        )
    assert woken == of_runs.Woken(busy=(f"{DAG}/scheduled__2",))
    assert [run.run_id for run in revisions.runs("shop", revision.revision)] == ["scheduled__2"] * bound
