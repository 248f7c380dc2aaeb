"""How far every open barrier of a topology is, and what waits for whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from airflow_barrier.coordinator.cuts import said
from airflow_barrier.coordinator.deployment import CredentialsOf, entered, nobody_gets_in
from airflow_barrier.coordinator.doing import words_of
from airflow_barrier.coordinator.failing import Failed
from airflow_barrier.coordinator.lateness import Late, Standing, standings
from airflow_barrier.metaservice.overviews import Overviews
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.deliveries import SinkRecord, SinkState
from airflow_barrier.protocol.errors import BarrierError
from airflow_barrier.protocol.health import Health, health_of
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Attempt, Barrier, Cut, TableProgress
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import AttemptState, TableState
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology
from airflow_barrier.sources import source_of
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.port import Lag

#: Sources that are asked at once.
_AT_ONCE = 16


@dataclass(frozen=True)
class JobStatus:
    """The newest attempt of a job at a barrier, if it was asked for at all.

    ``dag`` runs the job. ``member``: that is another DAG than the one that opened the barrier. ``done``: the barrier
    has all of its tables. ``waits_for``: the jobs whose tables it needs and that have not brought them, at this barrier
    or, named so, at the one before; none once it has begun.
    """

    job: str
    attempt: Attempt | None
    dag: str
    member: bool
    done: bool
    waits_for: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The job's work at present, in a few words."""
        return words_of(self.attempt, self.dag, member=self.member, waits_for=self.waits_for)


@dataclass(frozen=True)
class BarrierStatus:
    barrier: Barrier
    tables: tuple[TableProgress, ...]
    jobs: tuple[JobStatus, ...]

    @property
    def pending(self) -> frozenset[str]:
        """The tables that are not staged yet."""
        return frozenset(each.table for each in self.tables if each.state is TableState.PENDING)


@dataclass(frozen=True)
class SinkStatus:
    """A sink, how many committed barriers it ``lacks``, and since when (UTC; None: it lacks none)."""

    sink: SinkRecord
    lacks: int
    since: datetime | None


@dataclass(frozen=True)
class SourceStatus:
    """A topology's lag behind a source, after ``barrier_id``, the newest whose cut of it was made (None: none was).
    ``lag`` None: that could not be told, and ``unknown`` says why.
    """

    source: str
    kind: str
    barrier_id: int | None
    lag: Lag | None
    unknown: str | None


@dataclass(frozen=True)
class TopologyStatus:
    """``committed`` is what repeatable read serves, ``precommitted`` what read committed serves (barrier ids).

    ``age``: of what repeatable read serves, in seconds; ``objective``: how old that may be.
    ``uncommitted``: table -> the barrier that read uncommitted serves it at. All are empty before the first run.
    ``revision``: the one that is under way.
    ``health``: the worst of what is true, which ``failed`` and ``late`` say. ``sources``: those that know how far
    behind somebody is.
    """

    topology: str
    version: int
    health: Health
    committed: int | None
    committed_timestamp: datetime | None
    age: float | None
    objective: float | None
    precommitted: int | None
    uncommitted: Mapping[str, int]
    failed: tuple[Failed, ...]
    late: tuple[Late, ...]
    revision: Revision | None
    open: tuple[BarrierStatus, ...]
    sources: tuple[SourceStatus, ...]
    sinks: tuple[SinkStatus, ...]


def status(meta: MetaService, topology: str, credentials: CredentialsOf = nobody_gets_in) -> TopologyStatus:
    """The state of ``topology`` now. ``credentials`` enter its sources. Raises UnknownTopologyError."""
    version = meta.topologies.version(topology)
    started = meta.barriers.head(topology) is not None
    committed = meta.answers.resolve(topology, Level.REPEATABLE_READ).barrier_id if started else None
    staged = meta.answers.resolve(topology, Level.READ_UNCOMMITTED).tables if started else {}
    freshness = meta.topologies.get(topology, version).freshness

    def look(rows: Overviews) -> Standing:
        return standings(rows, {topology: freshness})[topology]

    standing, sinks = meta.overviews.together(look), sink_statuses(meta, topology)
    fails = any(each.sink.error is not None and each.sink.state is SinkState.ACTIVE for each in sinks)
    return TopologyStatus(
        topology=topology,
        version=version,
        health=health_of(
            standing.states, [each.again_at for each in standing.failed], late=bool(standing.late), sink_fails=fails
        ),
        committed=committed,
        committed_timestamp=meta.barriers.get(topology, committed).timestamp if committed else None,
        age=standing.age,
        objective=freshness,
        precommitted=meta.answers.resolve(topology, Level.READ_COMMITTED).barrier_id if started else None,
        uncommitted={name: table.barrier_id for name, table in staged.items()},
        failed=tuple(standing.failed),
        late=tuple(standing.late),
        revision=meta.revisions.under_way(topology),
        open=_open(meta, topology),
        sources=source_statuses(meta, topology, credentials),
        sinks=sinks,
    )


