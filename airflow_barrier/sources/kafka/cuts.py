"""Which offsets of a topic belong to an epoch.

A cut's ``end`` has, by partition: ``begin`` and ``offsets``, from and up to which (exclusive) the epoch reads, and
``epochs``, those of the partitions' leaders, by which one that was truncated and has grown again is known; and the
``topic_id``. Its ``start`` has the predecessor's ``offsets``. By event time ``held`` says of which offsets the records
between two moments are left for later epochs.
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
from airflow_barrier.sources.kafka.log import Log, Offset, millis
from airflow_barrier.sources.port import CutRequest, NotReady, text_of
from airflow_barrier.sources.times import Times

log = logging.getLogger(__name__)

#: What a cut repeats of its predecessor's end.
_OF_THE_START = ("time", "topic_id", "offsets", "held")

#: Records of one partition that are looked through for the first one that is later than an epoch, where brokers
#: cannot tell since one of a time to come stands before it.
_MOST_LOOKED_AT = 100_000


def cut(topic: Log, request: CutRequest, times: Times | None, strict: bool) -> Cut | NotReady:
    """Cut from where the predecessor ended up to the last stable offset; with ``times`` up to the first record that
    is later.

    ``strict``: raise SourceDataError where records in between are gone; else they are left out, with a warning.
    """
    start = request.start if request.already is None else _used_up(topic, request.already)
    begin = _beginning(topic, start, strict)
    if start is not None and "held" in start and not strict:
        start = {**start, "held": _still_there(topic, start)}
    ends = topic.stable_ends(topic.partitions)
    offsets = {partition: end.offset for partition, end in ends.items()}
    held: dict[str, Any] = {}
    if times is not None:
        future = times.future(request.now)
        lateness = times.lateness or timedelta(0)
        found = _ends(topic, _Later(request.until + lateness, future), begin, offsets)
        if times.lateness is not None:
            behind = [partition for partition, end in found.items() if not end.is_reached]
            waited_for = _not_idle(topic, behind, begin, offsets, request.now, future, times.idle_timeout)
            if waited_for:
                return _not_ready(topic, waited_for, request.until, lateness)
        offsets = {partition: end.offset for partition, end in found.items()}
        if times.lateness is not None:
            left = min(request.until + lateness, future)
            held = {"held": _held(topic, start, request.until, left, begin, offsets)}
    return Cut(
        topic.source,
        None if start is None else {name: start[name] for name in _OF_THE_START if name in start},
        {
            "time": text_of(request.until),
            "topic_id": topic.topic_id,
            "begin": _by_name(begin),
            "offsets": _by_name(offsets),
            "epochs": _by_name({partition: end.epoch for partition, end in ends.items()}),
            **held,
        },
    )


def check(topic: Log, cut: Cut) -> None:
    """Raise SourceDataError naming what of the cut is gone."""
    lost = _lost(topic, cut.end, _reading(cut), _by_number(cut.end["offsets"]))
    if lost:
        raise SourceDataError(  # safety: offsets-as-they-were-cut
            f"{topic.what}: expected topic {topic.topic} as it was cut, found that {_said(lost)}. The epoch cannot be "
            "read as it was cut: abort the barrier, and its successor takes what is there, where the source is "
            "declared with fail_on_data_loss=False; or replace the epoch by a revision (--sql, --file)"
        )


def check_kept(topic: Log, cut: Cut) -> None:
    """:func:`check`, for a cut of long ago. SourceDataError also for a topic that is compacted: records may be gone
    from the middle of the cut, and nothing tells which.
    """
    check(topic, cut)
    policy = (topic.config() or {}).get("cleanup.policy", "")
    if "compact" in policy and _reading(cut):
        raise SourceDataError(  # safety: compacted-is-not-read-again
            f"{topic.what}: expected topic {topic.topic} to keep each record, found cleanup.policy={policy}: of an "
            "epoch that was cut long ago it may have fewer by now, and does not say so. Replace the epoch by a "
            "revision (--sql, --file)"
        )


def _reading(cut: Cut) -> dict[int, int]:
    """Map each partition of which the cut's epoch reads something to its first offset."""
    begin, end = _by_number(cut.end["begin"]), _by_number(cut.end["offsets"])
    reading = {partition: offset for partition, offset in begin.items() if offset < end[partition]}
    for entry in held_before(cut):
        reading[entry["partition"]] = min(entry["from"], reading.get(entry["partition"], entry["from"]))
    return reading


