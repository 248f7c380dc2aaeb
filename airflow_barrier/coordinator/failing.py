"""Jobs that have failed at barriers that wait for them: which try it was, whether another comes, and who waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_barrier.metaservice.overviews import InFlight, Overviews
from airflow_barrier.protocol.records import AttemptProgress
from airflow_barrier.protocol.topology import Job, Topology, downstream_jobs


@dataclass(frozen=True)
class Failed:
    """A job whose newest attempt at a barrier has failed, ``at`` (UTC), and the ``tables`` that it has not brought.

    ``holds_up``: how many tables of other jobs wait for these. ``reason``: the error. ``request_key``: the task.
    ``again_at`` (UTC): Airflow tries again, not before; None: nothing happens any more unless a person does something.
    """

    barrier_id: int
    job: str
    dag: str
    tables: tuple[str, ...]
    at: datetime
    reason: str
    holds_up: int
    request_key: str
    tried: int | None
    tries: int | None
    again_at: datetime | None

    @property
    def summary(self) -> str:
        """The failed job and its barrier, in a sentence without its end.

        >>> from datetime import timezone
        >>> at = datetime(2025, 1, 1, tzinfo=timezone.utc)
        >>> Failed(25, "amount", "sales", ("shop.amount",), at, "no", 6, "", 3, 3, None).summary
        'amount (DAG sales) failed at barrier 25, try 3 of 3; it holds up 6 tables'
        """
        what = "failed" if self.again_at is None else "is to be tried again after it failed"
        tried = "" if self.tried is None else f", try {self.tried} of {self.tries}"
        tables = "table" if self.holds_up == 1 else "tables"
        waits = f"; it holds up {self.holds_up} {tables}" if self.holds_up else ""
        return f"{self.job} (DAG {self.dag}) {what} at barrier {self.barrier_id}{tried}{waits}"


def failures(rows: Overviews, in_flight: Mapping[str, Sequence[InFlight]]) -> dict[str, list[Failed]]:
    """Map each topology to the jobs that failed at its barriers ``in_flight``, the first to fail first."""
    ended = rows.failed(list(in_flight))
    pending = rows.pending(sorted({topology for topology, _ in ended})) if ended else {}
    found: dict[str, list[Failed]] = {name: [] for name in in_flight}
    for name, barriers in in_flight.items():
        for each in barriers:
            place = (name, each.barrier.barrier_id)
            # maintenance that fails is passed by: nobody waits for it
            if place in ended and not each.barrier.is_maintenance:
                found[name] += _at(rows.topology_of(each), pending.get(place, set()), ended[place])
        found[name].sort(key=lambda failed: (failed.at, failed.barrier_id, failed.job))
    return found


def _at(topology: Topology, pending: Collection[str], attempts: Sequence[AttemptProgress]) -> list[Failed]:
    """Return the failed jobs whose tables the barrier still lacks."""
    jobs = {job.name: job for job in topology.jobs}
    found = []
    for attempt in attempts:
        job = jobs.get(attempt.job)
        tables = () if job is None else tuple(table for table in job.outlets if table in pending)
        if job is not None and tables and attempt.ended_at is not None:
            found.append(
                Failed(
                    attempt.barrier_id,
                    job.name,
                    job.owner,
                    tables,
                    attempt.ended_at,
                    attempt.reason or "",
                    _held_up(topology, job, pending),
                    attempt.request_key,
                    attempt.tried,
                    attempt.tries,
                    attempt.again_at,
                )
            )
    return found


def _held_up(topology: Topology, job: Job, pending: Collection[str]) -> int:
    after = [topology.job(name) for name in downstream_jobs(topology, job.name) if name != job.name]
    return sum(table in pending for each in after for table in each.outlets)
