"""Planning a revision, and beginning it: what is computed again, from what, and what readers see when.

The plan is what the revision walks: whoever begins one begins a plan.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta, timezone
from itertools import pairwise

from airflow_barrier.coordinator.bootstrapping import check_history, first_with_sources, joining_jobs, with_joining
from airflow_barrier.coordinator.cuts import mended_cut
from airflow_barrier.coordinator.deployment import Deployment
from airflow_barrier.metaservice.revisions import NewRevision
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import (
    BarrierError,
    RevisionRefusedError,
    SnapshotMissingError,
)
from airflow_barrier.protocol.origins import logical_date
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.revisions import (
    Revision,
    RevisionMode,
    RevisionState,
    TableCorrection,
    affected_jobs,
    check_range,
)
from airflow_barrier.protocol.states import AttemptState, BarrierState
from airflow_barrier.protocol.topology import Job, Topology
from airflow_barrier.sources import source_of
from airflow_barrier.tables.schemas import check_schema

log = logging.getLogger(__name__)

#: Barriers that a revision replays, unless its author says more.
MAX_REPLAY_BARRIERS = 31
#: How many of the newest barriers tell how often one comes.
_RECENT = 20


@dataclass(frozen=True)
class Wanted:
    """What a person asks for.

    ``first`` and ``last``: the days to correct, both included, as dates (UTC) or aware datetimes; or barriers' numbers.
    ``changed``: the jobs whose code or input was corrected, ``tables``: the same by a table that each of them writes;
    neither: all that read external sources, so everything. Jobs that wait for their history join by it: ``first`` None
    is then the first barrier that has their sources, and ``mode`` is HISTORY whatever was said.
    ``corrections`` replace epochs of root tables; ``reused``: root tables whose epochs are applied again as they were,
    without asking their sources. ``mode`` FULL begins at ``first``, or at the first barrier if that is None, with
    empty tables. ``accept_pause``: barriers may wait until it is published, however long that takes.
    """

    topology: str
    first: date | datetime | int | None
    last: date | datetime | int | None = None
    changed: Sequence[str] = ()
    tables: Sequence[str] = ()
    corrections: Sequence[TableCorrection] = ()
    reused: Sequence[str] = ()
    mode: RevisionMode = RevisionMode.INCREMENTAL
    max_replay_barriers: int = MAX_REPLAY_BARRIERS
    accept_pause: bool = False


@dataclass(frozen=True)
class PlannedInput:
    """Where the rows of a root job's epochs come from: ``cut`` (the source, read again), ``correction`` or ``reused``.

    ``barriers``: at which barriers; ``detail`` for people.
    """

    job: str
    kind: str
    barriers: tuple[int, ...]
    detail: str


@dataclass(frozen=True)
class PlannedTable:
    """One table of the plan. ``rows``: how many it has at the head; ``epoch_rows``: how many came with the barriers
    that are replayed, as far as its snapshots tell (None: they do not).
    """

    table: str
    job: str
    owner: str
    rows: int | None
    epoch_rows: int | None


@dataclass(frozen=True)
class RevisionPlan:
    """What a revision would do. ``barriers`` are replayed in this order; ``window`` are those that a person asked for.

    ``untouched``: tables that stay as they are. ``code_changed``: jobs whose code differs from what computed the head.
    ``notes``: what its author should know; ``pace``: how replay and arrival compare. ``joining``: the tables that are
    in no barrier yet and join by it, and what `main` of each is at.
    """

    wanted: Wanted
    predecessor: Barrier
    barriers: tuple[Barrier, ...]
    window: tuple[Barrier, ...]
    head: Barrier
    jobs: tuple[Job, ...]
    changed: tuple[str, ...]
    tables: tuple[PlannedTable, ...]
    untouched: tuple[str, ...]
    inputs: tuple[PlannedInput, ...]
    topology_version: int
    code_changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    joining: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def owners(self) -> tuple[str, ...]:
        """The DAGs that have to run, in the order of their names."""
        return tuple(sorted({job.owner for job in self.jobs}))


def plan_revision(deployment: Deployment, wanted: Wanted) -> RevisionPlan:
    """What a revision would do; changes nothing.

    Raises RevisionRefusedError, with what would work instead, for days that no barrier covers or that have expired,
    input that is gone, and a replay that is longer than ``max_replay_barriers``; UnknownTopologyError, TopologyError
    for a job that is not there.

    >>> plan_revision(deployment, Wanted("shopping", date(2017, 1, 5), date(2017, 1, 6)))  # doctest: +SKIP
    """
    meta = deployment.meta
    version = meta.topology_version(wanted.topology)
    joining = _joining(meta, wanted)
    topology = with_joining(meta.topology(wanted.topology, version), joining)
    changed = _changed(topology, wanted)
    names = affected_jobs(topology, changed)
    jobs = tuple(topology.job(name) for name in names)
    standing = _standing(deployment, wanted.topology)
    if joining:
        wanted = _over_history(deployment, wanted, joining, standing)
    window = _window(wanted, standing)
    barriers = tuple(each for each in standing if each.barrier_id >= window[0].barrier_id)
    committed = [each for each in barriers if each.state is BarrierState.COMMIT]
    what = f"revision of {wanted.topology} from {window[0]}"
    check_range(what, len(barriers), wanted.max_replay_barriers)
    _check_readable(what, wanted, barriers)
    predecessor = _predecessor(deployment, what, barriers[0], wanted)
    _check_bases(deployment, what, wanted.mode, jobs, predecessor, barriers)
    tables = {sink for job in jobs for sink in job.sinks}
    mains = check_history(deployment, joining, barriers) if joining else {}
    _check_schemas(deployment, jobs, barriers if joining else (predecessor, *barriers))
    if wanted.mode is RevisionMode.FULL:
        _check_can_be_cleared(deployment, what, jobs, barriers[0])
    inputs = _inputs(deployment, wanted, jobs, barriers)
    return RevisionPlan(
        wanted=wanted,
        predecessor=predecessor,
        barriers=barriers,
        window=window,
        head=committed[-1],
        jobs=jobs,
        changed=changed,
        tables=_tables(deployment, jobs, barriers, committed, predecessor, mains),
        untouched=tuple(sorted(set(topology.tables) - tables)),
        inputs=inputs,
        topology_version=version,
        code_changed=_code_changed(deployment, jobs, barriers[0], committed[-1]),
        notes=(*_undone(deployment, topology, inputs), *_pace(deployment, wanted, barriers)),
        joining=mains,
    )


def begin_revision(deployment: Deployment, plan: RevisionPlan, *, reason: str, actor: str) -> Revision:
    """Begin what was planned. Nothing that readers see changes until it is published.

    Raises RevisionRefusedError while another revision is under way, and if the topology changed since the plan.
    """
    meta, wanted = deployment.meta, plan.wanted
    revision = meta.revisions.begin(
        NewRevision(
            topology=wanted.topology,
            mode=wanted.mode,
            first_barrier=plan.barriers[0].barrier_id,
            predecessor=plan.predecessor.barrier_id,
            window_end=plan.window[-1].barrier_id,
            tables=sorted(table.table for table in plan.tables),
            jobs=[job.name for job in plan.jobs],
            changed=plan.changed,
            topology_version=plan.topology_version,
            reason=reason,
            actor=actor,
            corrections=tuple(wanted.corrections),
            reused=tuple(wanted.reused),
            joining=plan.joining,
        )
    )
    try:
        # an expiry may have come between plan and beginning; from here on it leaves that alone
        _check_bases(deployment, str(revision), wanted.mode, plan.jobs, plan.predecessor, plan.barriers)
    except RevisionRefusedError as error:
        meta.revisions.cancel(wanted.topology, revision.revision, str(error), actor)
        raise
    if wanted.accept_pause:
        revision = meta.revisions.gate(revision.topology, revision.revision, closed=True, actor=actor)
    log.info(
        "%s is STAGING: barriers %s to %s, tables %s",
        revision,
        revision.first_barrier,
        plan.barriers[-1].barrier_id,
        ", ".join(revision.tables),
    )
    return revision


def _joining(meta: MetaService, wanted: Wanted) -> tuple[Job, ...]:
    others = bool(wanted.corrections or wanted.reused or wanted.mode is RevisionMode.FULL)
    return joining_jobs(meta.waiting(wanted.topology), wanted.topology, wanted.changed, wanted.tables, others=others)


def _over_history(
    deployment: Deployment, wanted: Wanted, joining: Sequence[Job], standing: Sequence[Barrier]
) -> Wanted:
    """What is wanted of jobs that join, with its first barrier; all that follow are woken by ourselves."""
    wanted = replace(wanted, mode=RevisionMode.HISTORY)
    if wanted.first is not None or all(each.state is not BarrierState.COMMIT for each in standing):
        return wanted
    return replace(wanted, first=first_with_sources(deployment, joining, standing).barrier_id)


def window_of(deployment: Deployment, wanted: Wanted) -> tuple[Barrier, ...]:
    """The barriers that a person asks for: those whose epochs overlap the days, in order.

    Raises RevisionRefusedError for days that no barrier covers, UnknownTopologyError.
    """
    deployment.meta.topology_version(wanted.topology)
    return _window(wanted, _standing(deployment, wanted.topology))


# --- what is asked of Airflow ---------------------------------------------------------------------


@dataclass(frozen=True)
class Backfill:
    """What a person's runs are: those of a DAG with logical dates (UTC) from ``first`` to ``last``, both included."""

    dag_id: str
    first: datetime
    last: datetime


