"""Where an epoch of rows begins and ends by the time in a column of them, and the files that have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from psycopg import sql

from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.sources.port import CutRequest, SourceCatalog, text_of
from airflow_barrier.sources.postgresql.checks import check_times
from airflow_barrier.sources.postgresql.database import ALL_ROWS, Database
from airflow_barrier.sources.postgresql.extraction import Copying, Sheets
from airflow_barrier.sources.postgresql.segments import NOTHING, Segment, Segments

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
#: What a cut's start repeats of the predecessor's end.
_OF_THE_START = ("mark", "last")


@dataclass(frozen=True)
class RowReading:
    """A source, entered. ``by``: of each table the column that tells when a row was changed last."""

    what: str
    credentials: Credentials
    catalog: SourceCatalog
    folder: str
    by: Mapping[str, str]
    as_text: frozenset[str]
    margin: timedelta


def cut(reading: RowReading, request: CutRequest) -> Cut:
    """Read the rows whose times are after the predecessor's mark and up to this one's, and cut there."""
    start = request.start
    with Database(reading.what, reading.credentials) as database:
        database.lock(reading.folder)
        with database.snapshot():
            check_times(database, reading.by)
            segment = _taken(reading, database, request)
    return Cut(
        reading.what.removeprefix("source "),
        None if start is None else {name: start[name] for name in _OF_THE_START},
        {
            "words": f"times up to {_text(segment.end)}, with {segment.last - segment.first:,} rows",
            "mark": _text(segment.end),
            "last": segment.last,
            "by": dict(reading.by),
            "folder": reading.folder,
            "columns": dict(segment.columns),
            "files": [encode(file) for file in segment.files],
        },
    )


def let_go(oldest: Cut, catalog: SourceCatalog) -> None:
    if oldest.start is not None:
        Segments(catalog, oldest.end["folder"]).drop_before(_position(oldest.start["mark"]))


def _taken(reading: RowReading, database: Database, request: CutRequest) -> Segment:
    """The files of the epoch. A worker may have written them before, for a barrier that did not open or was aborted:
    they are taken again, if the same rows were asked for.
    """
    segments = Segments(reading.catalog, reading.folder)
    is_anew = request.anew is not None
    begin, end = _span(reading, database, request)
    since = _since(reading, request)
    asked = {
        table: ALL_ROWS if is_anew else _between(column, begin if since.get(table) == column else None, end)
        for table, column in reading.by.items()
    }
    told = json.dumps([is_anew, sorted(reading.as_text), {table: where.as_string() for table, where in asked.items()}])
    if (there := segments.at(begin, end, told)) is not None:
        return there
    copying = Copying(reading.what, database, segments, reading.as_text)
    last = request.start["last"] if request.start is not None else 0
    with Sheets(copying, Segment(begin, begin, last, last, told, None, {}, ())) as sheets:
        for table, where in asked.items():
            copying.copy(sheets, table, where, is_anew=is_anew)
    segment = sheets.segment(end)
    if end > begin:  # else its folder is that of the segment which the next cut writes
        segments.put(segment)
    return segment


def _span(reading: RowReading, database: Database, request: CutRequest) -> tuple[int, int]:
    """The marks that the epoch is between. A row gets its time before its transaction is committed, so the end lies
    before the present. A barrier of an earlier time than the one before does not move it back.
    """
    ((now,),) = database.rows("SELECT now()")
    end = _position(
        min(
            [
                request.until,
                now - reading.margin,  # safety: rows-that-may-still-come
            ]
        )
    )
    if request.anew is not None:
        return end, end
    if request.start is not None:
        begin = _position(request.start["mark"])
    elif request.already is None:
        begin = NOTHING
    elif isinstance(request.already, datetime):
        begin = min(_position(request.already), end)
    else:
        raise ConfigurationError(
            f"{reading.what}: expected start_from to be 'earliest', 'latest' (from now on) or a moment, found "
            f"{request.already!r}; rows are read by their times"
        )
    if _position(now) < begin:
        raise SourceDataError(  # safety: times-go-on
            f"{database}: expected its clock to be past the mark of the barrier before, {_text(begin)}, found "
            f"{text_of(now)}: it was put back, and rows that change now get times that were read already. Set the "
            f"clock, and have the source begin anew: airflow-barrier source resnapshot TOPOLOGY "
            f"{reading.what.removeprefix('source ')} --reason '...'"
        )
    return begin, max(begin, end)


def _since(reading: RowReading, request: CutRequest) -> Mapping[str, str]:
    """The tables that were read up to the beginning, each by which column; of all others all rows are new."""
    if request.start is not None:
        return request.start["by"]  # type: ignore[no-any-return]
    return {} if request.already is None else reading.by


def _between(column: str, after: int | None, until: int) -> sql.Composed:
    later = sql.SQL("") if after is None else sql.SQL("{} > {} AND ").format(sql.Identifier(column), _literal(after))
    return sql.SQL("WHERE {}{} <= {}").format(later, sql.Identifier(column), _literal(until))


def _literal(position: int) -> sql.Literal:
    """A moment in UTC, which the session's time zone is; of either of the two types, as the column has it."""
    return sql.Literal((_EPOCH + position * _MICROSECOND).replace(tzinfo=None).isoformat(" "))


def _text(position: int) -> str:
    return text_of(_EPOCH + position * _MICROSECOND)


def _position(moment: datetime | str) -> int:
    """Microseconds since 1970."""
    moment = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (moment - _EPOCH) // _MICROSECOND