def check_goes_on(topic: Log, cut: Cut) -> dict[int, int]:
    """Return where the next cut begins in each partition that this one knows. Raises SourceDataError for a topic in
    which that is another place by now, or none.
    """
    end = {each: offset for each, offset in _by_number(cut.end["offsets"]).items() if each in topic.partitions}
    if lost := _made_anew(topic, cut.end) or _truncated(topic, cut.end, end):
        raise SourceDataError(  # safety: lag-of-the-same-topic
            f"{topic.what}: expected topic {topic.topic} to go on from where the newest barrier ended, found that "
            f"{_said(lost)}; the next barrier says what can be done"
        )
    return end


def whole(cuts: Sequence[Cut]) -> Cut:
    """Join cuts: from where the first begins, each partition where it was met first, to where the last ends."""
    begin = {partition: offset for cut in reversed(cuts) for partition, offset in cut.end["begin"].items()}
    return Cut(cuts[-1].source, cuts[0].start, {**cuts[-1].end, "begin": begin})


def held_before(cut: Cut) -> list[dict[str, Any]]:
    """Return what earlier epochs left for this one: ``partition``, offsets ``from`` and ``to`` (exclusive), and
    ``until``: the latest timestamp (UTC) of a record that they left.
    """
    return list((cut.start or {}).get("held", ()))


# --- where an epoch begins ------------------------------------------------------------------------


def _beginning(topic: Log, start: Mapping[str, Any] | None, strict: bool) -> dict[int, int]:
    """Return where each partition's part begins: at its predecessor's end; a partition that is new, at its first
    record.
    """
    first = {partition: place.offset for partition, place in topic.beginnings(topic.partitions).items()}
    if start is None:
        return first
    begin = dict.fromkeys(topic.partitions, 0) | _by_number(start["offsets"])
    lost = _lost(topic, start, begin, begin)
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
    ends = topic.stable_ends(topic.partitions)  # of a partition that was truncated before where it is to begin
    return {each: min(max(begin[each], first[each]), ends[each].offset) for each in topic.partitions}


def _lost(topic: Log, known: Mapping[str, Any], begin: Mapping[int, int], end: Mapping[int, int]) -> list[str]:
    """Return what is gone of the offsets from ``begin`` to ``end``, in words. ``known``: the end of the cut that has
    them.
    """
    if anew := _made_anew(topic, known):
        return anew
    first = topic.beginnings([partition for partition in sorted(begin) if partition in topic.partitions])
    lost = [
        f"partition {partition} begins at offset {place.offset}, and those from {begin[partition]} on are gone by "
        "retention"
        for partition, place in sorted(first.items())
        if place.offset > begin[partition]
    ]
    return lost + _truncated(topic, known, {partition: end[partition] for partition in first})


def _made_anew(topic: Log, known: Mapping[str, Any]) -> list[str]:
    if known["topic_id"] == topic.topic_id:
        return []
    return [f"it was deleted and made anew (its id was {known['topic_id']}, and is {topic.topic_id})"]


def _truncated(topic: Log, known: Mapping[str, Any], end: Mapping[int, int]) -> list[str]:
    """Return which partitions end earlier, or have grown again: a later leader than the one of the cut has written
    what stands before ``end``.
    """
    epochs = _by_number(known.get("epochs", {}))
    lost = []
    for partition, place in sorted(topic.stable_ends([*end]).items()):
        epoch = epochs.get(partition, place.epoch)
        if place.offset < end[partition]:
            lost.append(
                f"partition {partition} ends at offset {place.offset}, and those up to {end[partition]} are gone: it "
                "was truncated"
            )
        elif place.epoch > epoch >= 0 and topic.epoch_before(partition, end[partition]) > epoch:
            lost.append(
                f"partition {partition} has other records before offset {end[partition]}, of a later leader: it was "
                "truncated, and has grown again"
            )
    return lost


