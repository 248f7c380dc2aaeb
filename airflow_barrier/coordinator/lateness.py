"""What a topology waits for, since when, and when that is too long: jobs, commits, and barriers that nobody opens."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from statistics import median
from typing import NamedTuple

from airflow_barrier.coordinator.awaited import Awaited, task_key
from airflow_barrier.coordinator.doing import summary_of
from airflow_barrier.coordinator.failing import Failed, failures
from airflow_barrier.metaservice.overviews import InFlight, Overviews, Place, Stamp
from airflow_barrier.protocol.records import AttemptProgress, Barrier, BarrierKind
from airflow_barrier.protocol.spans import short
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, BarrierState
from airflow_barrier.protocol.topology import Job

#: Barriers with the newest numbers among which the usual time is looked for, and how many of them it is of.
LOOKED_BACK = 32
_USUAL_OF = 20
#: A job is late after so many times the usual time, and never before that much.
_TIMES = 2
_LEAST = timedelta(seconds=60)


@dataclass(frozen=True)
class Late:
    """The cause that holds up ``barrier_id``, or the topology (None), ``since`` when (UTC). ``summary``: in a sentence.

    ``job`` None: it is no job's doing. ``dag``: whose task is waited for, if it is known. ``at``: from when on that was
    too long (UTC). As long as the same is waited for, it is the same moment whenever one looks. ``why`` it has not come
    yet, if that is known. ``awaited``: what Airflow can be asked about, to know more of that.
    """

    barrier_id: int | None
    job: str | None
    dag: str | None
    tables: tuple[str, ...]
    since: datetime
    at: datetime
    what: str
    why: str | None = None
    awaited: Awaited | None = None

    @property
    def summary(self) -> str:
        if self.job is not None:
            return f"{self.what} (job {self.job} of DAG {self.dag}: {self.why})"
        return self.what if self.why is None else f"{self.what}; {self.why}"


@dataclass(frozen=True)
class Standing:
    """A topology at a glance: its newest barriers, the newest first; those in flight, oldest first; what repeatable
    read serves, and how old that is in seconds (None: nothing is committed); the revision that is under way, if one is;
    the jobs that have failed, oldest first; all else that is late, the longest first; and the jobs that barriers wait
    for and that are not late yet.
    """

    recent: Sequence[Barrier]
    in_flight: Sequence[InFlight]
    readable: Barrier | None
    age: float | None
    revision: int | None
    failed: Sequence[Failed]
    late: Sequence[Late]
    expected: Sequence[Late]

    @property
    def states(self) -> list[BarrierState]:
        """The states of its newest barriers, and of all that are in flight."""
        return [*(row.state for row in self.recent), *(barrier.state for barrier, _ in self.in_flight)]

    def at(self, barrier_id: int) -> Standing:
        """Return the same standing, with only those failed, late and expected that hold up this barrier."""
        return replace(
            self,
            failed=[each for each in self.failed if each.barrier_id == barrier_id],
            late=[each for each in self.late if each.barrier_id == barrier_id],
            expected=[each for each in self.expected if each.barrier_id == barrier_id],
        )


def standings(rows: Overviews, freshness: Mapping[str, float | None]) -> dict[str, Standing]:
    """Return the standing of each registered topology, by name. It takes a handful of queries for all that have changed
    since the last look in this process.

    ``freshness``: of each, seconds that readers' data may be old (None: as old as it will).
    """
    now, stamps = rows.now(), rows.stamps(list(freshness))
    known = {name: _outlooks.get((stamp.database, name)) for name, stamp in stamps.items()}
    outlooks = {name: each for name, each in known.items() if each is not None and each.stamp == stamps[name]}
    for name, outlook in _look(rows, {name: stamps[name] for name in stamps if name not in outlooks}).items():
        outlooks[name] = outlook
        if len(_outlooks) >= _OUTLOOKS_KEPT:
            _outlooks.clear()
        _outlooks[stamps[name].database, name] = outlook
    return {name: _standing(outlooks[name], seconds, now) for name, seconds in freshness.items()}


@dataclass(frozen=True)
class _Outlook:
    """The part of a standing that stays the same at each look, as long as nothing changes. ``held_up``: what is late
    once the time for it has passed.
    """

    stamp: Stamp
    recent: Sequence[Barrier]
    in_flight: Sequence[InFlight]
    readable: Barrier | None
    revision: int | None
    failed: Sequence[Failed]
    held_up: Sequence[Late]


#: By database and topology. A look at a thousand tables costs more than all else that a page asks.
_outlooks: dict[tuple[Hashable, str], _Outlook] = {}
_OUTLOOKS_KEPT = 4_000


def _look(rows: Overviews, stamps: Mapping[str, Stamp]) -> dict[str, _Outlook]:
    """Look at these topologies, and return the outlook of each by name."""
    names = list(stamps)
    if not names:
        return {}
    recent, in_flight, revising = rows.recent(names, LOOKED_BACK), rows.in_flight(names), rows.revising(names)
    jobs = _held_up(rows, [each for barriers in in_flight.values() for each in barriers], recent)
    failed = failures(rows, in_flight)
    found = {}
    for name, newest in recent.items():
        barriers = [each.barrier for each in in_flight[name]]
        known = {(each.barrier_id, each.job) for each in failed[name]}  # which says more than that they are late
        held_up = [each for each in jobs[name] if (each.barrier_id, each.job) not in known]
        held_up += _uncommitted(barriers[0], newest) if barriers else _unopened(newest)
        readable = _readable(rows, name, newest)
        found[name] = _Outlook(
            stamp=stamps[name],
            recent=newest,
            in_flight=in_flight[name],
            readable=readable,
            revision=revising.get(name),
            failed=failed[name],
            held_up=held_up,
        )
    return found


def _standing(outlook: _Outlook, freshness: float | None, now: datetime) -> Standing:
    causes = sorted(outlook.held_up, key=lambda each: (each.since, each.barrier_id or 0, each.job or ""))
    return Standing(
        recent=outlook.recent,
        in_flight=outlook.in_flight,
        readable=outlook.readable,
        age=None if outlook.readable is None else (now - outlook.readable.timestamp).total_seconds(),
        revision=outlook.revision,
        failed=outlook.failed,
        # what follows from the others comes after them, though it may have begun before
        late=[each for each in (*causes, *_stale(outlook.readable, freshness)) if each.at < now],
        expected=[each for each in outlook.held_up if each.job is not None and each.at >= now],
    )


def _uncommitted(oldest: Barrier, recent: Sequence[Barrier]) -> list[Late]:
    """The barrier that is the next to be committed, if all jobs are done and nobody does it; others wait for it."""
    if oldest.state is BarrierState.OPEN:
        return []
    before = next((row.commit_at for row in recent if row.barrier_id == oldest.predecessor), None)
    since = max(filter(None, (oldest.committing_at or oldest.precommit_at or oldest.opened_at, before)))
    at = since if oldest.state is BarrierState.BLOCKED else since + _patience_of(_took(recent), since)
    number, command = oldest.barrier_id, f"airflow-barrier barrier commit {oldest.topology} {oldest.barrier_id}"
    what = {
        BarrierState.PRECOMMIT: f"barrier {number} is staged, nobody commits it: clear its commit task, or {command}",
        BarrierState.COMMITTING: f"barrier {number} is decided and not published: clear its commit task, or {command}",
        BarrierState.BLOCKED: (
            f"barrier {number} is BLOCKED, as somebody else changed a table: readers stay at the one before until a "
            "person decides, on its page or by airflow-barrier barrier resolve, whose rows stand"
        ),
    }[oldest.state]
    if oldest.state is BarrierState.PRECOMMIT and oldest.reason:
        what = f"barrier {number} is staged, and a check holds it up: mend what it has found, or mark its task success"
    run = oldest.run
    waits = oldest.state is not BarrierState.BLOCKED and run.dag_id  # a person is waited for, or nobody knows who
    awaited = Awaited(run.dag_id, run.run_id) if waits else None
    return [Late(number, None, run.dag_id or None, (), since, at, what, awaited=awaited)]


def _unopened(recent: Sequence[Barrier]) -> list[Late]:
    """Nothing is open, and the next timestamp has passed by as much as there is between two, as a rule."""
    opened = [row for row in recent if row.kind is BarrierKind.EPOCH and row.state is not BarrierState.ABORTED]
    between = [(after.timestamp - before.timestamp).total_seconds() for after, before in pairwise(opened)]
    if not between:
        return []
    usual, newest = timedelta(seconds=median(between)), opened[0]
    since = newest.opened_at + usual
    # as long as one was in flight, that one was waited for
    ended = [at for row in recent for at in (row.commit_at, row.aborted_at) if at is not None]
    at = max([since + max(usual, _LEAST), *ended])
    aborted = any(row.barrier_id > newest.barrier_id and row.kind is BarrierKind.EPOCH for row in recent)
    none = "all barriers that were opened after {} were aborted" if aborted else "no barrier was opened after {}"
    what = f"{none.format(newest.barrier_id)}, as a rule there is one every {short(usual)}"
    dag = newest.run.dag_id or None
    return [Late(None, None, dag, (), since, at, what, awaited=None if dag is None else Awaited(dag))]


def _stale(readable: Barrier | None, freshness: float | None) -> list[Late]:
    """Readers have something older than they are to have."""
    if freshness is None or readable is None:
        return []
    since = readable.timestamp + timedelta(seconds=freshness)
    what = f"readers have barrier {readable.barrier_id}, older than the objective of {short(freshness)}"
    return [Late(None, None, None, (), since, since, what)]


def _readable(rows: Overviews, topology: str, recent: Sequence[Barrier]) -> Barrier | None:
    """Return the barrier that repeatable read serves; None for the baseline, which has no time of its own."""
    found = next((row for row in recent if row.state is BarrierState.COMMIT), None)
    if found is None and recent and recent[0].barrier_id > LOOKED_BACK:
        found = rows.served(topology, {BarrierState.COMMIT})
    return found if found is not None and found.barrier_id > 0 else None


class _Took(NamedTuple):
    """A barrier that was committed, and seconds from opening to COMMIT."""

    commit_at: datetime
    seconds: float


def _took(recent: Iterable[Barrier]) -> list[_Took]:
    return [
        _Took(row.commit_at, (row.commit_at - row.opened_at).total_seconds())
        for row in recent
        if row.kind is BarrierKind.EPOCH and row.commit_at is not None
    ]


def _patience_of(newest: Iterable[_Took], since: datetime) -> timedelta:
    """Return the time that a job may hold up a barrier ``since`` then: twice the median of how long the newest barriers
    that were committed by then took from opening to COMMIT, and a minute at least. What is committed later changes
    nothing.
    """
    return patience(seconds for commit_at, seconds in newest if commit_at <= since)


def patience(took: Iterable[float]) -> timedelta:
    """Twice the median of the first few of ``took`` (seconds), and a minute at least."""
    return _patience(tuple(islice(took, _USUAL_OF)))


@lru_cache  # many jobs wait as long
def _patience(took: tuple[float, ...]) -> timedelta:
    return max(_LEAST, timedelta(seconds=_TIMES * median(took))) if took else _LEAST


def _held_up(
    rows: Overviews, barriers: Iterable[InFlight], recent: Mapping[str, Sequence[Barrier]]
) -> dict[str, list[Late]]:
    """Map each topology to the jobs that ``barriers`` wait for, late or not yet. In a handful of queries."""
    found: dict[str, list[Late]] = {name: [] for name in recent}
    open_now = [each for each in barriers if each.barrier.state is BarrierState.OPEN]
    if not open_now:
        return found
    names = sorted({each.barrier.topology for each in open_now})
    pending = rows.pending(names)
    held = {}
    for each in open_now:
        barrier = each.barrier
        here = pending.get((barrier.topology, barrier.barrier_id), set())
        # Where nothing is PENDING, the barrier before is not in flight, or all is staged there. A table that joins with
        # this one is not at the one before, and nothing waits for it there.
        before = pending.get((barrier.topology, barrier.predecessor or 0), set())
        topology = rows.topology_of(each)
        # a job that has joined since is not one of this barrier's, whatever rows its history has brought
        jobs = {job.name: job for job in map(topology.writer, filter(here.__contains__, topology.tables))}.values()
        held[each] = [job for job in jobs if here.isdisjoint(job.inlets) and before.isdisjoint(job.outlets)]
    newest = rows.newest_at(
        [
            place
            for each, jobs in held.items()
            for job in jobs
            for place in (_at(each.barrier, job.name), _before(each.barrier, job.name))
        ]
    )
    processed = rows.processed_at(
        [need for each, jobs in held.items() for job in jobs for need in _needs(each.barrier, job)]
    )
    took = {name: _took(recent[name]) for name in names}
    for (barrier, _), waited_for in held.items():
        here = pending.get((barrier.topology, barrier.barrier_id), set())
        late = _late(barrier, waited_for, here, newest, processed, took[barrier.topology])
        found[barrier.topology] += sorted(late, key=lambda each: (each.since, each.job))
    return found


def _at(barrier: Barrier, name: str) -> Place:
    return Place(barrier.topology, barrier.barrier_id, name)


def _before(barrier: Barrier, name: str) -> Place:
    return Place(barrier.topology, barrier.predecessor or 0, name)


def _needs(barrier: Barrier, job: Job) -> list[Place]:
    """Its inlets at the barrier, and its outlets at the one before."""
    return [*(_at(barrier, table) for table in job.inlets), *(_before(barrier, table) for table in job.outlets)]


def _late(
    barrier: Barrier,
    jobs: Iterable[Job],
    pending: Collection[str],
    newest: Mapping[Place, AttemptProgress],
    processed: Mapping[Place, datetime],
    took: Sequence[_Took],
) -> Iterator[Late]:
    for job in jobs:
        attempt = newest.get(_at(barrier, job.name))
        if barrier.is_maintenance and (attempt is None or attempt.state not in LIVE_ATTEMPTS):
            continue  # nobody waits for it: the table is passed by
        since = max([barrier.opened_at, *(processed[need] for need in _needs(barrier, job) if need in processed)])
        missing = tuple(table for table in job.outlets if table in pending)
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        # what it waited for is there
        said = None if attempt is None else replace(attempt, waited_for=())
        yield Late(
            barrier.barrier_id,
            job.name,
            job.owner,
            missing,
            since,
            at=since + _patience_of(took, since),
            what=f"{', '.join(missing[:3])}{more} holds up barrier {barrier.barrier_id}",
            why=summary_of(said, job.owner, member=job.owner != barrier.run.dag_id),
            awaited=_awaited(barrier, job, attempt, newest.get(_before(barrier, job.name))),
        )


def _awaited(barrier: Barrier, job: Job, attempt: AttemptProgress | None, before: AttemptProgress | None) -> Awaited:
    """``attempt``: the newest one at the barrier. If nobody has asked for it, the task is the one that did so
    ``before``, and the run the one that opened the barrier, unless that is another DAG's.
    """
    asked = None if attempt is None else task_key(attempt.request_key)
    if asked is not None and asked.dag_id == job.owner:
        return Awaited(*asked[:3])
    earlier = None if before is None else task_key(before.request_key)
    run_id = barrier.run.run_id if barrier.run.dag_id == job.owner else None
    return Awaited(job.owner, run_id, earlier.task_id if earlier is not None and earlier.dag_id == job.owner else None)
