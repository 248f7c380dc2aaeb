"""What a task waits for, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow_barrier.protocol.deliveries import SinkRecord, SinkState
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    UnknownBarrierError,
    UnknownSinkError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.reaching import Standing
from airflow_barrier.protocol.records import Attempt, Barrier, Cut
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import LIVE_ATTEMPTS, UNDER_WAY_ATTEMPTS, BarrierState, TableState

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService

_T = TypeVar("_T")

_STATES: dict[str, TableState | BarrierState] = {
    state.value: state for state in (TableState.PROCESSED, BarrierState.PRECOMMIT, BarrierState.COMMIT)
}
#: What readers at a level get is what has come as far as this.
_LEVELS = {BarrierState.PRECOMMIT.value: Level.READ_COMMITTED, BarrierState.COMMIT.value: Level.REPEATABLE_READ}


@dataclass(frozen=True)
class Condition:
    """``tables`` (None: all) have reached ``target`` (PROCESSED, PRECOMMIT or COMMIT) at one barrier.

    The barrier is given by its id or by its timestamp (UTC); in the latter case it need not be open yet, and
    ``target`` None waits for no more than that it is. ``or_newer``: the newest barrier that is at ``target``
    (PRECOMMIT or COMMIT) will do if it is not older than the timestamp. ``line``: in a revision, by its number.

    ``or_lacking``: while the barrier is not open, an open barrier before it will do that :func:`lacks` this job of
    this DAG, and whose timestamp is after ``lacking_after`` (UTC; None: any).
    """

    kind: ClassVar[str] = "Condition"
    target: str | None
    barrier_id: int | None = None
    timestamp: datetime | None = None
    tables: tuple[str, ...] | None = None
    or_newer: bool = False
    line: int = 0
    or_lacking: tuple[str, str] | None = None
    lacking_after: datetime | None = None

    def __post_init__(self) -> None:
        if self.target is not None and self.target not in _STATES:
            raise ConfigurationError(f"target: expected one of {', '.join(_STATES)}, found {self.target!r}")
        _check_one(self.barrier_id, self.timestamp)
        if self.or_newer and (self.timestamp is None or self.target not in _LEVELS):
            raise ConfigurationError(
                f"expected a time, and {' or '.join(_LEVELS)} as the target, to wait for a barrier that is at least as "
                f"new, found {self.timestamp} and {self.target}"
            )
        if self.line and (self.barrier_id is None or self.target is None):
            raise ConfigurationError(
                f"in a revision: expected a barrier by its id, and a target, found id {self.barrier_id} and target "
                f"{self.target}"
            )

    @classmethod
    def newer(cls, level: Level, timestamp: datetime, tables: Sequence[str] | None) -> Condition:
        """Return the condition that readers at a level get a barrier which is not older than the timestamp (UTC).

        >>> from datetime import timezone
        >>> Condition.newer(Level.READ_COMMITTED, datetime(2025, 1, 1, tzinfo=timezone.utc), None).target
        'PRECOMMIT'
        """
        target = next(target for target, each in _LEVELS.items() if each is level)
        return cls(target, timestamp=timestamp, tables=None if tables is None else tuple(tables), or_newer=True)


@dataclass(frozen=True)
class Delivered:
    """``sink`` has received a barrier, or a later one, as far as the MetaService knows.

    The barrier is given by its id or by its timestamp (UTC). Neither it nor the sink need be there yet.
    """

    kind: ClassVar[str] = "Delivered"
    sink: str
    barrier_id: int | None = None
    timestamp: datetime | None = None

    def __post_init__(self) -> None:
        _check_one(self.barrier_id, self.timestamp)


def _check_one(barrier_id: int | None, timestamp: datetime | None) -> None:
    if (barrier_id is None) == (timestamp is None):
        raise ConfigurationError(
            f"expected a barrier by its id or by its timestamp, found id {barrier_id} and {timestamp}"
        )


@dataclass(frozen=True)
class Room:
    """Fewer than ``max_open`` barriers are open, so that another one may open."""

    kind: ClassVar[str] = "Room"
    max_open: int


@dataclass(frozen=True)
class AttemptEnd:
    """An attempt is PROCESSED, or has ended otherwise. ``because``: what it is waited for meanwhile, in words."""

    kind: ClassVar[str] = "AttemptEnd"
    attempt_id: int
    because: str


@dataclass(frozen=True)
class CutMade:
    """The cut of a source at a barrier, which was put off when it opened, is made."""

    kind: ClassVar[str] = "CutMade"
    source: str
    barrier_id: int


@dataclass(frozen=True)
class RevisionEnd:
    """A revision is COMMIT or CANCELLED."""

    kind: ClassVar[str] = "RevisionEnd"
    revision: int


@dataclass(frozen=True)
class DelivererEnd:
    """A task's delivery to a sink has ended, or another one has claimed the sink since."""

    kind: ClassVar[str] = "DelivererEnd"
    sink: str
    deliverer: str


