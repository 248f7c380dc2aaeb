"""What a run's conf says, of its backfill and of rehearsals, and the fields of Airflow's forms that ask for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from airflow_barrier.operators._at import true_or_false
from airflow_barrier.protocol.errors import ConfigurationError
from airflow_barrier.protocol.revisions import BACKFILL, REHEARSAL

if TYPE_CHECKING:
    from airflow_barrier.coordinator.runs import ActiveBackfill
    from airflow_barrier.protocol.topology import Job

#: Keys of the conf, and fields of the form: what was wrong.
JOBS, RECUT, FULL = "barrier_jobs", "barrier_recut", "barrier_full"

#: Airflow's name for whoever triggers a run by ``dag.test()``, which is what ``airflow dags test`` calls.
_TESTER = "dag_test"

#: XCom of a start task, for the commit task: why the run's backfill, or its rehearsal, is refused.
REFUSED = "barrier_refused"


def backfill_of(conf: Mapping[str, Any], dag_id: str) -> ActiveBackfill | None:
    """The active backfill that the run is in; None: it is in none.

    Raises ConfigurationError for what a person has given and cannot be.
    """
    from airflow_barrier.coordinator.runs import ActiveBackfill

    said = conf.get(BACKFILL)
    if said is None:
        return None
    created_at, first, last = (datetime.fromisoformat(said[key]) for key in ("created_at", "from_date", "to_date"))
    return ActiveBackfill(
        dag_id,
        said["id"],
        created_at,
        first,
        last,
        author=said["user"],
        jobs=_names(conf, JOBS),
        recut=_names(conf, RECUT),
        full=true_or_false(FULL, conf.get(FULL) or False),
    )


def is_rehearsed(run: Any) -> bool:
    """Return whether a run, as the task SDK has it, is a rehearsal.

    Raises ConfigurationError for a conf that is neither true nor false.
    """
    said = (run.conf or {}).get(REHEARSAL)
    if said is None:
        return getattr(run, "triggering_user_name", None) == _TESTER
    return true_or_false(REHEARSAL, said)


def rehearsal_field() -> dict[str, Param]:
    """The DAG's param by which Airflow's form for a run asks whether it is a rehearsal."""
    what = "The jobs run, checks look at what they stage, and nothing is published or delivered."
    return {REHEARSAL: Param(False, type="boolean", title="Rehearsal", description=what, section="Barrier")}


def correction_fields(jobs: Sequence[Job]) -> dict[str, Param]:
    """The DAG's params by which Airflow's forms ask what was wrong."""
    section = "Correcting history, in a backfill"
    sources = sorted({source.name for job in jobs for source in job.externals})
    return {
        JOBS: Param(
            [],
            type="array",
            items={"type": "string"},
            examples=[job.name for job in jobs],
            title="Corrected jobs",
            description="Jobs whose code was corrected. Empty: all that read sources. All downstream of them follows.",
            section=section,
        ),
        RECUT: Param(
            [],
            type="array",
            items={"type": "string"},
            examples=sources,
            title="Sources to cut anew",
            description="Sources whose files of these days have other names now, or are gone.",
            section=section,
        ),
        FULL: Param(
            False,
            type="boolean",
            title="From empty tables",
            description="For state that cannot be replayed: all that came before the first day is one epoch.",
            section=section,
        ),
    }


def _names(conf: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = conf.get(key) or []
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ConfigurationError(f"conf of the run: expected a list of names as {key!r}, found {found!r}")
    return tuple(found)