def backfill_dates(barriers: Sequence[Barrier]) -> tuple[datetime, datetime]:
    """The logical dates (UTC) of the first and the last run that opened ``barriers``, which are in order.

    >>> backfill_dates(plan.window)  # doctest: +SKIP
    (datetime.datetime(2017, 1, 5, ...), datetime.datetime(2017, 1, 6, ...))
    """
    dates = [logical_date(each.timestamp, each.timestamp_origin) for each in (barriers[0], barriers[-1])]
    return dates[0], dates[1]


def backfills_of(barriers: Sequence[Barrier]) -> tuple[Backfill, ...]:
    """One for each DAG that opened some of ``barriers``, so one as a rule: its runs wake the other DAGs' of their day,
    and the dates are those of its own timetable.
    """
    opened: dict[str, list[Barrier]] = {}
    for barrier in barriers:
        opened.setdefault(barrier.run_key.partition("/")[0], []).append(barrier)
    return tuple(Backfill(dag_id, *backfill_dates(those)) for dag_id, those in opened.items())


def backfills_of_plan(plan: RevisionPlan) -> tuple[Backfill, ...]:
    """As :func:`backfills_of` for its window; and of DAGs that join with it, whose runs nobody knows, all barriers."""
    opened = backfills_of(plan.window)
    if not plan.joining:
        return opened
    openers = {each.run_key.partition("/")[0] for each in plan.barriers}
    dates = backfill_dates(plan.barriers)
    return (*opened, *(Backfill(dag_id, *dates) for dag_id in plan.owners if dag_id not in openers))