@dataclass(frozen=True)
class Unseen:
    """A condition, in words, that the MetaService does not show: the task itself has to look again."""

    kind: ClassVar[str] = "Unseen"
    words: str


AnyCondition = Condition | Delivered | Room | AttemptEnd | CutMade | RevisionEnd | DelivererEnd | Unseen


@dataclass(frozen=True)
class Wait:
    """A task has to wait until every condition holds (``any_of``: one of them), and why; then it asks again.

    ``attempt_ids``: the attempts that wait with it, which end when a person clears or marks the task. ``not_before``
    (UTC): nothing is looked for before. ``look_again``: after so many seconds the task asks again in any case, since
    nobody would tell it. ``unopened``: the condition's barrier is the task's own, and not known yet.
    """

    conditions: tuple[AnyCondition, ...]
    reason: str
    any_of: bool = False
    attempt_ids: tuple[int, ...] = ()
    not_before: datetime | None = None
    look_again: float | None = None
    unopened: bool = False


@dataclass(frozen=True)
class Found:
    """A look at one condition: ``waits_for`` says in words what is missing, None once there is nothing.

    ``never``: why that will not come any more.
    """

    barrier_id: int | None
    waits_for: str | None
    never: str | None = None


class TopologyView:
    """A topology as it was when somebody looked. Each question is put to the MetaService once, whoever asks it.

    The answers may be of different moments: whoever is told that something has come looks for himself.
    """

    def __init__(self, meta: MetaService, topology: str) -> None:
        self.meta = meta
        self.topology = topology
        self._answers: dict[Hashable, tuple[Any, BarrierError | None]] = {}

    def head(self) -> Barrier | None:
        return self._once("head", lambda: self.meta.barriers.head(self.topology))

    def open_barriers(self) -> list[Barrier]:
        return self._once("open", lambda: self.meta.barriers.uncommitted(self.topology))

    def barrier_at(self, timestamp: datetime) -> Barrier | None:
        return self._once(("at", timestamp), lambda: self.meta.barriers.at(self.topology, timestamp))

    def aborted_at(self, timestamp: datetime) -> Barrier | None:
        return self._once(("aborted", timestamp), lambda: self.meta.barriers.aborted_at(self.topology, timestamp))

    def stands(self, barrier_id: int, line: int = 0) -> Standing:
        return self._once(
            ("stands", barrier_id, line), lambda: self.meta.barriers.stands(self.topology, barrier_id, line)
        )

    def newest(self, level: Level) -> Resolution:
        return self._once(("newest", level), lambda: self.meta.answers.resolve(self.topology, level))

    def coming(self) -> set[str]:
        """The tables that barriers have which are still to be committed, or that the next one has."""
        versions = {None, *(barrier.topology_version for barrier in self.open_barriers())}
        topologies = [self.meta.topologies.get(self.topology, version) for version in versions]
        return {table for each in topologies for table in each.tables}

    def revision(self, number: int) -> Revision:
        return self._once(("revision", number), lambda: self.meta.revisions.get(self.topology, number))

    def unstaged(self, number: int) -> list[str]:
        """Return the missing parts of a revision, a line each."""
        return self._once(("unstaged", number), lambda: self.meta.revisions.unstaged(self.topology, number))

    def attempt(self, attempt_id: int) -> Attempt:
        return self._once(("attempt", attempt_id), lambda: self.meta.attempts.get(attempt_id))

    def cuts(self, barrier_id: int) -> Mapping[str, Cut]:
        return self._once(("cuts", barrier_id), lambda: self.meta.cuts.of(self.topology, barrier_id, items_of=()))

    def sink(self, name: str) -> SinkRecord:
        return self._once(("sink", name), lambda: self.meta.deliveries.get(self.topology, name))

    def lacks(self, barrier: Barrier, job: str, dag_id: str) -> bool:
        return self._once(("lacks", barrier.barrier_id, job, dag_id), lambda: lacks(self.meta, barrier, job, dag_id))

    def _once(self, question: Hashable, ask: Callable[[], _T]) -> _T:
        if question not in self._answers:
            try:
                self._answers[question] = ask(), None
            except BarrierError as error:
                self._answers[question] = None, error
        answer, refusal = self._answers[question]
        if refusal is not None:
            raise refusal
        return answer  # type: ignore[no-any-return]


