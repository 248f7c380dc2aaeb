"""What somebody waits for, and what has become of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    UnknownBarrierError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.protocol.reaching import Standing
from airflow_barrier.protocol.records import Attempt, Barrier
from airflow_barrier.protocol.revisions import Revision
from airflow_barrier.protocol.states import BarrierState, TableState

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
    """

    target: str | None
    barrier_id: int | None = None
    timestamp: datetime | None = None
    tables: tuple[str, ...] | None = None
    or_newer: bool = False
    line: int = 0

    def __post_init__(self) -> None:
        if self.target is not None and self.target not in _STATES:
            raise ConfigurationError(f"target: expected one of {', '.join(_STATES)}, found {self.target!r}")
        if (self.barrier_id is None) == (self.timestamp is None):
            raise ConfigurationError(
                f"expected a barrier by its id or by its timestamp, found id {self.barrier_id} and {self.timestamp}"
            )
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
        """That readers at a level get a barrier which is not older than the timestamp (UTC).

        >>> from datetime import timezone
        >>> Condition.newer(Level.READ_COMMITTED, datetime(2025, 1, 1, tzinfo=timezone.utc), None).target
        'PRECOMMIT'
        """
        target = next(target for target, each in _LEVELS.items() if each is level)
        return cls(target, timestamp=timestamp, tables=None if tables is None else tuple(tables), or_newer=True)

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "barrier_id": self.barrier_id,
            "timestamp": self.timestamp.isoformat() if self.timestamp else None,
            "tables": list(self.tables) if self.tables is not None else None,
            "or_newer": self.or_newer,
            "line": self.line,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Condition:
        return cls(
            target=data["target"],
            barrier_id=data["barrier_id"],
            timestamp=datetime.fromisoformat(data["timestamp"]) if data["timestamp"] else None,
            tables=tuple(data["tables"]) if data["tables"] is not None else None,
            or_newer=data["or_newer"],
            line=data["line"],
        )


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
        return self._once("head", lambda: self.meta.head(self.topology))

    def open_barriers(self) -> list[Barrier]:
        return self._once("open", lambda: self.meta.open_barriers(self.topology))

    def barrier_at(self, timestamp: datetime) -> Barrier | None:
        return self._once(("at", timestamp), lambda: self.meta.barrier_at(self.topology, timestamp))

    def aborted_at(self, timestamp: datetime) -> Barrier | None:
        return self._once(("aborted", timestamp), lambda: self.meta.aborted_at(self.topology, timestamp))

    def stands(self, barrier_id: int, line: int = 0) -> Standing:
        return self._once(("stands", barrier_id, line), lambda: self.meta.stands(self.topology, barrier_id, line))

    def newest(self, level: Level) -> Resolution:
        return self._once(("newest", level), lambda: self.meta.resolve(self.topology, level))

    def coming(self) -> set[str]:
        """The tables that barriers have which are still to be committed, or that the next one has."""
        versions = {None, *(barrier.topology_version for barrier in self.open_barriers())}
        topologies = [self.meta.topology(self.topology, version) for version in versions]
        return {table for each in topologies for table in each.tables}

    def revision(self, number: int) -> Revision:
        return self._once(("revision", number), lambda: self.meta.revisions.get(self.topology, number))

    def unstaged(self, number: int) -> list[str]:
        """What a revision lacks still, a line each."""
        return self._once(("unstaged", number), lambda: self.meta.revisions.unstaged(self.topology, number))

    def attempt(self, attempt_id: int) -> Attempt:
        return self._once(("attempt", attempt_id), lambda: self.meta.attempt(attempt_id))

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


def look(view: TopologyView, condition: Condition) -> Found:
    """How far a condition is. Raises UnknownTableError, StoreUnavailableError."""
    if condition.or_newer:
        return _look_for_newer(view, condition)
    if condition.line:
        return _look_in_revision(view, condition)
    try:
        standing = _standing(view, condition)
    except (UnknownBarrierError, UnknownTopologyError):  # whoever registers and opens may not have run yet
        standing = None
    if standing is None:
        which = condition.barrier_id if condition.timestamp is None else f"at {condition.timestamp.isoformat()}"
        never = _why_it_never_opens(view, condition.timestamp, condition.target)
        if never is not None and condition.target is None:
            return Found(None, None, never)  # whoever waits has to look what becomes of its job
        return Found(None, f"barrier {which} of {view.topology} to be opened", never)
    barrier = standing.barrier
    if condition.target is None:
        return Found(barrier.barrier_id, None)
    reached = standing.reached(condition.tables, _STATES[condition.target])
    if reached.done:
        return Found(barrier.barrier_id, None)
    never = f"{barrier} was aborted ({barrier.reason})" if reached.aborted else None
    return Found(barrier.barrier_id, f"{condition.target} of {barrier}{_named(reached.missing)}", never)


def _standing(view: TopologyView, condition: Condition) -> Standing | None:
    if condition.timestamp is None:
        return view.stands(condition.barrier_id or 0)
    barrier = view.barrier_at(condition.timestamp)
    return None if barrier is None else view.stands(barrier.barrier_id)


def _why_it_never_opens(view: TopologyView, timestamp: datetime | None, target: str | None) -> str | None:
    """A barrier opens after the newest one only. One that was aborted may be opened again; who waits for what comes of
    its epoch is told all the same.
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


def _look_for_newer(view: TopologyView, condition: Condition) -> Found:
    target, timestamp, tables = condition.target or "", condition.timestamp, condition.tables or ()
    waits_for = f"a barrier of {view.topology} at {timestamp} or newer to be {target}"
    try:
        newest = view.newest(_LEVELS[target])
    except (UnknownBarrierError, UnknownTopologyError):
        return Found(None, waits_for)
    if not newest.tables.keys() >= set(tables):
        if not view.coming().issuperset(tables):
            view.meta.resolve(view.topology, _LEVELS[target], tables)  # raises: it says which there are
        return Found(None, f"{waits_for}, with {', '.join(tables)}")
    if newest.timestamp is None or timestamp is None or newest.timestamp < timestamp:
        return Found(newest.barrier_id, f"{waits_for}; the newest is {newest.barrier_id} at {newest.timestamp}")
    return Found(newest.barrier_id, None)


def _named(tables: Sequence[str]) -> str:
    return f" ({', '.join(tables)})" if tables else ""
