"""Where the first epoch of each job that joins begins: found out before its first barrier opens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from airflow_barrier.coordinator.creating import with_declaration
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    ForeignWriteError,
    HeadMovedError,
    MissingTableError,
    StartFromError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.records import JobStart, TableProgress
from airflow_barrier.protocol.starting import CHOICES
from airflow_barrier.protocol.states import BarrierState
from airflow_barrier.protocol.topology import ExternalSource, Job, Topology

if TYPE_CHECKING:
    from pyiceberg.table import Table


def starts_of(
    deployment: Deployment, topology: Topology, joining: Sequence[Job], timestamp: datetime
) -> list[JobStart]:
    """Return the start of each of the ``joining`` jobs, if the next barrier opens at ``timestamp``: where the job left
    off, if its tables are as it left them, else as its DAG declares.

    Raises StartFromError if that is not known, SourceDataError if a table no longer tells where `main` was.
    """
    if not joining:
        return []
    try:
        mains = deployment.tables.mains([outlet for job in joining for outlet in job.outlets])
    except MissingTableError as error:
        raise with_declaration(error) from error
    joined = {row.table for row in deployment.meta.barriers.progress(topology.name, 0)}
    starts = [
        _start_of(deployment, topology, job, {table: mains[table] for table in job.outlets}, joined, timestamp)
        for job in joining
    ]
    _check_shared_sources(topology, starts)
    return starts


def _start_of(
    deployment: Deployment,
    topology: Topology,
    job: Job,
    baseline: Mapping[str, int | None],
    joined: set[str],
    timestamp: datetime,
) -> JobStart:
    """``joined``: the tables that were in the topology before."""
    was_here = joined.issuperset(job.outlets)
    last = _last_rows(deployment, topology.name, job) if was_here else ()
    if last and _as_they_were_left(deployment, last):
        previous = _left_off(deployment, topology.name, job, last[0].barrier_id)
        _check_nothing_missed(deployment, topology, job, last[0].barrier_id)
        return JobStart(job.name, job.start_from, baseline, previous, {})
    declared = _declared(deployment, topology, job, baseline)
    previous = {
        table: _snapshot(deployment, job, table, declared[table])
        for table in job.inlets
        if declared[table] != "latest"  # what the barrier before it has
    }
    externals = _externals(deployment, topology, job, declared, timestamp)
    kept = _kept(deployment, topology, job, baseline) if was_here else None
    return JobStart(job.name, job.start_from, baseline, previous, kept or externals)


def looks(*moved: type[Exception]) -> Retrying:
    """Look again if what was found is of no use any more, as one of ``moved`` says, a few times."""
    return Retrying(
        retry=retry_if_exception_type(moved),
        stop=stop_after_attempt(5),
        # all @daily DAGs register in the same second
        wait=wait_random_exponential(multiplier=0.1, max=2),
        reraise=True,
    )


def check_start(deployment: Deployment, topology: str, job: Job, timestamp: datetime) -> None:
    """See that ``job`` could join ``topology`` by itself. Raises what :func:`starts_of` does; HeadMovedError in place
    of StartFromError if a barrier opened or a job joined meanwhile, so that it may be wrong.
    """
    before = _newest(deployment, topology)
    try:
        starts_of(deployment, Topology(topology, (job,)), [job], timestamp)
    except StartFromError:
        check_newest(deployment, topology, before)
        raise


def check_newest(deployment: Deployment, topology: str, expected: tuple[int, int]) -> None:
    """Raise HeadMovedError if a barrier was opened or a job registered meanwhile: then what was found may be wrong.
    ``expected``: the newest barrier and the version of the topology when the look began.
    """
    found = _newest(deployment, topology)
    if found != expected:
        raise HeadMovedError(  # safety: joins-on-the-head
            f"topology {topology}: expected barrier {expected[0]} to be the newest, and version {expected[1]} of the "
            f"topology, found barrier {found[0]} and version {found[1]}; a barrier was opened or aborted meanwhile, or "
            "a job joined or left: look again"
        )


def _newest(deployment: Deployment, topology: str) -> tuple[int, int]:
    head = deployment.meta.barriers.head(topology)
    try:
        version = deployment.meta.topologies.version(topology)
    except UnknownTopologyError:
        version = 0
    return head.barrier_id if head else 0, version


def already(starts: Iterable[JobStart]) -> dict[str, Mapping[str, Any]]:
    """Map each source to the position up to which it is in the tables of the joining jobs."""
    return {name: dict(position) for start in starts for name, position in start.externals.items()}


# --- a job that comes back ------------------------------------------------------------------------


def _last_rows(deployment: Deployment, topology: str, job: Job) -> Sequence[TableProgress]:
    """Its tables at the last barrier that had it; none if it never joined."""
    rows = [deployment.meta.starts.last_progress(topology, outlet) for outlet in job.outlets]
    found = [row for row in rows if row is not None and row.job == job.name]
    same_barrier = len({row.barrier_id for row in found}) == 1
    return found if len(found) == len(job.outlets) and same_barrier else ()


def _as_they_were_left(deployment: Deployment, rows: Sequence[TableProgress]) -> bool:
    """Return True if nobody has changed the rows of what the last barrier with the job published."""
    barrier = deployment.meta.barriers.get(rows[0].topology, rows[0].barrier_id)
    if barrier.state is not BarrierState.COMMIT:
        return True  # it is yet to be published, and until then nobody comes back: opening says so
    try:
        deployment.tables.currents({row.table: row.snapshot_id for row in rows})
    except ForeignWriteError:
        return False  # safety: resumes-on-own-rows
    return True


def _left_off(deployment: Deployment, topology: str, job: Job, last: int) -> dict[str, int | None]:
    """Return the snapshot up to which the job read each inlet. What came since must not have expired in part."""
    meta, tables = deployment.meta, deployment.tables
    barrier = meta.barriers.get(topology, last)
    had = meta.topologies.get(topology, barrier.topology_version).tables
    there = {row.table: row.snapshot_id for row in meta.barriers.progress(topology, last)}
    if barrier.state is not BarrierState.COMMIT:
        return {table: there.get(table) for table in job.inlets}  # opening says that it has to wait
    for table in job.inlets:
        snapshot_id = there.get(table)
        forgotten = table in had and table not in there
        if forgotten or (snapshot_id is not None and not tables.has_steps_since(table, snapshot_id)):
            raise StartFromError(  # safety: resumes-from-what-is-there
                f"topology {topology}: job {job.name} (DAG {job.owner}) comes back and goes on where it left off, at "
                f"barrier {last}; expected all that came into {table} since then, found that some of it has expired. "
                f"Empty {', '.join(job.outlets)}, and say by start_from='earliest' that the job begins anew, or fill "
                "them by hand and say by start_from what is in them"
            )
    return {table: there.get(table) for table in job.inlets}


def _check_nothing_missed(deployment: Deployment, topology: Topology, job: Job, last: int) -> None:
    """A source that others went on reading was cut for barriers that the job had no part in."""
    for source in job.externals:
        cut = deployment.meta.cuts.last(topology.name, source.name)
        if cut is not None and cut[0].barrier_id > last:
            raise _cut_before(topology, job, source)  # safety: source-of-its-own


def _cut_before(topology: Topology, job: Job, source: ExternalSource) -> StartFromError:
    return StartFromError(
        f"topology {topology.name}: job {job.name} (DAG {job.owner}) joins, and its source {source.name} has been cut "
        "for other barriers already: what came before is in no epoch that is still to come. Declare it under a name of "
        f"its own, name='{source.name}_{job.name}', which is cut from where start_from says"
    )


# --- a job that joins -----------------------------------------------------------------------------


def _declared(
    deployment: Deployment, topology: Topology, job: Job, baseline: Mapping[str, int | None]
) -> Mapping[str, Any]:
    if job.start_from is not None and not job.from_history:
        return job.start_from
    mains = {table: main for table, main in baseline.items() if main is not None}
    full = [said for table, main in mains.items() if (said := _described(deployment, table, main)) is not None]
    if full and (job.inlets or job.externals):
        raise StartFromError(  # safety: start-is-known
            f"topology {topology.name}: job {job.name} (DAG {job.owner}) joins with tables that hold rows: "
            f"{'; '.join(full)}. Which part of its inlets is in them already? Say so in barrier.job(...): {CHOICES}"
        )
    return dict.fromkeys((*job.inlets, *(source.name for source in job.externals)), "earliest")


def _described(deployment: Deployment, table: str, main: int) -> str | None:
    """The table, if its `main` holds rows (or does not say how many)."""
    rows = rows_of(deployment.tables.load(table), main)
    if rows == 0:
        return None
    return f"{table} at snapshot {main} ({'an unknown number of' if rows is None else rows} rows)"


def rows_of(table: Table, snapshot_id: int | None) -> int | None:
    """Return the number of rows that the table has as of a snapshot (None: it has none); None if it does not say."""
    if snapshot_id is None:
        return 0
    snapshot = table.snapshot_by_id(snapshot_id)
    count = snapshot.summary.additional_properties.get("total-records") if snapshot and snapshot.summary else None
    return None if count is None else int(count)


def _snapshot(deployment: Deployment, job: Job, table: str, declared: Any) -> int | None:
    """The snapshot of an inlet that is in the job's tables."""
    from airflow_barrier.sources.iceberg_table.history import main_as_of

    if declared == "earliest":
        return None
    iceberg = deployment.tables.load(table)
    if "time" in declared:
        return main_as_of(table, iceberg, datetime.fromisoformat(declared["time"]))
    position = declared["at"]
    if not isinstance(position, int) or iceberg.snapshot_by_id(position) is None:
        raise ConfigurationError(
            f"job {job.name} (DAG {job.owner}): expected start_from to name a snapshot of {table} by its id, found "
            f"{position!r}, which is none; see the table's metadata: SELECT * FROM {table}.snapshots"
        )
    return position


