"""What a running task tells the coordinator about itself, and what the coordinator's errors mean to Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, redact
from airflow.sdk import TaskInstanceState, get_current_context
from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_barrier.operators._conf import backfill_of, is_rehearsed
from airflow_barrier.protocol.errors import ConfigurationError, SchemaVersionError, Terminal
from airflow_barrier.protocol.names import parse_event_key
from airflow_barrier.protocol.records import SCHEDULED_RUNS, RunRef, Tries
from airflow_barrier.protocol.revisions import TOKEN

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_barrier.coordinator.runs import Run

#: Where the task SDK keeps what a task talks to its supervisor by; it is declared in every process.
_SUPERVISOR = "SUPERVISOR_COMMS"

#: Characters of an error that are kept.
_LONGEST_REASON = 300

#: XCom of a try that failed since its worker and the MetaService's database were of different versions.
_OF_ANOTHER_VERSION = "barrier_of_another_version"


#: Runs that nobody asked for one by one: members of the topology have runs that go with them.
RUNS_OF_A_SCHEDULE = SCHEDULED_RUNS | {"asset_triggered"}


def run_type(context: Context) -> str:
    """The run's type, as Airflow spells it: ``scheduled``, ``backfill``, ``manual``, ``asset_triggered``..."""
    return str(context["dag_run"].run_type.value)


def is_running() -> bool:
    """Return whether a task runs in this process: then there is its supervisor to talk to.

    Templates are rendered without one, too, by ``airflow tasks render`` for instance, whose context has a task instance
    although none runs. With a task SDK that has put the supervisor elsewhere a task may always run.
    """
    from airflow.sdk.execution_time import task_runner

    return hasattr(task_runner, _SUPERVISOR) or _SUPERVISOR not in task_runner.__annotations__


def run_ref(context: Context) -> RunRef:
    """The run, across DAGs: what a barrier remembers as its opener."""
    ti, date = context["ti"], context["dag_run"].logical_date
    return RunRef(ti.dag_id, ti.run_id, run_type(context), None if date is None else date.astimezone(timezone.utc))


def task_key(context: Context) -> str:
    """The task instance, equal in all of its tries."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index if ti.map_index is not None else -1}"


def try_key(context: Context) -> str:
    """The task instance and its try: one that slept is told from its own retry."""
    return f"{task_key(context)}#{context['ti'].try_number}"


def actor(context: Context) -> str:
    """Return the task's name for the audit."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}#{ti.try_number}"


def generation(context: Context) -> str:
    """Equal in all tries of a task, another after it was cleared.

    Clearing sets ``max_tries`` to the tries so far plus the retries, so it rises with every clear that follows a try;
    a retry leaves it alone. ``retries`` stands beside it for a clear after the DAG's author lowered it. The run's
    ``clear_number`` would not do: clearing one task raises it for all of the run, and stays away when a clear leaves
    the run's state alone.
    """
    return f"{context['ti'].max_tries}/{context['task'].retries or 0}"


def first_generation(context: Context) -> str:
    """The :func:`generation` of the same task in another run, as long as nobody has cleared it."""
    retries = context["task"].retries or 0
    return f"{retries}/{retries}"


def run_of(key: str, context: Context) -> str | None:
    """The id of the run that a :func:`task_key` names, if it is one of this task; None: another task's."""
    run_id = context["ti"].run_id
    before, _, after = task_key(context).rpartition(run_id)
    if not (key.startswith(before) and key.endswith(after) and len(key) > len(before) + len(after)):
        return None
    return key[len(before) : len(key) - len(after)]


def run_timestamp(context: Context) -> tuple[datetime, str]:
    """The barrier timestamp of a task's run, in UTC, and where it came from.

    What each timetable gives to scheduled, manual and API-triggered runs stands in ``docs/timestamps.md``.
    """
    return timestamp_of(context["dag_run"])


def timestamp_of(run: Any) -> tuple[datetime, str]:
    """Return what :func:`run_timestamp` does, of any run as the task SDK has it."""
    end = run.data_interval_end
    if end is not None:
        return end.astimezone(timezone.utc), "data interval end"
    return run.run_after.astimezone(timezone.utc), "run_after"


def run_of_task(context: Context) -> Run:
    """The run of a task, as the coordinator knows it. Raises ConfigurationError for a token that is no number."""
    from airflow_barrier.coordinator.runs import Run

    run, (timestamp, timestamp_from) = context["dag_run"], run_timestamp(context)
    return Run(
        run_ref(context),
        timestamp,
        timestamp_from,
        barrier_id=barrier_of_partition(context),
        token=_token(context),
        clear_number=run.clear_number or 0,
        backfill=backfill_of(run.conf or {}, context["ti"].dag_id),
        rehearsal=is_rehearsed(run),
    )


def _token(context: Context) -> int:
    """0: the run has none."""
    token = (context["dag_run"].conf or {}).get(TOKEN)
    if token is None:
        return 0
    try:
        number = int(token)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ConfigurationError(
            f"conf of the run: expected the number of a revision as {TOKEN!r}, found {token!r}; give the one that "
            "airflow-barrier revision run has printed"
        )
    return number


def barrier_of_partition(context: Context) -> int | None:
    """The barrier that the run's partition names; None: the run has no partition of ours."""
    return parse_event_key(getattr(context["dag_run"], "partition_key", None) or "")


def skip(task: BaseOperator, reason: str) -> NoReturn:
    """End the task as skipped. Its log says why: what Airflow itself writes of that is folded away in the UI."""
    task.log.info("Skipped: %s", reason)
    raise AirflowSkipException(reason)


def reason_of(error: BaseException) -> str:
    """Return what is kept of why a task failed: in one line, without the secrets that Airflow knows of, as in its own
    logs.
    """
    # Spark's messages go on for pages; what happened stands in the first line, before which there may be an empty one
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {str(redact(first))[:_LONGEST_REASON]}"


def tries_of(context: Context, error: BaseException) -> Tries:
    """Return which try has failed, and whether Airflow makes another one. The longer pauses of an exponential backoff
    are Airflow's to know.
    """
    ti, tries = context["ti"], context["ti"].max_tries + 1
    again = ti.try_number < tries and not isinstance(error, AirflowFailException)
    again_at = datetime.now(timezone.utc) + context["task"].retry_delay if again else None
    return Tries(ti.try_number, tries, again_at)


@contextmanager
def without_useless_retries() -> Iterator[None]:
    """Errors that a retry cannot mend end the task; the others use Airflow's retries."""
    try:
        yield
    except SchemaVersionError:
        # no context while templates are rendered; and a note that Airflow does not take must not hide the error
        with suppress(RuntimeError, AirflowRuntimeError):
            get_current_context()["ti"].xcom_push(_OF_ANOTHER_VERSION, value=True)
        raise
    except Terminal as error:
        raise AirflowFailException(str(error)) from error


def failed_by_a_deploy(context: Context) -> list[str]:
    """The tasks before this one that failed, if all did so since their workers were of another version than the
    MetaService; else none.
    """
    ti, before = context["ti"], context["task"].get_flat_relative_ids(upstream=True)
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
    failed = sorted(task for task in before if states.get(task) == TaskInstanceState.FAILED)
    # Airflow clears what a try has pushed when the next one begins
    said = [ti.xcom_pull(task_ids=task, key=_OF_ANOTHER_VERSION, map_indexes=None) for task in failed]
    return failed if all(said) else []
