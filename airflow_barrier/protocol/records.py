"""What the MetaService knows, as values: immutable, with datetimes in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any

from airflow_barrier.protocol.names import Stamp, tag_name
from airflow_barrier.protocol.states import AttemptState, BarrierState, Decision, TableState
from airflow_barrier.protocol.topology import Job

#: Kinds of runs whose timestamp nobody typed. A backfill is made of such runs only.
SCHEDULED_RUNS = frozenset({"scheduled", "backfill"})


class BarrierKind(str, Enum):
    """A barrier's purpose. EPOCH: the data since the barrier before it. MAINTENANCE has no epoch: its tables hold the
    rows of its predecessor's, compacted or carried, at the predecessor's timestamp. BASELINE: barrier 0.
    """

    EPOCH = "EPOCH"
    MAINTENANCE = "MAINTENANCE"
    BASELINE = "BASELINE"


@dataclass(frozen=True)
class RunRef:
    """A run of a DAG. ``kind`` is its type as Airflow spells it: ``scheduled``, ``backfill``, ``manual``,
    ``asset_triggered``, ``operator_triggered``... ``logical_date`` (UTC) is the date by which a backfill names the run.

    >>> str(RunRef("shopping", "scheduled__2017-01-02", "scheduled"))
    'shopping/scheduled__2017-01-02'
    """

    dag_id: str
    run_id: str
    kind: str
    logical_date: datetime | None = None

    def __str__(self) -> str:
        return f"{self.dag_id}/{self.run_id}" if self.dag_id else ""

    @property
    def key(self) -> tuple[str, str]:
        """The key that tells runs apart. It lacks the kind: a backfill that takes an existing run makes it one of its
        own.
        """
        return self.dag_id, self.run_id

    @property
    def is_scheduled(self) -> bool:
        return self.kind in SCHEDULED_RUNS


#: The baseline's: no run opened it.
NO_RUN = RunRef("", "", "")


@dataclass(frozen=True)
class Barrier:
    """One timestamp barrier. ``predecessor`` (never ``barrier_id - 1``) names base and cut start.

    ``run``: the run that opened it. ``timestamp_from``: where its timestamp came from, for people.

    From ``expiring_at`` on nobody begins to read at it any more; at ``expired_at`` its tags were gone.
    ``computed_in``: the revision that computed what stands (0: it was computed once). ``line``: where it is, as
    :class:`~airflow_barrier.protocol.revisions.Revision` says. ``max_open``: how many could be open at once when it was
    opened.
    """

    topology: str
    barrier_id: int
    computed_in: int
    timestamp: datetime
    state: BarrierState
    predecessor: int | None
    topology_version: int
    kind: BarrierKind
    run: RunRef
    timestamp_from: str
    opened_at: datetime
    precommit_at: datetime | None = None
    committing_at: datetime | None = None
    commit_at: datetime | None = None
    aborted_at: datetime | None = None
    expiring_at: datetime | None = None
    expired_at: datetime | None = None
    reason: str | None = None
    line: int = 0
    max_open: int | None = None

    def __str__(self) -> str:
        revised = f", revision {self.line}" if self.line > 0 else ""
        return f"barrier {self.barrier_id} of {self.topology} ({self.timestamp:%Y-%m-%d %H:%M:%S%z}{revised})"

    @property
    def is_maintenance(self) -> bool:
        """Return whether it has no epoch: its tables hold the rows of its predecessor's, compacted or carried."""
        return self.kind is BarrierKind.MAINTENANCE

    @property
    def run_date(self) -> datetime:
        """The time (UTC) by which Airflow names the run that opened it: its logical date, if it has one."""
        return self.run.logical_date or self.timestamp

    @property
    def opening(self) -> str:
        """The origin of its timestamp and the run that opened it, for people."""
        run = f"; opened by {self.run} ({self.run.kind})" if self.run != NO_RUN else ""
        return f"{self.timestamp_from}{run}"

    @property
    def tag(self) -> str:
        return tag_name(self.topology, self.barrier_id, self.computed_in)

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tag, and what it was called in the revisions before, as far as they computed it."""
        return tuple(tag_name(self.topology, self.barrier_id, number) for number in range(self.computed_in + 1))


#: Stands in the end of a cut that is not made yet; no adapter's word.
_PUT_OFF = "put_off"
#: Stands in the end of a cut after which its source begins anew; no adapter's word.
_ANEW = "anew"


@dataclass(frozen=True)
class Cut:
    """The positions of one external source for one barrier: from ``start`` (None: the beginning) to ``end``.

    Both are JSON values that only the source's adapter understands, but for the end's ``words``, if it has any: they
    tell people where that is. ``items`` are names (files) that this cut uses up: an item is in the cut of one barrier
    only.

    A cut that is *put off* says so instead of where it ends: its source could not be looked into when the barrier
    opened. It is made when the first job that reads it begins. After a cut that says ``anew`` the source begins anew:
    what comes next is how all of it differs from what its jobs have.
    """

    source: str
    start: Mapping[str, Any] | None
    end: Mapping[str, Any]
    items: tuple[str, ...] = ()

    @classmethod
    def later(cls, source: str, why: str) -> Cut:
        """A cut that is put off."""
        return cls(source, None, {_PUT_OFF: why})

    @property
    def put_off(self) -> str | None:
        """The reason why it is not made yet; None: it is."""
        return self.end.get(_PUT_OFF)

    @property
    def words(self) -> str | None:
        """Words in which its adapter tells people where it ends; None: the values alone tell."""
        return self.end.get("words")

    def then_anew(self, reason: str) -> Cut:
        """The same cut, after which its source begins anew."""
        return replace(self, end={**self.end, _ANEW: reason})

    @property
    def anew(self) -> str | None:
        """The reason why its source begins anew after it; None: it goes on."""
        return self.end.get(_ANEW)


@dataclass(frozen=True)
class StagedTable:
    """One outlet in an attempt's closing record. ``unchanged``: the epoch adds nothing; the predecessor's stays."""

    table: str
    snapshot_id: int | None
    unchanged: bool = False


@dataclass(frozen=True)
class TableProgress:
    """One table at one barrier.

    ``decision`` and ``set_aside`` are there only if somebody else moved the table while the barrier was COMMITTING, and
    a person decided whose snapshot stands: ``snapshot_id`` is that one, ``set_aside`` the other.
    """

    topology: str
    barrier_id: int
    table: str
    job: str | None
    state: TableState
    snapshot_id: int | None = None
    attempt_id: int | None = None
    carried_from: int | None = None
    expected_snapshot: int | None = None
    decision: Decision | None = None
    set_aside: int | None = None
    processed_at: datetime | None = None
    written_at: datetime | None = None
    line: int = 0

    @property
    def origin(self) -> int:
        """The barrier that the snapshot is of."""
        return self.barrier_id if self.carried_from is None else self.carried_from


@dataclass(frozen=True)
class Need:
    """The need of a waiting attempt: ``table`` PROCESSED at ``barrier_id``, which ``job`` has to do; in a revision's
    ``line``, or in the one that stands (0).
    """

    table: str
    barrier_id: int
    job: str
    line: int = 0

    def __str__(self) -> str:
        revised = f", revision {self.line}" if self.line > 0 else ""
        return f"{self.table} at barrier {self.barrier_id} (job {self.job}{revised})"


@dataclass(frozen=True)
class Tries:
    """The failed try of a task, of how many. ``again_at`` (UTC): the next comes, not before; None: none."""

    tried: int
    tries: int
    again_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class AttemptProgress:
    """An attempt without what it reads and writes: as much as is read of many at once.

    ``tried``, ``tries`` and ``again_at``: :class:`Tries` of one that failed, as far as its task said it.
    """

    attempt_id: int
    topology: str
    barrier_id: int
    job: str
    state: AttemptState
    request_key: str
    requested_at: datetime
    started_at: datetime | None = None
    closed_at: datetime | None = None
    processed_at: datetime | None = None
    ended_at: datetime | None = None
    waited_for: tuple[Need, ...] = ()
    reason: str | None = None
    tried: int | None = None
    tries: int | None = None
    again_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt(AttemptProgress):
    """One run of one job for one barrier and revision.

    ``generation`` tells a retry (same) from a clear (another). ``inputs``: inlet -> snapshot at this
    barrier; ``previous``: inlet -> snapshot at the predecessor; ``bases``: outlet -> snapshot of the
    predecessor that the attempt builds on. ``code``: what the task ran, with a ``fingerprint``; of some nothing.
    ``nonce``: proves that a file is from its worker or its driver; never to be shown. ``server``: the connection of the
    Spark Connect server that it runs on, ``session``: its session there, until it leaves that to another attempt.
    """

    computed_in: int
    generation: str
    incarnation: str
    inputs: Mapping[str, int | None] = field(default_factory=dict)
    previous: Mapping[str, int | None] = field(default_factory=dict)
    bases: Mapping[str, int | None] = field(default_factory=dict)
    staged: Mapping[str, StagedTable] = field(default_factory=dict)
    line: int = 0
    code: Mapping[str, str] = field(default_factory=dict)
    nonce: str = field(default="", repr=False)
    server: str | None = None
    session: str | None = None

    def __str__(self) -> str:
        revised = f", revision {self.line}" if self.line > 0 else ""
        return f"attempt {self.attempt_id} of job {self.job} at barrier {self.barrier_id} of {self.topology}{revised}"

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.topology, self.barrier_id, self.computed_in, self.attempt_id, self.incarnation)

    @property
    def branch(self) -> str:
        return self.stamp.branch


@dataclass(frozen=True)
class JobStart:
    """The content of a job's tables when it joined: where its first epoch begins.

    ``start_from`` is what its DAG declared (None: nothing), ``baseline`` the `main` of each outlet. ``previous``:
    inlet -> the snapshot that is in the outlets (None: nothing of it is). ``externals``: source -> ``{"time": ISO}``
    or ``{"at": position}`` up to which it is in them; a source that is not named goes on where its last cut ended.
    """

    job: str
    start_from: Mapping[str, Any] | None
    baseline: Mapping[str, int | None]
    previous: Mapping[str, int | None]
    externals: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Withdrawal:
    """A job that a person took out of a topology (``job`` None: all jobs of the DAG), when (UTC) and why.

    ``jobs`` are what was registered then.
    """

    topology: str
    owner: str
    job: str | None
    at: datetime
    actor: str
    reason: str
    jobs: tuple[Job, ...]

    def __str__(self) -> str:
        what = f"job {self.job} of DAG {self.owner}" if self.job else f"DAG {self.owner}"
        return f"{what} has left topology {self.topology} ({self.at:%Y-%m-%d %H:%M} by {self.actor}: {self.reason})"


@dataclass(frozen=True)
class AuditEntry:
    """One change: of what (``kind`` and ``subject``), from which state to which, by whom, when (UTC).

    ``kind`` is topology, barrier, table, attempt or lease; ``subject`` its name or number.
    """

    audit_id: int
    at: datetime
    topology: str
    revision: int
    barrier_id: int | None
    kind: str
    subject: str
    event: str
    before: str | None
    after: str | None
    actor: str
    detail: Mapping[str, Any]
