"""What deferred tasks wait with: the MetaService is polled from the triggerer, for all of them in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from time import monotonic
from typing import TYPE_CHECKING, Any

from airflow.sdk import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    Terminal,
    UnknownBarrierError,
    UnknownTableError,
    UnknownTopologyError,
)
from airflow_barrier.protocol.levels import Level
from airflow_barrier.protocol.records import Barrier
from airflow_barrier.protocol.states import UNDER_WAY_ATTEMPTS, BarrierState, TableState

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService

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


def look(meta: MetaService, topology: str, condition: Condition) -> Found:
    """How far a condition is. Raises UnknownTableError, StoreUnavailableError."""
    if condition.or_newer:
        return _look_for_newer(meta, topology, condition)
    if condition.line:
        return _look_in_revision(meta, topology, condition)
    try:
        barrier = _barrier(meta, topology, condition)
    except (UnknownBarrierError, UnknownTopologyError):  # whoever registers and opens may not have run yet
        barrier = None
    if barrier is None:
        which = condition.barrier_id if condition.timestamp is None else f"at {condition.timestamp.isoformat()}"
        never = _why_it_never_opens(meta, topology, condition.timestamp, condition.target)
        if never is not None and condition.target is None:
            return Found(None, None, never)  # whoever waits has to look what becomes of its job
        return Found(None, f"barrier {which} of {topology} to be opened", never)
    if condition.target is None:
        return Found(barrier.barrier_id, None)
    reached = meta.reached(topology, barrier.barrier_id, condition.tables, _STATES[condition.target])
    if reached.done:
        return Found(barrier.barrier_id, None)
    missing = f" ({', '.join(reached.missing)})" if reached.missing else ""
    never = f"{barrier} was aborted ({barrier.reason})" if reached.aborted else None
    return Found(barrier.barrier_id, f"{condition.target} of {barrier}{missing}", never)


def _why_it_never_opens(meta: MetaService, topology: str, timestamp: datetime | None, target: str | None) -> str | None:
    """A barrier opens after the newest one only. One that was aborted may be opened again; who waits for what comes of
    its epoch is told all the same.
    """
    if timestamp is None:
        return None
    aborted = meta.aborted_at(topology, timestamp)
    if aborted is not None and target is not None:
        return f"{aborted} was aborted ({aborted.reason})"
    head = meta.head(topology)
    if head is None or not head.barrier_id or head.timestamp <= timestamp:
        return None
    return f"no barrier of {topology} opens at {timestamp.isoformat()} any more, since {head} is there"


def _look_in_revision(meta: MetaService, topology: str, condition: Condition) -> Found:
    number = condition.barrier_id or 0
    if not meta.revisions.get(topology, condition.line).is_under_way:
        return Found(number, None)  # whoever waits has to look at what became of it
    try:
        reached = meta.reached(topology, number, condition.tables, _STATES[condition.target or ""], condition.line)
    except UnknownBarrierError:
        return Found(None, f"barrier {number} of {topology} to be in revision {condition.line}")
    if reached.done:
        return Found(number, None)
    missing = f" ({', '.join(reached.missing)})" if reached.missing else ""
    waits_for = f"{condition.target} of barrier {number} of {topology} in revision {condition.line}{missing}"
    never = f"barrier {number} of {topology} was aborted" if reached.aborted else None
    return Found(number, waits_for, never)


def _look_for_newer(meta: MetaService, topology: str, condition: Condition) -> Found:
    target, timestamp = condition.target or "", condition.timestamp
    waits_for = f"a barrier of {topology} at {timestamp} or newer to be {target}"
    try:
        newest = meta.resolve(topology, _LEVELS[target], condition.tables or [])
    except (UnknownBarrierError, UnknownTopologyError):
        return Found(None, waits_for)
    except UnknownTableError:
        if not _coming(meta, topology).issuperset(condition.tables or ()):
            raise
        return Found(None, f"{waits_for}, with {', '.join(condition.tables or ())}")
    if newest.timestamp is None or timestamp is None or newest.timestamp < timestamp:
        return Found(newest.barrier_id, f"{waits_for}; the newest is {newest.barrier_id} at {newest.timestamp}")
    return Found(newest.barrier_id, None)


def _coming(meta: MetaService, topology: str) -> set[str]:
    """The tables that barriers have which are still to be committed, or that the next one has."""
    versions = {barrier.topology_version for barrier in meta.open_barriers(topology)}
    topologies = [meta.topology(topology, version) for version in (None, *versions)]
    return {table for each in topologies for table in each.tables}


def _barrier(meta: MetaService, topology: str, condition: Condition) -> Barrier | None:
    if condition.timestamp is not None:
        return meta.barrier_at(topology, condition.timestamp)
    return meta.barrier(topology, condition.barrier_id or 0)


def settling_time() -> float:
    """Seconds that a task has to be deferred at least, before it may run again.

    The executor learns up to one heartbeat interval late that a deferring task's process has ended, and the scheduler
    one or two of its rounds after that. If the task runs again by then, Airflow 3.3 takes the old process's end for
    the new one's and fails the task (apache/airflow#72716).
    """
    heartbeat: float = conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0)
    idle: float = conf.getfloat("scheduler", "scheduler_idle_sleep_time", fallback=1.0)
    return heartbeat + 2 * idle


class PollingTrigger(BaseTrigger):
    """Asks again every ``poll_interval`` seconds; survives ``patience`` seconds without an answer, whether the MetaService
    or Airflow itself is away.

    Looks first when :func:`settling_time` has passed.

    Delivery: a trigger that is moved to another triggerer, or restarted, starts over from its arguments and asks
    again; nothing is remembered between two looks, so an event is late at most by one interval and may come twice.
    The resumed task therefore checks for itself and takes the event as a hint.

    Events: ``{"status": "reached"}``, ``{"status": "never", "message": ...}`` when what is waited for will not come any
    more, and ``{"status": "unavailable", "message": ...}`` when patience has run out.
    """

    def __init__(self, *, topology: str, barrier_conn_id: str, poll_interval: float, patience: float) -> None:
        super().__init__()
        self.topology = topology
        self.barrier_conn_id = barrier_conn_id
        self.poll_interval = poll_interval
        self.patience = patience

    def _arguments(self) -> dict[str, Any]:
        return {
            "topology": self.topology,
            "barrier_conn_id": self.barrier_conn_id,
            "poll_interval": self.poll_interval,
            "patience": self.patience,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(settling_time())  # the task has just looked itself
        answered = monotonic()
        meta: MetaService | None = None
        while True:
            try:
                # the connection is asked for once, and anew after a failure only: its password may have changed
                meta = meta or await BarrierHook(self.barrier_conn_id).aget_meta_service()
                # a driver call in the event loop would hold up every other trigger of this process
                outcome = await asyncio.to_thread(self._look, meta)
            except Terminal:
                raise
            except Exception as error:  # Airflow says "not defined" of a connection that it cannot reach just now
                meta = None
                if monotonic() - answered > self.patience:
                    message = f"no answer from the MetaService for {self.patience:g} s: {type(error).__name__}: {error}"
                    yield TriggerEvent({"status": "unavailable", "message": message})
                    return
                self.log.warning("No answer from the MetaService, asking again: %s: %s", type(error).__name__, error)
            else:
                answered = monotonic()
                if outcome is not None:
                    yield TriggerEvent(outcome)
                    return
            await asyncio.sleep(self.poll_interval)

    def _look(self, meta: MetaService) -> dict[str, Any] | None:
        """An event's payload, or None to go on waiting. Runs in a thread."""
        raise NotImplementedError


