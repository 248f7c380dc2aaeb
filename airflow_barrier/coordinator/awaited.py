"""Which work of Airflow's a topology waits for."""

from __future__ import annotations

from typing import NamedTuple


class Awaited(NamedTuple):
    """A DAG's work, and of it a run, and a task, as far as these are known."""

    dag_id: str
    run_id: str | None = None
    task_id: str | None = None


class TaskKey(NamedTuple):
    """An instance of a task in Airflow; ``map_index`` -1: it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


def task_key(request_key: str) -> TaskKey | None:
    """The task that asked for an attempt; None: it was asked for by somebody who is no task.

    >>> task_key("shop/manual__1/later/load/-1")
    TaskKey(dag_id='shop', run_id='manual__1/later', task_id='load', map_index=-1)
    """
    dag_id, _, rest = request_key.partition("/")
    run_id, *ends = rest.rsplit("/", 2)  # a run's id may hold anything
    if len(ends) < 2 or not ends[1].removeprefix("-").isdecimal():
        return None
    return TaskKey(dag_id, run_id, ends[0], int(ends[1]))
