"""One watcher for all that wait for a topology in a triggerer: one query a tick, whatever their number."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from airflow_barrier.coordinator.waiting import TopologyView
from airflow_barrier.coordinator.watching import Pace
from airflow_barrier.hooks.barrier import BarrierHook
from airflow_barrier.protocol.errors import Retryable, Terminal
from airflow_barrier.triggers import POLL_INTERVAL

if TYPE_CHECKING:
    from airflow_barrier.metaservice.store import MetaService

#: Seconds that an answer may take; after that it is a failure, as long as it is not there.
_UNANSWERED = 5.0


@dataclass(frozen=True)
class Outcome:
    """A look's answer to one who waits: an event's payload, or in words what is still missing.

    ``barrier_id``: the barrier of one condition, once it is open.
    """

    event: dict[str, Any] | None
    waits_for: str = ""
    barrier_id: int | None = None


REACHED = Outcome({"status": "reached"})

#: What somebody waits for. It is called in a thread, with a view that others use as well.
Look = Callable[[TopologyView], Outcome]


@dataclass(eq=False)
class _Waiter:
    look: Look
    patience: float
    #: when the MetaService answered last, as far as this one knows
    answered: float = field(default_factory=monotonic)
    #: whether it was looked for it since it came
    looked: bool = False
    said: str | None = None
    news: asyncio.Queue[Outcome | Exception] = field(default_factory=asyncio.Queue)

    def tell(self, news: Outcome | Exception) -> None:
        """Tell what is missing once per change, not once per look."""
        if isinstance(news, Outcome) and news.event is None:
            if news.waits_for == self.said:
                return
            self.said = news.waits_for
        self.news.put_nowait(news)


class Watcher:
    """Asks one deployment about one topology as long as somebody waits.

    Each tick asks for the count of the topology's changes. What the waiters wait for is looked at when that has grown,
    and for each waiter once when it comes. While the MetaService, or Airflow itself, does not answer, pauses grow, and
    a waiter is told so once its patience is at its end.
    """

    def __init__(self, barrier_conn_id: str, topology: str) -> None:
        self._conn_id = barrier_conn_id
        self._topology = topology
        self._waiters: set[_Waiter] = set()
        self._connected = False
        self._seen: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._came = asyncio.Event()

    async def follow(self, look: Look, patience: float) -> AsyncIterator[Outcome]:
        """Yield what becomes of what is waited for: each change in words, and the event at last.

        ``patience``: seconds without an answer until an event says so. Raises what ``look`` raises, unless trying again
        can help.
        """
        waiter = _Waiter(look, patience)
        self._waiters.add(waiter)
        self._came.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"barriers of {self._topology}")
        try:
            while True:
                news = await waiter.news.get()
                if isinstance(news, Exception):
                    raise news
                yield news
                if news.event is not None:
                    return
        finally:
            self._waiters.discard(waiter)

    async def _run(self) -> None:
        pace = Pace(POLL_INTERVAL)
        while self._waiters:
            self._came.clear()
            try:
                await self._answered()
                pace.answered()
            except Terminal as error:
                self._end_all(error)
            except Exception as error:  # Airflow says "not defined" of a connection that it cannot reach just now
                pace.failed()
                self._connected = False  # the password may have changed
                self._seen = None
                self._lose_patience(error)
            await self._pause(pace)

    async def _answered(self) -> None:
        """A tick. One that hangs is not cut off, as its thread would go on; who waits loses patience all the same."""
        tick = asyncio.ensure_future(self._tick())
        while not (await asyncio.wait({tick}, timeout=_UNANSWERED))[0]:
            self._seen = None  # so that it is said anew what is waited for
            self._lose_patience(TimeoutError("neither it nor Airflow has said anything yet"))
        tick.result()

    async def _tick(self) -> None:
        meta = await self._meta_service()
        # a driver's call in the event loop would hold up every other trigger of this process
        changes = await asyncio.to_thread(meta.topologies.change_count, self._topology)
        grown = changes != self._seen
        waiters = [waiter for waiter in self._waiters if grown or not waiter.looked]
        if waiters:
            view = TopologyView(meta, self._topology)
            found = await asyncio.to_thread(lambda: [_looked(waiter, view) for waiter in waiters])
            for waiter, news in zip(waiters, found, strict=True):
                waiter.looked = True
                waiter.tell(news)
        self._seen = changes
        now = monotonic()
        for waiter in self._waiters:
            waiter.answered = now

    async def _meta_service(self) -> MetaService:
        """Airflow is asked for the connection once, and anew after a failure only; if somebody else of this process
        has asked meanwhile, there may be a newer one.
        """
        hook = BarrierHook(self._conn_id)
        known = hook.known_meta_service() if self._connected else None
        meta = known or await hook.aget_meta_service()
        self._connected = True
        return meta

    def _end_all(self, error: Exception) -> None:
        for waiter in self._waiters:
            waiter.tell(error)
        self._waiters = set()

    def _lose_patience(self, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}"
        for waiter in self._waiters:
            if monotonic() - waiter.answered > waiter.patience:
                message = f"no answer from the MetaService for {waiter.patience:g} s: {what}"
                waiter.tell(Outcome({"status": "unavailable", "message": message}))
            else:
                waiter.tell(Outcome(None, f"an answer from the MetaService: {what}"))

    async def _pause(self, pace: Pace) -> None:
        """Wait for the next tick; less long if somebody comes meanwhile, unless there is no answer just now."""
        if not self._waiters:
            return
        if pace.is_slow:
            await asyncio.sleep(pace.pause())
            return
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._came.wait(), pace.pause())


def _looked(waiter: _Waiter, view: TopologyView) -> Outcome | Exception:
    """Only what all have in common is raised: that somebody asks for a table which nobody knows is his own affair."""
    try:
        return waiter.look(view)
    except Retryable:
        raise
    except Exception as error:
        return error


#: Of each event loop, since tasks and events belong to one.
_watchers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], Watcher]] = WeakKeyDictionary()


def watcher(barrier_conn_id: str, topology: str) -> Watcher:
    """The one of this process, for the running event loop."""
    mine = _watchers.setdefault(asyncio.get_running_loop(), {})
    return mine.setdefault((barrier_conn_id, topology), Watcher(barrier_conn_id, topology))
