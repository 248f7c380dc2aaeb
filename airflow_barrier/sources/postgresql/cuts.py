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
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.port import CutRequest, Lag, PartLag, SourceCatalog
from airflow_barrier.sources.postgresql.checks import check
from airflow_barrier.sources.postgresql.database import Database, Server, Slot, lsn, position
from airflow_barrier.sources.postgresql.extraction import Extraction
from airflow_barrier.sources.postgresql.segments import NOTHING, ChangeFile, Segment, Segments

log = logging.getLogger(__name__)

#: What a cut's start repeats of the predecessor's end.
_OF_THE_START = ("lsn", "last")


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
    consumes: bool


def cut(reading: Reading, request: CutRequest) -> Cut:
    """Take out what was committed since the predecessor's cut, and cut behind it.

    What was taken out before, for a barrier that did not open or was aborted, is found beside the warehouse.
    """
    start = request.start
    with Database(reading.what, reading.credentials) as database:
        server = database.server()
        if start is None:
            before, taken = _first(reading, database, server, request)
        else:
            before, taken = _following(reading, database, server, start)
    end = taken[-1] if taken else before
    return Cut(
        reading.what.removeprefix("source "),
        None if start is None else {name: start[name] for name in _OF_THE_START},
        {
            "lsn": lsn(end.end),
            "last": end.last,
            "system": server.system,
            "timeline": server.timeline,
            "slot": (start or {}).get("slot", reading.slot),
            "publication": (start or {}).get("publication", reading.publication),
            "folder": (start or {}).get("folder", reading.folder),
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


def let_go(oldest: Cut, catalog: SourceCatalog) -> None:
    if oldest.start is not None:
        Segments(catalog, oldest.end["folder"]).drop_before(position(oldest.start["lsn"]))


def leave(what: str, credentials: Credentials, last: Cut, *, own_slot: bool, own_publication: bool) -> None:
    with Database(what, credentials) as database:
        if own_slot:
            database.drop_slot(last.end["slot"])
        if own_publication:
            database.drop_publication(last.end["publication"])


def lag(what: str, credentials: Credentials, cut: Cut) -> Lag:
    """The distance of the cut from the log's end, and what the slot holds for it."""
    with Database(what, credentials) as database:
        server, slot = database.server(), database.slot(cut.end["slot"])
    behind = max(0, server.written - position(cut.end["lsn"]))
    if slot is None:
        note = f"slot {cut.end['slot']} is gone, and with it what was committed since"
    else:
        most = "any number of bytes" if slot.left is None else f"{slot.left:,} more until it is lost"
        note = f"slot {slot.name} ({slot.status}) holds {slot.held:,} bytes of the log, and may hold {most}"
    gone = behind if slot is None or slot.status == "lost" else 0
    part = PartLag(cut.end["slot"], position(cut.end["lsn"]), server.written, behind, gone, None, None)
    return Lag("bytes", "slot", behind, None, (part,), note)


# --- the first epoch ------------------------------------------------------------------------------


def _first(reading: Reading, database: Database, server: Server, request: CutRequest) -> tuple[Segment, list[Segment]]:
    extraction = _extraction(reading, database, reading.slot, reading.publication)
    nothing = Segment(NOTHING, NOTHING, 0, 0, server.system, {}, ())
    check(database, reading.tables, None, None)
    if not reading.consumes:  # nobody goes on from a rehearsal's first epoch
        if request.already is None:
            return nothing, [extraction.first(server.system, with_changes=False)]
        return _position_of(reading, database, extraction, replace(nothing, end=server.written), request), []
    slot = _made(reading, database)
    if request.already is not None:
        begin = _position_of(reading, database, extraction, replace(nothing, end=slot.confirmed), request)
        return begin, list(extraction.following(begin, server.written, advance=True))
    taken = list(extraction.segments.chain(NOTHING, server.system))
    if taken and taken[-1].end >= slot.confirmed and set(taken[-1].columns) >= set(reading.tables):
        log.info("%s: its tables were copied before, up to %s", reading.what, lsn(taken[-1].end))
    else:
        taken = [extraction.first(server.system)]
        database.advance(reading.slot, taken[-1].end)
    return nothing, [*taken, *extraction.following(taken[-1], server.written, advance=True)]


def _made(reading: Reading, database: Database) -> Slot:
    """The slot, which is made if it is not there, after the publication: it waits for the transactions that began
    before it, so that none of its own began without.
    """
    names = {"name": reading.publication}
    if not database.rows("SELECT 1 FROM pg_publication WHERE pubname = %(name)s", names):
        database.make_publication(reading.publication, reading.tables)
    check(database, reading.tables, reading.slot, reading.publication)
    if database.slot(reading.slot) is None:
        database.make_slot(reading.slot)
    slot = database.slot(reading.slot)
    if slot is None or slot.status == "lost":
        raise _lost(reading, f"slot {reading.slot} is {'lost' if slot else 'gone'}")  # safety: first-slot-is-there
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
    before = Segment(NOTHING, at, 0, start["last"], server.system, start["columns"], ())
    taken: list[Segment] = []
    if slot.confirmed > at:
        taken = list(Segments(reading.catalog, start["folder"]).chain(at, server.system))
        if (taken or [before])[-1].end < slot.confirmed:
            raise _lost(  # safety: no-changes-are-skipped
                reading,
                f"slot {slot.name} was advanced to {lsn(slot.confirmed)} by somebody else, and what was committed "
                f"since {lsn((taken or [before])[-1].end)} is gone",
            )
    extraction = _extraction(reading, database, slot.name, start["publication"])
    return before, [
        *taken,
        *extraction.following((taken or [before])[-1], server.written, advance=reading.consumes),
    ]


def _checked(reading: Reading, database: Database, server: Server, start: Mapping[str, Any]) -> Slot:
    """Return the slot of a source that goes on from ``start``. Raises SourceDataError where it cannot."""
    if lacking := sorted(set(reading.tables) - set(start["columns"])):
        raise SourceDataError(
            f"{reading.what}: expected the tables that it began with, found {', '.join(lacking)} besides, of which the "
            "rows from before were not copied; declare them as a source of another name"
        )
    if server.system != start["system"]:
        raise _lost(reading, f"another database system ({server.system}, not {start['system']})")  # safety: same-system
    if server.timeline != start["timeline"] or server.written < position(start["lsn"]):
        raise _lost(  # safety: same-history
            reading,
            f"that it was restored, or another server took over: its log is at {lsn(server.written)} of timeline "
            f"{server.timeline}, and the newest barrier was cut at {start['lsn']} of timeline {start['timeline']}",
        )
    slot = database.slot(start["slot"])
    if slot is None or slot.status == "lost":
        raise _lost(reading, f"slot {start['slot']} is {'lost' if slot else 'gone'}")  # safety: slot-is-there
    return slot


def _lost(reading: Reading, found: str) -> SourceDataError:
    return SourceDataError(
        f"{reading.what}: expected to go on from where the barrier before ended, found {found}. No barrier skips what "
        "is gone"
    )


def _extraction(reading: Reading, database: Database, slot: str, publication: str) -> Extraction:
    return Extraction(
        reading.what,
        database,
        reading.catalog,
        Segments(reading.catalog, reading.folder),
        slot,
        publication,
        reading.tables,
        reading.as_text,
    )