def awaited(meta: MetaService, revision: Revision) -> tuple[Barrier, ...]:
    """The barriers that a person asked for and of which no run has come yet; none once it is decided."""
    if revision.state is not RevisionState.STAGING:
        return ()
    come = {
        run.barrier_id
        for run in meta.revisions.runs(revision.topology, revision.revision)
        if run.arrived_at is not None
    }
    return tuple(
        barrier
        for barrier in meta.revisions.barriers(revision.topology, revision.revision)
        if barrier.barrier_id <= revision.window_end
        and barrier.state is BarrierState.OPEN
        and barrier.barrier_id not in come
    )


# --- which barriers -------------------------------------------------------------------------------


def _standing(deployment: Deployment, topology: str) -> list[Barrier]:
    """Every barrier with an epoch that counts, oldest first."""
    states = [state for state in BarrierState if state is not BarrierState.ABORTED]
    newest_first = deployment.meta.barriers(topology, states, limit=_ALL)
    return [each for each in reversed(newest_first) if each.barrier_id and not each.is_maintenance]


_A_DAY = len("2017-01-05")
#: As many barriers as a topology may have.
_ALL = 2**31 - 1


def _window(wanted: Wanted, standing: Sequence[Barrier]) -> tuple[Barrier, ...]:
    """The barriers whose epochs overlap the days that a person named."""
    name = wanted.topology
    committed = [each for each in standing if each.state is BarrierState.COMMIT]
    if not committed:
        raise RevisionRefusedError(  # safety: something-to-correct
            f"topology {name}: expected a barrier that is COMMIT, found none; there is nothing to correct yet"
        )
    if wanted.first is None:
        if wanted.mode is not RevisionMode.FULL:
            raise RevisionRefusedError(
                f"topology {name}: expected the first day to correct, found none; say --from"
            )  # safety: days-are-named
        return (committed[0],)
    last = wanted.first if wanted.last is None else wanted.last
    if isinstance(wanted.first, int) or isinstance(last, int):
        chosen = [each for each in committed if int_of(wanted.first) <= each.barrier_id <= int_of(last)]
    else:
        chosen = _covering(committed, _begin(wanted.first), _end(last))
    if not chosen:
        raise RevisionRefusedError(  # safety: range-in-history
            f"topology {name}: expected days within its history, which is committed from {committed[0]} to "
            f"{committed[-1]}, found {wanted.first} to {last}; choose days that it covers"
        )
    return tuple(chosen)


