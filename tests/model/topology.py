"""The model's topology: a chain with a job of two sinks that is always there, jobs that join and leave, and some that
join with a history.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_barrier.coordinator.opening import Fragment
from airflow_barrier.protocol.topology import ExternalSource, Job
from tests.model.inputs import Landing, Log

NAME = "model"
CORE, EXTRA, LATE = "core", "extra", "late"


def _job(name: str, owner: str, **of: Any) -> Job:
    """Strangers write to all tables, also before the first barrier: what they wrote counts for nothing of the input."""
    job = Job(name, owner, **of)
    start = {**dict.fromkeys(job.sources, "latest"), **{source.name: "earliest" for source in job.externals}}
    return replace(job, start_from=start)


def _late(name: str, **of: Any) -> Job:
    job = Job(name, LATE, **of)
    return replace(job, start_from=dict.fromkeys((*job.sources, *(source.name for source in job.externals)), "history"))


JOBS = {
    job.name: job
    for job in (
        _job("load", CORE, sinks=("t.shopping",), externals=(ExternalSource("clicks", Log.kind),)),
        _job("sums", CORE, sources=("t.shopping",), sinks=("t.amount", "t.price")),
        _job("top", EXTRA, sources=("t.amount", "t.price"), sinks=("t.top",)),
        _job("visits", EXTRA, sinks=("t.visits",), externals=(ExternalSource("visits", Log.kind),)),
        _job("returns", EXTRA, sources=("t.shopping",), sinks=("t.returned",), externals=(
            ExternalSource("landing", Landing.kind),
        )),
        _late("baskets", sources=("t.shopping", "t.amount"), sinks=("t.baskets",)),
        _late("paths", sinks=("t.paths",), externals=(ExternalSource("clicks", Log.kind),)),
    )
}  # fmt: skip
#: Writers before readers.
ORDER = tuple(JOBS)
TABLES = tuple(sink for job in JOBS.values() for sink in job.sinks)
SOURCES = ("clicks", "visits", "landing")
COMING_AND_GOING = tuple(job.name for job in JOBS.values() if job.owner == EXTRA)
LATECOMERS = tuple(job.name for job in JOBS.values() if job.owner == LATE)
FRAGMENT = Fragment(NAME, CORE, tuple(job for job in JOBS.values() if job.owner == CORE))
WRITER = {sink: job.name for job in JOBS.values() for sink in job.sinks}
