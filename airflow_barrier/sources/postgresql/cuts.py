"""Where an epoch begins and ends in a database's log, and the files that have what is in between."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.ddl import ddl_of
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, SourceUnavailableError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.port import CutRequest, Lag, PartLag, SourceCatalog
from airflow_barrier.sources.postgresql.checks import check
from airflow_barrier.sources.postgresql.database import Database, Server, Slot, lsn, position
from airflow_barrier.sources.postgresql.extraction import Extraction
from airflow_barrier.sources.postgresql.segments import NOTHING, ChangeFile, Segment, Segments

log = logging.getLogger(__name__)

#: What a cut's start repeats of the predecessor's end.
_OF_THE_START = ("lsn", "last", "folder")


@dataclass(frozen=True)
class Reading:
    """A source, entered. ``consumes``: what it has taken out, the database need not keep."""

    what: str
    credentials: Credentials
    catalog: SourceCatalog
    folder: str
    slot: str
    publication: str
    tables: tuple[str, ...]
    as_text: frozenset[str]
    max_ahead_bytes: int
    consumes: bool

    def segments_after(self, before: Segment) -> Segments:
        """The segments of a source that begins, or begins anew, after ``before``. Positions are of one beginning only:
        those of a database that was restored may be lower ones.
        """
        return Segments(self.catalog, f"{self.folder}/{before.last}")


def cut(reading: Reading, request: CutRequest) -> Cut:
    """Take out what was committed since the predecessor's cut, and cut behind it.

    What was taken out before, for a barrier that did not open or was aborted, is found beside the warehouse.
    """
    start = request.start
    with Database(reading.what, reading.credentials) as database:
        database.lock(reading.slot)
        server = database.server()
        goes_on = start if request.anew is None else None
        if goes_on is None:
            before, taken = _first(reading, database, server, request)
        else:
            before, taken = _following(reading, database, server, goes_on)
    end = taken[-1] if taken else before
    return Cut(
        reading.what.removeprefix("source "),
        None if start is None else {name: start[name] for name in _OF_THE_START},
        {
            "words": f"position {lsn(end.end)}, with {end.last - before.last:,} changes",
            "lsn": lsn(end.end),
            "last": end.last,
            "commit": end.commit,
            "history": server.history,
            "slot": reading.slot if goes_on is None else goes_on["slot"],
            "publication": reading.publication if goes_on is None else goes_on["publication"],
            "folder": reading.segments_after(before).folder if goes_on is None else goes_on["folder"],
            "former": [] if start is None else [*start["former"], *([start["folder"]] if request.anew else [])],
            "columns": dict(end.columns),
            "files": [encode(file) for file in _files(before, taken)],
        },
    )


def _files(before: Segment, taken: Iterable[Segment]) -> list[ChangeFile]:
    files, last = [], before.last
    for segment in taken:  # of one that begins earlier the rest
        files += [file if segment.first == last else replace(file, after=last) for file in segment.files]
        last = segment.last
    return files


def keep_up(reading: Reading, newest: Cut) -> None:
    """Take out what was committed since ``newest``, up to the limit."""
    at = newest.end
    with Database(reading.what, reading.credentials) as database:
        database.lock(at["slot"])
        server = database.server()
        ahead = _chain(database, server, Segments(reading.catalog, at["folder"]), position(at["lsn"]))
        size = sum(file.bytes for segment in ahead for file in segment.files)
        if size > reading.max_ahead_bytes:
            raise SourceDataError(  # safety: ahead-up-to-a-limit
                f"{reading.what}: expected at most {reading.max_ahead_bytes:,} bytes of changes (max_ahead_bytes) to "
                f"wait for a barrier, found {size:,}: no more are taken out, and from now on the database keeps its "
                f"log for slot {at['slot']} until its disk is full or the slot is lost. Have the oldest barrier "
                "committed, or abort it"
            )
        _, taken = _following(reading, database, server, at)
    log.info(
        "%s: taken out up to %s, while no barrier may open", reading.what, lsn(taken[-1].end) if taken else at["lsn"]
    )


def let_go(oldest: Cut, catalog: SourceCatalog) -> None:
    for folder in oldest.end["former"]:
        catalog.clear(folder)
    if oldest.start is not None and oldest.start["folder"] == oldest.end["folder"]:
        Segments(catalog, oldest.end["folder"]).drop_before(position(oldest.start["lsn"]))


def leave(reading: Reading, *, own_slot: bool, own_publication: bool) -> None:
    with Database(reading.what, reading.credentials) as database:
        if own_slot:
            database.drop_slot(reading.slot)
        if own_publication:
            database.drop_publication(reading.publication)


def lag(what: str, credentials: Credentials, cut: Cut) -> Lag:
    """The distance of the cut from the log's end, and what the slot holds for it."""
    with Database(what, credentials) as database:
        server, slot = database.server(), database.slot(cut.end["slot"])
    behind = max(0, server.written - position(cut.end["lsn"]))
    if slot is None:
        note = f"slot {cut.end['slot']} is gone, and with it what was committed since"
    else:
        most = "any number of bytes" if slot.left is None else f"{max(0, slot.left):,} more until it is lost"
        note = f"slot {slot.name} ({slot.status}) holds {slot.held:,} bytes of the log, and may hold {most}"
    gone = behind if slot is None or slot.status == "lost" else 0
    part = PartLag(cut.end["slot"], position(cut.end["lsn"]), server.written, behind, gone, None, None)
    # who lets half of the limit fill between two barriers has no room for one that is late
    fills = slot is not None and (slot.status == "unreserved" or (slot.left is not None and slot.left < slot.held))
    return Lag("bytes", "slot", behind, None, (part,), note, fills)


