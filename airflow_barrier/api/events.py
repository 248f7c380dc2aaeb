"""The stream of changes: server-sent events. One look every half a second serves all who listen to a deployment, or a
rarer one while its MetaService does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Mapping
from typing import cast

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from airflow_barrier.api import models
from airflow_barrier.api.access import Access, Told, access_in, not_found
from airflow_barrier.api.sight import seen
from airflow_barrier.coordinator.watching import Pace
from airflow_barrier.metaservice.overviews import Known
from airflow_barrier.metaservice.store import MetaService
from airflow_barrier.protocol.errors import BarrierError, Retryable

log = logging.getLogger(__name__)

#: Seconds between looks; between signs of life; between looks at what a listener may read; and that a stream lasts,
#: after which the browser asks again, and shows who it is.
TICK, HEARTBEAT, RIGHTS, LONGEST = 0.5, 15.0, 60.0, 3600.0

_EXAMPLE = 'event: change\ndata: {"topology":"shopping","changes":17}\n\n'

router = APIRouter(route_class=Told)


class Watch:
    """The change counts of a deployment's topologies, asked for as long as somebody listens. Of one event loop."""

    def __init__(self) -> None:
        #: None: nobody could be asked yet.
        self.counts: Mapping[str, int] | None = None
        self.ends = False
        self._meta: MetaService | None = None
        self._moved = asyncio.Event()
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    def join(self, meta: MetaService) -> None:
        self._meta = meta
        self._listeners += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look_on())

    def renew(self, meta: MetaService) -> None:
        """Ask this one from now on: the connection may have another password."""
        self._meta = meta

    def leave(self) -> bool:
        """Return whether nobody listens any more."""
        self._listeners -= 1
        if self._listeners == 0 and self._task is not None:
            self._task.cancel()
            return True
        return False

    async def moved(self, seconds: float) -> None:
        """Wait until there may be something new, or so many seconds have passed."""
        try:
            await asyncio.wait_for(self._moved.wait(), max(seconds, 0))
        except asyncio.TimeoutError:
            return

    async def _look_on(self) -> None:
        pace = Pace(TICK)
        while True:
            assert self._meta is not None
            try:
                counts = await asyncio.to_thread(self._meta.topologies.change_counts)
            except Exception as error:  # whatever it is: the next look may find the MetaService again
                if not pace.is_slow:
                    log.warning("%s", error)
                pace.failed()
            else:
                pace.answered()
                if counts != self.counts:
                    self.counts = counts
                    self._wake()
            await _pause(pace.pause())
            if _server_stops():
                self.ends = True
                self._wake()
                return

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


class Watches:
    """Watches by deployment."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}

    def join(self, deployment: str, meta: MetaService) -> Watch:
        watch = self._watches.get(deployment)
        if watch is None or watch.ends:
            watch = self._watches[deployment] = Watch()
        watch.join(meta)
        return watch

    def leave(self, deployment: str, watch: Watch) -> None:
        if watch.leave() and self._watches.get(deployment) is watch:
            del self._watches[deployment]


@router.get(
    "/v1/deployments/{deployment}/events",
    operation_id="events",
    summary="What changes, as server-sent events",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {"text/event-stream": {"example": _EXAMPLE}},
            "description": "Each event `change` has a topology and how often it was changed: at once of all that you "
            "see, then of each that changes. A comment line comes every 15 s in which nothing does.",
        }
    },
)
async def events(request: Request, deployment: str) -> StreamingResponse:
    access, watches = access_in(request), cast("Watches", request.state.watches)
    rights = Rights(access, deployment)
    await asyncio.to_thread(rights.look)
    if not rights.seen:
        raise not_found()
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(rights, watches, deployment), media_type="text/event-stream", headers=headers)


class Rights:
    """The topologies that a listener sees. ``look`` blocks."""

    def __init__(self, access: Access, deployment: str) -> None:
        self._access, self._deployment = access, deployment
        self.known: frozenset[str] = frozenset()
        self.seen: frozenset[str] = frozenset()
        self.meta: MetaService
        self.at = 0.0

    def look(self) -> None:
        self.meta = self._access.meta_service(self._deployment)
        known: list[Known] = self.meta.overviews.known()
        self.seen = frozenset(seen(self._access, known))
        self.known = frozenset(each.name for each in known)
        self.at = time.monotonic()

    async def again(self) -> bool:
        """Look again; False: the listener's login has ended, or sees nothing any more. While nobody can be asked it
        sees what it saw.
        """
        if not await self._access.is_logged_in():
            return False
        try:
            await asyncio.to_thread(self.look)
        except Retryable as error:
            log.warning("%s", error)
            self.at = time.monotonic()
        except BarrierError as error:
            log.info("%s", error)
            return False
        return bool(self.seen)


async def _stream(rights: Rights, watches: Watches, deployment: str) -> AsyncIterator[str]:
    watch = watches.join(deployment, rights.meta)
    begun = said = time.monotonic()
    told: dict[str, int] = {}
    try:
        while not watch.ends and time.monotonic() - begun < LONGEST:
            counts = watch.counts or {}
            # what is new may be the listener's, too
            if time.monotonic() - rights.at >= RIGHTS or not rights.known.issuperset(counts):
                if not await rights.again():
                    return
                watch.renew(rights.meta)
            for topology in sorted(rights.seen.intersection(counts)):
                if told.get(topology) != counts[topology]:
                    told[topology] = counts[topology]
                    change = models.Change(topology=topology, changes=counts[topology])
                    yield f"event: change\ndata: {change.model_dump_json()}\n\n"
                    said = time.monotonic()
            if time.monotonic() - said >= HEARTBEAT:
                yield ":\n\n"
                said = time.monotonic()
            if watch.counts is None or watch.counts == counts:
                await watch.moved(min(said + HEARTBEAT, rights.at + RIGHTS) - time.monotonic())
    finally:
        watches.leave(deployment, watch)


async def _pause(seconds: float) -> None:
    """Less long if the server stops meanwhile."""
    end = time.monotonic() + seconds
    while not _server_stops() and (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(TICK, left))


def _server_stops() -> bool:
    """Return whether uvicorn was told to end: it waits for all answers, and says nothing to those that have no end."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