def lacks(meta: MetaService, barrier: Barrier, job: str, dag_id: str, asking: str | None = None) -> bool:
    """Return True if a barrier lacks the tables of a DAG's job, and a task of that DAG can bring them.

    It cannot while an attempt is under way, unless that is the ``asking`` task's own (its ``request_key``), nor while
    the DAG's own jobs before it lack the barrier too: their tasks come first in the same run.
    """
    topology = meta.topologies.get(barrier.topology, barrier.topology_version)
    found = next((each for each in topology.jobs if (each.name, each.owner) == (job, dag_id)), None)
    if found is None:
        return False
    # asked first: where the job is at work, or done, the barrier's tables need not be read, of which there may be many
    attempt = meta.attempts.current(barrier.topology, barrier.barrier_id, job, barrier.line)
    if attempt is not None and attempt.state in LIVE_ATTEMPTS and attempt.request_key != asking:
        return False
    rows = (
        meta.revisions.progress(barrier.topology, barrier.line, barrier.barrier_id)
        if barrier.line
        else meta.barriers.progress(barrier.topology, barrier.barrier_id)
    )
    pending = {row.table for row in rows if row.state is TableState.PENDING}
    if pending.isdisjoint(found.outlets):
        return False
    return not any(table in pending and topology.writer(table).owner == dag_id for table in found.inlets)


def look(view: TopologyView, condition: AnyCondition) -> Found:
    """Return the state of a condition. Raises UnknownTableError, StoreUnavailableError."""
    if isinstance(condition, Room):
        return _look_for_room(view, condition)
    if isinstance(condition, AttemptEnd):
        attempt = view.attempt(condition.attempt_id)
        return Found(None, condition.because if attempt.state in UNDER_WAY_ATTEMPTS else None)
    if isinstance(condition, CutMade):
        away = view.cuts(condition.barrier_id)[condition.source].put_off is not None
        return Found(None, f"the cut of source {condition.source} at barrier {condition.barrier_id}" if away else None)
    if isinstance(condition, RevisionEnd):
        return _look_for_end(view, condition)
    if isinstance(condition, DelivererEnd):
        sink = view.sink(condition.sink)
        busy = sink.deliverer == condition.deliverer
        return Found(None, f"{condition.deliverer} to end its delivery to {sink}" if busy else None)
    if isinstance(condition, Unseen):
        return Found(None, condition.words)
    if isinstance(condition, Delivered):
        return _look_at_sink(view, condition)
    if condition.or_newer:
        return _look_for_newer(view, condition)
    if condition.line:
        return _look_in_revision(view, condition)
    standing = _standing(view, condition)
    if standing is None:
        lacking = _first_lacking(view, condition)
        if lacking is not None:
            return Found(lacking.barrier_id, None)
        never = _why_it_never_opens(view, condition.timestamp, condition.target)
        if never is not None and condition.target is None:
            return Found(None, None, never)  # whoever waits has to look what becomes of its job
        return _unopened(view, condition, never)
    barrier = standing.barrier
    if condition.target is None:
        return Found(barrier.barrier_id, None)
    reached = standing.reached(condition.tables, _STATES[condition.target])
    if reached.done:
        return Found(barrier.barrier_id, None)
    never = f"{barrier} was aborted ({barrier.reason})" if reached.aborted else None
    return Found(barrier.barrier_id, f"{condition.target} of {barrier}{_named(reached.missing)}", never)


def _look_for_room(view: TopologyView, room: Room) -> Found:
    there = view.open_barriers()
    if len(there) < room.max_open:
        return Found(None, None)
    numbers = ", ".join(str(barrier.barrier_id) for barrier in there)
    return Found(None, f"one of the open barriers of {view.topology} to end: {numbers}")


def _look_for_end(view: TopologyView, end: RevisionEnd) -> Found:
    if not view.revision(end.revision).is_under_way:
        return Found(None, None)
    missing = "; ".join(view.unstaged(end.revision)[:3])
    published = f"revision {end.revision} of {view.topology}, of which all is there, to be published"
    return Found(None, missing or published)


def _first_lacking(view: TopologyView, condition: Condition) -> Barrier | None:
    """The oldest open barrier before the condition's that lacks its job, with no attempt under way."""
    if condition.or_lacking is None:
        return None
    job, dag_id = condition.or_lacking
    before = barriers_before(view.open_barriers(), condition)
    return next((each for each in before if view.lacks(each, job, dag_id)), None)


