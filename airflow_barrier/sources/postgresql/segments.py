"""Changes that were taken out of a database, as Parquet files beside the warehouse.

    <warehouse>/_barrier/<topology>/sources/<source>/<n>/<start>-<end>.json     a segment: what lies in its files
    <warehouse>/_barrier/<topology>/sources/<source>/<n>/<start>/<any>.parquet  changes of one of the tables

``n`` is 0, and another number for a source that has begun anew. Of a source of rows there is no such folder, and a
position is a mark: microseconds since 1970.

A slot goes forward only, and revisions read once more. So each segment holds the transactions whose commits stand from
position ``start`` on and before ``end``, for good; its description is written last, and only then the slot moves.
Segments of several workers may overlap: they number changes alike, and a reader goes by these numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_barrier.protocol import changes
from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.ddl import parse_ddl
from airflow_barrier.protocol.records import Cut

if TYPE_CHECKING:
    from airflow_barrier.sources.port import SourceCatalog

#: What each change has beside its table's own columns.
METADATA = parse_ddl(
    f"{changes.CHANGE_TYPE} STRING, {changes.WEIGHT} INT, {changes.SEQUENCE} BIGINT, {changes.XID} BIGINT, "
    f"{changes.COMMITTED_AT} TIMESTAMP, {changes.UNSENT} ARRAY<STRING>"
)
#: Where a source begins that copies its tables.
NOTHING = 0
_NAME = re.compile(r"([0-9A-F]{16})-([0-9A-F]{16})\.json")


@dataclass(frozen=True)
class ChangeFile:
    """A Parquet file of ``rows`` changes of ``table``, whose own columns are ``columns``, as Spark's DDL. Of them a cut
    has those with numbers after ``after``.
    """

    table: str
    uri: str
    rows: int
    bytes: int
    columns: str
    after: int = 0


@dataclass(frozen=True)
class Segment:
    """Transactions from position ``start`` to ``end``. ``first`` and ``last``: the numbers of the last change up to
    ``start`` and up to ``end``, counted from the source's beginning. ``columns``: of each table at the end.
    ``history``: of the server, see :attr:`~airflow_barrier.sources.postgresql.database.Server.history`; of rows, what
    was asked for. ``commit``: the last transaction up to ``end``, None: there was none since the source began, or rows
    do not tell.
    """

    start: int
    end: int
    first: int
    last: int
    history: str
    commit: str | None
    columns: Mapping[str, str]
    files: tuple[ChangeFile, ...]


class Segments:
    """The segments in a folder."""

    def __init__(self, catalog: SourceCatalog, folder: str) -> None:
        self._catalog = catalog
        self.folder = folder

    @contextmanager
    def new_file(self, start: int) -> Iterator[tuple[str, Any]]:
        """A file of changes, which counts once a segment names it: where it is, and to be written."""
        uri = f"{self._files(start)}/{uuid4().hex}.parquet"
        with self._catalog.created(uri) as stream:
            yield uri, stream

    def put(self, segment: Segment) -> None:
        """Write its description, which makes it one."""
        with self._catalog.created(self._uri(segment.start, segment.end)) as file:
            file.write(json.dumps(encode(segment), sort_keys=True).encode())

    def at(self, start: int, end: int, history: str) -> Segment | None:
        """The segment from ``start`` to ``end``, None: nobody has written it, or of another ``history``."""
        if not self._catalog.exists(self._uri(start, end)):
            return None
        segment = self._described(start, end)
        return segment if segment.history == history else None

    def chain(self, start: int, is_of: Callable[[Segment], bool]) -> Iterator[Segment]:
        """The fewest segments that follow each other from ``start`` on, as far as there are any.

        ``is_of``: whether a segment is of the log that the database has now. Others are left out.
        """
        spans = [span for name in self._catalog.names(self.folder) if (span := _span(name))]
        at = start
        while following := [span for span in spans if span[0] <= at < span[1] and (span[0] or not at)]:
            span = max(following, key=lambda each: each[1])
            segment = self._described(*span)
            if not is_of(segment):
                spans.remove(span)
                continue
            yield segment
            at = segment.end

    def drop_before(self, position: int) -> None:
        """Delete the segments that end up to there: the descriptions first, then files, also those of no segment."""
        spans = [span for name in self._catalog.names(self.folder) if (span := _span(name))]
        gone = [span for span in spans if span[1] <= position]
        self._catalog.delete([self._uri(*span) for span in gone])
        for start in {start for start, _ in gone} - {start for start, end in spans if end > position}:
            self._catalog.clear(self._files(start))

    def _described(self, start: int, end: int) -> Segment:
        return decode(Segment, json.loads(self._catalog.read_text(self._uri(start, end))))

    def _files(self, start: int) -> str:
        return f"{self.folder}/{start:016X}"

    def _uri(self, start: int, end: int) -> str:
        return f"{self.folder}/{start:016X}-{end:016X}.json"


def files_of(cut: Cut) -> list[ChangeFile]:
    return [decode(ChangeFile, file) for file in cut.end["files"]]


def missing(catalog: SourceCatalog, files: Sequence[ChangeFile]) -> list[str]:
    """Return the files that are not there any more."""
    return [file.uri for file in files if not catalog.exists(file.uri)]


def _span(name: str) -> tuple[int, int] | None:
    found = _NAME.fullmatch(name)
    return (int(found[1], 16), int(found[2], 16)) if found else None
