"""What the API answers with. Times are UTC in ISO 8601, durations are seconds; a field that says nothing is null.

Of jobs whose DAGs a caller may not read nothing is told: ``hidden_dags`` says of how many.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from airflow_barrier.protocol.cells import CellState
from airflow_barrier.protocol.health import Health
from airflow_barrier.protocol.records import BarrierKind
from airflow_barrier.protocol.revisions import RevisionMode, RevisionState
from airflow_barrier.protocol.states import AttemptState, BarrierState, Decision

if TYPE_CHECKING:
    from typing_extensions import Self


class Model(BaseModel):
    """Answers are built once and sent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, record: object, **others: Any) -> Self:
        """Make it from the record's attributes of the same names. ``others``: the fields that the record does not
        have, has in another form, or that the caller may not see.
        """
        return cls(**others, **{name: getattr(record, name) for name in _names(cls) if name not in others})


@cache
def _names(model: type[Model]) -> tuple[str, ...]:
    return tuple(model.model_fields)


class Problem(Model):
    """The reason why there is no answer, as far as that is told."""

    detail: str


class Deployment(Model):
    """One stage (dev, prod): a MetaService and its catalog. In Airflow a connection of type `barrier`, and its id."""

    deployment: str


class Deployments(Model):
    """``failed``: the names of those that cannot be asked just now."""

    deployments: list[Deployment]
    failed: list[str]


class Act(str, Enum):
    """The name of an action; the last part of the address that does it. To revise is planned first."""

    ABORT = "abort"
    COMMIT = "commit"
    RESOLVE = "resolve"
    RELEASE = "release"
    CANCEL = "cancel"
    REVISE = "revise"
    WAKE = "wake"


class Action(Model):
    """An action that the caller may do now. ``label`` names it, ``says`` what will happen then."""

    action: Act
    label: str
    says: str


class BarrierSummary(Model):
    """``seconds``: from its timestamp until it was readable."""

    barrier_id: int
    timestamp: datetime
    state: BarrierState
    kind: BarrierKind
    revision: int
    opened_at: datetime
    precommit_at: datetime | None
    commit_at: datetime | None
    aborted_at: datetime | None
    seconds: float | None
    reason: str | None


class Late(Model):
    """Somebody who holds up a barrier, or the topology, ``since`` when; ``summary`` says it in a sentence. Who will not
    come unless a person does something is told at once, others once they are late.
    """

    barrier_id: int | None
    job: str | None
    dag: str | None
    tables: list[str]
    since: datetime
    summary: str