def barriers_before(barriers: Sequence[Barrier], condition: Condition) -> list[Barrier]:
    """Return the ``barriers`` that have an epoch to be staged, and lie before the condition's barrier."""
    at, number, after = condition.timestamp, condition.barrier_id, condition.lacking_after
    return [
        each
        for each in barriers
        if each.state is BarrierState.OPEN
        and not each.is_maintenance
        and (at is None or each.timestamp < at)
        and (number is None or each.barrier_id < number)
        and (after is None or each.timestamp > after)
    ]


def _standing(view: TopologyView, condition: Condition | Delivered) -> Standing | None:
    """Return the standing of the condition's barrier; None: it is not opened, or the topology is not registered yet."""
    try:
        if condition.timestamp is None:
            return view.stands(condition.barrier_id or 0)
        barrier = view.barrier_at(condition.timestamp)
        return None if barrier is None else view.stands(barrier.barrier_id)
    except (UnknownBarrierError, UnknownTopologyError):
        return None


def _unopened(view: TopologyView, condition: Condition | Delivered, never: str | None) -> Found:
    which = condition.barrier_id if condition.timestamp is None else f"at {condition.timestamp.isoformat()}"
    return Found(None, f"barrier {which} of {view.topology} to be opened", never)


def _why_it_never_opens(view: TopologyView, timestamp: datetime | None, target: str | None) -> str | None:
    """Barriers open in order, so nothing opens before the newest one any more. An aborted timestamp may be opened
    again; a task that waits for its result is told about the abort anyway.
    """
    if timestamp is None:
        return None
    aborted = view.aborted_at(timestamp)
    if aborted is not None and target is not None:
        return f"{aborted} was aborted ({aborted.reason})"
    head = view.head()
    if head is None or not head.barrier_id or head.timestamp <= timestamp:
        return None
    return f"no barrier of {view.topology} opens at {timestamp.isoformat()} any more, since {head} is there"


def _look_in_revision(view: TopologyView, condition: Condition) -> Found:
    number = condition.barrier_id or 0
    if not view.revision(condition.line).is_under_way:
        return Found(number, None)  # whoever waits has to look at what became of it
    try:
        reached = view.stands(number, condition.line).reached(condition.tables, _STATES[condition.target or ""])
    except UnknownBarrierError:
        return Found(None, f"barrier {number} of {view.topology} to be in revision {condition.line}")
    if reached.done:
        return Found(number, None)
    where = f"barrier {number} of {view.topology} in revision {condition.line}"
    never = f"barrier {number} of {view.topology} was aborted" if reached.aborted else None
    return Found(number, f"{condition.target} of {where}{_named(reached.missing)}", never)


def _look_at_sink(view: TopologyView, condition: Delivered) -> Found:
    standing = _standing(view, condition)
    if standing is None:
        return _unopened(view, condition, _why_it_never_opens(view, condition.timestamp, "DELIVERED"))
    barrier = standing.barrier
    if barrier.state is BarrierState.ABORTED:
        never = f"{barrier} was aborted ({barrier.reason})"
        return Found(barrier.barrier_id, f"{barrier} in sink {condition.sink}", never)
    try:
        sink = view.sink(condition.sink)
    except UnknownSinkError:  # whoever declares it may not have run yet
        return Found(barrier.barrier_id, f"sink {condition.sink} of {view.topology} to be declared")
    if sink.barrier_id is not None and sink.barrier_id >= barrier.barrier_id:
        return Found(barrier.barrier_id, None)
    state = ", and is PAUSED" if sink.state is SinkState.PAUSED else ""
    failed = f"; the last try failed: {sink.error}" if sink.error is not None else ""
    waits_for = f"{barrier} in {sink}, which has received {sink.position or 'nothing'}{state}{failed}"
    return Found(barrier.barrier_id, waits_for)


def _look_for_newer(view: TopologyView, condition: Condition) -> Found:
    target, timestamp, tables = condition.target or "", condition.timestamp, condition.tables or ()
    waits_for = f"a barrier of {view.topology} at {timestamp} or newer to be {target}"
    try:
        newest = view.newest(_LEVELS[target])
    except (UnknownBarrierError, UnknownTopologyError):
        return Found(None, waits_for)
    if not newest.tables.keys() >= set(tables):
        if not view.coming().issuperset(tables):
            view.meta.answers.resolve(view.topology, _LEVELS[target], tables)  # raises: it says which there are
        return Found(None, f"{waits_for}, with {', '.join(tables)}")
    if newest.timestamp is None or timestamp is None or newest.timestamp < timestamp:
        return Found(newest.barrier_id, f"{waits_for}; the newest is {newest.barrier_id} at {newest.timestamp}")
    return Found(newest.barrier_id, None)


def _named(tables: Sequence[str]) -> str:
    return f" ({', '.join(tables)})" if tables else ""