def _covering(committed: Sequence[Barrier], begin: datetime, end: datetime) -> list[Barrier]:
    """An epoch ends with its barrier's timestamp and begins with the one before it."""
    starts = [_start_of_first(committed), *(each.timestamp for each in committed[:-1])]
    return [
        each
        for start, each in zip(starts, committed, strict=True)
        if each.timestamp > begin and (start is None or start < end)
    ]


def days_or_barrier(argument: str, value: str | int | date) -> date | datetime | int:
    """A day (``2017-01-05``), a time in ISO 8601 with its zone, or a barrier's number, also as text.

    Raises RevisionRefusedError for anything else, naming the argument.

    >>> days_or_barrier("first", "5"), days_or_barrier("first", "2017-01-05").isoformat()
    (5, '2017-01-05')
    """
    if not isinstance(value, str):
        return value
    if value.isdecimal():
        return int(value)
    try:
        # Python 3.10 does not know Z
        return (
            date.fromisoformat(value) if len(value) == _A_DAY else datetime.fromisoformat(value.replace("Z", "+00:00"))
        )
    except ValueError:
        raise RevisionRefusedError(
            f"{argument}: expected a day such as 2017-01-05, a time with its zone, or a barrier's number, found "
            f"{value!r}"
        ) from None


def _start_of_first(committed: Sequence[Barrier]) -> datetime | None:
    """The first epoch holds all that came before its barrier; days that it is asked for by are as long as the next's,
    so that a date long before the history is told that it is.
    """
    if len(committed) < 2:
        return None
    return committed[0].timestamp - (committed[1].timestamp - committed[0].timestamp)


def int_of(number: date | datetime | int) -> int:
    """Raises RevisionRefusedError where a barrier's number stands beside a date."""
    if not isinstance(number, int):
        raise RevisionRefusedError(  # safety: days-are-named
            f"expected two barriers' numbers or two days, found {number} beside a number; name both the same way"
        )
    return number


def _begin(day: date | datetime | int) -> datetime:
    return _aware(day) if isinstance(day, datetime) else datetime.combine(_day(day), time(), timezone.utc)


def _end(day: date | datetime | int) -> datetime:
    """The first moment after it."""
    if isinstance(day, datetime):
        return _aware(day)
    return datetime.combine(_day(day) + timedelta(days=1), time(), timezone.utc)


def _day(day: date | int) -> date:
    assert isinstance(day, date)  # numbers were seen to before
    return day


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise RevisionRefusedError(  # safety: days-are-named
            f"expected a time with its zone, found {moment}; write +00:00 for UTC"
        )
    return moment


def _check_readable(what: str, wanted: Wanted, barriers: Sequence[Barrier]) -> None:
    """What is replayed reads the tables that stay as they were at each barrier, so each has to be there."""
    gone = [each for each in barriers if each.expiring_at is not None]
    if gone:
        later = [each for each in barriers if each.barrier_id > gone[-1].barrier_id]
        if wanted.mode is RevisionMode.INCREMENTAL:
            later = later[1:]  # the first of them would build on what is gone
        way = f"begin with {later[0]} or later" if later else "compute the tables anew from the sources (--full)"
        raise RevisionRefusedError(  # safety: expired-is-not-revised
            f"{what}: expected every barrier from there on within retention, found that {gone[-1]} has expired; {way}"
        )


