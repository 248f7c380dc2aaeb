"""The process of Pravega's client as an owner of streams uses it: one that makes, fills, scales and truncates them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import sleep, time
from typing import ClassVar
from uuid import uuid4

from pravega_client import StreamRetentionPolicy, StreamScalingPolicy

from airflow_barrier.systems.pravega_process import Positions, Session, main

_IN_PROGRESS = 0
#: Events that may be on their way at once: without this number, each is waited for before the next one is written.
_IN_FLIGHT = 1000


class Owner(Session):
    messages: ClassVar = {
        **Session.messages,
        "CutEntry": ["1 key int64", "2 value int64"],
        "StreamCut": ["1 streamInfo StreamInfo", "2 cut CutEntry repeated"],
        "KeyRangeEntry": ["1 start double", "2 end double"],
        "ScaleRequest": [
            "1 streamInfo StreamInfo",
            "2 sealedSegments int64 repeated",
            "3 newKeyRanges KeyRangeEntry repeated",
            "4 scaleTimestamp int64",
        ],
        "ScaleResponse": ["1 status int32", "3 epoch int32"],
        "ScaleStatusRequest": ["1 streamInfo StreamInfo", "2 epoch int32"],
        "Answer": ["1 status int32"],
    }

    def make_scope(self, scope: str) -> None:
        self._manager.create_scope(scope)

    def make(self, scope: str, stream: str, segments: int) -> None:
        # the client asks again where an answer was lost, and is told that there is one
        assert self._manager.create_stream(scope, stream, segments) or self.has(scope, stream)

    def make_expiring(self, scope: str, stream: str) -> None:
        """One of which the server lets events go."""
        scaling, expiring = StreamScalingPolicy.fixed_scaling_policy(1), StreamRetentionPolicy.by_size(10**9)
        assert self._manager.create_stream_with_policy(scope, stream, scaling, expiring)

    def seal(self, scope: str, stream: str) -> None:
        assert self._manager.seal_stream(scope, stream)

    def streams(self, scope: str) -> list[str]:
        return sorted(self._manager.list_stream(scope))

    def drop(self, scope: str, stream: str) -> None:
        assert self._manager.seal_stream(scope, stream)
        assert self._manager.delete_stream(scope, stream)

    def write(self, scope: str, stream: str, events: Sequence[tuple[str, bytes]]) -> None:
        """Events by their routing keys, which are in the stream when it returns."""
        writer = self._manager.create_writer(scope, stream, _IN_FLIGHT)
        for key, value in events:
            writer.write_event_bytes(value, key)
        writer.flush()

    def scale(self, scope: str, stream: str, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]) -> None:
        """Segments are sealed, and others have their keys, which are from 0 to 1."""
        stream_info = {"scope": scope, "stream": stream}
        begun = self._controller.ask(
            "scale",
            "ScaleRequest",
            "ScaleResponse",
            streamInfo=stream_info,
            sealedSegments=sealed,
            newKeyRanges=[{"start": start, "end": end} for start, end in ranges],
            scaleTimestamp=int(time() * 1000),
        )
        assert begun.status == 0, begun
        asked = {"streamInfo": stream_info, "epoch": begun.epoch}
        while self._controller.ask("checkScale", "ScaleStatusRequest", "Answer", **asked).status == _IN_PROGRESS:
            sleep(0.05)

    def truncate(self, scope: str, stream: str, positions: Positions) -> None:
        """Let events before these positions go."""
        cut = [{"key": segment, "value": offset} for segment, offset in positions.items()]
        stream_info = {"scope": scope, "stream": stream}
        done = self._controller.ask("truncateStream", "StreamCut", "Answer", streamInfo=stream_info, cut=cut)
        assert done.status == 0, done

    def events(self, scope: str, stream: str) -> list[bytes]:
        """All events, those of a routing key in their order."""
        start, group, now = (f"e-{uuid4().hex}" for _ in range(3))
        end = self.tail(scope, stream, now)
        found: list[bytes] = []
        at = self.begin(scope, stream, start, group)
        while at != end:
            _, _, values, at = self.slice()
            found += values
        for each in (start, group, now):
            self.forget(scope, each)
        return found

    def bytes_of(self, scope: str, stream: str) -> list[bytes]:
        """All events of a stream of one segment that are not truncated."""
        segment = self._manager.create_byte_stream(scope, stream)
        head, tail = segment.current_head_offset(), segment.current_tail_offset()
        segment.seek(head, 0)
        held = b""
        while len(held) < tail - head:
            part = bytearray(tail - head - len(held))
            held += part[: segment.readinto(part)]
        found = []
        while held:
            end = 8 + int.from_bytes(held[4:8], "big")
            found.append(held[8:end])
            held = held[end:]
        return found


if __name__ == "__main__":
    main(Owner, *sys.argv[1:])