class BarrierTrigger(PollingTrigger):
    """Fires once every condition holds, or as soon as one of them never will: its barrier was aborted or passed over.

    ``any_of``: once one of them holds. ``attempt_ids``: the attempts that wait; they are given up when a person clears
    or marks the deferred task.

    >>> BarrierTrigger(
    ...     topology="shopping", barrier_conn_id="barrier_default",
    ...     conditions=[Condition("PROCESSED", barrier_id=3, tables=("shop.shopping",))],
    ... ).serialize()[0]
    'airflow_barrier.triggers.barrier.BarrierTrigger'
    """

    def __init__(
        self,
        *,
        topology: str,
        barrier_conn_id: str,
        conditions: Sequence[Condition | dict[str, Any]],
        poll_interval: float = 5.0,
        patience: float = 300.0,
        attempt_ids: Sequence[int] = (),
        any_of: bool = False,
    ) -> None:
        super().__init__(
            topology=topology, barrier_conn_id=barrier_conn_id, poll_interval=poll_interval, patience=patience
        )
        self.any_of = any_of
        self.conditions = tuple(c if isinstance(c, Condition) else Condition.from_json(c) for c in conditions)
        self.attempt_ids = tuple(attempt_ids)
        self._said = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **self._arguments(),
            "conditions": [condition.to_json() for condition in self.conditions],
            "attempt_ids": list(self.attempt_ids),
            "any_of": self.any_of,
        }

    def _look(self, meta: MetaService) -> dict[str, Any] | None:
        found = [look(meta, self.topology, condition) for condition in self.conditions]
        for one in found:
            if one.never is not None and one.waits_for is not None:
                return {"status": "never", "message": one.never}
        if (any if self.any_of else all)(one.waits_for is None for one in found):
            return {"status": "reached"}
        waits_for = "; ".join(one.waits_for for one in found if one.waits_for)
        if waits_for != self._said:  # once per change, not once per look
            self._said = waits_for
            self.log.info("Waiting for %s", waits_for)
        return None

    async def on_kill(self) -> None:
        if not self.attempt_ids:
            return
        meta = await BarrierHook(self.barrier_conn_id).aget_meta_service()
        for attempt_id in self.attempt_ids:
            await asyncio.to_thread(
                meta.abort_attempt, attempt_id, "the deferred task was cleared or marked by a person", "triggerer"
            )


