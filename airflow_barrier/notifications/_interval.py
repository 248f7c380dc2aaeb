"""Which interval of time a run tells of: those of a schedule's runs tile the time, and nothing has to be remembered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_barrier.coordinator.signals import SETTLED

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

#: How far back the first run of a schedule looks, if its interval is one moment.
_AT_FIRST = timedelta(hours=1)
#: So many runs that somebody triggered may stand between two of the schedule's.
_MOST_BETWEEN = 100


def interval_of(context: Context, now: datetime) -> tuple[datetime, datetime]:
    """Return the interval (UTC) of what the context's run tells: from when on and before when it has to have happened.

    A run of a schedule tells what has happened since the one before it, up to its own time: retried or cleared it tells
    the same. Any other run, or none, tells what has happened since the newest run of the schedule until ``now``.
    """
    run = context.get("dag_run")
    end = _time(run, "data_interval_end")
    if run is None or end is None or _kind(run) != "scheduled":
        before = None if run is None else _end_before(run, now)
        return (now - _AT_FIRST if before is None else before - SETTLED), now
    begin, before = _time(run, "data_interval_start"), _end_before(run, _time(run, "logical_date") or end)
    if before is None:  # a timetable's run may be of one moment
        before = begin if begin is not None and begin < end else end - _AT_FIRST
    return before - SETTLED, end - SETTLED


def _end_before(run: Any, date: datetime) -> datetime | None:
    """Return up to when the last run of the DAG's schedule before ``date`` tells; None: there was none, or nobody can
    say."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetPreviousDagRun

    dag_id = run["dag_id"] if isinstance(run, Mapping) else run.dag_id
    for _ in range(_MOST_BETWEEN):
        try:
            answer: Any = task_runner.SUPERVISOR_COMMS.send(GetPreviousDagRun(dag_id=dag_id, logical_date=date))
        except Exception as error:  # a triggerer has no answer to this
            log.info("Airflow was asked in vain for the run of %s before %s: %s", dag_id, date, error)
            return None
        if answer is None or answer.dag_run is None:
            return None
        if _kind(answer.dag_run) == "scheduled":
            return _time(answer.dag_run, "data_interval_end")
        date = answer.dag_run.logical_date
    return None


def _time(run: Any, name: str) -> datetime | None:
    """Return a time of a run as tasks have it, or of JSON, as callbacks of a deadline have it."""
    value = run.get(name) if isinstance(run, Mapping) else getattr(run, name, None)
    return datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value


def _kind(run: Any) -> str:
    kind = run["run_type"] if isinstance(run, Mapping) else run.run_type
    return str(getattr(kind, "value", kind))
