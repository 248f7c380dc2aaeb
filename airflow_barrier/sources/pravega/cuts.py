"""Where an epoch of a stream begins and ends, and its events, taken out of the stream into files.

    <warehouse>/_barrier/<topology>/sources/<source>/<first>-<any>.parquet         events of an epoch
    <warehouse>/_barrier/<topology>/sources/<source>/<first>-<last>-<group>.json   what lies in the files of an epoch

``first`` and ``last`` are the numbers of the last event before the epoch and of its own, in hexadecimal digits, and
``group`` is the group of readers whose beginning is the epoch's end. A description is written last, so what has one is
whole. It goes, and its group with it, when the second epoch after it is cut.

Positions are segment -> offset, as a stream cut has them, with segments as texts in JSON.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

from airflow_barrier.protocol.ddl import parse_ddl
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, SourceUnavailableError
from airflow_barrier.protocol.names import is_rehearsal
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.port import CutRequest, Lag, PartLag, SourceCatalog
from airflow_barrier.systems.pravega import Client

log = logging.getLogger(__name__)

Positions = Mapping[int, int]
#: Of the files.
COLUMNS = parse_ddl("value BINARY, segment BIGINT, seq BIGINT")
#: What a cut's start repeats of the predecessor's end.
_OF_THE_START = ("group", "positions", "last")
_NAME = re.compile(r"([0-9A-F]{16})-([0-9A-F]{16})-(.+)\.json")
#: How often events are waited for without any, or any news of segments.
_PATIENCE = 15
#: Events between two lines of the log.
_LOGGED = 1_000_000


@dataclass(frozen=True)
class Reading:
    """A source, entered."""

    client: Client
    source: str
    scope: str
    stream: str
    catalog: SourceCatalog
    folder: str

    def __str__(self) -> str:
        return f"source {self.source}"


# --- positions ------------------------------------------------------------------------------------


def is_before(segment: int, offset: int, positions: Positions) -> bool:
    """Return whether an event stands before the positions. A segment that is not among theirs has ended before, or
    begins after: the upper half of its number is the epoch of the stream's scaling that it begins in.

    >>> is_before(0, 10, {0: 10, 1: 30}), is_before(1, 10, {0: 10, 1: 30})
    (False, True)
    >>> is_before(0, 10, {1: 30, (1 << 32) + 2: 0}), is_before((1 << 32) + 2, 0, {0: 10, 1: 30})
    (True, False)
    """
    if segment in positions:
        return offset < positions[segment]
    return segment >> 32 <= max(each >> 32 for each in positions)


def _is_made_anew(since: Positions, now: Positions) -> bool:
    """Return whether the stream is another one: after positions come their own segments, and such as begin later."""
    return any(each not in since and is_before(each, 0, since) for each in now)


def _of_text(positions: Mapping[str, int]) -> Positions:
    return {int(segment): offset for segment, offset in positions.items()}


def _as_text(positions: Positions) -> dict[str, int]:
    return {str(segment): positions[segment] for segment in sorted(positions)}


# --- cutting --------------------------------------------------------------------------------------


def check_there(client: Client, scope: str, stream: str) -> None:
    if not client.ask("has", scope, stream):
        raise SourceDataError(  # safety: stream-is-there
            f"{client.what}: expected stream {scope}/{stream} at {client.address}, found none; create it, or correct "
            "its name"
        )


def cut(reading: Reading, request: CutRequest) -> Cut:
    """Cut at the stream's end, and take out what is before it and after the predecessor's."""
    with reading.client as client:
        check_there(client, reading.scope, reading.stream)
        if is_rehearsal(request.topology):  # no epoch begins where it ends
            with _passing_group(client, reading.scope) as group:
                return _cut(reading, request, group)
        return _cut(reading, request, _group(reading, request))


def _cut(reading: Reading, request: CutRequest, group: str) -> Cut:
    end = reading.client.ask("tail", reading.scope, reading.stream, group)
    start = _start(reading, request, end)
    last = request.start["last"] if request.start is not None else 0
    taken = _there(reading, last, group) or _take(reading, request, start, group, end, last)
    if request.start is not None:
        _forget_before(reading, request.start["group"])
    return Cut(
        reading.source,
        None if request.start is None else {name: request.start[name] for name in _OF_THE_START},
        {
            "words": f"up to event {taken['last']:,}, with {taken['last'] - last:,} events",
            "group": group,
            "positions": _as_text(end),
            "last": taken["last"],
            "folder": reading.folder,
            "files": taken["files"],
        },
    )


def _group(reading: Reading, request: CutRequest) -> str:
    """The group that keeps the epoch's end: the same one for all who cut the barrier."""
    after = request.start and request.start["group"]
    of = [reading.folder, request.barrier_id, request.until.isoformat(), request.anew, after]
    return f"airflow-barrier-{sha256(json.dumps(of).encode()).hexdigest()[:24]}"