class OpeningTrigger(PollingTrigger):
    """Fires when fewer than ``max_open`` barriers are open, but not before ``not_before`` (UTC)."""

    def __init__(
        self,
        *,
        topology: str,
        barrier_conn_id: str,
        max_open: int,
        not_before: datetime | str,
        poll_interval: float = 5.0,
        patience: float = 300.0,
    ) -> None:
        super().__init__(
            topology=topology, barrier_conn_id=barrier_conn_id, poll_interval=poll_interval, patience=patience
        )
        self.max_open = max_open
        self.not_before = datetime.fromisoformat(not_before) if isinstance(not_before, str) else not_before

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **self._arguments(),
            "max_open": self.max_open,
            "not_before": self.not_before.isoformat(),
        }

    def _look(self, meta: MetaService) -> dict[str, Any] | None:
        if datetime.now(timezone.utc) < self.not_before:
            return None
        if len(meta.open_barriers(self.topology)) >= self.max_open:
            return None
        return {"status": "reached"}


class LedTrigger(PollingTrigger):
    """Fires when an attempt that another task leads has ended, or is PROCESSED; after ``look_again`` seconds anyway.

    Whether the other task is alive only Airflow knows, which a task can ask and a trigger cannot.
    """

    def __init__(
        self,
        *,
        topology: str,
        barrier_conn_id: str,
        attempt_id: int,
        look_again: float = 60.0,
        poll_interval: float = 5.0,
        patience: float = 300.0,
    ) -> None:
        super().__init__(
            topology=topology, barrier_conn_id=barrier_conn_id, poll_interval=poll_interval, patience=patience
        )
        self.attempt_id = attempt_id
        self.look_again = look_again
        self._since = monotonic()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **self._arguments(),
            "attempt_id": self.attempt_id,
            "look_again": self.look_again,
        }

    def _look(self, meta: MetaService) -> dict[str, Any] | None:
        under_way = meta.attempt(self.attempt_id).state in UNDER_WAY_ATTEMPTS
        return None if under_way and monotonic() - self._since < self.look_again else {"status": "reached"}
