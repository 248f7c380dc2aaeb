"""How late a barrier is readable, and which job, or what else, took the time.

From a barrier's timestamp until readers have it, each moment is somebody's: nobody had opened the barrier yet, a job
waited for a slot or ran, or the commit. :func:`critical_path` finds out whose by going back from the end: what was the
last to come, what was the last that *that* had waited for, and so on. Its segments have no gaps and do not overlap, so
their seconds add up to the whole. To go back along the last arrivals is the critical path method (Kelley and Walker,
1959), on what happened instead of on a plan.

All times are aware, in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState
from airflow_barrier.protocol.topology import Job, Topology


class Part(str, Enum):
    """What time was spent on."""

    #: The barrier's timestamp had passed, and no run had opened the barrier.
    SCHEDULE = "schedule"
    #: The job waited for tables of other jobs, or for its own at the barrier before.
    INPUTS = "inputs"
    #: All was there and Airflow did not run the task: the scheduler, a pool, the executor, or the next run of its DAG.
    SLOT = "slot"
    #: Tries of the job that came to nothing.
    RETRIES = "retries"
    #: The attempt that counts: Spark, and what was asked of the tables before and after.
    SPARK = "spark"
    #: The table was staged, and others of the barrier were not.
    SIBLINGS = "siblings"
    #: All was staged, and an earlier barrier was not committed yet: barriers are committed in their order.
    EARLIER = "earlier barriers"
    #: From the moment when nothing but the commit was missing.
    COMMIT = "commit"
    #: The barrier was trimmed, or computed again: what its jobs did at first is not known any more.
    UNKNOWN = "not known any more"


class AttemptMoments(NamedTuple):
    """When what became of an attempt of a job."""

    job: str
    state: AttemptState
    requested_at: datetime
    started_at: datetime | None
    processed_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True)
class BarrierMoments:
    """What happened when at one barrier. ``staged``: table -> when it was PROCESSED (None: it is not yet).

    ``attempts``: job -> its attempts, in the order of their requests.
    """

    barrier: Barrier
    topology: Topology
    staged: Mapping[str, datetime | None]
    attempts: Mapping[str, Sequence[AttemptMoments]]


_NOTHING = dict.fromkeys(Part, 0.0)

#: The moments of the barrier of that number; None: they are not known any more.
Before = Callable[[int], BarrierMoments | None]


class Segment(NamedTuple):
    """A stretch of time. ``job``: the one that ran, or that waited for a slot, at ``barrier_id``; None: no job did."""

    part: Part
    job: str | None
    barrier_id: int
    begin: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


@dataclass(frozen=True)
class TableDelay:
    """Where the time went until ``table`` was readable: seconds of each part.

    ``own``: those of the job that writes the table; ``inherited``: those that it waited for its inputs.
    """

    table: str
    job: str
    parts: Mapping[Part, float]

    @property
    def own(self) -> float:
        return sum(self.parts[part] for part in (Part.SLOT, Part.RETRIES, Part.SPARK))

    @property
    def inherited(self) -> float:
        return self.parts[Part.INPUTS]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def critical_path(at: BarrierMoments, before: Before, now: datetime, table: str | None = None) -> tuple[Segment, ...]:
    """Who or what took the time from the timestamp of the barrier ``at`` until it was readable, or until ``now``.

    ``table``: until this one was staged what held up *it*, from then on what held up the barrier. Empty for a
    timestamp that is later than the end.
    """
    barrier = at.barrier
    until = barrier.commit_at or now
    path = [
        Segment(Part.SCHEDULE, None, barrier.barrier_id, barrier.timestamp, barrier.opened_at),
        *_work(at, before, until, table),
        *_decided(at, before, until),
    ]
    return _tiled(path, barrier.timestamp, until)


def table_delays(at: BarrierMoments, before: Before, now: datetime) -> tuple[TableDelay, ...]:
    """Of each table of the barrier ``at`` where the time went until it was readable, or until ``now``."""
    barrier = at.barrier
    until = barrier.commit_at or now
    decided = [_as_earlier(each, barrier) for each in _decided(at, before, until)]
    delays = []
    for table in at.staged:
        job = at.topology.writer(table)
        staged = _staged(at, table, until)
        ready, _ = _ready(at, before, job, staged, barrier.opened_at)
        path = [
            Segment(Part.SCHEDULE, None, barrier.barrier_id, barrier.timestamp, barrier.opened_at),
            Segment(Part.INPUTS, None, barrier.barrier_id, barrier.opened_at, ready),
            *_job(at, job, ready, staged),
            Segment(Part.SIBLINGS, None, barrier.barrier_id, staged, barrier.precommit_at or until),
            *decided,
        ]
        seconds = _NOTHING.copy()
        for segment in _tiled(path, barrier.timestamp, until):
            seconds[segment.part] += segment.seconds
        delays.append(TableDelay(table, job.name, seconds))
    return tuple(delays)


# --- from opened to PRECOMMIT ---------------------------------------------------------------------


def _work(at: BarrierMoments, before: Before, until: datetime, table: str | None) -> list[Segment]:
    """From opened until all tables are staged: back from the last one; ``table``: from this one as long as it goes."""
    if not at.staged:
        end = at.barrier.precommit_at or until
        return [Segment(Part.UNKNOWN, None, at.barrier.barrier_id, at.barrier.opened_at, end)]
    last = max(at.staged, key=lambda each: (_staged(at, each, until), each))
    path = _back(at, before, last, _staged(at, last, until))
    if table is None or table == last:
        return path
    staged = _staged(at, table, until)
    return [*_back(at, before, table, staged), *_clipped(path, staged, until)]


def _back(at: BarrierMoments, before: Before, table: str, end: datetime) -> list[Segment]:
    """The chain of jobs that ended with ``table`` staged at ``end``, from the opening of the barrier ``at`` on."""
    opened = at.barrier.opened_at
    path: list[Segment] = []
    here: BarrierMoments = at
    while end > opened:
        job = here.topology.writer(table)
        ready, need = _ready(here, before, job, end, opened)
        path[:0] = _job(here, job, ready, end)
        if need is None:
            break
        here, table, end = need.moments, need.table, ready
    return path


class _Need(NamedTuple):
    moments: BarrierMoments
    table: str
    at: datetime


def _ready(
    here: BarrierMoments, before: Before, job: Job, until: datetime, opened: datetime
) -> tuple[datetime, _Need | None]:
    """When all was there that an attempt of ``job`` waits for, and the last of it to come: inlets, and outlets and
    inlets at the predecessor.
    """
    needs = [_Need(here, table, _staged(here, table, until)) for table in job.inlets]
    predecessor = before(here.barrier.predecessor) if here.barrier.predecessor else None
    if predecessor is not None:
        # one that has joined since is not there, and nobody waits for it
        tables = [table for table in dict.fromkeys((*job.outlets, *job.inlets)) if table in predecessor.staged]
        needs += [_Need(predecessor, table, _staged(predecessor, table, until)) for table in tables]
    # of several that are still missing: the one whose barrier is the earliest, since the others wait for it as well
    last = max(needs, key=lambda need: (need.at, -need.moments.barrier.barrier_id, need.table), default=None)
    return (opened if last is None else min(max(opened, last.at), until)), last


def _job(here: BarrierMoments, job: Job, ready: datetime, end: datetime) -> list[Segment]:
    """What a job did from ``ready``, when all that it needs was there, until ``end``."""
    attempts = here.attempts.get(job.name, ())
    counts = next((each for each in reversed(attempts) if each.state not in _FAILED), None)
    started = end if counts is None else (counts.started_at or counts.processed_at or end)
    started = min(max(started, ready), end)
    barrier_id = here.barrier.barrier_id
    path, time = [], ready
    for failed in (each for each in attempts if each is not counts and each.started_at is not None):
        begin = min(max(failed.started_at or time, time), started)
        stop = min(max(failed.ended_at or started, begin), started)
        path.append(Segment(Part.SLOT, job.name, barrier_id, time, begin))
        path.append(Segment(Part.RETRIES, job.name, barrier_id, begin, stop))
        time = stop
    path.append(Segment(Part.SLOT, job.name, barrier_id, time, started))
    path.append(Segment(Part.SPARK, job.name, barrier_id, started, end))
    return path


_FAILED = frozenset({AttemptState.FENCED, AttemptState.VOIDED, AttemptState.ABORTED})


def _staged(at: BarrierMoments, table: str, until: datetime) -> datetime:
    """When it was; ``until``: it is not yet, or was staged again since, by a revision."""
    return min(at.staged[table] or until, until)


# --- from PRECOMMIT to COMMIT ---------------------------------------------------------------------


def _decided(at: BarrierMoments, before: Before, until: datetime) -> list[Segment]:
    """From PRECOMMIT on: what held up the barrier before, as long as that was not committed, then the commit."""
    barrier = at.barrier
    if barrier.precommit_at is None:
        return []
    staged = min(barrier.precommit_at, until)
    predecessor = before(barrier.predecessor) if barrier.predecessor else None
    free = staged if predecessor is None else min(max(predecessor.barrier.commit_at or until, staged), until)
    held_up: Sequence[Segment] = ()
    if predecessor is not None and free > staged:
        held_up = _clipped(critical_path(predecessor, before, until), staged, free)
    return [*held_up, Segment(Part.COMMIT, None, barrier.barrier_id, free, until)]


# --- in general -----------------------------------------------------------------------------------


def _as_earlier(segment: Segment, barrier: Barrier) -> Segment:
    return segment if segment.barrier_id == barrier.barrier_id else segment._replace(part=Part.EARLIER)


def _clipped(path: Iterable[Segment], begin: datetime, end: datetime) -> tuple[Segment, ...]:
    """What of ``path`` is between ``begin`` and ``end``, without what took no time."""
    cut = (each._replace(begin=max(each.begin, begin), end=min(each.end, end)) for each in path)
    return tuple(each for each in cut if each.end > each.begin)


def _tiled(path: Iterable[Segment], begin: datetime, end: datetime) -> tuple[Segment, ...]:
    """``path``, which is in order, from ``begin`` to ``end`` without gaps, without what took no time.

    Records that contradict each other, as after a recovery, still give a whole.
    """
    tiles: list[Segment] = []
    for each in path:
        stop = min(max(each.end, begin), end)
        if stop > begin:
            tiles.append(Segment(each.part, each.job, each.barrier_id, begin, stop))
            begin = stop
    if tiles and begin < end:
        tiles[-1] = tiles[-1]._replace(end=end)
    return tuple(tiles)
