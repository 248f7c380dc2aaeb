"""Killing the servers that a run stands on, and starting them again with what they had."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airflow_barrier.protocol.states import AttemptState, BarrierState
from demo.progress import TOPOLOGY, delivered_barriers

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService
    from airflow_barrier.protocol.records import Barrier

#: Seconds that a server is away beside its own start: longer than a client takes for a glitch.
_AWAY = 3.0


class Server(Protocol):
    """What can be killed and started again."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


@dataclass(frozen=True)
class Outage:
    """A server that got SIGKILL, during what, and for how many seconds it was away."""

    server: str
    during: str
    seconds: float


class Outages:
    """``planned``: server's name -> the server, the number of the barrier at which it is killed, and when: while a job
    of the barrier runs (``processing``), or once it is COMMIT and not delivered yet (``delivering``).
    """

    def __init__(self, planned: dict[str, tuple[Server, int, str]]) -> None:
        self._planned = planned
        self._pool = ThreadPoolExecutor(max(1, len(planned)))
        self._begun: list[Future[Outage]] = []

    def look(self, meta: MetaService, barriers: Sequence[Barrier]) -> list[str]:
        """Kill whose time has come, and have it started again beside what the caller does; says who was killed."""
        due = [name for name, (_, number, when) in self._planned.items() if _is_due(meta, barriers, number, when)]
        for name in due:
            server, number, when = self._planned.pop(name)
            self._begun.append(self._pool.submit(_kill, name, server, f"{when} barrier {number}"))
        return due

    def over(self) -> list[Outage]:
        """All outages, once the servers are there again. Raises what a server's start raised."""
        self._pool.shutdown()
        return [each.result() for each in self._begun]


def _is_due(meta: MetaService, barriers: Sequence[Barrier], number: int, when: str) -> bool:
    barrier = next((each for each in barriers if each.barrier_id == number), None)
    if barrier is None:
        return False
    if when == "processing":
        return any(each.state is AttemptState.RUNNING for each in meta.attempts.of(TOPOLOGY, number))
    return barrier.state is BarrierState.COMMIT and number not in delivered_barriers(meta)


def _kill(name: str, server: Server, during: str) -> Outage:
    began = time.monotonic()
    server.kill()
    time.sleep(_AWAY)
    server.start()
    return Outage(name, during, time.monotonic() - began)