def _predecessor(deployment: Deployment, what: str, first: Barrier, wanted: Wanted) -> Barrier:
    predecessor = deployment.meta.barrier(first.topology, first.predecessor or 0)
    if predecessor.expiring_at is not None and wanted.mode is RevisionMode.INCREMENTAL:
        raise RevisionRefusedError(  # safety: expired-is-not-built-on
            f"{what}: expected the barrier before it, {predecessor}, to build on, found that it has expired; begin one "
            "barrier later, or compute the tables anew (--full)"
        )
    return predecessor


def _check_can_be_cleared(deployment: Deployment, what: str, jobs: Sequence[Job], first: Barrier) -> None:
    """Everything that the tables hold can be computed from the first barrier on."""
    baseline = {row.table: row.snapshot_id for row in deployment.meta.progress(first.topology, 0)}
    for job in jobs:
        held = [sink for sink in job.sinks if job.externals and baseline.get(sink) is not None]
        if held:
            raise RevisionRefusedError(  # safety: baseline-is-not-cleared
                f"{what}: expected tables whose rows all come from their sources' epochs, found that {', '.join(held)} "
                f"held rows before job {job.name} joined, which nobody can compute again; leave out --full"
            )
        if job.externals and first.predecessor:
            raise RevisionRefusedError(  # safety: cleared-from-the-first-barrier
                f"{what}: expected the first barrier to clear the tables of job {job.name} from, since its sources are "
                f"read epoch by epoch, found {first}; leave out --from, or clear only what is computed from "
                f"{', '.join(job.sinks)} (--job)"
            )


def _check_schemas(deployment: Deployment, jobs: Sequence[Job], barriers: Sequence[Barrier]) -> None:
    """The epochs fit into the tables as they are now. Raises SchemaChangedError, SnapshotMissingError."""
    rows = [deployment.meta.progress(each.topology, each.barrier_id) for each in barriers]
    for table in sorted({table for job in jobs for table in (*job.sinks, *job.sources)}):
        snapshots = dict.fromkeys(row.snapshot_id for tables in rows for row in tables if row.table == table)
        check_schema(table, deployment.tables.schema_faults(table, list(snapshots)))


def _check_bases(
    deployment: Deployment,
    what: str,
    mode: RevisionMode,
    jobs: Sequence[Job],
    predecessor: Barrier,
    barriers: Sequence[Barrier],
) -> None:
    """What the jobs build on is there, and every step of what they read.

    Barriers have tags, but what a table held when it joined has none, nor have the steps between two barriers.
    """
    meta, tables, full = deployment.meta, deployment.tables, mode is not RevisionMode.INCREMENTAL
    written = {sink for job in jobs for sink in job.sinks}
    read = {table for job in jobs for table in job.sources} - written
    baseline = {row.table: row.snapshot_id for row in meta.progress(predecessor.topology, 0)}
    start = barriers[0] if full else predecessor
    stood = {**baseline, **{row.table: row.snapshot_id for row in meta.progress(start.topology, start.barrier_id)}}
    for table in sorted(written | read):
        base = stood.get(table)
        if base is None or (full and table in written):
            continue
        try:
            tables.documents_at({table: base})
            there = table in written or tables.has_steps_since(table, base)
        except SnapshotMissingError:
            there = False
        if not there:
            raise RevisionRefusedError(  # safety: bases-are-there
                f"{what}: expected {table} as it was just before, and every step of it since, found that some of that "
                "has expired; begin one barrier later, or compute the tables anew (--full)"
            )


# --- what is computed, and from what --------------------------------------------------------------


def _changed(topology: Topology, wanted: Wanted) -> tuple[str, ...]:
    """The jobs to begin with: those that are named, those whose tables are corrected, or all root jobs."""
    for table in wanted.reused:
        _known(topology, table)
    written = (*wanted.tables, *(each.table for each in wanted.corrections))
    named = [topology.job(name).name for name in wanted.changed]
    chosen = dict.fromkeys((*named, *(topology.writer(_known(topology, table)).name for table in written)))
    return tuple(chosen) or tuple(job.name for job in topology.jobs if job.externals or not job.sources)


