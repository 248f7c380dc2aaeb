"""Why work does not begin, as Airflow's database knows it: a handful of queries for all that is asked at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.ti_deps.dependencies_states import EXECUTION_STATES
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import func, or_, select, tuple_, union
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from airflow_barrier.api.access import Outlook, Wait
from airflow_barrier.coordinator.awaited import Awaited

log = logging.getLogger(__name__)

#: Of such tasks nothing is to be said any more.
_DONE = (TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED, TaskInstanceState.REMOVED)
_PASSING: Mapping[str | None, str] = {
    TaskInstanceState.UP_FOR_RETRY: "is to be tried again after it failed",
    TaskInstanceState.UP_FOR_RESCHEDULE: "is to look again after a while",
    TaskInstanceState.DEFERRED: "is deferred",
    TaskInstanceState.QUEUED: "is queued, and no worker has begun it",
}


class AirflowWait(NamedTuple):
    """``holders``: the DAGs that have what is waited for."""

    outlook: Outlook
    summary: str
    holders: tuple[str, ...] = ()

    def told(self, readable: Collection[str]) -> Wait:
        """Return what those are told who may read these DAGs."""
        names = [dag for dag in self.holders if dag in readable]
        held = f", by DAG{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""
        return Wait(self.outlook, self.summary + held)


#: Many look at the same, and their pages ask again with each change.
_KEPT_SECONDS = 5.0
#: When it was asked for, and what was found.
_kept: dict[Awaited, tuple[float, AirflowWait | None]] = {}
_lock = threading.Lock()


def find_waits(awaited: Collection[Awaited]) -> dict[Awaited, AirflowWait]:
    """Return why these do not begin, as far as there is anything to say. Each is asked for once in a few seconds."""
    with _lock:
        now = time.monotonic()
        for each in [each for each, (at, _) in _kept.items() if now - at > _KEPT_SECONDS]:
            del _kept[each]
        if new := [each for each in awaited if each not in _kept]:
            found = _ask(new)
            _kept.update({each: (now, found.get(each)) for each in new})
        return {each: wait for each in awaited if (wait := _kept[each][1]) is not None}


def _ask(awaited: Sequence[Awaited]) -> dict[Awaited, AirflowWait]:
    try:
        with create_session() as session:
            known = _Known.of(session, awaited)
    except SQLAlchemyError as error:  # whoever asks is told the rest
        log.warning("Airflow's database cannot be asked why nothing runs: %s", error)
        return {}
    found = {each: known.wait_of(each) for each in awaited}
    return {each: wait for each, wait in found.items() if wait is not None}


class _Task(NamedTuple):
    """All instances of a task that are in the same state."""

    task_id: str
    state: str | None
    pool: str | None
    slots: int


class _Slots(NamedTuple):
    """``total`` -1: there is no end of them. ``taken``: by DAG."""

    total: int
    taken: Mapping[str, int]

    def has(self, wanted: int) -> bool:
        return self.total == -1 or self.total - sum(self.taken.values()) >= wanted


class _Known(NamedTuple):
    """The facts about all that is asked. ``newest``: the last run of each DAG. ``tasks``: of each run those that are
    not done.
    """

    dags: Mapping[str, Any]
    runs: Mapping[tuple[str, str], str]
    newest: Mapping[str, str]
    tasks: Mapping[tuple[str, str], Sequence[_Task]]
    pools: Mapping[str | None, _Slots]

    @classmethod
    def of(cls, session: Session, awaited: Iterable[Awaited]) -> _Known:
        asked = list(awaited)
        ids = {each.dag_id for each in asked}
        dags = session.execute(
            select(
                DagModel.dag_id,
                DagModel.is_paused,
                DagModel.is_stale,
                DagModel.max_active_runs,
                DagModel.next_dagrun_create_after,
            ).where(DagModel.dag_id.in_(ids))
        ).all()
        named = [(each.dag_id, each.run_id) for each in asked if each.run_id is not None]
        last = select(func.max(DagRun.id)).where(DagRun.dag_id.in_(ids)).group_by(DagRun.dag_id)
        columns = select(DagRun.id, DagRun.dag_id, DagRun.run_id, DagRun.state)
        # apart from each other: each is found by an index
        runs = session.execute(
            union(
                columns.where(DagRun.dag_id.in_(ids), DagRun.state == DagRunState.RUNNING),
                columns.where(DagRun.id.in_(last)),
                columns.where(tuple_(DagRun.dag_id, DagRun.run_id).in_(named)),
            ).order_by("id")
        ).all()
        tasks = _tasks(session, [(run.dag_id, run.run_id) for run in runs])
        scheduled = TaskInstanceState.SCHEDULED
        pools = {each.pool for some in tasks.values() for each in some if each.state == scheduled}
        return cls(
            dags={dag.dag_id: dag for dag in dags},
            runs={(run.dag_id, run.run_id): run.state for run in runs},
            newest={run.dag_id: run.run_id for run in runs},
            tasks=tasks,
            pools=_pools(session, pools),
        )

    def wait_of(self, awaited: Awaited) -> AirflowWait | None:
        dag = self.dags.get(awaited.dag_id)
        if dag is None:  # another Airflow's, perhaps
            return None
        runs = self._runs_of(awaited)
        instances = [task for run in runs for task in self.tasks.get(run, ()) if task.task_id == awaited.task_id]
        if any(task.state == TaskInstanceState.RUNNING for task in instances):
            return None
        if dag.is_stale:
            return AirflowWait(Outlook.STOPPED, f"DAG {dag.dag_id} is in no DAG file any more")
        if dag.is_paused:
            return AirflowWait(Outlook.STOPPED, f"DAG {dag.dag_id} is paused")
        if awaited.run_id is None and not runs:
            return self._no_run(dag)
        # which one it is to be is not known: what is not true of all is not told
        found = {self._wait_in(run, awaited.task_id) for run in runs}
        return found.pop() if len(found) == 1 else None

    def _runs_of(self, awaited: Awaited) -> list[tuple[str, str]]:
        """The run that is known; else all that are running, or the one that is queued, if there is any."""
        dag_id = awaited.dag_id
        if awaited.run_id is not None:
            return [(dag_id, awaited.run_id)] if (dag_id, awaited.run_id) in self.runs else []
        running = [run for run, state in self.runs.items() if run[0] == dag_id and state == DagRunState.RUNNING]
        last = (dag_id, self.newest.get(dag_id, ""))
        return running or ([last] if self.runs.get(last) == DagRunState.QUEUED else [])

    def _no_run(self, dag: Any) -> AirflowWait:
        """Say that there is no run. That the last one failed may be about another barrier: nobody is called for it."""
        last = (dag.dag_id, self.newest.get(dag.dag_id, ""))
        failed = f", the last one failed{self._where(last)}" if self.runs.get(last) == DagRunState.FAILED else ""
        due = dag.next_dagrun_create_after
        coming = "none is scheduled" if due is None else f"the next one is due at {due:%Y-%m-%d %H:%M} UTC"
        return AirflowWait(Outlook.PASSES, f"no run of DAG {dag.dag_id} is under way{failed}, and {coming}")

    def _wait_in(self, run: tuple[str, str], task_id: str | None) -> AirflowWait | None:
        """Return why the task, or anything if it is not known, does not begin in a run."""
        dag_id, state = run[0], self.runs[run]
        if state == DagRunState.QUEUED:
            return AirflowWait(Outlook.PASSES, f"the run of DAG {dag_id} is queued{self._full(dag_id)}")
        tasks = self.tasks.get(run, ())
        where = self._where(run)
        if task_id is None and state == DagRunState.FAILED:
            return AirflowWait(Outlook.FAILED, f"the run of DAG {dag_id} failed{where}")
        mine = (self._wait_of_task(task, where) for task in tasks if task.task_id == task_id)
        others = (self._wait_for_pool(task) for task in tasks if task_id is None)
        return next(filter(None, (*mine, *others)), None)

    def _where(self, run: tuple[str, str]) -> str:
        """Name the tasks at which it failed."""
        failed = [task.task_id for task in self.tasks.get(run, ()) if task.state == TaskInstanceState.FAILED]
        return f" at {', '.join(failed)}" if failed else ""

    def _wait_of_task(self, task: _Task, failed: str) -> AirflowWait | None:
        if task.state == TaskInstanceState.FAILED:
            return AirflowWait(Outlook.FAILED, f"task {task.task_id} failed")
        if task.state == TaskInstanceState.UPSTREAM_FAILED:
            return AirflowWait(
                Outlook.FAILED, f"task {task.task_id} did not begin, since its run failed before it{failed}"
            )
        if task.state in _PASSING:
            return AirflowWait(Outlook.PASSES, f"task {task.task_id} {_PASSING[task.state]}")
        return self._wait_for_pool(task)

    def _wait_for_pool(self, task: _Task) -> AirflowWait | None:
        if task.state != TaskInstanceState.SCHEDULED:
            return None
        pool = self.pools.get(task.pool)
        if pool is None:
            return AirflowWait(Outlook.STOPPED, f"task {task.task_id} waits for pool {task.pool}, which does not exist")
        if pool.has(task.slots):
            return None
        full = {0: "which has no slots", 1: "whose only slot is taken"}.get(
            pool.total, f"whose {pool.total} slots are taken"
        )
        summary = f"task {task.task_id} waits for pool {task.pool}, {full}"
        return AirflowWait(Outlook.PASSES, summary, tuple(sorted(pool.taken)))

    def _full(self, dag_id: str) -> str:
        most = self.dags[dag_id].max_active_runs
        running = sum(state == DagRunState.RUNNING for (dag, _), state in self.runs.items() if dag == dag_id)
        return f", as {running} of {most} are running (max_active_runs)" if most and running >= most else ""


def _tasks(session: Session, runs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[_Task]]:
    """Map each run to its tasks that are not done."""
    here = (TaskInstance.dag_id, TaskInstance.run_id)
    of_task = (TaskInstance.task_id, TaskInstance.state, TaskInstance.pool)
    rows = session.execute(
        select(*here, *of_task, func.max(TaskInstance.pool_slots))
        .where(tuple_(*here).in_(runs), or_(TaskInstance.state.is_(None), TaskInstance.state.not_in(_DONE)))
        .group_by(*here, *of_task)
        .order_by(TaskInstance.task_id)
    )
    found: dict[tuple[str, str], list[_Task]] = {}
    for dag_id, run_id, task_id, state, pool, slots in rows:
        found.setdefault((dag_id, run_id), []).append(_Task(task_id, state, pool, slots))
    return found


def _pools(session: Session, names: Collection[str | None]) -> dict[str | None, _Slots]:
    """Return what of these pools there are."""
    pools = session.execute(select(Pool.pool, Pool.slots, Pool.include_deferred).where(Pool.pool.in_(names))).all()
    rows = session.execute(
        select(TaskInstance.pool, TaskInstance.dag_id, TaskInstance.state, func.sum(TaskInstance.pool_slots))
        .where(TaskInstance.pool.in_(names), TaskInstance.state.in_((*EXECUTION_STATES, TaskInstanceState.DEFERRED)))
        .group_by(TaskInstance.pool, TaskInstance.dag_id, TaskInstance.state)
    ).all()
    found = {}
    for pool, total, include_deferred in pools:
        taken: dict[str, int] = {}
        for name, dag_id, state, slots in rows:
            if name == pool and (include_deferred or state != TaskInstanceState.DEFERRED):
                taken[dag_id] = taken.get(dag_id, 0) + int(slots)  # databases may say a Decimal
        found[pool] = _Slots(total, taken)
    return found