class Task(Model):
    """An instance of a task in Airflow; ``map_index`` -1: it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


class Failed(Model):
    """A job that has failed ``at`` a time, and the ``tables`` that its barrier lacks; ``holds_up`` tables of other jobs
    wait for them. It was try ``tried`` of ``tries`` (null: not known). ``again_at``: Airflow tries again, not before;
    null: it does not. ``summary`` says it in a sentence, ``reason`` is the error. ``task``: where its log is, and where
    it is cleared.
    """

    barrier_id: int
    job: str
    dag: str
    tables: list[str]
    at: datetime
    tried: int | None
    tries: int | None
    again_at: datetime | None
    holds_up: int
    summary: str
    reason: str
    task: Task | None


class TopologySummary(Model):
    """``readable``: the newest barrier that repeatable read serves. ``age``: of its timestamp, now. ``recent``: the
    newest barriers, oldest first. ``failed``: jobs, the one that failed first first. ``late``: what else holds up
    barriers. ``failing``: the sinks to which the last delivery failed. ``revision``: the one that is under way.
    """

    deployment: str
    topology: str
    version: int
    dags: list[str]
    tables: int
    health: Health
    readable: BarrierSummary | None
    age: float | None
    objective: float | None
    revision: int | None
    open: int
    recent: list[BarrierSummary]
    failed: list[Failed]
    late: list[Late]
    failing: list[str]
    hidden_dags: int


class Topologies(Model):
    """The worst first. ``counts``: how many there are of each health. ``after``: pass it as the query parameter of that
    name to get those behind these; null: these were the last.
    """

    topologies: list[TopologySummary]
    counts: dict[Health, int]
    after: str | None


class Job(Model):
    """``sources`` and ``inlets``: what it reads from outside, and from other jobs."""

    job: str
    dag: str
    inlets: list[str]
    outlets: list[str]
    sources: list[str]


class Source(Model):
    source: str
    kind: str


class Sink(Model):
    """``barrier_id`` and ``revision``: what was delivered last. ``lacks``: how many committed barriers it is behind,
    ``since`` when; ``hold``: for how many seconds these are kept from expiry. ``error``: why the last try failed.
    ``remedy``: what the next delivery does, since a person decided so.
    """

    sink: str
    dag: str
    kind: str
    state: str
    tables: list[str]
    barrier_id: int | None
    revision: int | None
    delivered_at: datetime | None
    lacks: int
    since: datetime | None
    hold: float
    remedy: str | None
    error: str | None
    failed_at: datetime | None
    failures: int


class Topology(TopologySummary):
    """``read_committed``: the barrier that this level serves (``readable`` is repeatable read's)."""

    jobs: list[Job]
    sources: list[Source]
    sinks: list[Sink]
    read_committed: int | None


class Barriers(Model):
    """Newest first. ``before``: pass it to get the older ones; null: there are none."""

    barriers: list[BarrierSummary]
    before: int | None


class GridRow(Model):
    """``cells``: of each of the grid's barriers, in their order."""

    table: str
    job: str | None
    dag: str | None
    cells: list[CellState]


class Note(Model):
    """A remark on a cell beside its state. ``tries``: how many attempts there were."""

    table: str
    barrier_id: int
    tries: int
    since: datetime | None
    summary: str


class Grid(Model):
    """Tables (rows, by DAG and name) at barriers (columns, oldest first). ``before``: for the older barriers;
    ``after``: for the tables behind these; null: there are none.
    """

    topology: str
    barriers: list[BarrierSummary]
    rows: list[GridRow]
    notes: list[Note]
    repeatable_read: int | None
    read_committed: int | None
    before: int | None
    after: str | None
    hidden_dags: int


class Attempt(Model):
    """``task``: who asked for it, if that was a task."""

    attempt_id: int
    job: str
    dag: str
    state: AttemptState
    requested_at: datetime
    started_at: datetime | None
    closed_at: datetime | None
    processed_at: datetime | None
    ended_at: datetime | None
    waits_for: list[str]
    reason: str | None
    task: Task | None


class TableAtBarrier(Model):
    """``unchanged_since``: the barrier whose rows these still are. ``snapshot_id``: as text, since JavaScript's numbers
    hold no 64 bits. ``waits``: why its job does not begin, as far as Airflow knows.
    """

    table: str
    job: str | None
    dag: str | None
    state: CellState
    snapshot_id: str | None
    unchanged_since: int | None
    processed_at: datetime | None
    written_at: datetime | None
    waits: str | None


class Cut(Model):
    """``summary``: up to where the barrier reads the source. ``put_off``: why that is not known yet."""

    source: str
    summary: str
    put_off: str | None


class Delivery(Model):
    sink: str
    revision: int
    inserted: int
    updated: int
    deleted: int
    seconds: float
    delivered_at: datetime


class BarrierDetail(BarrierSummary):
    """``tag``: by what engines read it. ``opening``: where its timestamp came from, and which run opened it.
    ``expiring_at``: since when it cannot be read any more. ``health``, ``failed``, ``late``: what a topology's say, of
    this barrier.
    """

    topology: str
    tag: str
    opening: str
    expiring_at: datetime | None
    dag_id: str | None
    run_id: str | None
    health: Health
    failed: list[Failed]
    late: list[Late]
    tables: list[TableAtBarrier]
    attempts: list[Attempt]
    cuts: list[Cut]
    deliveries: list[Delivery]
    actions: list[Action]
    hidden_dags: int


class Segment(Model):
    """A stretch of time and who or what took it. ``part``: as :class:`~airflow_barrier.protocol.delay.Part` names it.
    ``job`` null: none of the caller's, or none at all.
    """

    part: str
    job: str | None
    barrier_id: int
    begin: datetime
    end: datetime


class TableDelay(Model):
    """``parts``: seconds of each part; their sum is the barrier's ``seconds``."""

    table: str
    job: str
    own: float
    inherited: float
    parts: dict[str, float]


class Delivered(Model):
    """``seconds``: from the barrier's COMMIT until the sink of the DAG had it."""

    sink: str
    dag: str
    at: datetime
    seconds: float


class BarrierDelay(Model):
    """A barrier's delay. ``since``: its timestamp, or that of the oldest epoch that it took along from aborted
    barriers. ``until``: when it was readable, or now. ``critical_path``: without gaps, from ``since`` to ``until``.
    ``jobs``: what each did since the barrier was opened. ``deliveries``: what sinks have got.
    """

    barrier_id: int
    timestamp: datetime
    since: datetime
    until: datetime
    seconds: float
    critical_path: list[Segment]
    jobs: dict[str, list[Segment]]
    tables: list[TableDelay]
    deliveries: list[Delivered]


class Blame(Model):
    """``share`` (0 to 1) of the time that was not schedule, over the barriers that were looked into. ``job``
    null: that part is nobody's alone, or that of jobs whose DAGs the caller may not read.
    """

    part: str
    job: str | None
    dag: str | None
    seconds: float
    share: float


class DelayPoint(Model):
    """``seconds``: from the timestamp of its oldest epoch until it was readable. ``stale``: how old what readers had
    was just before.
    """

    barrier_id: int
    timestamp: datetime
    readable_at: datetime
    seconds: float
    stale: float | None


class Present(Model):
    """``barrier_id``: the oldest barrier that is open (null: none is), ``seconds`` after the timestamp of its oldest
    epoch. ``stale``: how old what readers have is (null: they have nothing).
    """

    at: datetime
    barrier_id: int | None
    seconds: float | None
    stale: float | None


class SinkDelay(Model):
    """``percentiles`` of the seconds from COMMIT until a sink had it. ``lacks``: how many barriers it does not have,
    ``since`` when (null: it has all).
    """

    sink: str
    dag: str
    percentiles: dict[str, float]
    lacks: int
    since: datetime | None


class Delay(Model):
    """The lateness of a window's (seconds) barriers when readable, how it is now, and why. ``missed``: how often
    readers had something older than the objective. ``scheduled``: percentiles of the seconds until a run opened the
    barrier, which are not in the blame. ``looked_into``: of how many barriers, the newest, the blame is, besides the
    open one.
    """

    topology: str
    table: str | None
    window: float
    objective: float | None
    barriers: int
    missed: int | None
    percentiles: dict[str, float]
    scheduled: dict[str, float]
    present: Present
    points: list[DelayPoint]
    blame: list[Blame]
    looked_into: int
    deliveries: list[SinkDelay]


class Lag(Model):
    """A source's lag. ``behind``: how much of it no barrier has read. ``unknown``: why that cannot be told. ``note``:
    what of it nobody reads, or is not known.
    """

    source: str
    kind: str
    barrier_id: int | None
    behind: int | None
    unit: str | None
    urgent: bool
    note: str | None
    unknown: str | None


class Sources(Model):
    sources: list[Lag]


class Sinks(Model):
    sinks: list[Sink]


class Lease(Model):
    """``holder`` is told to who may read all DAGs of the topology. ``holds_up``: how many barriers would have expired
    by now but for it, or for others that hold them too.
    """

    lease_id: int
    barrier_id: int
    through_id: int
    holder: str | None
    granted_at: datetime
    expires_at: datetime
    rolled_back: bool
    holds_up: int
    actions: list[Action]


class Leases(Model):
    leases: list[Lease]


class Revision(Model):
    """``window_end``: the last barrier that was asked for. ``last``: up to which it goes, once that is decided.
    ``changed``: the jobs because of which it was begun. ``gated``: no barrier opens until it is published.
    """

    revision: int
    state: RevisionState
    mode: RevisionMode
    first_barrier: int
    window_end: int
    last: int | None
    gated: bool
    tables: list[str]
    jobs: list[str]
    changed: list[str]
    actor: str | None
    reason: str | None
    created_at: datetime
    commit_at: datetime | None
    cancelled_at: datetime | None


class Revisions(Model):
    """Newest first. ``before``: pass it to get the older ones; null: there are none."""

    revisions: list[Revision]
    before: int | None


class RevisionProgress(Model):
    barrier_id: int
    timestamp: datetime
    state: BarrierState
    jobs: dict[str, str]


class RevisionRun(Model):
    """A run that computes barriers of it. ``barrier_id`` null: those after the ones that were asked for.
    ``arrived_at`` null: it was woken, and has not begun.
    """

    dag_id: str
    run_id: str
    barrier_id: int | None
    arrived_at: datetime | None


class RevisionMissing(Model):
    """A barrier that a revision waits for: ``tables``, each with its job, are not computed again; else ``why``."""

    barrier_id: int
    timestamp: datetime
    tables: list[str]
    why: str


class RevisionDetail(Revision):
    """``missing``: what it still waits for, the oldest barrier first. ``awaited``: barriers that were asked for and of
    which no run has come.
    """

    runs: list[RevisionRun]
    barriers: list[RevisionProgress]
    missing: list[RevisionMissing]
    awaited: list[int]
    actions: list[Action]
    hidden_dags: int


class RunTask(Model):
    """A task that asked for attempts of a job. ``map_index``: -1 for one that is not mapped."""

    task_id: str
    map_index: int
    job: str


class RunBarrier(Model):
    """``opened``: by the run. ``tasks``: those of the run that asked for attempts at it."""

    deployment: str
    topology: str
    barrier_id: int
    timestamp: datetime
    state: BarrierState
    opened: bool
    tasks: list[RunTask]


class RunRevision(Model):
    """``barrier_id``: which barrier the run computes for it; null: one after those that were asked for."""

    deployment: str
    topology: str
    revision: int
    barrier_id: int | None


class Run(Model):
    """The subjects of a run; of each topology the newest first."""

    barriers: list[RunBarrier]
    revisions: list[RunRevision]


class Change(Model):
    """An event of the stream: ``changes`` counts whatever happened to a topology; ask anew when it has grown."""

    topology: str
    changes: int


class Choice(Model):
    """``says``: what happens to whose rows."""

    decision: Decision
    label: str
    says: str


class TableInTheWay(Model):
    """``finding``: what was expected and found; null: nothing is in the way any more. ``choices``: what can be decided;
    none: the table has to be mended first.
    """

    table: str
    finding: str | None
    choices: list[Choice]


class TablesInTheWay(Model):
    tables: list[TableInTheWay]


#: One line that says something.
_Reason = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True,
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f\u2028\u2029]*$",
    ),
]


