"""How far a topology is behind a topic, and how long retention leaves what it has not read yet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.kafka.cuts import check_goes_on
from airflow_barrier.sources.kafka.log import Log, millis
from airflow_barrier.sources.port import Lag, PartLag

#: Seconds: a person waits for the answer.
PATIENCE = 3.0
#: Milliseconds: some say "for ever" by the largest number that there is.
_FOR_EVER = 1000 * 365 * 24 * 3600 * 1000
_LATEST = millis(datetime(9999, 1, 1, tzinfo=timezone.utc))


def lag(topic: Log, cut: Cut | None, now: datetime) -> Lag:
    """Count from where ``cut`` ended (None: from the first record that is there) up to the last stable offset of
    now.
    """
    first, ends = topic.beginnings(topic.partitions), topic.stable_ends(topic.partitions)
    cut_ends = {} if cut is None else check_goes_on(topic, cut)
    # of a partition that is new since a cut all is unread
    begins = {each: first[each].offset if cut is None else cut_ends.get(each, 0) for each in topic.partitions}
    config = topic.config()
    retention = None if config is None else _retention(config)
    there = {each: max(begin, first[each].offset) for each, begin in begins.items()}
    oldest: dict[int, datetime] = {}
    unread = {each: begin for each, begin in there.items() if begin < ends[each].offset}
    if retention is not None:
        oldest = _oldest(topic, unread, cut)
    parts = tuple(
        PartLag(
            f"partition {each}",
            cut_ends.get(each),
            ends[each].offset,
            behind=ends[each].offset - begins[each],
            gone=there[each] - begins[each],
            oldest=oldest.get(each),
            retention_left=oldest[each] - now + retention if retention is not None and each in oldest else None,
        )
        for each in topic.partitions
    )
    return Lag("offsets", "partition", sum(part.behind for part in parts), retention, parts, _note(config))


def _note(config: Mapping[str, str] | None) -> str | None:
    if config is None:
        return "how long it keeps records is not known: its user lacks the right DescribeConfigs on the topic"
    if "compact" in config["cleanup.policy"]:
        return "its topic is compacted, so no revision reads its epochs again"
    return None


def _retention(config: Mapping[str, str]) -> timedelta | None:
    """None: no record goes because of its age."""
    kept = int(config["retention.ms"])
    if kept < 0 or kept > _FOR_EVER or "delete" not in config["cleanup.policy"]:
        return None
    return timedelta(milliseconds=kept)


def _oldest(topic: Log, unread: Mapping[int, int], cut: Cut | None) -> dict[int, datetime]:
    """Return when the first record of each partition that was not read yet is from: of those from an offset on, and of
    those that an epoch left for later ones.
    """
    found = {each: [at] for each, at in topic.first_timestamps(unread).items()} if unread else {}
    held: dict[int, int] = {}
    for entry in () if cut is None else cut.end.get("held", ()):
        if entry["partition"] in topic.partitions:
            held[entry["partition"]] = max(entry["to"], held.get(entry["partition"], 0))
    if cut is not None and held:
        for each, place in topic.first_after([*held], datetime.fromisoformat(cut.end["time"])).items():
            if place is not None and place.offset < held[each]:
                found.setdefault(each, []).append(place.timestamp)
    earliest = {each: min(times) for each, times in found.items()}
    return {each: _moment(time) for each, time in earliest.items() if time >= 0}  # -1: it has none


def _moment(time: int) -> datetime:
    """A wrong clock may say any number."""
    return datetime.fromtimestamp(min(time, _LATEST) / 1000, timezone.utc)