def _used_up(topic: Log, already: datetime | int | Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job's tables have already, as the end of a cut: records up to a moment, or before offsets."""
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
class _End:
    """The end of a partition's part of an epoch; ``is_reached``: it is at or before a record that is later."""

    offset: int
    is_reached: bool


def _ends(topic: Log, later: _Later, begin: Mapping[int, int], stable: Mapping[int, int]) -> dict[int, _End]:
    return {
        partition: later.end(topic, partition, begin[partition], stable[partition], first)
        for partition, first in topic.first_after([*begin], later.until).items()
    }


@dataclass(frozen=True)
class _Later:
    """The test for records that are later: after ``until``, but not after ``future``, where clocks are wrong."""

    until: datetime
    future: datetime

    def end(self, topic: Log, partition: int, begin: int, end: int, first: Offset | None) -> _End:
        """The first offset from ``begin`` to ``end`` of a later record. ``first``: the partition's first record after
        ``until``, which brokers know.
        """
        if first is None or first.offset >= end:
            return _End(end, is_reached=False)
        if first.offset >= begin and self._is_later(first.timestamp):
            return _End(first.offset, is_reached=True)
        log.info(
            "%s: offset %d of partition %d is later than %s, which is the future: it ends no epoch, and the records "
            "behind it are looked through for one that does",
            topic.what,
            first.offset,
            partition,
            self.future.isoformat(),
        )
        for number, record in enumerate(topic.records(partition, begin, end), 1):
            if self._is_later(record.timestamp):
                return _End(record.offset, is_reached=True)
            if number == _MOST_LOOKED_AT:  # they are all due, and what comes behind them is in the next epoch
                log.warning(
                    "%s: partition %d: expected all that is due in this epoch, found that it ends after %s records, "
                    "at offset %d, since that of a time to come has each one looked at; what comes behind them is in "
                    "the next epoch, and the source falls behind where more come in a barrier's time. Correct the "
                    "producer's clock; it stays so until that record's time has come, or retention has taken it",
                    topic.what,
                    partition,
                    f"{number:,}",
                    record.offset,
                )
                return _End(record.offset + 1, is_reached=True)
        return _End(end, is_reached=self._is_later(first.timestamp))

    def _is_later(self, timestamp: int) -> bool:
        return millis(self.until) < timestamp <= millis(self.future)


# --- by event time --------------------------------------------------------------------------------


def _not_idle(
    topic: Log,
    partitions: Sequence[int],
    begin: Mapping[int, int],
    stable: Mapping[int, int],
    now: datetime,
    future: datetime,
    timeout: timedelta | None,
) -> list[int]:
    """Return those of the partitions that are waited for: with a record that is newer than the timeout."""
    if timeout is None or not partitions:
        return [*partitions]
    found = _ends(topic, _Later(now - timeout, future), {each: begin[each] for each in partitions}, stable)
    return [partition for partition, end in found.items() if end.is_reached]


def _not_ready(topic: Log, partitions: Sequence[int], until: datetime, lateness: timedelta) -> NotReady:
    named = ", ".join(map(str, partitions[:10])) + (f" and {len(partitions) - 10} more" if partitions[10:] else "")
    return NotReady(
        topic.source,
        None,
        f"partition {named} of topic {topic.topic} has no record that is later than {(until + lateness).isoformat()} "
        "yet; partitions without records are waited for unless the source has an idle_timeout",
    )


def _held(
    topic: Log,
    start: Mapping[str, Any] | None,
    until: datetime,
    left: datetime,
    begin: Mapping[int, int],
    offsets: Mapping[int, int],
) -> list[dict[str, Any]]:
    """List the offsets, up to where this epoch ends, whose records are left for later epochs: those after the barrier's
    time and up to ``left``.

    Brokers know where the first of them is. All have become due with a barrier of ``left``: an epoch ends before the
    first record after that, but for those of a time to come, which flow with it.
    """
    held = [entry for entry in (start or {}).get("held", ()) if datetime.fromisoformat(entry["until"]) > until]
    for partition, first in topic.first_after(topic.partitions, until).items():
        if first is not None and (begins := max(begin[partition], first.offset)) < offsets[partition] and left > until:
            held.append({"partition": partition, "from": begins, "to": offsets[partition], "until": text_of(left)})
    return held


def _still_there(topic: Log, start: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what was left for later epochs, without what is gone since."""
    if start["topic_id"] != topic.topic_id:
        return []
    first, ends = topic.beginnings(topic.partitions), topic.stable_ends(topic.partitions)
    clipped = [
        {**entry, "from": max(entry["from"], first[each].offset), "to": min(entry["to"], ends[each].offset)}
        for entry in start.get("held", ())
        for each in [entry["partition"]]
    ]
    return [entry for entry in clipped if entry["from"] < entry["to"]]


def _by_name(places: Mapping[int, int]) -> dict[str, int]:
    """Return the mapping with its partitions as texts, as JSON has it."""
    return {str(partition): place for partition, place in sorted(places.items())}


def _by_number(places: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): place for partition, place in places.items()}


def _said(lost: Sequence[str]) -> str:
    more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
    return "; ".join(lost[:3]) + more