def _start(reading: Reading, request: CutRequest, end: Positions) -> Positions | None:
    """Return where the epoch begins, None: at the stream's first event."""
    if request.start is None:
        if request.already is None:
            return None
        if request.already == request.until:
            return end
        raise ConfigurationError(
            f"{reading}: expected start_from to be 'earliest' or 'latest' (from now on), found {request.already!r}; a "
            "stream does not know when its events were written"
        )
    start = _of_text(request.start["positions"])
    head = _head(reading)
    anew = f"airflow-barrier source resnapshot {request.topology} {reading.source} --reason '...'"
    if _is_made_anew(start, end):
        if request.anew is not None:
            return None
        raise SourceDataError(  # safety: the-same-stream
            f"{reading}: expected stream {reading.scope}/{reading.stream} to go on from the barrier before, found one "
            f"that was made anew since. To go on with its first event: {anew}"
        )
    behind = [each for each in head.items() if each not in start.items() and not is_before(each[0], each[1], start)]
    if behind and request.anew is None:
        raise SourceDataError(  # safety: events-are-not-passed-over
            f"{reading}: expected stream {reading.scope}/{reading.stream} to have all events since the barrier before, "
            f"found that it was truncated behind it, by its retention or by a person: what is gone is in no epoch. To "
            f"go on with what there is: {anew}"
        )
    return start


def _head(reading: Reading) -> Positions:
    with _passing_group(reading.client, reading.scope) as group:
        return reading.client.ask("head", reading.scope, reading.stream, group)  # type: ignore[no-any-return]


@contextmanager
def _passing_group(client: Client, scope: str) -> Iterator[str]:
    """The name of a group for the block. One whose process is killed stays."""
    name = f"airflow-barrier-reading-{uuid4().hex}"
    try:
        yield name
    finally:
        with suppress(SourceUnavailableError):
            client.ask("forget", scope, name)


# --- taking out -----------------------------------------------------------------------------------


def _there(reading: Reading, first: int, group: str) -> Mapping[str, Any] | None:
    """Return what a worker took out before, for the same barrier."""
    for described in _described(reading.catalog, reading.folder):
        if (described.first, described.group) == (first, group):
            found: Mapping[str, Any] = json.loads(reading.catalog.read_text(f"{reading.folder}/{described}"))
            return found
    return None


def _take(
    reading: Reading, request: CutRequest, start: Positions | None, group: str, end: Positions, first: int
) -> Mapping[str, Any]:
    uri = f"{reading.folder}/{first:016X}-{uuid4().hex}.parquet"
    begin = None if request.start is None or request.anew is not None else request.start["group"]
    last, files = first, []
    events = _events(reading, start, begin, end) if start != end else iter(())
    batch = next(events, None)
    if batch is not None:
        with reading.catalog.created(uri) as stream:
            last = _write(reading, stream, batch, events, first)
            files = [{"uri": uri, "rows": last - first, "bytes": stream.tell()}]
    taken = {"last": last, "files": files}
    with reading.catalog.created(f"{reading.folder}/{_Described(first, last, group)}") as stream:
        stream.write(json.dumps(taken, sort_keys=True).encode())
    return taken


