"""How late tables are readable, over one barrier and over many, and who is to blame.

What is asked of barriers that are committed does not change any more, so each process works it out once.
"""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import takewhile

from airflow_barrier.metaservice.moments import Delivered, Readable
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.delay import (
    BarrierMoments,
    Before,
    Part,
    Segment,
    TableDelay,
    critical_path,
    job_paths,
    table_delays,
)
from airflow_barrier.protocol.errors import UnknownBarrierError
from airflow_barrier.protocol.records import Barrier

#: Of how many barriers of a window, the newest, it is worked out who took the time.
LOOKED_INTO = 500
#: Barriers of a window, at most.
MOST_BARRIERS = 10_000
#: Rows of tables that a look reads at most.
_ROWS = 20_000
_KEPT = 50_000
_EVER = datetime.min.replace(tzinfo=timezone.utc)
_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}

#: What took the time, and the job whose it was (None: no job's).
_Spent = Mapping[tuple[Part, "str | None"], float]
#: None: it is not known any more, or the table was not the topology's then.
_known: dict[tuple[object, ...], _Spent | None] = {}
#: One look at a time works anything out: several would find out the same, and keep the process from all else.
_working = threading.Lock()


@dataclass(frozen=True)
class BarrierDelay:
    """The time that a barrier took, by part, ``since`` its timestamp ``until`` it was readable, or until now (UTC).

    ``since`` is earlier if the barrier has the epochs of others that were aborted. ``jobs``: what each did since the
    barrier was opened. ``deliveries``: when the sinks that have the barrier got it.
    """

    barrier: Barrier
    since: datetime
    until: datetime
    critical_path: tuple[Segment, ...]
    jobs: Mapping[str, tuple[Segment, ...]]
    tables: tuple[TableDelay, ...]
    deliveries: tuple[Delivered, ...]

    @property
    def seconds(self) -> float:
        return (self.until - self.since).total_seconds()


@dataclass(frozen=True)
class Point:
    """One barrier of a window. ``seconds``: from the timestamp of its oldest epoch until it was readable.

    ``stale``: how old, in seconds, what readers had had just before was by then (None: there was nothing).
    """

    barrier_id: int
    timestamp: datetime
    readable_at: datetime
    seconds: float
    stale: float | None


@dataclass(frozen=True)
class Present:
    """The delay ``at`` this moment (UTC). ``barrier_id``: the oldest that is open (None: none is); ``seconds`` since
    the timestamp of its oldest epoch. ``stale``: the age, in seconds, of what readers have (None: nothing).
    """

    at: datetime
    barrier_id: int | None
    seconds: float | None
    stale: float | None


@dataclass(frozen=True)
class SinkDelay:
    """A sink's delay in seconds from COMMIT to delivery: ``percentiles`` of the window's barriers. ``dag`` delivers.
    ``lacks``: how many it does not have, ``since`` when (UTC; None: it has all).
    """

    sink: str
    dag: str
    percentiles: Mapping[str, float]
    lacks: int
    since: datetime | None


@dataclass(frozen=True)
class Share:
    """``share`` (0 to 1) of the time until readable that was not schedule, over all barriers that were looked into.

    ``job`` None: the part is no job's own. ``dag`` runs the job.
    """

    part: Part
    job: str | None
    dag: str | None
    seconds: float
    share: float


@dataclass(frozen=True)
class Delay:
    """The delay of a ``window``'s barriers, oldest first, the delay now, and who took the time.

    ``percentiles``: of the points' seconds, and their maximum. ``missed``: how often readers had something older than
    the ``objective`` (None: there is none). ``scheduled``: percentiles of the seconds from a barrier's timestamp until
    it was opened, which are in the points and not in the ``blame``, unless earlier barriers were in its way.
    ``looked_into``: of how many barriers, the newest, the blame is, besides the one that is open; barriers that were
    computed again, and those that were trimmed, are not among them. ``deliveries``: sinks, which get what readers have.
    """

    topology: str
    table: str | None
    window: timedelta
    objective: timedelta | None
    points: tuple[Point, ...]
    percentiles: Mapping[str, float]
    missed: int | None
    scheduled: Mapping[str, float]
    present: Present
    blame: tuple[Share, ...]
    looked_into: int
    deliveries: tuple[SinkDelay, ...]