def _externals(
    deployment: Deployment,
    topology: Topology,
    job: Job,
    declared: Mapping[str, Any],
    timestamp: datetime,
) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for source in job.externals:
        start = declared[source.name]
        if deployment.meta.cuts.last(topology.name, source.name) is not None:
            raise _cut_before(topology, job, source)  # safety: source-of-its-own
        if start == "latest":
            found[source.name] = {"time": timestamp.isoformat()}
        elif start != "earliest":
            found[source.name] = start
        if "time" in found.get(source.name, {}) and datetime.fromisoformat(found[source.name]["time"]) > timestamp:
            raise ConfigurationError(
                f"job {job.name} (DAG {job.owner}): expected start_from not after the barrier that it joins with, at "
                f"{timestamp.isoformat()}, found {found[source.name]['time']}; let it join with a later barrier"
            )
    return found


def _kept(
    deployment: Deployment, topology: Topology, job: Job, baseline: Mapping[str, int | None]
) -> Mapping[str, Mapping[str, Any]] | None:
    """Return the positions found when the job joined with a barrier that was aborted since, if nothing has changed."""
    last = deployment.meta.starts.last(topology.name, job.name)
    if last is None:
        return None
    barrier, start = last
    unchanged = start.start_from == job.start_from and start.baseline == baseline
    return start.externals if barrier.state is BarrierState.ABORTED and unchanged else None


def _check_shared_sources(topology: Topology, starts: Sequence[JobStart]) -> None:
    """A source has one cut: whoever reads it begins at the same place."""
    by_job = {start.job: start.externals for start in starts}
    for source in sorted(already(starts)):
        readers = [job for job in topology.jobs if any(external.name == source for external in job.externals)]
        positions = {job.name: by_job.get(job.name, {}).get(source, "earliest") for job in readers}
        if len({str(position) for position in positions.values()}) > 1:
            raise StartFromError(  # safety: source-of-its-own
                f"topology {topology.name}: expected that jobs which share source {source} begin at the same place of "
                f"it, found {', '.join(f'{job} at {position}' for job, position in positions.items())}; declare it "
                "under a name of its own for each"
            )
