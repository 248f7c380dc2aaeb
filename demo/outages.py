"""Killing the servers that a run stands on, and starting them again with what they had."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_barrier.protocol.states import BarrierState
from demo.progress import delivered_barriers

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.records import Barrier


class Server(Protocol):
    """What can be killed and started again."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


@dataclass(frozen=True)
class Planned:
    """A server that is killed once the barrier of that number is COMMIT and a sink has not received it yet, and is away
    for so many seconds beside its own start.
    """

    name: str
    server: Server
    number: int
    sink: str
    seconds: float = 5.0


@dataclass(frozen=True)
class Outage:
    """A server that got SIGKILL at a barrier, and for how many seconds it was away."""

    server: str
    number: int
    seconds: float


class Outages:
    """``over`` are those whose servers are there again.

    Servers end with the thread that has started them, so that the thread that looks on does.
    """

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._planned = list(planned)
        self._away: list[tuple[Planned, float]] = []
        self.over: list[Outage] = []

    @property
    def away(self) -> bool:
        return bool(self._away)

    def look(self, meta: MetaService, barriers: Sequence[Barrier]) -> list[str]:
        """Kill whose time has come, and start again who was away long enough; says who was killed."""
        for each, began in list(self._away):
            if time.monotonic() - began >= each.seconds:
                each.server.start()
                self._away.remove((each, began))
                self.over.append(Outage(each.name, each.number, time.monotonic() - began))
        committed = {barrier.barrier_id for barrier in barriers if barrier.state is BarrierState.COMMIT}
        due = [
            each
            for each in self._planned
            if each.number in committed and each.number not in delivered_barriers(meta, each.sink)
        ]
        for each in due:
            each.server.kill()
            self._planned.remove(each)
            self._away.append((each, time.monotonic()))
        return [each.name for each in due]