def barrier_delay(meta: MetaService, topology: str, barrier_id: int) -> BarrierDelay:
    """Return the delay of a barrier, by part. Raises UnknownBarrierError for one that is not there, or was aborted.

    Of one that was computed again, or trimmed, no more is known than when it was opened and readable.
    """
    barrier = meta.barriers.get(topology, barrier_id)
    now = meta.now()
    before = _Loader(meta, topology)
    at = before(barrier_id)
    if at is None:
        raise UnknownBarrierError(
            f"{barrier}: expected one whose delay can be told, found {barrier.state.value}: {barrier.reason}; ask for "
            "the barrier that has its epoch, the next one"
        )
    if barrier.computed_in:
        at = BarrierMoments(barrier, at.topology, {}, {})
    return BarrierDelay(
        barrier,
        at.since,
        at.until(now),
        critical_path(at, before, now),
        job_paths(at, before, now),
        table_delays(at, before, now),
        tuple(meta.moments.delivered_at(topology, barrier_id)),
    )


def delay(
    meta: MetaService,
    topology: str,
    window: timedelta,
    *,
    table: str | None = None,
    objective: timedelta | None = None,
    look_into: int = LOOKED_INTO,
) -> Delay:
    """Measure how late the barriers committed in ``window``, up to now, were readable, and what took the time.

    ``objective``: by default what was declared, of the table or of the topology. ``table``: what held up this one
    counts until it was staged, what held up the others from then on. At most the newest 10,000 barriers, of which
    ``look_into`` are looked into. Raises UnknownTopologyError, UnknownTableError.
    """
    version = meta.topologies.get(topology)
    declared = version.freshness if table is None else version.writer(table).freshness
    if objective is None and declared is not None:
        objective = timedelta(seconds=declared)
    now = meta.now()
    barriers = _of_window(meta, topology, now - window)
    points = tuple(_points(meta, topology, barriers))
    spent: dict[tuple[Part, str | None], float] = defaultdict(float)
    looked_into = 0
    for found in _spent(meta, topology, barriers[-look_into:], table, max(len(version.tables), 1)):
        looked_into += 1
        for whose, seconds in found.items():
            spent[whose] += seconds
    load = _Loader(meta, topology)
    oldest = _oldest_open(meta, topology, load)
    if oldest is not None:
        for whose, seconds in _sums(oldest, load, now, table).items():
            spent[whose] += seconds
    scheduled = [max((each.opened_at - each.timestamp).total_seconds(), 0.0) for each in barriers]
    owners = {job.name: job.owner for job in version.jobs}
    return Delay(
        topology,
        table,
        window,
        objective,
        points,
        percentiles([point.seconds for point in points]),
        None if objective is None else sum((each.stale or 0) > objective.total_seconds() for each in points),
        percentiles(scheduled),
        _present(meta, topology, barriers, oldest, now),
        _blame(spent, owners),
        looked_into,
        tuple(_deliveries(meta, topology, now - window)),
    )


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles by linear interpolation, and the maximum; empty of nothing.

    >>> percentiles([1, 2, 3, 4, 5])["p50"], percentiles([7])["max"], percentiles([])
    (3.0, 7, {})
    """
    if not seconds:
        return {}
    cuts = statistics.quantiles([*seconds, *seconds[:1]][: max(len(seconds), 2)], n=100, method="inclusive")
    return {**{name: cuts[percent - 1] for name, percent in _PERCENTILES.items()}, "max": max(seconds)}


# --- the barriers of a window ---------------------------------------------------------------------


def _of_window(meta: MetaService, topology: str, since: datetime) -> list[Readable]:
    """The barriers that were committed since, oldest first."""
    found: list[Readable] = []
    page = 500
    while len(found) < MOST_BARRIERS:
        before = found[-1].barrier_id if found else None
        more = meta.moments.committed(topology, since=since, before=before, limit=page)
        found += more
        if len(more) < page:
            break
    return found[::-1]


def _points(meta: MetaService, topology: str, barriers: Sequence[Readable]) -> Iterator[Point]:
    before = _readable_before(meta, topology, barriers[0]) if barriers else None
    previous = None if before is None else before.timestamp
    for barrier in barriers:
        stale = None if previous is None else (barrier.commit_at - previous).total_seconds()
        seconds = (barrier.commit_at - barrier.since).total_seconds()
        yield Point(barrier.barrier_id, barrier.timestamp, barrier.commit_at, seconds, stale)
        previous = barrier.timestamp


def _readable_before(meta: MetaService, topology: str, barrier: Readable) -> Barrier | None:
    predecessor = meta.barriers.get(topology, barrier.predecessor) if barrier.predecessor else None
    return None if predecessor is None else meta.barriers.epoch_of(predecessor)


# --- how it is now --------------------------------------------------------------------------------


def _oldest_open(meta: MetaService, topology: str, load: Before) -> BarrierMoments | None:
    """The barrier with an epoch that is to be readable next."""
    number = next((each.barrier_id for each in meta.barriers.uncommitted(topology) if not each.is_maintenance), None)
    return None if number is None else load(number)


def _present(
    meta: MetaService, topology: str, barriers: Sequence[Readable], oldest: BarrierMoments | None, now: datetime
) -> Present:
    newest = barriers[-1:] or meta.moments.committed(topology, since=_EVER, limit=1)
    return Present(
        now,
        None if oldest is None else oldest.barrier.barrier_id,
        None if oldest is None else (now - oldest.since).total_seconds(),
        (now - newest[0].timestamp).total_seconds() if newest else None,
    )


def _deliveries(meta: MetaService, topology: str, since: datetime) -> Iterator[SinkDelay]:
    took: dict[str, list[float]] = defaultdict(list)
    for each in meta.moments.delivered(topology, since):
        took[each.sink].append(each.seconds)
    lags = meta.deliveries.lags(topology)
    for sink in meta.deliveries.of(topology):
        lacks, oldest = lags[sink.name]
        yield SinkDelay(sink.name, sink.owner, percentiles(took[sink.name]), lacks, oldest)


# --- who took the time ----------------------------------------------------------------------------


def _spent(
    meta: MetaService, topology: str, barriers: Sequence[Readable], table: str | None, tables: int
) -> Iterator[_Spent]:
    """Yield for each barrier, newest first, what took the time after it was opened. Barriers of which that is not known
    are left out.

    A look works out so many barriers that nobody has to wait for it, and the next look goes on from there.
    """
    at_once = max(_ROWS // tables, 1)
    standing = [each for each in reversed(barriers) if not each.computed_in]
    with _working:
        missing = [each for each in standing if _key(meta, topology, each, table) not in _known]
        load = _Loader(meta, topology)
        now = missing[:at_once]
        load.together(sorted({number for each in now for number in (each.barrier_id, each.predecessor or 0)}))
        for barrier in now:
            _work_out(meta, topology, barrier, table, load)
    later = set(missing[at_once:])
    known = takewhile(lambda each: each not in later, standing)
    found = (_known.get(_key(meta, topology, each, table)) for each in known)
    yield from (each for each in found if each is not None)


def _work_out(meta: MetaService, topology: str, barrier: Readable, table: str | None, load: Before) -> None:
    at = load(barrier.barrier_id)
    assert at is not None
    spent = _sums(at, load, barrier.commit_at, table) if at.staged and (table is None or table in at.staged) else None
    if len(_known) >= _KEPT:
        del _known[next(iter(_known))]
    _known[_key(meta, topology, barrier, table)] = spent


def _sums(at: BarrierMoments, load: Before, now: datetime, table: str | None) -> _Spent:
    spent: dict[tuple[Part, str | None], float] = defaultdict(float)
    for segment in critical_path(at, load, now, table if table in at.staged else None):
        if segment.part is not Part.SCHEDULE:
            spent[segment.part, segment.job] += segment.seconds
    return spent


def _key(meta: MetaService, topology: str, barrier: Readable, table: str | None) -> tuple[object, ...]:
    # with its time, since a barrier of that number may be another one after a recovery
    return meta.url, topology, barrier.barrier_id, barrier.commit_at, table


def _blame(spent: Mapping[tuple[Part, str | None], float], owners: Mapping[str, str]) -> tuple[Share, ...]:
    total = sum(spent.values())
    shares = (
        Share(part, job, owners.get(job or ""), seconds, seconds / total)
        for (part, job), seconds in spent.items()
        if seconds > 0
    )
    return tuple(sorted(shares, key=lambda share: (-share.seconds, share.part.value, share.job or "")))


class _Loader:
    """The moments of barriers, each read once."""

    def __init__(self, meta: MetaService, topology: str) -> None:
        self._meta, self._topology = meta, topology
        self._found: dict[int, BarrierMoments | None] = {}

    def together(self, barrier_ids: Sequence[int]) -> None:
        """Read these in one go."""
        if barrier_ids:
            self._found.update(self._meta.moments.of(self._topology, barrier_ids))

    def __call__(self, barrier_id: int) -> BarrierMoments | None:
        if barrier_id not in self._found:
            self._found[barrier_id] = self._meta.moments.of(self._topology, [barrier_id]).get(barrier_id)
        return self._found[barrier_id]
