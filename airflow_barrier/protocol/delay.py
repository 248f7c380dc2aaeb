"""How late a barrier is readable, and which job, or what else, took the time.

From a barrier's timestamp until readers have it, each moment is somebody's: no run had opened the barrier, a job was
not asked for, waited for another try, or ran, or the commit was missing. :func:`critical_path` finds out whose by going
back from the end: what was the last to come, what was the last that *that* had waited for, and so on. Its segments have
no gaps and do not overlap, so their seconds add up to the whole. To go back along the last arrivals is the critical
path method (Kelley and Walker, 1959), on what happened instead of on a plan.

All times are aware, in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import Job, Topology


class Part(str, Enum):
    """The use of a span of time."""

    #: The barrier's timestamp had passed, and no run had opened the barrier, although one more could be open.
    SCHEDULE = "schedule"
    #: The job waited for tables of other jobs, or for its own at the barrier before.
    INPUTS = "inputs"
    #: All was there, and the task of the job had not begun: no run of its DAG, an earlier task, a pool, a worker.
    NOT_ASKED_FOR = "not asked for"
    #: The task had asked, and a source of the job could not be read.
    SOURCE = "source away"
    #: The task had asked, all was there, and it did not go on: it was woken, or waited for a slot once more.
    WAKING = "waking"
    #: A try of the job had failed, and the next had not come.
    BETWEEN_TRIES = "between tries"
    #: A try of the job had failed, Airflow was not to try again, and nobody had cleared the task.
    NOT_REPEATED = "failed, not repeated"
    #: Tries of the job that failed, or that ended with their barrier.
    FAILED_TRIES = "failed tries"
    #: The attempt that counts: Spark, and what was asked of the tables before and after.
    SPARK = "spark"
    #: The table was staged, and others of the barrier were not.
    SIBLINGS = "siblings"
    #: An earlier barrier was not committed yet: barriers are committed in their order, and so many may be open.
    EARLIER = "earlier barriers"
    #: All was staged, no earlier barrier was in the way, and no task had decided to commit.
    DECISION = "decision"
    #: From the decision until readers had it.
    COMMIT = "commit"
    #: The same, of a barrier that is BLOCKED now: somebody else changed a table, and a person has to decide.
    BLOCKED = "blocked"
    #: The barrier was trimmed, or computed again: what its jobs did at first is not known any more.
    UNKNOWN = "not known any more"


#: What a job is answerable for, once its inputs are there.
OWN_PARTS = (
    Part.NOT_ASKED_FOR,
    Part.SOURCE,
    Part.WAKING,
    Part.BETWEEN_TRIES,
    Part.NOT_REPEATED,
    Part.FAILED_TRIES,
    Part.SPARK,
)


class AttemptMoments(NamedTuple):
    """The moments of a job's attempt. ``tried`` and ``again_at``: of a failed one, as far as its task said,
    :class:`~airflow_barrier.protocol.records.Tries`.
    """

    job: str
    state: AttemptState
    requested_at: datetime
    started_at: datetime | None
    processed_at: datetime | None
    ended_at: datetime | None
    tried: int | None = None
    again_at: datetime | None = None

    @property
    def is_lost(self) -> bool:
        return self.state in _LOST

    @property
    def is_last_try(self) -> bool:
        return self.state is AttemptState.ABORTED and self.tried is not None and self.again_at is None


_LOST = frozenset({AttemptState.FENCED, AttemptState.VOIDED, AttemptState.ABORTED})


@dataclass(frozen=True)
class BarrierMoments:
    """The moments of one barrier. ``staged``: table -> when it was PROCESSED (None: it is not yet).

    ``attempts``: job -> its attempts, in the order of their requests. ``sources``: those that could not be read when
    the barrier opened -> when they could (None: they cannot yet). ``aborted``: the barriers whose epochs this one took
    along, oldest first.
    """

    barrier: Barrier
    topology: Topology
    staged: Mapping[str, datetime | None]
    attempts: Mapping[str, Sequence[AttemptMoments]]
    sources: Mapping[str, datetime | None] = field(default_factory=dict)
    aborted: Sequence[BarrierMoments] = ()

    @property
    def since(self) -> datetime:
        """The timestamp of the oldest epoch that it has: what was to be readable first."""
        return min((self.barrier.timestamp, *(each.barrier.timestamp for each in self.aborted)))

    def until(self, now: datetime) -> datetime:
        """Return the time when it was readable, or aborted; ``now``: it is neither."""
        return self.barrier.commit_at or self.barrier.aborted_at or now


_NOTHING = dict.fromkeys(Part, 0.0)

#: The moments of the barrier of that number; None: they are not known any more.
Before = Callable[[int], BarrierMoments | None]


class Segment(NamedTuple):
    """A stretch of time. ``job``: the one that ran, or was waited for, at ``barrier_id``; None: no job was."""

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
    """The time until ``table`` was readable: seconds of each part.

    ``own``: those of the job that writes the table; ``inherited``: those that it waited for its inputs.
    """

    table: str
    job: str
    parts: Mapping[Part, float]

    @property
    def own(self) -> float:
        return sum(self.parts[part] for part in OWN_PARTS)

    @property
    def inherited(self) -> float:
        return self.parts[Part.INPUTS]

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def critical_path(at: BarrierMoments, before: Before, now: datetime, table: str | None = None) -> tuple[Segment, ...]:
    """Return the path of what took the time since ``at.since`` until the barrier was readable, or ``now``.

    ``table``: until this one was staged what held up *it*, from then on what held up the barrier. Empty for a
    timestamp that is later than the end.
    """
    until = at.until(now)
    path = [*_lost(at, before), *_opening(at, before), *_since_opened(at, before, until, table)]
    return _tiled(path, at.since, until)


def table_delays(at: BarrierMoments, before: Before, now: datetime) -> tuple[TableDelay, ...]:
    """Return the delay of each table of the barrier ``at`` until it was readable, or until ``now``."""
    barrier, until = at.barrier, at.until(now)
    opening = [_as_earlier(each, barrier) for each in (*_lost(at, before), *_opening(at, before))]
    decided = [_as_earlier(each, barrier) for each in _decided(at, before, until)]
    delays = []
    for table in at.staged:
        job = at.topology.writer(table)
        staged = _staged(at, table, until)
        path = [
            *opening,
            *_of_job(at, before, job, staged),
            Segment(Part.SIBLINGS, None, barrier.barrier_id, staged, barrier.precommit_at or until),
            *decided,
        ]
        seconds = _NOTHING.copy()
        for segment in _tiled(path, at.since, until):
            seconds[segment.part] += segment.seconds
        delays.append(TableDelay(table, job.name, seconds))
    return tuple(delays)


def job_paths(at: BarrierMoments, before: Before, now: datetime) -> dict[str, tuple[Segment, ...]]:
    """Map each job of the barrier ``at`` to its path, from the opening until its tables were staged, or until ``now``;
    without jobs whose tables were there at once.
    """
    until, paths = at.until(now), {}
    for job in at.topology.jobs:
        end = max((_staged(at, table, until) for table in job.outlets if table in at.staged), default=until)
        if at.staged and (path := _clipped(_of_job(at, before, job, end), at.barrier.opened_at, end)):
            paths[job.name] = path
    return paths


# --- until opened ---------------------------------------------------------------------------------


def _lost(at: BarrierMoments, before: Before) -> list[Segment]:
    """Return the path of the barriers whose epochs this one took along, until each was aborted."""
    path: list[Segment] = []
    for each in at.aborted:
        path += critical_path(each, before, at.barrier.opened_at)
    return path


#: A barrier that was so many times `max_open_barriers` behind when its time came is one of a catch-up: it waited for
#: the schedule, whatever the barriers before it did.
_FULL_TIMES = 8


def _opening(at: BarrierMoments, before: Before) -> list[Segment]:
    """Return the path from timestamp to opened: while no more barriers could be open, that of the oldest of them."""
    barrier = at.barrier
    path: list[Segment] = []
    for oldest in reversed(_oldest_open(at, before)):
        path.append(Segment(Part.SCHEDULE, None, barrier.barrier_id, barrier.timestamp, oldest.barrier.opened_at))
        path += _since_opened(oldest, before, oldest.until(barrier.opened_at))
    path.append(Segment(Part.SCHEDULE, None, barrier.barrier_id, barrier.timestamp, barrier.opened_at))
    return list(_tiled(path, barrier.timestamp, barrier.opened_at))


def _oldest_open(at: BarrierMoments, before: Before) -> list[BarrierMoments]:
    """The barriers that had to be committed before ``at`` could open, the newest first, back to one that was open at
    the timestamp of ``at``.
    """
    timestamp, found = at.barrier.timestamp, [at]
    while found[-1].barrier.opened_at > timestamp:
        oldest = _first_of_full(found[-1], before)
        if oldest is None or (oldest.barrier.commit_at or at.barrier.opened_at) <= timestamp:
            return found[1:]
        found.append(oldest)
        if len(found) > _FULL_TIMES:
            return []
    return found[1:]


def _first_of_full(at: BarrierMoments, before: Before) -> BarrierMoments | None:
    """The barrier that was the oldest of `max_open_barriers` with ``at`` as the next; None: there were not so many."""
    oldest: BarrierMoments | None = at if at.barrier.max_open else None
    for _ in range(at.barrier.max_open or 0):
        if oldest is None:
            break
        oldest = _predecessor(oldest, before)
    return oldest


# --- from opened to PRECOMMIT ---------------------------------------------------------------------


def _since_opened(at: BarrierMoments, before: Before, until: datetime, table: str | None = None) -> tuple[Segment, ...]:
    return (*_work(at, before, until, table), *_decided(at, before, until))


def _work(at: BarrierMoments, before: Before, until: datetime, table: str | None) -> list[Segment]:
    """Return the path from opened to all staged: back from the last one; ``table``: first from this as long as it
    goes.
    """
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
    """Return the time when all was there that an attempt of ``job`` waits for, and the last to come: inlets, and
    outlets and inlets at the predecessor.
    """
    needs = [_Need(here, table, _staged(here, table, until)) for table in job.inlets]
    predecessor = _predecessor(here, before)
    if predecessor is not None:
        # one that has joined since is not there, and nobody waits for it
        tables = [table for table in dict.fromkeys((*job.outlets, *job.inlets)) if table in predecessor.staged]
        needs += [_Need(predecessor, table, _staged(predecessor, table, until)) for table in tables]
    # of several that are still missing: the one whose barrier is the earliest, since the others wait for it as well
    last = max(needs, key=lambda need: (need.at, -need.moments.barrier.barrier_id, need.table), default=None)
    return (opened if last is None else min(max(opened, last.at), until)), last


def _of_job(here: BarrierMoments, before: Before, job: Job, end: datetime) -> list[Segment]:
    """Return the path of a job at a barrier from its opening until ``end``."""
    opened = here.barrier.opened_at
    ready, _ = _ready(here, before, job, end, opened)
    inputs = Segment(Part.INPUTS, job.name, here.barrier.barrier_id, opened, ready)
    return [inputs, *_job(here, job, ready, end)]


def _job(here: BarrierMoments, job: Job, ready: datetime, end: datetime) -> list[Segment]:
    """Return the path of a job from ``ready``, when all that it needs was there, until ``end``."""
    attempts = here.attempts.get(job.name, ())
    counts = next((each for each in reversed(attempts) if not each.is_lost), None)
    tries = [each for each in attempts if each.is_lost]
    path: list[Segment] = []
    time, waits = ready, Part.NOT_ASKED_FOR

    def add(part: Part, until: datetime) -> None:
        nonlocal time
        stop = min(max(until, time), end)
        path.append(Segment(part, job.name, here.barrier.barrier_id, time, stop))
        time = stop

    for each in tries if counts is None else [*tries, counts]:
        add(waits, each.requested_at)
        add(Part.SOURCE, min(_read_from(here, job, time, end), each.started_at or each.ended_at or end))
        if each is counts:
            add(Part.WAKING, each.started_at or each.processed_at or end)
            add(Part.SPARK, end)
            return path
        if each.started_at is not None:
            add(Part.WAKING, each.started_at)
        add(Part.FAILED_TRIES, each.ended_at or end)
        waits = Part.NOT_REPEATED if each.is_last_try else Part.BETWEEN_TRIES
    add(waits, end)
    return path


def _read_from(here: BarrierMoments, job: Job, time: datetime, end: datetime) -> datetime:
    """Return when, after ``time``, all its sources could be read; ``end``: one of them cannot be yet."""
    away = [here.sources[source.name] or end for source in job.externals if source.name in here.sources]
    return max([time, *away])


def _staged(at: BarrierMoments, table: str, until: datetime) -> datetime:
    """Return the time it was staged; ``until``: it is not yet, or was again since, by a revision."""
    return min(at.staged[table] or until, until)


# --- from PRECOMMIT to COMMIT ---------------------------------------------------------------------


def _decided(at: BarrierMoments, before: Before, until: datetime) -> list[Segment]:
    """Return the path from PRECOMMIT on: the barrier before's path until that was committed, then the commit."""
    barrier = at.barrier
    if barrier.precommit_at is None:
        return []
    staged = min(barrier.precommit_at, until)
    predecessor = _predecessor(at, before)
    free = staged if predecessor is None else min(max(predecessor.barrier.commit_at or until, staged), until)
    held_up: Sequence[Segment] = ()
    if predecessor is not None and free > staged:
        held_up = _clipped(_since_opened(predecessor, before, predecessor.until(until)), staged, free)
    # of a barrier that was recovered it is not known
    decided = min(max(barrier.committing_at or barrier.commit_at or until, free), until)
    return [
        *held_up,
        Segment(Part.DECISION, None, barrier.barrier_id, free, decided),
        Segment(
            Part.BLOCKED if barrier.state is BarrierState.BLOCKED else Part.COMMIT,
            None,
            barrier.barrier_id,
            decided,
            until,
        ),
    ]


# --- in general -----------------------------------------------------------------------------------


def _predecessor(at: BarrierMoments, before: Before) -> BarrierMoments | None:
    return before(at.barrier.predecessor) if at.barrier.predecessor else None


def _as_earlier(segment: Segment, barrier: Barrier) -> Segment:
    return segment if segment.barrier_id == barrier.barrier_id else segment._replace(part=Part.EARLIER)


def _clipped(path: Iterable[Segment], begin: datetime, end: datetime) -> tuple[Segment, ...]:
    """Return the part of ``path`` between ``begin`` and ``end``, without what took no time."""
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