def _write(
    reading: Reading,
    stream: Any,
    batch: tuple[int, Sequence[bytes]],
    others: Iterator[tuple[int, Sequence[bytes]]],
    last: int,
) -> int:
    """Write events, in batches of a file. Returns the last one's number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("value", pa.binary()), ("segment", pa.int64()), ("seq", pa.int64())])
    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        found: tuple[int, Sequence[bytes]] | None = batch
        while found is not None:
            segment, values = found
            numbers = pa.array(range(last + 1, last + 1 + len(values)), pa.int64())
            segments = pa.array([segment] * len(values), pa.int64())
            writer.write_batch(pa.record_batch([pa.array(values, pa.binary()), segments, numbers], schema))
            if (last + len(values)) // _LOGGED > last // _LOGGED:
                log.info("%s: event %s", reading, f"{last + len(values):,}")
            last += len(values)
            found = next(others, None)
    return last


def _events(
    reading: Reading, start: Positions | None, begin: str | None, end: Positions
) -> Iterator[tuple[int, Sequence[bytes]]]:
    """The events after ``start`` and before ``end``, in an order that each routing key's events keep, by segment.

    ``begin``: the group that keeps the start, None: it is looked for from the stream's first event on.
    """
    client = reading.client
    with _passing_group(client, reading.scope) as own:
        at = client.ask("begin", reading.scope, reading.stream, begin, own)
        if begin is not None and at != start:
            log.warning(
                "%s: Pravega has forgotten where the barrier before ended (group %s); reading from the stream's first "
                "event on",
                reading,
                begin,
            )
            client.ask("forget", reading.scope, begin)
        waited = 0
        while any(is_before(segment, offset, end) for segment, offset in at.items()):
            before = at
            segment, offsets, values, at = client.ask("slice")
            waited = waited + 1 if at == before else 0
            if waited > _PATIENCE:
                raise client.unavailable(
                    f"no events between {_as_text(at)} and {_as_text(end)}, where some are (the client reads none from "
                    "an event without a byte on)"
                )
            if not values:
                continue
            if segment is None:
                raise SourceDataError(  # safety: events-follow-each-other
                    f"{reading}: expected events of stream {reading.scope}/{reading.stream} that follow "
                    f"{_as_text(before)}, found others at offset {offsets[0]}: the stream was truncated while it was "
                    "read. Try again, and the error says what to do"
                )
            due = [
                value
                for offset, value in zip(offsets, values, strict=True)
                if is_before(segment, offset, end) and not (start is not None and is_before(segment, offset, start))
            ]
            if due:
                yield segment, due


# --- letting go -----------------------------------------------------------------------------------


class _Described(NamedTuple):
    """The name of a description."""

    first: int
    last: int
    group: str

    def __str__(self) -> str:
        return f"{self.first:016X}-{self.last:016X}-{self.group}.json"


def _described(catalog: SourceCatalog, folder: str) -> list[_Described]:
    found = filter(None, map(_NAME.fullmatch, catalog.names(folder)))
    return [_Described(int(name[1], 16), int(name[2], 16), name[3]) for name in found]


def _forget_before(reading: Reading, group: str) -> None:
    """Have Pravega forget the ends of epochs of which none will be begun at: two are spared, the one that ``group``
    keeps, and the one before, for the case that that one's barrier is aborted.
    """
    described = _described(reading.catalog, reading.folder)
    begin = next((each.first for each in described if each.group == group), 0)
    _forget(reading, [each for each in described if each.last < begin])


def _forget(reading: Reading, gone: Sequence[_Described]) -> None:
    for each in gone:
        reading.client.ask("forget", reading.scope, each.group)
    reading.catalog.delete([f"{reading.folder}/{each}" for each in gone])


def let_go(oldest: Cut, catalog: SourceCatalog) -> None:
    """Delete the files of epochs before the oldest one that is still read."""
    if oldest.start is None:
        return
    folder, first = oldest.end["folder"], oldest.start["last"]
    names = [name for name in catalog.names(folder) if name.endswith(".parquet")]
    catalog.delete([f"{folder}/{name}" for name in names if int(name.partition("-")[0], 16) < first])


def leave(reading: Reading) -> None:
    with reading.client:
        _forget(reading, _described(reading.catalog, reading.folder))


# --- lag ------------------------------------------------------------------------------------------


def lag(client: Client, scope: str, stream: str, cut: Cut | None) -> Lag | None:
    """Count from where ``cut`` ended up to the stream's end, in the segments that there are now."""
    if cut is None:
        return None
    check_there(client, scope, stream)
    with _passing_group(client, scope) as group:
        end = client.ask("tail", scope, stream, group)
    ends = _of_text(cut.end["positions"])
    parts = tuple(
        PartLag(
            f"segment {segment}",
            cut_end=ends.get(segment),
            stable_end=offset,
            behind=max(0, offset - ends.get(segment, 0)),
            gone=0,
            oldest=None,
            retention_left=None,
        )
        for segment, offset in sorted(end.items())
    )
    scaled = None if end.keys() == ends.keys() else "the stream was scaled since: segments that ended are not counted"
    return Lag("bytes", "segment", sum(part.behind for part in parts), None, parts, scaled)
