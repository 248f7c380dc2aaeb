"""Which landed files, and which stretch of the event times in them, belong to an epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.names import one_line
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources import bounded
from airflow_barrier.sources.files import formats
from airflow_barrier.sources.files.formats import Layout, Span
from airflow_barrier.sources.files.listing import Folder, LandedFile
from airflow_barrier.sources.port import CutRequest, NotReady, text_of
from airflow_barrier.sources.times import Times

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")
_Used = Callable[[Sequence[str]], set[str]]
_Position = Callable[[LandedFile], datetime | None]
# enough to hide a store's latency; the work itself is small
_THREADS = 16
# of unreadable files in one message
_MOST_NAMED = 5


@dataclass(frozen=True)
class Reading:
    """One part of what an epoch reads: of ``files`` the records after ``after`` and up to ``until`` in event time.

    Both None: all records. ``after`` None: also the late ones and those without an event time.
    """

    files: tuple[str, ...]
    after: datetime | None = None
    until: datetime | None = None


# --- by a position that each file has as a whole --------------------------------------------------


def cut_by_position(source: str, folder: Folder, request: CutRequest, position: _Position) -> Cut:
    """Every file up to ``until`` that no epoch has used. Those that belonged to an earlier epoch are late, and counted.

    A file without a position is taken too, so that the check can name it: what is left out is never heard of again.
    """
    taken: list[LandedFile] = []
    late = 0
    listed = _listed(source, folder)
    new = unused(listed, request.used)
    for file in new:
        at = position(file)
        if at is None or at <= request.until:
            taken.append(file)
            late += at is not None and request.after is not None and at <= request.after
    more = _seen(source, folder, request, listed, new)
    return _cut(source, request.after, request.until, taken, late=late, **more)


# --- by the event times of records ----------------------------------------------------------------


@dataclass(frozen=True)
class EventTime:
    """Settings by which event times gate and split epochs; see :class:`airflow_barrier.sources.files.Files`."""

    column: str
    layout: Layout
    times: Times


@dataclass(frozen=True)
class Seen:
    """A file, the event times in it, and how many of them are late; ``unread`` says why that is not known."""

    file: LandedFile
    span: Span
    late: int = 0
    unread: str | None = None


def cut_by_event_time(source: str, folder: Folder, request: CutRequest, by: EventTime) -> Cut | NotReady:
    """New files that hold records up to ``until``, and files of earlier cuts that still hold early ones.

    A file that only holds early records is left for a later cut, so that a cut stays small whatever has landed.
    """
    listed = _listed(source, folder)
    new = unused(listed, request.used)
    seen = look(folder, by, new)
    start = request.start or {}
    known = [start.get("newest"), *(entry["newest"] for entry in start.get("held", ()))]
    newest = by.times.newest([*_newest(source, folder, by, seen, request.now), *_moments(known)], request.now)
    watermark = by.times.watermark(newest)
    if (watermark is None or watermark < request.until) and not _idle(listed, request.now, by.times.idle_timeout):
        return _not_ready(source, folder, request, watermark, seen)
    due = [one for one in seen if one.span.oldest is None or one.span.oldest <= request.until]
    taken = _counted(folder, by, due, request.after)
    held = [entry for entry in start.get("held", ()) if datetime.fromisoformat(entry["newest"]) > request.until]
    cut = _cut(
        source,
        request.after,
        request.until,
        [one.file for one in taken],
        late=sum(one.late for one in taken),
        **_seen(source, folder, request, listed, new),
        newest=text_of(newest) if newest else None,
        held=held + _held(taken, request.until),
        unread={one.file.path: one.unread for one in taken if one.unread},
    )
    return Cut(cut.source, {**(cut.start or {}), "held": list(start.get("held", ()))}, cut.end, cut.items)


def event_time_readings(cut: Cut, after: datetime | None, until: datetime) -> list[Reading]:
    """Return what the epoch reads: its own files up to ``until``, and from held ones what has become due since
    ``after``.

    Where the cut itself says what it comes after, that counts: of a source that left and came back it is longer ago.
    """
    own = own_files(cut)
    readings = [Reading(own, None, until)] if own else []
    start = cut.start or {}
    held = tuple(entry["path"] for entry in start.get("held", ()))
    since = datetime.fromisoformat(start["time"]) if "time" in start else after
    return [*readings, Reading(held, since, until)] if held else readings


def cut_of(source: str, files: Sequence[LandedFile], position: _Position, until: datetime) -> Cut:
    """A cut of exactly these files, up to the last of them."""
    return _cut(source, None, max((at for file in files if (at := position(file)) is not None), default=until), files)


# --- what was cut, and what is there now ----------------------------------------------------------


def own_files(cut: Cut) -> tuple[str, ...]:
    """The files that the epoch reads first. The cut may use up more: what was in the tables before it."""
    return tuple(entry["path"] for entry in cut.end["files"])


def pinned(cut: Cut) -> list[LandedFile]:
    """Every file that the epoch reads, as it was when it was first cut."""
    entries = [*(cut.start or {}).get("held", ()), *cut.end["files"]]
    return [LandedFile.from_json(entry) for entry in entries]


def moved(folder: Folder, files: Sequence[LandedFile]) -> dict[str, LandedFile | None]:
    """The files that are not what they were when cut: as they are now, None if they are gone."""
    now = _map(lambda file: folder.stat(file.path), files)
    return {
        file.path: found
        for file, found in zip(files, now, strict=True)
        # a link that is still one needs no other reason
        if found != file and not (file.odd and found and found.odd)
    }


def cut_anew(cut: Cut, folder: Folder, by: EventTime | None) -> Cut:
    """The cut with its own files as they are now; those that are gone leave. Held files stay as they were pinned:
    earlier epochs have read them.
    """
    own = [LandedFile.from_json(entry) for entry in cut.end["files"]]
    there = [file for file in _map(lambda file: folder.stat(file.path), own) if file is not None]
    end = {**cut.end, "files": [file.to_json() for file in there]}
    if by is not None:
        until = datetime.fromisoformat(cut.end["time"])
        after = (cut.start or {}).get("time")
        seen = _counted(folder, by, look(folder, by, there), datetime.fromisoformat(after) if after else None)
        kept = [entry for entry in (cut.start or {}).get("held", ()) if datetime.fromisoformat(entry["newest"]) > until]
        end["held"] = kept + _held(seen, until)
        end["late"] = sum(one.late for one in seen)
        end["unread"] = {one.file.path: one.unread for one in seen if one.unread}
    before = set(cut.items) - {file.path for file in own}
    return Cut(cut.source, cut.start, end, (*sorted(before), *(file.path for file in there)))


def whole(cuts: Sequence[Cut]) -> Cut:
    """All files of these cuts, up to where the last one ends: what is held over between them is in the files."""
    last = cuts[-1]
    files = {entry["path"]: entry for cut in cuts for entry in cut.end["files"]}
    end = {**last.end, "files": list(files.values())}
    if any("unread" in cut.end for cut in cuts):
        end["unread"] = {path: why for cut in cuts for path, why in cut.end.get("unread", {}).items()}
    return Cut(last.source, cuts[0].start, end, tuple(files))


def mismatches(folder: Folder, files: Sequence[LandedFile], layout: Layout) -> dict[str, str]:
    """Return what is wrong with which file."""

    def look(file: LandedFile) -> str | None:
        if file.fault is not None:  # safety: no-odd-files
            return file.fault
        if file.size == 0:
            return "expected data, found a file of 0 bytes (still being written, or an upload that failed)"
        return _tried(lambda: formats.mismatch(folder.fs, folder.full(file.path), layout), layout, lambda why: why)

    return {file.path: wrong for file, wrong in zip(files, _map(look, files), strict=True) if wrong}


# --- parts ----------------------------------------------------------------------------------------


def unused(listed: Sequence[LandedFile], used: _Used) -> list[LandedFile]:
    """Return those of ``listed`` that are in no cut."""
    taken = used([file.path for file in listed])
    return [
        file
        for file in listed
        if file.path not in taken  # safety: used-files-are-left-out
    ]


def _seen(
    source: str, folder: Folder, request: CutRequest, listed: Sequence[LandedFile], new: Sequence[LandedFile]
) -> dict[str, Any]:
    """Return what a cut says of the files that earlier ones have used: ``seen``, when it looked at them, and
    ``overwritten``, in words, which are others by then.

    Those of the cut before are compared with it, and others with when it looked: what is told does not grow with
    history, and each file is told once.
    """
    start = request.start or {}
    cut_as = {entry["path"]: LandedFile.from_json(entry) for entry in start.get("files", ())}
    since = datetime.fromisoformat(start["seen"]) if "seen" in start else request.now
    unread = {file.path for file in new}
    overwritten = [
        file.path
        for file in listed
        if file.path not in unread
        and (file != cut_as[file.path] if file.path in cut_as else since < file.modified <= request.now)
    ]
    seen = {"seen": text_of(request.now)}
    if not overwritten:
        return seen
    told = (
        f"{len(overwritten):,} files are not as they were when an epoch was cut of them, the first of which is "
        f"{one_line(folder.url_of(overwritten[0]))}. No epoch reads them again: airflow-barrier revision plan "
        f"{request.topology} --recut {source} with the days that they belong to takes them as they are now, and --file "
        "replaces a day's rows"
    )
    log.warning("source %s: %s", source, told)
    return {**seen, "overwritten": told}


def _listed(source: str, folder: Folder) -> list[LandedFile]:
    """Return what lies in the folder. Nobody hears otherwise of what is left out, so the log says it."""
    listing = folder.listing()
    for path, why in islice(listing.left_out.items(), 1):
        log.info(
            "source %s: %d files under %s are left out of every epoch, the first of which is %s: %s",
            source,
            len(listing.left_out),
            folder.url,
            one_line(path),
            why,
        )
    return listing.files


def _cut(source: str, after: datetime | None, until: datetime, files: Sequence[LandedFile], **more: Any) -> Cut:
    return Cut(
        source,
        {"time": text_of(after)} if after else None,
        {"time": text_of(until), "files": [file.to_json() for file in files], **more},
        tuple(file.path for file in files),
    )


def look(folder: Folder, by: EventTime, files: Sequence[LandedFile]) -> list[Seen]:
    """The event times in files."""

    def look_into(file: LandedFile) -> Seen:
        if file.odd is not None:
            return Seen(file, Span(None, None), unread=file.fault)
        return _tried(
            lambda: Seen(file, formats.span(folder.fs, folder.full(file.path), by.layout, by.column)),
            by.layout,
            # taken all the same: the check names it, and until it is mended no job reads the epoch
            lambda why: Seen(file, Span(None, None), unread=why),
        )

    return _map(look_into, files)


def _newest(
    source: str, folder: Folder, by: EventTime, seen: Sequence[Seen], now: datetime
) -> Iterator[datetime | None]:
    """The newest event time of each file, and the one before what is of the future. Only files that hold such times
    are read again.
    """
    future = by.times.future(now)
    ahead = [one for one in seen if one.span.newest is not None and one.span.newest > future]
    for one in islice(ahead, 1):
        log.warning(
            "source %s: %d files hold event times after %s, the first of which is %s. That is the future: these "
            "records open no barrier, and are read once they are due",
            source,
            len(ahead),
            future.isoformat(),
            folder.url_of(one.file.path),
        )
    yield from (one.span.newest for one in seen)

    def read(one: Seen) -> datetime | None:
        path = folder.full(one.file.path)
        return _tried(
            lambda: formats.newest_up_to(folder.fs, path, by.layout, by.column, future),
            by.layout,
            lambda why: None,
        )

    yield from _map(read, ahead)


def _counted(folder: Folder, by: EventTime, seen: Sequence[Seen], after: datetime | None) -> list[Seen]:
    """``seen`` with how many records of each file are late: of times up to ``after``."""

    def count(one: Seen) -> Seen:
        if after is None or one.span.oldest is None or one.span.oldest > after:
            return one
        path = folder.full(one.file.path)
        return _tried(
            lambda: replace(one, late=formats.count_late(folder.fs, path, by.layout, by.column, after)),
            by.layout,
            lambda why: replace(one, unread=why),
        )

    return _map(count, seen)


def _tried(read: Callable[[], _R], layout: Layout, otherwise: Callable[[str], _R]) -> _R:
    """Return what ``read`` says of one file, or ``otherwise`` of what is wrong with it: whatever a file does to a
    library, it is that file's fault, and no other's.
    """
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:
        return otherwise(bounded.fault(error, layout.format))


def _held(seen: Sequence[Seen], until: datetime) -> list[dict[str, Any]]:
    return [
        {**one.file.to_json(), "newest": text_of(one.span.newest)}
        for one in seen
        if one.span.newest is not None and one.span.newest > until
    ]


def _idle(listed: Sequence[LandedFile], now: datetime, timeout: timedelta | None) -> bool:
    """Return whether nothing has landed for so long that the watermark is not waited for any more."""
    return timeout is not None and all(file.modified <= now - timeout for file in listed)


def _not_ready(
    source: str, folder: Folder, request: CutRequest, watermark: datetime | None, seen: Sequence[Seen]
) -> NotReady:
    unread = {folder.url_of(one.file.path): one.unread for one in seen if one.unread}
    reason = (
        f"its watermark is {watermark.isoformat() if watermark else 'unknown (no event time seen yet)'}, "
        f"the barrier's timestamp {request.until.isoformat()}"
    )
    if unread:
        named = ", ".join(f"{url} ({why})" for url, why in islice(unread.items(), _MOST_NAMED))
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        reason += f"; these files cannot be read and do not move it: {named}{more}"
    return NotReady(source, watermark, reason, {"unread": unread})


def _moments(texts: Sequence[str | None]) -> list[datetime]:
    return [datetime.fromisoformat(text) for text in texts if text]


def _map(work: Callable[[_T], _R], items: Iterable[_T]) -> list[_R]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))


# --- past epochs, for who computes them again -----------------------------------------------------


def recut_by_position(cuts: Sequence[Cut], folder: Folder, used: _Used, position: _Position) -> list[Cut]:
    """A file that nobody has used joins the epoch that its position is in."""
    landed = [(file, position(file)) for file in unused(folder.files(), used)]
    anew = [cut_anew(_with(cut, landed), folder, None) for cut in cuts]
    return [Cut(cut.source, cut.start, {**cut.end, "late": _count_late(cut, position)}, cut.items) for cut in anew]


def recut_by_event_time(cuts: Sequence[Cut], folder: Folder, used: _Used, by: EventTime) -> list[Cut]:
    """A file that nobody has used joins the epoch of the earliest record in it; what it holds for later ones is held
    over to them, unless they are past the last of ``cuts``.
    """
    landed = [(one.file, one.span.oldest) for one in look(folder, by, unused(folder.files(), used))]
    anew: list[Cut] = []
    for cut in cuts:
        before = cut if not anew else Cut(cut.source, _beginning(cut, anew[-1]), cut.end, cut.items)
        anew.append(cut_anew(_with(before, landed), folder, by))
    was, now = (_held_by_path(each[-1]) for each in (cuts, anew))
    changed = sorted(path for path in was.keys() | now.keys() if was.get(path) != now.get(path))
    if changed:
        raise RevisionRefusedError(  # safety: held-over-stays
            f"source {cuts[-1].source}: expected that what its last epoch leaves to later ones stays as it was, found "
            f"that {changed[0]}, which has records of later ones too, is another by now; take along the days of all "
            "its records (--to), deliver them in files of their own, or say what replaces the epochs (--file)"
        )
    return anew


def _with(cut: Cut, landed: Sequence[tuple[LandedFile, datetime | None]]) -> Cut:
    """The cut and the files that belong to its time, after its start and up to its end."""
    after, until = _after(cut), datetime.fromisoformat(cut.end["time"])
    joining = [file for file, at in landed if at is not None and at <= until and (after is None or at > after)]
    files = [*cut.end["files"], *(file.to_json() for file in joining)]
    files.sort(key=lambda entry: str(entry["path"]))
    return Cut(cut.source, cut.start, {**cut.end, "files": files}, (*cut.items, *(file.path for file in joining)))


def _after(cut: Cut) -> datetime | None:
    return datetime.fromisoformat(cut.start["time"]) if cut.start and "time" in cut.start else None


def _count_late(cut: Cut, position: _Position) -> int:
    after = _after(cut)
    positions = [position(LandedFile.from_json(entry)) for entry in cut.end["files"]]
    return sum(after is not None and at is not None and at <= after for at in positions)


def _beginning(cut: Cut, before: Cut) -> dict[str, object]:
    """Its start, with what the epoch before it holds over by now."""
    return {**(cut.start or {}), "held": before.end["held"]}


def _held_by_path(cut: Cut) -> dict[str, object]:
    return {entry["path"]: entry for entry in cut.end["held"]}
