"""The process in which Pravega's client runs: it takes requests as pickles on its standard input, and answers on its
standard output. :mod:`airflow_barrier.systems.pravega` starts it.

The client (0.3.8) stops the whole Python process while it waits for a server, for ever if there is none, and writes
panics to standard error. So it is kept out of processes that have something else to do, and the system ends this one by
SIGALRM, which needs no Python, when an answer does not come.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import Any, ClassVar
from uuid import uuid4

import pravega_client

from airflow_barrier.systems.pravega_controller import Controller

#: Seconds that a reader waits for events, of which there may be none.
_WAIT = 2.0
#: Seconds between two looks whether they have come.
_LOOK = 0.002
#: Bytes of an event's header in its segment.
_HEADER = 8

Positions = dict[int, int]


class Session:
    """The requests. Positions are those of a stream: segment -> offset, and a group is one of readers, which Pravega
    keeps by its name.
    """

    #: of the requests to the controller
    messages: ClassVar[Mapping[str, list[str]]] = {
        "StreamInfo": ["1 scope string", "2 stream string"],
        "ExistsResponse": ["1 exists bool"],
    }

    def __init__(self, address: str) -> None:
        self._controller = Controller(address.removeprefix("tcp://"), self.messages)
        self._manager = pravega_client.StreamManager(address, False, False)
        self._loop = _Loop()
        self._group: Any = None
        self._at: Positions = {}

    def has(self, scope: str, stream: str) -> bool:
        asked = {"scope": scope, "stream": stream}
        return bool(self._controller.ask("checkStreamExists", "StreamInfo", "ExistsResponse", **asked).exists)

    def tail(self, scope: str, stream: str, group: str) -> Positions:
        """Return where the stream ended when the group was made, which is now if there is none of that name yet."""
        return self._positions(self._manager.create_reader_group(group, scope, stream, True))

    def head(self, scope: str, stream: str, group: str) -> Positions:
        """Return where the group begins: at the stream's first event, if there is none of that name yet."""
        return self._positions(self._manager.create_reader_group(group, scope, stream, False))

    def forget(self, scope: str, group: str) -> None:
        """Delete a group; again is fine."""
        self._manager.delete_reader_group(group, scope)

    def begin(self, scope: str, stream: str, start: str | None, group: str) -> Positions:
        """Read from where the group ``start`` begins, by a ``group`` of its own; from the stream's first event on if
        ``start`` is None, or if there is no such group.
        """
        cut = None if start is None else self._cut_of(scope, stream, start)
        self._group = self._manager.create_reader_group(group, scope, stream, False, cut)
        self._at = self._positions(self._group)
        return self._at

    def _cut_of(self, scope: str, stream: str, group: str) -> Any:
        try:
            return self._manager.create_reader_group(group, scope, stream, False).get_streamcut()
        except BaseException as error:
            if "TableDoesNotExist" not in str(error):
                raise
            return None  # it was deleted, and its name is no other group's for ever

    def slice(self) -> tuple[int | None, Sequence[int], Sequence[bytes], Positions]:
        """The next events of one of the segments: it, their offsets, themselves, and where the reading is then.

        Without events: it was waited for them, or segments ended, and others come after them. The segment is None
        where events do not follow where the reading was.
        """
        before = self._at
        events = self._taken(_first_part)
        if not events and self._at == before:
            events = self._taken(_first_events)
        offsets, values = [event.offset() for event in events], [event.data() for event in events]
        return _segment_of(offsets, values, before, self._at), offsets, values, self._at

    def _taken(self, take: Callable[[Any], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
        """Events that a reader takes. They tell no segment: the group tells where it is once its reader has left."""
        reader = self._group.create_reader(f"reader-{uuid4().hex}")
        events = self._loop.run_until_complete(take(reader))
        reader.reader_offline()
        self._at = self._positions(self._group)
        return events

    @staticmethod
    def _positions(group: Any) -> Positions:
        found: Positions = group.get_streamcut().get_segment_offset_map()
        return found


class _Loop(asyncio.SelectorEventLoop):
    """A loop that no other thread wakes. A thread of the client that has events for us holds the reader while it tells
    us, and after a wake-up it would need Python's lock once more, which the reader's next call does not give away.
    """

    def _write_to_self(self) -> None:
        pass


async def _first_part(reader: Any, seconds: float = _WAIT) -> list[Any]:
    """The events of the next part of a segment that comes: none at its end, and none in a part of a large event."""
    asked, deadline = reader.get_segment_slice_async(), monotonic() + seconds
    while not asked.done() and monotonic() < deadline:
        await asyncio.sleep(_LOOK)
    if not asked.done():
        asked.cancel()
        await asyncio.sleep(10 * _LOOK)  # so that the client's thread hears of it
    part = None if asked.cancelled() else asked.result()
    if part is None:
        return []
    events = list(part)
    reader.release_segment(part)
    return events


async def _first_events(reader: Any) -> list[Any]:
    """The events of the first part that has any."""
    deadline = monotonic() + _WAIT
    while (left := deadline - monotonic()) > 0:
        if events := await _first_part(reader, left):
            return events
    return []


def _segment_of(offsets: Sequence[int], values: Sequence[bytes], before: Positions, now: Positions) -> int | None:
    """The segment that went on from the first of the events to behind the last one, or has ended there."""
    ends = [offset + _HEADER + len(value) for offset, value in zip(offsets, values, strict=True)]
    if not offsets or ends[:-1] != list(offsets[1:]):
        return None
    # segments that others have ended in begin at 0
    begun = [segment for segment, offset in {**dict.fromkeys(now, 0), **before}.items() if offset == offsets[0]]
    went_on = [segment for segment in begun if now.get(segment) == ends[-1]]
    ended = [segment for segment in begun if segment not in now]
    found = went_on or ended
    return found[0] if len(found) == 1 else None


def main(of: type[Session], address: str, seconds: str) -> None:
    sys.setswitchinterval(1)  # see _Loop: threads of the client are not interrupted either
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the client prints
    session: Session | None = None
    while True:
        try:
            name, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:  # the other process has ended
            return
        signal.alarm(int(seconds))
        try:
            session = session or of(address)
            answer = True, getattr(session, name)(*arguments)
        except BaseException as error:
            answer = False, f"{type(error).__name__}: {error}"
        signal.alarm(0)
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main(Session, *sys.argv[1:])