# --- the first epoch, also of a source that begins anew -------------------------------------------


def _first(reading: Reading, database: Database, server: Server, request: CutRequest) -> tuple[Segment, list[Segment]]:
    before = Segment(NOTHING, NOTHING, 0, (request.start or {}).get("last", 0), server.history, None, {}, ())
    extraction = _extraction(reading, database, reading.slot, reading.publication, reading.segments_after(before))
    check(database, reading.tables, reading.slot, reading.publication)
    if not reading.consumes:  # nobody goes on from a rehearsal
        if request.already is None:
            return before, [extraction.first(before, with_changes=False)]
        return _position_of(reading, database, extraction, replace(before, end=server.written), request), []
    slot = _made(reading, database, is_copied=request.already is None)
    if request.already is not None:
        before = _position_of(reading, database, extraction, replace(before, end=slot.confirmed), request)
        return before, list(extraction.following(before, server.written, advance=True))
    taken = _chain(database, server, extraction.segments, NOTHING)
    if taken and taken[-1].end >= slot.confirmed and set(taken[-1].columns) >= set(reading.tables):
        log.info("%s: its tables were copied before, up to %s", reading.what, lsn(taken[-1].end))
    else:
        taken = [extraction.first(before, is_anew=request.anew is not None)]
        database.advance(reading.slot, taken[-1].end)
    return before, [*taken, *extraction.following(taken[-1], database.server().written, advance=True)]


def _made(reading: Reading, database: Database, *, is_copied: bool) -> Slot:
    """The slot, which is made if it is not there, after the publication: it waits for the transactions that began
    before it, so that none of its own began without. Where the tables are copied, one that is not whole is made anew.
    """
    names = {"name": reading.publication}
    if not database.rows("SELECT 1 FROM pg_publication WHERE pubname = %(name)s", names):
        database.make_publication(reading.publication, reading.tables)
    slot = database.slot(reading.slot)
    if slot is not None and (
        slot.status == "lost" or (is_copied and not _is_whole(database, slot, reading.publication, slot.confirmed))
    ):
        database.drop_slot(reading.slot)
        slot = None
    if slot is None:
        database.make_slot(reading.slot)
    slot = database.slot(reading.slot)
    if slot is None:
        raise SourceUnavailableError(f"{database}: expected slot {reading.slot}, found that it is gone; try again")
    return slot


def _position_of(
    reading: Reading, database: Database, extraction: Extraction, now: Segment, request: CutRequest
) -> Segment:
    """Return where changes begin that are not in the jobs' tables yet: ``now``, or at a position of the log."""
    relations = [database.relation(table)[0] for table in reading.tables]
    columns = {each.table: ddl_of(extraction.columns_of(each)) for each in relations}
    already = request.already
    if isinstance(already, datetime) and already == request.until:
        return replace(now, columns=columns)
    named = already.get("lsn") if isinstance(already, Mapping) and set(already) == {"lsn"} else None
    try:
        at = position(str(named))
    except ValueError:
        raise ConfigurationError(
            f"{reading.what}: expected start_from to be 'earliest', 'latest' (from now on) or {{'lsn': '0/1925C10'}}, "
            f"found {already!r}; a database does not know what was committed before a moment"
        ) from None
    slot = database.slot(reading.slot)
    if slot is None or slot.confirmed > at:
        raise SourceDataError(  # safety: begins-where-the-slot-can
            f"{reading.what}: expected slot {reading.slot} to have what was committed since {named}, found "
            f"{f'that it begins at {lsn(slot.confirmed)}' if slot else 'none'}; make the slot before the tables are "
            "loaded by other means, name it by slot='...', and begin where it does"
        )
    return replace(now, end=at, columns=columns)


# --- every other one ------------------------------------------------------------------------------


