"""What a task can ask and have done of other runs: Airflow as the coordinator's scheduler.

Waking a run: a task clears it through its own supervisor, so that its tasks run again, in the run's own DAG.

No credentials of Airflow's API are needed. This is the one place that uses what the task SDK keeps to itself: the
message that ``TriggerDagRunOperator(reset_dag_run=True)`` sends. That operator cannot be used, since its task ends with
the message, and since it makes a new run, without a data interval, where there is none of the id.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowRuntimeError
from httpx import HTTPStatusError

from airflow_barrier.coordinator.runs import AT_REST, ENDED
from airflow_barrier.operators._task import run_of, timestamp_of
from airflow_barrier.protocol.errors import (
    AirflowRefusedError,
    AirflowUnavailableError,
    BarrierError,
    RunActiveError,
    UnknownRunError,
)

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol


class AirflowScheduler:
    """:class:`~airflow_barrier.coordinator.runs.Scheduler` for a running task, without credentials of Airflow's API."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def state(self, dag_id: str, run_id: str) -> str | None:
        return run_state(self._context["ti"], dag_id, run_id)

    def wake(self, dag_id: str, run_id: str) -> None:
        wake(dag_id, run_id)

    def is_running(self, request_key: str) -> bool:
        """Return False for a task that is not this one in another run: it would not be at this one's work."""
        run_id = run_of(request_key, self._context)
        if run_id is None:
            return False
        return self._state_in(run_id) == "running"

    def has_passed(self, run_id: str) -> bool:
        return self._state_in(run_id) == "success"

    def _state_in(self, run_id: str) -> str | None:
        """The state of the asking task in another run; None: it has none there."""
        ti = self._context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[run_id])
        state: str | None = states.get(run_id, {}).get(ti.task_id)
        return state

    def at_work_until(self) -> datetime | None:
        """Airflow orders runs by their logical date, which runs that asset events start have not."""
        ti = self._context["ti"]
        with _in_our_words(ti.dag_id, ti.run_id):
            before = ti.get_previous_dagrun()
        if before is None or before.state in ENDED:
            return None
        return timestamp_of(before)[0]


def wake(dag_id: str, run_id: str) -> None:
    """Have all tasks of a run run again that has ended, or not begun. To be called in a running task, for any DAG.

    The run keeps its id, type, conf and data interval; its ``clear_number`` rises by one, or by two if an answer was
    lost. It starts once its DAG has a free slot (``max_active_runs``) and is not paused. The DAG's other runs are left
    alone: wake the oldest first.

    Raises UnknownRunError, RunActiveError (it is at work: clearing would kill its tasks), AirflowRefusedError (the
    DAG has import errors, or its ``allowed_run_types`` lack ``operator_triggered``), AirflowUnavailableError.

    Airflow has no call that looks and clears in one. If a run begins in between, since a person has just cleared it,
    its first tasks are killed and run again: a try is lost, and nothing that readers see.

    >>> wake("shopping", "scheduled__2017-01-07T00:00:00+00:00")  # doctest: +SKIP
    """
    # Asked first, as a run that does not exist would be made.
    state = run_state(get_current_context()["ti"], dag_id, run_id)
    if state is None:
        raise UnknownRunError(
            f"expected the run {run_id} of DAG {dag_id}, found none; it was deleted, and its days can only be done "
            "again by a backfill of them"
        )
    if state not in AT_REST:
        raise RunActiveError(
            f"expected the run {run_id} of DAG {dag_id} to have ended before it is woken, found it {state}; wait for "
            "its end, or mark it failed, then try again"
        )
    _clear(dag_id, run_id)


def run_state(ti: RuntimeTaskInstanceProtocol, dag_id: str, run_id: str) -> str | None:
    """The state of any DAG's run: ``queued``, ``running``, ``success`` or ``failed``; None: there is none of that id.

    Raises AirflowUnavailableError, AirflowRefusedError.

    >>> run_state(context["ti"], "shopping", "scheduled__2017-01-07T00:00:00+00:00")  # doctest: +SKIP
    'success'
    """
    try:
        with _in_our_words(dag_id, run_id):
            # A plain string behind the SDK's annotation, or its enum of strings.
            state = ti.get_dagrun_state(dag_id, run_id)
    except UnknownRunError:
        return None
    return str(getattr(state, "value", state))


def _clear(dag_id: str, run_id: str) -> None:
    try:
        from airflow.sdk.execution_time.comms import TriggerDagRun
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS
    except ImportError as error:
        raise AirflowRefusedError(
            f"expected Airflow's task SDK to let a task clear a run (TriggerDagRun and SUPERVISOR_COMMS of "
            f"airflow.sdk.execution_time, as in 1.3), found version {version('apache-airflow-task-sdk')} without; "
            f"clear the run {run_id} of DAG {dag_id} in Airflow, all of its tasks, and take a release of "
            "airflow-provider-barrier that knows this Airflow"
        ) from error
    with _in_our_words(dag_id, run_id):
        SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, reset_dag_run=True))


@contextmanager
def _in_our_words(dag_id: str, run_id: str) -> Iterator[None]:
    """Errors of the supervisor, which has tried again by itself where that could help."""
    try:
        yield
    except AirflowRuntimeError as error:
        raise _translated(error.error.detail or {}, f"run {run_id} of DAG {dag_id}") from error
    except HTTPStatusError as error:  # the one process of `dag.test()` has no supervisor between it and the server
        detail = {"status_code": error.response.status_code, "message": str(error)}
        raise _translated(detail, f"run {run_id} of DAG {dag_id}") from error


def _translated(detail: dict[str, Any], what: str) -> BarrierError:
    status, said = detail.get("status_code"), _said(detail)
    if status == 404:
        return UnknownRunError(f"{what}: expected Airflow to know it, found: {said}; correct the name")
    if status is None or status >= 500:
        return AirflowUnavailableError(
            f"{what}: expected Airflow's API server to answer, found: {said}; check that it runs, then try again"
        )
    if status == 409:
        return RunActiveError(f"{what}: expected that nobody else clears it in this moment, found: {said}; look again")
    return AirflowRefusedError(
        f"{what}: expected Airflow to let a task of another run clear it, found {status}: {said}; mend the DAG's "
        "import errors, or have its allowed_run_types include operator_triggered"
    )


def _said(detail: dict[str, object]) -> str:
    """The API server's own sentence, from as deep as it lies."""
    said: object = detail
    while isinstance(said, dict):
        said = said.get("detail") or said.get("message")
    return str(said)
