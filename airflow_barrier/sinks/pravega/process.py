"""The process in which Pravega's client runs for who delivers. :mod:`airflow_barrier.sinks.pravega.client` starts it.

Of transactions that another process has begun the client (0.3.8) knows nothing, and to commit one that has ended it
tries for a minute. So the controller is asked for their states.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import uuid4

import pravega_client

from airflow_barrier.sinks.pravega.client import OPEN
from airflow_barrier.systems.pravega_process import Session, main

#: Bytes of an event's header in its segment: its kind, and the length of what follows.
_HEADER = 8
_LOW = 2**64


class Delivering(Session):
    messages: ClassVar = {
        **Session.messages,
        "ScalingPolicy": ["1 scaleType int32"],
        "RetentionPolicy": ["1 retentionType int32"],
        "StreamConfig": [
            "1 streamInfo StreamInfo",
            "2 scalingPolicy ScalingPolicy",
            "3 retentionPolicy RetentionPolicy",
        ],
        "GetEpochSegmentsRequest": ["1 streamInfo StreamInfo", "2 epoch int32"],
        "SegmentId": ["1 streamInfo StreamInfo", "2 segmentId int64"],
        "SegmentRange": ["1 segmentId SegmentId"],
        "SegmentRanges": ["1 segmentRanges SegmentRange repeated"],
        "TxnId": ["1 highBits int64", "2 lowBits int64"],
        "TxnRequest": ["1 streamInfo StreamInfo", "2 txnId TxnId"],
        "TxnState": ["1 state int32"],
        "TxnStatus": ["1 status int32"],
    }

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._segments: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        self._transactions: Any = None
        self._transaction: Any = None

    # --- streams ----------------------------------------------------------------------------------

    def described(self, scope: str, stream: str) -> dict[str, Any] | None:
        """Its segments, of its first epoch and now, and the kinds of its policies. None: there is no such stream."""
        if not self.has(scope, stream):
            return None
        info = {"scope": scope, "stream": stream}
        config = self._controller.ask("getStreamConfiguration", "StreamInfo", "StreamConfig", **info)
        first = self._controller.ask(
            "getEpochSegments", "GetEpochSegmentsRequest", "SegmentRanges", streamInfo=info, epoch=0
        )
        now = self._controller.ask("getCurrentSegments", "StreamInfo", "SegmentRanges", **info)
        return {
            "first": _segments_of(first),
            "now": _segments_of(now),
            "scales": bool(config.scalingPolicy.scaleType),
            "expires": bool(config.retentionPolicy.retentionType),
        }

    def make(self, scope: str, stream: str) -> None:
        """Make a stream of one segment; again is fine."""
        self._manager.create_stream(scope, stream, 1)

    # --- the ledger, whose one segment is read as the bytes that it is ------------------------------

    def entries(self, scope: str, ledger: str) -> Sequence[tuple[int, bytes]]:
        """All events of a stream of one segment, by their offsets."""
        segment = self._segment(scope, ledger)
        head, tail = segment.current_head_offset(), segment.current_tail_offset()
        held = bytearray()
        segment.seek(head, 0)
        while len(held) < tail - head:
            part = bytearray(tail - head - len(held))
            count = segment.readinto(part)
            held += part[:count]
        found, at = [], 0
        while at < len(held):
            end = at + _HEADER + int.from_bytes(held[at + 4 : at + _HEADER], "big")
            found.append((head + at, bytes(held[at + _HEADER : end])))
            at = end
        return found

    def append(self, scope: str, ledger: str, value: bytes) -> None:
        """Add an event, which is in the stream when it returns."""
        if ledger not in self._writers:
            self._writers[ledger] = self._manager.create_writer(scope, ledger)
        self._writers[ledger].write_event_bytes(value, "")
        self._writers[ledger].flush()

    def truncate(self, scope: str, ledger: str, offset: int) -> None:
        self._segment(scope, ledger).truncate(offset)

    def _segment(self, scope: str, ledger: str) -> Any:
        if ledger not in self._segments:
            self._segments[ledger] = self._manager.create_byte_stream(scope, ledger)
        return self._segments[ledger]

    # --- transactions -----------------------------------------------------------------------------

    def begin_transaction(self, scope: str, stream: str) -> int:
        """Return its number, which is not that of another one as long as there is the stream."""
        # it speaks of its transactions to the server as long as it is there
        self._transactions = self._manager.create_transaction_writer(scope, stream, uuid4().int >> 65)
        self._transaction = self._transactions.begin_txn()
        number: int = self._transaction.get_txn_id()
        return number

    def send(self, events: Sequence[tuple[str, bytes]]) -> None:
        """Events by their routing keys. They are in the transaction when it is committed."""
        for key, value in events:
            self._transaction.write_event_bytes(value, key)

    def commit_transaction(self, scope: str, stream: str, number: int) -> str:
        """Commit what was begun here, with all events. Return what went wrong, in words: else nothing."""
        if self.state(scope, stream, number) != OPEN:
            return "that it has ended"
        try:
            self._transaction.commit()
        except (ValueError, pravega_client.TxnFailedException) as error:
            return str(error)
        return ""

    def state(self, scope: str, stream: str, number: int) -> int:
        request = _transaction(scope, stream, number)
        state: int = self._controller.ask("checkTransactionState", "TxnRequest", "TxnState", **request).state
        return state

    def abort_transaction(self, scope: str, stream: str, number: int) -> None:
        """Have it end without its events, if it is open: its state says so."""
        self._controller.ask("abortTransaction", "TxnRequest", "TxnStatus", **_transaction(scope, stream, number))


def _segments_of(ranges: Any) -> list[int]:
    return sorted(each.segmentId.segmentId for each in ranges.segmentRanges)


def _transaction(scope: str, stream: str, number: int) -> dict[str, Any]:
    high, low = divmod(number, _LOW)
    info = {"scope": scope, "stream": stream}
    return {"streamInfo": info, "txnId": {"highBits": _signed(high), "lowBits": _signed(low)}}


def _signed(bits: int) -> int:
    return bits - _LOW if bits >= _LOW // 2 else bits


if __name__ == "__main__":
    main(Delivering, *sys.argv[1:])
