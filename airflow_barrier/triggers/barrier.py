"""What every deferred task waits with, in the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_barrier.coordinator.waiting import (
    AnyCondition,
    TopologyView,
    look,
)
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.links.barrier import barrier_page, show_while_deferred
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.triggers import PATIENCE
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


class BarrierTrigger(BaseTrigger):
    """Waits in the triggerer for something of a topology, together with all that do so in its process.

    Fires once every condition holds (``any_of``: one of them), or as soon as one of them never will: its barrier was
    aborted or passed over. Nothing is looked for before ``not_before`` (UTC). After ``look_again`` seconds it fires in
    any case, for what only the task itself can find out.

    ``patience``: so many seconds without an answer are survived, whether the MetaService or Airflow itself is away.
    Begins after ``settling`` seconds; None, as in a task that defers: its :func:`settling_time`. ``until``: how long it
    waits at most (UTC); None: for ever. ``attempt_ids``: the attempts that wait; they are given up when a person clears
    or marks the deferred task. ``unopened``: the one condition's barrier is the task's own, which was not open when the
    task deferred: once it is, the task links to it. ``kept``: what the task has to know again when it goes on; each
    event has it, since ``dag.test()`` drops what a task that defers keeps by Airflow's ``kwargs``.

    Delivery: a trigger that is moved to another triggerer, or restarted, starts over from its arguments and looks
    again; nothing is remembered between two looks, so an event is late by one look at most, and may come twice.
    The resumed task therefore checks for itself and takes the event as a hint.

    Events: ``{"status": "reached"}``, ``{"status": "never", "message": ...}`` when what is waited for will not come any
    more, ``{"status": "unavailable", "message": ...}`` when patience has run out, and ``{"status": "late", "message":
    ...}`` when the time is over.

    >>> from airflow_barrier.coordinator.waiting import Condition
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
        conditions: Sequence[AnyCondition | dict[str, Any]],
        any_of: bool = False,
        attempt_ids: Sequence[int] = (),
        not_before: datetime | str | None = None,
        look_again: float | None = None,
        patience: float = PATIENCE,
        until: datetime | str | None = None,
        settling: float | None = None,
        unopened: bool = False,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.topology = topology
        self.barrier_conn_id = barrier_conn_id
        self.conditions = tuple(decode(AnyCondition, c) if isinstance(c, dict) else c for c in conditions)
        self.any_of = any_of
        self.attempt_ids = tuple(attempt_ids)
        self.not_before = _time(not_before)
        self.look_again = look_again
        self.patience = patience
        self.until = _time(until)
        self.settling = settling_time() if settling is None else settling
        self.unopened = unopened
        self.kept = dict(kept or {})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "topology": self.topology,
            "barrier_conn_id": self.barrier_conn_id,
            "conditions": encode(self.conditions),
            "any_of": self.any_of,
            "attempt_ids": list(self.attempt_ids),
            "not_before": self.not_before and self.not_before.isoformat(),
            "look_again": self.look_again,
            "patience": self.patience,
            "until": self.until and self.until.isoformat(),
            "settling": self.settling,
            "unopened": self.unopened,
            "kept": self.kept,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = await asyncio.wait_for(self._event(), self.look_again and max(self.look_again, self.settling))
        except asyncio.TimeoutError:
            event = REACHED.event or {}
        yield TriggerEvent({**self.kept, **event})

    async def _event(self) -> dict[str, Any]:
        await asyncio.sleep(self.settling)  # the task has just looked itself
        if self.not_before is not None and _seconds_to(self.not_before) > 0:
            self.log.info("Waiting until %s", self.not_before.isoformat())
            await asyncio.sleep(_seconds_to(self.not_before))
        news = watcher(self.barrier_conn_id, self.topology).follow(self._look, self.patience)
        outcome = await anext(news)  # however late it is, there is one look
        while outcome.event is None:
            self.log.info("Waiting for %s", outcome.waits_for)
            await self._link(outcome.barrier_id)
            try:
                outcome = await asyncio.wait_for(anext(news), None if self.until is None else _seconds_to(self.until))
            except asyncio.TimeoutError:
                outcome = Outcome({"status": "late", "message": self._late(outcome.waits_for)})
        assert outcome.event is not None
        return outcome.event

    async def _link(self, barrier_id: int | None) -> None:
        if self.unopened and barrier_id is not None and self.task_instance is not None:
            self.unopened = False
            page = barrier_page(barrier_id)
            await show_while_deferred(self.task_instance, self.barrier_conn_id, self.topology, page)

    def _late(self, waits_for: str) -> str:
        return (
            f"expected {waits_for} by {self.until}, found that it has not come; see what holds it up (airflow-barrier "
            f"status {self.topology}), then clear this task, or give it a longer wait_timeout"
        )

    def _look(self, view: TopologyView) -> Outcome:
        """Return whether it has come. Runs in a thread."""
        found = [look(view, condition) for condition in self.conditions]
        for one in found:
            if one.never is not None and one.waits_for is not None:
                return Outcome({"status": "never", "message": one.never})
        if (any if self.any_of else all)(one.waits_for is None for one in found):
            return REACHED
        return Outcome(None, "; ".join(one.waits_for for one in found if one.waits_for), found[0].barrier_id)

    async def on_kill(self) -> None:
        if not self.attempt_ids:
            return
        meta = await BarrierHook(self.barrier_conn_id).aget_meta_service()
        for attempt_id in self.attempt_ids:
            await asyncio.to_thread(
                meta.attempts.abort, attempt_id, "the deferred task was cleared or marked by a person", "triggerer"
            )


def _time(value: datetime | str | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _seconds_to(moment: datetime) -> float:
    return (moment - datetime.now(timezone.utc)).total_seconds()