def _known(topology: Topology, table: str) -> str:
    if table not in topology.tables:
        raise RevisionRefusedError(  # safety: written-table-is-corrected
            f"topology {topology.name}: expected a table that one of its jobs writes, which are "
            f"{', '.join(topology.tables)}, found {table}; correct the name"
        )
    return table


def _inputs(
    deployment: Deployment, wanted: Wanted, jobs: Sequence[Job], barriers: Sequence[Barrier]
) -> tuple[PlannedInput, ...]:
    """For each root job, where its epochs' rows come from. Raises RevisionRefusedError where they are gone."""
    found: list[PlannedInput] = []
    for job in jobs:
        corrected = {each.barrier_id for each in wanted.corrections if each.table in job.sinks}
        if not job.externals and not corrected:
            continue
        unknown = corrected - {each.barrier_id for each in barriers}
        if unknown:
            raise RevisionRefusedError(  # safety: corrections-are-replayed
                f"job {job.name}: expected corrections at barriers that are replayed, found one at barrier "
                f"{min(unknown)}; correct its number, or begin earlier"
            )
        _check_whole(job, wanted, barriers)
        if corrected:
            found.append(PlannedInput(job.name, "correction", tuple(sorted(corrected)), "replaced as its author says"))
        rest = tuple(each.barrier_id for each in barriers if each.barrier_id not in corrected)
        if not rest or not job.externals:
            continue
        if set(job.sinks) <= set(wanted.reused):
            found.append(PlannedInput(job.name, "reused", rest, f"the rows that {', '.join(job.sinks)} got then"))
        else:
            _check_cuts(deployment, job, [each for each in barriers if each.barrier_id in rest])
            names = ", ".join(external.name for external in job.externals)
            found.append(PlannedInput(job.name, "cut", rest, f"{names}, read again up to the stored positions"))
    return tuple(found)


def _check_whole(job: Job, wanted: Wanted, barriers: Sequence[Barrier]) -> None:
    """What stands in for a job stands in for all that it writes: its code cannot be run for one of its tables."""
    for barrier in barriers:
        here = {each.table for each in wanted.corrections if each.barrier_id == barrier.barrier_id}
        said = sorted({*here, *wanted.reused} & set(job.sinks))
        left = sorted(set(job.sinks) - set(said))
        if said and left:
            raise RevisionRefusedError(  # safety: corrections-are-whole
                f"job {job.name}: expected corrections of all tables that it writes, found one of {', '.join(said)} "
                f"and none of {', '.join(left)} at {barrier}; correct that too, or let it keep its rows: "
                f"--reuse {' --reuse '.join(left)}"
            )


def _undone(deployment: Deployment, topology: Topology, inputs: Sequence[PlannedInput]) -> tuple[str, ...]:
    """What was corrected before and is not in the sources, where these are read again."""
    newest_first = deployment.meta.revisions.newest(topology.name, _ALL)
    lost = []
    for read_again in (each for each in inputs if each.kind == "cut"):
        sinks = topology.job(read_again.job).sinks
        for barrier_id, table in ((barrier_id, table) for barrier_id in read_again.barriers for table in sinks):
            stands = next((r for r in newest_first if _decided_rows(r, read_again.job, barrier_id, table)), None)
            if stands is not None and _is_corrected(stands, barrier_id, table):
                lost.append(
                    f"the correction of {table} at barrier {barrier_id} by {stands} is lost, since job "
                    f"{read_again.job} reads its source again: correct the source too, say the correction once more, "
                    f"or keep the rows as they are (--reuse {table})"
                )
    return tuple(lost)


def _decided_rows(revision: Revision, job: str, barrier_id: int, table: str) -> bool:
    """Whether it made the table's epoch what it is, and did not just apply again what there was."""
    return (
        revision.state is RevisionState.COMMIT
        and job in revision.jobs
        and revision.first_barrier <= barrier_id <= (revision.last or 0)
        and (table not in revision.reused or _is_corrected(revision, barrier_id, table))
    )


