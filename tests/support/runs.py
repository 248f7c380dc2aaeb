"""Runs that no Airflow has."""

from __future__ import annotations

from airflow_barrier.protocol.records import RunRef


def run_of(name: str) -> RunRef:
    """A scheduled run by `dag/run`, or by its id alone.

    >>> run_of("shopping_dag/day-1").key, run_of("day-1").key
    (('shopping_dag', 'day-1'), ('dag', 'day-1'))
    """
    dag_id, slash, run_id = name.partition("/")
    return RunRef(dag_id, run_id, "scheduled") if slash else RunRef("dag", name, "scheduled")
