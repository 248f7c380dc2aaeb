"""What deferred tasks wait with, in the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow.sdk import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_barrier.coordinator.waiting import Condition, TopologyView, look
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.protocol.states import UNDER_WAY_ATTEMPTS
from airflow_barrier.triggers import PATIENCE, POLL_INTERVAL
from airflow_barrier.triggers._watcher import REACHED, Outcome, watcher


def settling_time() -> float:
    """Seconds that a task of this process has to be deferred at least, before it may run again.

    The executor learns up to one heartbeat interval late that a deferring task's process has ended, and the scheduler
    one or two of its rounds after that. If the task runs again by then, Airflow 3.3 takes the old process's end for
    the new one's and fails the task (apache/airflow#72716). Its worker's configuration tells, not the triggerer's.
    """
    heartbeat: float = conf.getfloat("workers", "min_heartbeat_interval", fallback=5.0)
    idle: float = conf.getfloat("scheduler", "scheduler_idle_sleep_time", fallback=1.0)
    return heartbeat + 2 * idle


class WatchingTrigger(BaseTrigger):
    """Waits for something of a topology, together with all that do so in its process.

    There is a look every ``poll_interval`` seconds, the shortest of those who wait. ``patience``: so many seconds
    without an answer are survived, whether the MetaService or Airflow itself is away. Begins after ``settling``
    seconds; None, as in a task that defers: its :func:`settling_time`.

    Delivery: a trigger that is moved to another triggerer, or restarted, starts over from its arguments and looks
    again; nothing is remembered between two looks, so an event is late at most by one interval and may come twice.
    The resumed task therefore checks for itself and takes the event as a hint.

    ``until``: how long it waits at most (UTC); None: for ever.

    Events: ``{"status": "reached"}``, ``{"status": "never", "message": ...}`` when what is waited for will not come any
    more, ``{"status": "unavailable", "message": ...}`` when patience has run out, and ``{"status": "late", "message":
    ...}`` when the time is over.
    """

    def __init__(
        self,
        *,
        topology: str,
        barrier_conn_id: str,
        poll_interval: float = POLL_INTERVAL,
        patience: float = PATIENCE,
        until: datetime | str | None = None,
        settling: float | None = None,
    ) -> None:
        super().__init__()
        self.topology = topology
        self.barrier_conn_id = barrier_conn_id
        self.poll_interval = poll_interval
        self.patience = patience
        self.until = datetime.fromisoformat(until) if isinstance(until, str) else until
        self.settling = settling_time() if settling is None else settling

    def _arguments(self) -> dict[str, Any]:
        return {
            "topology": self.topology,
            "barrier_conn_id": self.barrier_conn_id,
            "poll_interval": self.poll_interval,
            "patience": self.patience,
            "until": self.until and self.until.isoformat(),
            "settling": self.settling,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(self.settling)  # the task has just looked itself
        news = watcher(self.barrier_conn_id, self.topology).follow(self._look, self.poll_interval, self.patience)
        outcome = await anext(news)  # however late it is, there is one look
        while outcome.event is None:
            self.log.info("Waiting for %s", outcome.waits_for)
            try:
                outcome = await asyncio.wait_for(anext(news), self._seconds_left())
            except asyncio.TimeoutError:
                outcome = Outcome({"status": "late", "message": self._late(outcome.waits_for)})
        yield TriggerEvent(outcome.event)

    def _seconds_left(self) -> float | None:
        return None if self.until is None else (self.until - datetime.now(timezone.utc)).total_seconds()

    def _late(self, waits_for: str) -> str:
        return (
            f"expected {waits_for} by {self.until}, found that it has not come; see what holds it up (airflow-barrier "
            f"status {self.topology}), then clear this task, or give it a longer wait_timeout"
        )

    def _look(self, view: TopologyView) -> Outcome:
        """Whether it has come. Runs in a thread."""
        raise NotImplementedError


class BarrierTrigger(WatchingTrigger):
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
        conditions: Sequence[Condition | dict[str, Any]],
        attempt_ids: Sequence[int] = (),
        any_of: bool = False,
        **waiting: Any,
    ) -> None:
        super().__init__(**waiting)
        self.any_of = any_of
        self.conditions = tuple(c if isinstance(c, Condition) else Condition.from_json(c) for c in conditions)
        self.attempt_ids = tuple(attempt_ids)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **self._arguments(),
            "conditions": [condition.to_json() for condition in self.conditions],
            "attempt_ids": list(self.attempt_ids),
            "any_of": self.any_of,
        }

    def _look(self, view: TopologyView) -> Outcome:
        found = [look(view, condition) for condition in self.conditions]
        for one in found:
            if one.never is not None and one.waits_for is not None:
                return Outcome({"status": "never", "message": one.never})
        if (any if self.any_of else all)(one.waits_for is None for one in found):
            return REACHED
        return Outcome(None, "; ".join(one.waits_for for one in found if one.waits_for))

    async def on_kill(self) -> None:
        await _give_up(self.barrier_conn_id, self.attempt_ids)


async def _give_up(barrier_conn_id: str, attempt_ids: Sequence[int]) -> None:
    if not attempt_ids:
        return
    meta = await BarrierHook(barrier_conn_id).aget_meta_service()
    for attempt_id in attempt_ids:
        await asyncio.to_thread(
            meta.abort_attempt, attempt_id, "the deferred task was cleared or marked by a person", "triggerer"
        )


class OpeningTrigger(WatchingTrigger):
    """Fires when fewer than ``max_open`` barriers are open, but not before ``not_before`` (UTC)."""

    def __init__(
        self,
        *,
        max_open: int,
        not_before: datetime | str,
        **waiting: Any,
    ) -> None:
        super().__init__(**waiting)
        self.max_open = max_open
        self.not_before = datetime.fromisoformat(not_before) if isinstance(not_before, str) else not_before

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **self._arguments(),
            "max_open": self.max_open,
            "not_before": self.not_before.isoformat(),
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        early = (self.not_before - datetime.now(timezone.utc)).total_seconds()
        if early > 0:
            self.log.info("Waiting until %s", self.not_before.isoformat())
            await asyncio.sleep(early)
        async for event in super().run():
            yield event

    def _look(self, view: TopologyView) -> Outcome:
        there = view.open_barriers()
        if len(there) < self.max_open:
            return REACHED
        numbers = ", ".join(str(barrier.barrier_id) for barrier in there)
        return Outcome(None, f"one of the open barriers of {self.topology} to end: {numbers}")


class LedTrigger(WatchingTrigger):
    """Fires when an attempt that another task leads has ended, or is PROCESSED; after ``look_again`` seconds anyway.

    Whether the other task is alive only Airflow knows, which a task can ask and a trigger cannot.
    """

    def __init__(
        self,
        *,
        attempt_id: int,
        look_again: float = 60.0,
        **waiting: Any,
    ) -> None:
        super().__init__(**waiting)
        self.attempt_id = attempt_id
        self.look_again = look_again

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            **self._arguments(),
            "attempt_id": self.attempt_id,
            "look_again": self.look_again,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        events = super().run()
        try:
            yield await asyncio.wait_for(anext(events), self.look_again)
        except asyncio.TimeoutError:
            yield TriggerEvent({"status": "reached"})

    def _look(self, view: TopologyView) -> Outcome:
        attempt = view.attempt(self.attempt_id)
        if attempt.state not in UNDER_WAY_ATTEMPTS:
            return REACHED
        return Outcome(None, f"{attempt}, which another task leads")


class SourceTrigger(LedTrigger):
    """Fires after ``look_again`` seconds, so that the task tries its source again; sooner if its attempt has ended.

    A worker opens sources, with rights that the triggerer may lack. ``away``: which source it is, and why it cannot be
    cut. The attempt, which waits, is given up when a person clears or marks the deferred task.
    """

    def __init__(self, *, away: str, **waiting: Any) -> None:
        super().__init__(**waiting)
        self.away = away

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, arguments = super().serialize()
        return path, {**arguments, "away": self.away}

    def _look(self, view: TopologyView) -> Outcome:
        outcome = super()._look(view)
        return outcome if outcome.event is not None else Outcome(None, f"a source ({self.away})")

    async def on_kill(self) -> None:
        await _give_up(self.barrier_conn_id, [self.attempt_id])