def _following(
    reading: Reading, database: Database, server: Server, start: Mapping[str, Any]
) -> tuple[Segment, list[Segment]]:
    at = position(start["lsn"])
    slot = _checked(reading, database, server, start)
    before = Segment(NOTHING, at, 0, start["last"], server.history, start["commit"], start["columns"], ())
    taken: list[Segment] = []
    if slot.confirmed > at:
        taken = _chain(database, server, Segments(reading.catalog, start["folder"]), at)
        if (taken or [before])[-1].end < slot.confirmed:
            raise _lost(  # safety: no-changes-are-skipped
                reading,
                f"slot {slot.name} was advanced to {lsn(slot.confirmed)} by somebody else, and what was committed "
                f"since {lsn((taken or [before])[-1].end)} is gone",
            )
    # those of a rehearsal go with it
    own = Segments(reading.catalog, start["folder"] if reading.consumes else reading.folder)
    extraction = _extraction(reading, database, slot.name, start["publication"], own)
    return before, [
        *taken,
        *extraction.following((taken or [before])[-1], server.written, advance=reading.consumes),
    ]


def _checked(reading: Reading, database: Database, server: Server, start: Mapping[str, Any]) -> Slot:
    """Return the slot of a source that goes on from ``start``. Raises SourceDataError where it cannot."""
    if lacking := sorted(set(reading.tables) - set(start["columns"])):
        raise SourceDataError(  # safety: tables-that-were-copied
            f"{reading.what}: expected the tables that it began with, found {', '.join(lacking)} besides, of which the "
            "rows from before were not copied; declare them as a source of another name, or have this one begin anew: "
            f"airflow-barrier source resnapshot TOPOLOGY {reading.what.removeprefix('source ')} --reason '...'"
        )
    at = position(start["lsn"])
    shared = database.shared(server, start["history"])
    if shared is None or shared < at:
        raise _lost(reading, _of_another_log(server, start, shared))  # safety: same-history
    slot = database.slot(start["slot"])
    if slot is None or slot.status == "lost":
        raise _lost(reading, f"slot {start['slot']} is {'lost' if slot else 'gone'}")  # safety: slot-is-there
    if server.history != start["history"]:
        since = max(at, slot.confirmed)
        if not _is_whole(database, slot, start["publication"], since):
            raise _lost(  # safety: copied-slot-has-all
                reading,
                f"that another server has taken over, and that its slot {slot.name} may leave out transactions that "
                f"were open when it was copied: it is not known to have all from {lsn(since)} on (the server says so, "
                "in English only, see lc_messages, where it has)",
            )
        log.warning(
            "%s: another server has taken over. Its timeline %d left timeline %s at %s, after %s, where the newest "
            "barrier was cut, and its slot has all that came since: nothing is lost",
            reading.what,
            server.timeline,
            _timeline(start),
            lsn(shared),
            start["lsn"],
        )
    return slot


def _of_another_log(server: Server, start: Mapping[str, Any], shared: int | None) -> str:
    if shared is None or server.history == start["history"]:
        return (
            f"another database system, or one that was restored: its log is at {lsn(server.written)} of history "
            f"{server.history} (system and timeline), and the newest barrier was cut at {start['lsn']} of "
            f"{start['history']}"
        )
    return (
        "that another server has taken over which never had some of what was taken out, or that the database was "
        f"restored to before it: its timeline {server.timeline} left timeline {_timeline(start)} at {lsn(shared)}, and "
        f"the newest barrier was cut at {start['lsn']}"
    )


def _is_whole(database: Database, slot: Slot, publication: str, since: int) -> bool:
    """Return whether the slot is known to have all that was committed since a position, also if it is a copy."""
    consistent = database.consistent_from(slot.name, publication, since)
    return consistent is not None and consistent <= since


def _timeline(start: Mapping[str, Any]) -> str:
    return str(start["history"]).rpartition(".")[2]


def _chain(database: Database, server: Server, segments: Segments, start: int) -> list[Segment]:
    """The segments from ``start`` on that are of the server's own log, or of one that it comes from."""

    def is_of(segment: Segment) -> bool:
        shared = database.shared(server, segment.history)
        return shared is not None and segment.end <= shared

    return list(segments.chain(start, is_of))


def _lost(reading: Reading, found: str) -> SourceDataError:
    return SourceDataError(
        f"{reading.what}: expected to go on from where the barrier before ended, found {found}. No barrier skips what "
        "is gone: have the source begin anew, airflow-barrier source resnapshot TOPOLOGY "
        f"{reading.what.removeprefix('source ')} --reason '...'. It copies its tables, and the next barrier has how "
        "they differ"
    )


def _extraction(reading: Reading, database: Database, slot: str, publication: str, segments: Segments) -> Extraction:
    return Extraction(
        reading.what,
        database,
        segments,
        reading.as_text,
        reading.tables,
        slot,
        publication,
    )