def _is_corrected(revision: Revision, barrier_id: int, table: str) -> bool:
    return any((each.barrier_id, each.table) == (barrier_id, table) for each in revision.corrections)


def _check_cuts(deployment: Deployment, job: Job, barriers: Sequence[Barrier]) -> None:
    """Every cut can be read, as it was or as it was mended."""
    for barrier in barriers:
        cuts = deployment.meta.cuts(barrier.topology, barrier.barrier_id)
        for declared in job.externals:
            source, cut = source_of(declared), cuts.get(declared.name)
            if cut is None:
                continue
            try:
                mended_cut(source, cut)
            except BarrierError as error:
                raise RevisionRefusedError(  # safety: input-is-there
                    f"job {job.name}: expected its source {declared.name} to still hold the epoch of {barrier}, found: "
                    f"{error}. Reuse the rows that its tables got then: --reuse {' --reuse '.join(job.sinks)}"
                ) from error


def _code_changed(deployment: Deployment, jobs: Sequence[Job], first: Barrier, head: Barrier) -> tuple[str, ...]:
    """The jobs whose code at the head is not what computed the first barrier, as far as their attempts tell."""
    then, now = (_fingerprints(deployment, barrier) for barrier in (first, head))
    return tuple(job.name for job in jobs if job.name in then and then[job.name] != now.get(job.name, then[job.name]))


def _fingerprints(deployment: Deployment, barrier: Barrier) -> dict[str, str]:
    return {
        attempt.job: attempt.code["fingerprint"]
        for attempt in deployment.meta.attempts(barrier.topology, barrier.barrier_id)
        if attempt.state is AttemptState.PROCESSED and "fingerprint" in attempt.code
    }


def _tables(
    deployment: Deployment,
    jobs: Sequence[Job],
    barriers: Sequence[Barrier],
    committed: Sequence[Barrier],
    predecessor: Barrier,
    joining: Mapping[str, int | None],
) -> tuple[PlannedTable, ...]:
    """Also those that join with a barrier that is still open."""
    meta = deployment.meta
    members = {row.table for each in barriers for row in meta.progress(each.topology, each.barrier_id)}
    head = {row.table: row.snapshot_id for row in meta.progress(committed[-1].topology, committed[-1].barrier_id)}
    members.update(joining)
    head.update(joining)
    before = {row.table: row.snapshot_id for row in meta.progress(predecessor.topology, predecessor.barrier_id)}
    planned = []
    for job in jobs:
        for table in job.sinks:
            if table not in members:
                continue
            at_head, at_base = (_rows(deployment, table, stands.get(table)) for stands in (head, before))
            came = None if at_head is None or at_base is None else at_head - at_base
            planned.append(PlannedTable(table, job.name, job.owner, at_head, came))
    return tuple(planned)


def _rows(deployment: Deployment, table: str, snapshot_id: int | None) -> int | None:
    if snapshot_id is None:
        return 0
    return deployment.tables.row_counts(table, [snapshot_id]).get(snapshot_id)


def _pace(deployment: Deployment, wanted: Wanted, barriers: Sequence[Barrier]) -> tuple[str, ...]:
    """Whether replay is quicker than arrival. Raises RevisionRefusedError if it is not, and nobody accepts a pause."""
    recent = [each for each in barriers[-_RECENT:] if each.commit_at is not None]
    if len(recent) < 3:
        return ()
    took = _median([(each.commit_at - each.opened_at).total_seconds() for each in recent if each.commit_at])
    # by their timestamps: what opens in quick succession is a backlog, which ends
    gaps = [(b.timestamp - a.timestamp).total_seconds() for a, b in pairwise(recent)]
    arrival = _median(gaps)
    if took < arrival:
        return ()
    said = f"a barrier takes {took:.0f} s to compute (median), and one comes every {arrival:.0f} s"
    if wanted.accept_pause:
        return (
            f"{said}: opening pauses while {len(barriers)} barriers are replayed, some {took * len(barriers):.0f} s",
        )
    raise RevisionRefusedError(  # safety: replay-catches-up
        f"revision of {wanted.topology}: expected to replay barriers faster than they come, found that {said}; accept "
        "that no barrier opens until it is published (--accept-pause), or begin later"
    )


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
