"""Which offsets of a topic belong to an epoch.

A cut's ``end`` has, by partition: ``begin`` and ``offsets``, from and up to which (exclusive) the epoch reads, and
``epochs``, those of the partitions' leaders; and the ``topic_id``. Its ``start`` has the predecessor's ``offsets``.
Offsets are counted by Kafka: those of control records and of aborted transactions are among them, and are read by
nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.kafka_log import Log, Offset, millis
from airflow_barrier.sources.port import CutRequest, text_of

log = logging.getLogger(__name__)

#: Records of one partition that are looked through for the first one that is later than an epoch, where brokers
#: cannot tell since one of a time to come stands before it.
_MOST_LOOKED_AT = 100_000


def cut(topic: Log, request: CutRequest, until: datetime | None, max_future_skew: timedelta, strict: bool) -> Cut:
    """From where the predecessor ended up to the last stable offset; with ``until`` up to the first record that is
    later, but for those that are later than ``max_future_skew`` after the present.

    ``strict``: raise SourceDataError where records in between are gone; else they are left out, with a warning.
    """
    start = request.start if request.already is None else _used_up(topic, request.already)
    begin = _beginning(topic, start, strict)
    ends = topic.stable_ends(topic.partitions)
    offsets = {partition: end.offset for partition, end in ends.items()}
    if until is not None:
        epoch = _Epoch(until, request.now + max_future_skew)
        for partition, first in topic.first_after(topic.partitions, until).items():
            offsets[partition] = epoch.end(topic, partition, begin[partition], offsets[partition], first)
    return Cut(
        topic.source,
        None if start is None else {name: start[name] for name in ("time", "topic_id", "offsets") if name in start},
        {
            "time": text_of(request.until),
            "topic_id": topic.topic_id,
            "begin": _by_name(begin),
            "offsets": _by_name(offsets),
            "epochs": _by_name({partition: end.epoch for partition, end in ends.items()}),
        },
    )


def check(topic: Log, cut: Cut) -> None:
    """Raise SourceDataError naming what of the cut is gone."""
    begin, end = _by_number(cut.end["begin"]), _by_number(cut.end["offsets"])
    reading = {partition: offset for partition, offset in begin.items() if offset < end[partition]}
    lost = _lost(topic, cut.end["topic_id"], reading, end)
    if lost:
        raise SourceDataError(  # safety: offsets-as-they-were-cut
            f"{topic.what}: expected topic {topic.topic} as it was cut, found that {_said(lost)}. The epoch cannot be "
            "read as it was cut: abort the barrier, and its successor takes what is there, where the source is "
            "declared with fail_on_data_loss=False; or replace the epoch by a revision (--sql, --file)"
        )


def whole(cuts: Sequence[Cut]) -> Cut:
    """From where the first of these begins, each partition where it was met first, to where the last ends."""
    begin = {partition: offset for cut in reversed(cuts) for partition, offset in cut.end["begin"].items()}
    return Cut(cuts[-1].source, cuts[0].start, {**cuts[-1].end, "begin": begin})


# --- where an epoch begins ------------------------------------------------------------------------


def _beginning(topic: Log, start: Mapping[str, Any] | None, strict: bool) -> dict[int, int]:
    """Where each partition's part begins: at its predecessor's end; a partition that is new, at its first record."""
    first = {partition: place.offset for partition, place in topic.beginnings(topic.partitions).items()}
    if start is None:
        return first
    begin = dict.fromkeys(topic.partitions, 0) | _by_number(start["offsets"])
    lost = _lost(topic, start["topic_id"], begin, begin)
    if not lost:
        return begin
    found = f"expected topic {topic.topic} from where the barrier before ended, found that {_said(lost)}"
    if strict:
        raise SourceDataError(  # safety: no-offsets-are-skipped
            f"{topic.what}: {found}. To go on without these records, declare the source with fail_on_data_loss=False "
            "until a barrier has opened; to keep them longer, raise the topic's retention"
        )
    log.warning("%s: %s: it goes on with what is there", topic.what, found)
    if start["topic_id"] != topic.topic_id:
        return first
    return {partition: max(begin[partition], first[partition]) for partition in topic.partitions}


def _lost(topic: Log, topic_id: str, begin: Mapping[int, int], end: Mapping[int, int]) -> list[str]:
    """What is gone of the offsets from ``begin`` to ``end``, in words."""
    if topic_id != topic.topic_id:
        return [f"it was deleted and made anew (its id was {topic_id}, and is {topic.topic_id})"]
    there = [partition for partition in sorted(begin) if partition in topic.partitions]
    first, last = topic.beginnings(there), topic.stable_ends(there)
    lost = [
        f"partition {partition} begins at offset {first[partition].offset}, and those from {begin[partition]} on are "
        "gone by retention"
        for partition in there
        if first[partition].offset > begin[partition]
    ]
    return lost + [
        f"partition {partition} ends at offset {last[partition].offset}, and those up to {end[partition]} are gone: it "
        "was truncated"
        for partition in there
        if last[partition].offset < end[partition]
    ]


def _used_up(topic: Log, already: datetime | int | Mapping[str, Any]) -> dict[str, Any]:
    """What a job's tables have already, as the end of a cut: records up to a moment, or before offsets."""
    if isinstance(already, datetime):
        ends = topic.stable_ends(topic.partitions)
        first = topic.first_after(topic.partitions, already)
        offsets = {
            each: min(ends[each].offset, place.offset if place else ends[each].offset) for each, place in first.items()
        }
        return {"time": text_of(already), "topic_id": topic.topic_id, "offsets": _by_name(offsets)}
    named = already.get("offsets") if isinstance(already, Mapping) and set(already) == {"offsets"} else None
    if not isinstance(named, Mapping) or sorted(named) != sorted(map(str, topic.partitions)):
        raise ConfigurationError(
            f"{topic.what}: expected start_from to be a datetime, or {{'offsets': {{partition: offset}}}} with each of "
            f"the {len(topic.partitions)} partitions of {topic.topic}, found {already!r}"
        )
    return {"topic_id": topic.topic_id, "offsets": {partition: int(offset) for partition, offset in named.items()}}


# --- where it ends --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Epoch:
    """Which records are later than an epoch: after ``until``, but not after ``future``, where clocks are wrong."""

    until: datetime
    future: datetime

    def end(self, topic: Log, partition: int, begin: int, end: int, first: Offset | None) -> int:
        """The first offset from ``begin`` to ``end`` of a later record. ``first``: the partition's first record after
        ``until``, which brokers know.
        """
        if first is None or first.offset >= end:
            return end
        if first.offset >= begin and self._is_later(first.timestamp):
            return first.offset
        log.info(
            "%s: offset %d of partition %d is later than %s, which is the future: it ends no epoch, and the records "
            "behind it are looked through for one that does",
            topic.what,
            first.offset,
            partition,
            self.future.isoformat(),
        )
        for number, (offset, timestamp) in enumerate(topic.timestamps(partition, begin, end), 1):
            if self._is_later(timestamp):
                return offset
            if number == _MOST_LOOKED_AT:  # they are all due, and what comes behind them is in the next epoch
                return offset + 1
        return end

    def _is_later(self, timestamp: int) -> bool:
        return millis(self.until) < timestamp <= millis(self.future)


def _by_name(places: Mapping[int, int]) -> dict[str, int]:
    """As JSON has it."""
    return {str(partition): place for partition, place in sorted(places.items())}


def _by_number(places: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): place for partition, place in places.items()}


def _said(lost: Sequence[str]) -> str:
    more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
    return "; ".join(lost[:3]) + more
