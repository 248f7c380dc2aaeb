"""Whether a run rehearses its barrier: `airflow dags test` does, and who triggers the DAG may want it."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from airflow_barrier.operators._at import true_or_false
from airflow_barrier.protocol.revisions import REHEARSAL

#: Airflow's name for whoever triggers a run by ``dag.test()``, which is what ``airflow dags test`` calls.
_TESTER = "dag_test"


def is_rehearsed(run: Any) -> bool:
    """Return whether a run, as the task SDK has it, is a rehearsal.

    Raises ConfigurationError for a conf that is neither true nor false.
    """
    said = (run.conf or {}).get(REHEARSAL)
    if said is None:
        return getattr(run, "triggering_user_name", None) == _TESTER
    return true_or_false(REHEARSAL, said)


def form_field() -> dict[str, Param]:
    """The DAG's param by which Airflow's form for a run asks."""
    what = "The jobs run, checks look at what they stage, and nothing is published or delivered."
    return {REHEARSAL: Param(False, type="boolean", title="Rehearsal", description=what, section="Barrier")}