#: Up to what JSON's numbers are exact everywhere.
_BarrierId = Annotated[int, Field(ge=0, lt=2**53)]


class Asked(BaseModel):
    """``reason``: why, for the audit and for the tasks that meet it."""

    reason: _Reason


class Again(BaseModel):
    """An object without fields: what is done again was begun, and its reason is known."""


class Decided(Asked):
    table: str
    decision: Decision


class Correction(BaseModel):
    """``first`` and ``last``: barriers' numbers; without ``last`` the first one alone. ``jobs``: those whose code or
    input was corrected; none: all that read sources. ``recut``: sources that are cut anew. ``full``: from empty tables.
    """

    first: _BarrierId
    last: _BarrierId | None = None
    jobs: list[str] = Field(default_factory=list, max_length=1000)
    recut: list[str] = Field(default_factory=list, max_length=1000)
    full: bool = False


class Planned(Correction, Asked):
    """``revision``: the number that the plan has named. It is begun once."""

    revision: int = Field(ge=1, lt=2**31)


class Plan(Model):
    """``revision``: the number that it gets if it is begun now. ``lines`` and ``notes`` are what the ``command`` prints
    first, which begins the same. ``dags``: those that compute again.
    """

    revision: int
    lines: list[str]
    notes: list[str]
    command: str
    dags: list[str]


class Done(Model):
    """``changed`` false: it was done before, and this call changed nothing. ``states``: of what it was about, now."""

    changed: bool
    summary: str
    states: dict[str, str]
