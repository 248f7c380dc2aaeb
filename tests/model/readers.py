"""Readers as the model knows them, and what they do, of which each step may be the last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from airflow_barrier.protocol.leases import Hold, Lease
from airflow_barrier.protocol.levels import Level, Resolution
from airflow_barrier.reading.catalog_pins import Pin
from airflow_barrier.reading.session import ConsistentSession, Question
from tests.model.tasks import Task
from tests.model.topology import NAME
from tests.model.world import World

_AT_ONCE = timedelta(0)
#: Table -> barrier, attempt and snapshot.
Standing = dict[str, tuple[int, int | None, int | None]]
#: How long a lease lives unless its session's heart beats.
LEASE_SECONDS = 60.0


@dataclass
class Reader:
    """Somebody with a session. Whoever looks from outside knows only what the session told him."""

    number: int
    level: Level
    at: int | None
    session: ConsistentSession
    #: (barrier, attempt, snapshot) of each table of the answer, as they were stored when it was given
    stood: Standing = field(default_factory=dict)
    #: some of that was rolled back since
    rolled_back: bool = False
    #: the same answer was given before something was staged anew, and after: which one it got is not known
    unsure: bool = False
    #: in the middle of something
    busy: bool = False
    #: its process died, or hangs
    dead: bool = False
    #: what an engine's catalog was given along with the answer, and read by it first: table -> barrier and snapshot
    catalog: Pin | None = None
    catalog_read: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    @property
    def answer(self) -> Resolution:
        return self.session._resolution

    @property
    def lease(self) -> Lease:
        """As it was told last."""
        return self.session._heartbeat.lease


@dataclass(frozen=True)
class Refreshed:
    """What a reader had, and has now."""

    reader: Reader
    before: Resolution
    #: whether it was rolled back before the reader began to look, as far as that is known
    rolled_back: bool
    unsure: bool
    #: where in the history of answers it began to look
    since: int


def opening(world: World, level: Level, at: int | None) -> Task:
    """A session is opened, at the newest barrier or at one of the past."""
    number = next(world.numbers)

    def work(task: Task) -> Reader:
        question = Question(NAME, level, None, at, None, _AT_ONCE)
        session = ConsistentSession(world.deployment, question, Hold(f"reader {number}", LEASE_SECONDS))
        return Reader(number, level, at, session)

    return Task(f"read {level.value} {'' if at is None else at} #{number}", work)


def refreshing(world: World, reader: Reader, since: int) -> Task:
    """It goes on to what is newest."""
    reader.busy = True

    def work(task: Task) -> Refreshed:
        before = Refreshed(reader, reader.answer, reader.rolled_back, reader.unsure, since)
        try:
            reader.session.refresh()
        finally:
            reader.busy = False
        return before

    return Task(f"refresh {reader.number} #{next(world.numbers)}", work)
