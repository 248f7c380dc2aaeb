"""The model's topology: a chain with a job of two outlets that is always there, jobs that join and leave, and some that
join with a history.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from airflow_barrier.protocol.topology import ExternalSource, Fragment, Job
from tests.model.inputs import Landing, Log

NAME = "model"
CORE, EXTRA, LATE = "core", "extra", "late"
_ANY = datetime(2026, 1, 1, tzinfo=timezone.utc)


#: What of its inlets is in the tables of a job that joins: all that the barrier before has, nothing, or what was
#: there at some moment. Undeclared, nothing is, and a job whose tables hold rows is refused.
STARTS = ("latest", "earliest", "moment", "undeclared")


def started(job: Job, start: str, moment: datetime) -> Job:
    """A job as it is declared. Strangers write to all tables, also before the first barrier; what of that is in the
    epoch of a job that joins is up to ``start``.
    """
    if job.owner == LATE:
        return replace(job, start_from=dict.fromkeys((*job.inlets, *_externals(job)), "history"))
    if start == "undeclared":
        return replace(job, start_from=None)
    begins = {"time": moment.isoformat()} if start == "moment" else start
    return replace(job, start_from={**dict.fromkeys(job.inlets, begins), **dict.fromkeys(_externals(job), "earliest")})


def _externals(job: Job) -> list[str]:
    return [source.name for source in job.externals]


def _job(name: str, owner: str, **of: Any) -> Job:
    return started(Job(name, owner, **of), "latest", _ANY)


#: As they are if nothing else is drawn.
JOBS = {
    job.name: job
    for job in (
        _job("load", CORE, outlets=("t.shopping",), externals=(ExternalSource("clicks", Log.kind),)),
        _job("sums", CORE, inlets=("t.shopping",), outlets=("t.amount", "t.price")),
        _job("top", EXTRA, inlets=("t.amount", "t.price"), outlets=("t.top",)),
        _job("visits", EXTRA, outlets=("t.visits",), externals=(ExternalSource("visits", Log.kind),)),
        _job("returns", EXTRA, inlets=("t.shopping",), outlets=("t.returned",), externals=(
            ExternalSource("landing", Landing.kind),
        )),
        _job("baskets", LATE, inlets=("t.shopping", "t.amount"), outlets=("t.baskets",)),
        _job("paths", LATE, outlets=("t.paths",), externals=(ExternalSource("clicks", Log.kind),)),
    )
}  # fmt: skip
#: Writers before readers.
ORDER = tuple(JOBS)
TABLES = tuple(outlet for job in JOBS.values() for outlet in job.outlets)
SOURCES = ("clicks", "visits", "landing")
COMING_AND_GOING = tuple(job.name for job in JOBS.values() if job.owner == EXTRA)
LATECOMERS = tuple(job.name for job in JOBS.values() if job.owner == LATE)
FRAGMENT = Fragment(NAME, CORE, tuple(job for job in JOBS.values() if job.owner == CORE))
WRITER = {outlet: job.name for job in JOBS.values() for outlet in job.outlets}
#: Jobs that read tables, and may have their tables empty when they join.
STARTING = ("top", "returns")