def source_statuses(
    meta: MetaService, topology: str, credentials: CredentialsOf, only: Collection[str] | None = None
) -> tuple[SourceStatus, ...]:
    """Return the topology's lag behind each source that knows it; ``only``: each of these. They are asked all at once,
    since one that does not answer is waited for. Raises UnknownTopologyError.
    """
    declared = meta.topologies.get(topology).externals
    sources = [source for source in declared if only is None or source.name in only]
    if not sources:
        return ()
    with ThreadPoolExecutor(min(len(sources), _AT_ONCE)) as pool:
        asked = [_ask(meta, topology, source, credentials, pool) for source in sources]
        return tuple(found for answer in asked if (found := answer()) is not None)


def _ask(
    meta: MetaService, topology: str, declared: ExternalSource, credentials: CredentialsOf, pool: Executor
) -> Callable[[], SourceStatus | None]:
    """Begin to ask a source; what is returned waits for its answer, None: it has none to give."""
    barrier_id, cut = _newest_cut(meta, topology, declared.name)

    def answer(lag: Lag | None, unknown: str | None = None) -> SourceStatus:
        return SourceStatus(declared.name, declared.kind, barrier_id, lag, unknown)

    try:
        source = entered(source_of(declared), Limits(), credentials)
    except BarrierError as error:
        fault = said(error)
        return lambda: answer(None, fault)
    future = pool.submit(source.lag, cut, datetime.now(timezone.utc))

    def wait() -> SourceStatus | None:
        try:
            lag = future.result()
        except Exception as error:  # whatever it is: the rest of the status does not depend on it
            return answer(None, said(error))
        return None if lag is None else answer(lag)

    return wait


def _newest_cut(meta: MetaService, topology: str, source: str) -> tuple[int | None, Cut | None]:
    """The newest cut that was made, not put off, and its barrier."""
    barrier_id = None
    while found := meta.cuts.last(topology, source, before=barrier_id):
        barrier, cut = found
        if cut.put_off is None:
            return barrier.barrier_id, cut
        barrier_id = barrier.barrier_id
    return None, None


def sink_statuses(meta: MetaService, topology: str) -> tuple[SinkStatus, ...]:
    """Return the status of each sink. Raises UnknownTopologyError."""
    lags = meta.deliveries.lags(topology)
    return tuple(SinkStatus(sink, *lags[sink.name]) for sink in meta.deliveries.of(topology))


def _open(meta: MetaService, topology: str) -> tuple[BarrierStatus, ...]:
    """Return the status of each barrier that is neither committed nor aborted, the oldest first."""
    found: dict[int, BarrierStatus] = {}
    for barrier in meta.barriers.uncommitted(topology):
        # where the one before is not among them, all of its tables are there
        found[barrier.barrier_id] = _barrier_status(meta, barrier, found.get(barrier.predecessor or 0))
    return tuple(found.values())


def _barrier_status(meta: MetaService, barrier: Barrier, before: BarrierStatus | None) -> BarrierStatus:
    newest = {attempt.job: attempt for attempt in meta.attempts.of(barrier.topology, barrier.barrier_id)}
    topology = meta.topologies.get(barrier.topology, barrier.topology_version)
    found = BarrierStatus(barrier, tuple(meta.barriers.progress(barrier.topology, barrier.barrier_id)), jobs=())
    jobs = (
        JobStatus(
            job.name,
            newest.get(job.name),
            job.owner,
            member=job.owner != barrier.run.dag_id,
            done=found.pending.isdisjoint(job.outlets),
            waits_for=() if _has_begun(newest.get(job.name)) else _waits_for(topology, job, found, before),
        )
        for job in topology.jobs
        # what nobody asked for at a maintenance barrier nobody has to do
        if job.name in newest or not barrier.is_maintenance
    )
    return replace(found, jobs=tuple(jobs))


def _has_begun(attempt: Attempt | None) -> bool:
    return attempt is not None and attempt.state is not AttemptState.REQUESTED


def _waits_for(topology: Topology, job: Job, at: BarrierStatus, before: BarrierStatus | None) -> tuple[str, ...]:
    """The jobs whose tables ``job`` needs and that have not brought them: its inlets, and its own at the one before."""
    inlets = {topology.writer(table).name for table in job.inlets if table in at.pending}
    if before is None or before.pending.isdisjoint(job.outlets):
        return tuple(sorted(inlets))
    return (*sorted(inlets), f"{job.name} at barrier {before.barrier.barrier_id}")
