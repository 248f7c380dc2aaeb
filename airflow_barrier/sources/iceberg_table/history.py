"""What an Iceberg table's metadata says of its past: when `main` was where, and which event times came when."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow_barrier.protocol.errors import SourceDataError
from airflow_barrier.sources.files.formats import YEARS, Span, count_late_parquet, newest_up_to_parquet

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_FIRST, _LAST = ((moment - _EPOCH) // timedelta(microseconds=1) for moment in YEARS)


def main_at(table: Table, moment: datetime) -> Snapshot | None:
    """The snapshot that `main` was at, by the table's own log; None if it had none then, or the log begins later."""
    past = [entry for entry in table.history() if _EPOCH + timedelta(milliseconds=entry.timestamp_ms) <= moment]
    for entry in reversed(past):
        snapshot = table.snapshot_by_id(entry.snapshot_id)
        if snapshot is not None:
            return snapshot
    return None


def main_as_of(name: str, table: Table, moment: datetime) -> int | None:
    """The id of :func:`main_at`. Raises :class:`SourceDataError` if the log has forgotten where `main` was then."""
    snapshot = main_at(table, moment)
    if snapshot is not None:
        return snapshot.snapshot_id
    log = table.history()
    oldest = table.snapshot_by_id(log[0].snapshot_id) if log else None
    if log and (oldest is None or not _is_first(table, oldest)):
        raise SourceDataError(  # safety: log-reaches-back
            f"table {name}: expected its log to tell where main was at {moment.isoformat()}, found that it begins "
            "later: snapshots have been expired; say a later moment, or the position itself, in start_from"
        )
    return None


def _is_first(table: Table, snapshot: Snapshot) -> bool:
    """Return whether nothing was before it: no rows of a parent, and no parent (which pyiceberg forgets when it
    expires that) but the empty one that the branches of a table's first barrier begin at, where `main` never was.
    """
    counts = _counts(snapshot)
    if counts.get("added-records", "0") != counts.get("total-records"):
        return False
    if snapshot.parent_snapshot_id is None:
        return True
    parent = table.snapshot_by_id(snapshot.parent_snapshot_id)
    return parent is not None and parent.parent_snapshot_id is None and _counts(parent).get("total-records") == "0"


def _counts(snapshot: Snapshot) -> dict[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def chain(table: Table, end: Snapshot | None, start: int | None) -> list[Snapshot]:
    """The snapshots after ``start`` up to ``end``, oldest first; as far back as there are any if ``start`` is not
    among the ancestors.
    """
    found: list[Snapshot] = []
    while end is not None and end.snapshot_id != start:
        found.append(end)
        end = table.snapshot_by_id(end.parent_snapshot_id) if end.parent_snapshot_id is not None else None
    return found[::-1]


@dataclass(frozen=True)
class Arrival:
    """The data files that one snapshot added."""

    snapshot_id: int
    files: tuple[DataFile, ...]
    span: Span


class EventTimes:
    """The event times in a table's data files, by the bounds that its manifests hold for a timestamp column."""

    def __init__(self, source: str, table: Table, column: str) -> None:
        from pyiceberg.types import TimestampType, TimestamptzType

        self._source = source
        self._table = table
        self._column = column
        field = next((field for field in table.schema().fields if field.name == column), None)
        if field is None or not isinstance(field.field_type, (TimestampType, TimestamptzType)):
            raise SourceDataError(  # safety: event-time-is-a-timestamp
                f"source {source}: expected event_time {column!r} to be a timestamp of the table, found "
                f"{field.field_type if field else 'no such column'}; correct the declaration"
            )
        self._field = field
        self._type = field.field_type

    def arrivals(self, snapshots: Sequence[Snapshot], from_nothing: bool) -> list[Arrival]:
        """Return what came with each. ``from_nothing``: with the oldest came all that it holds, since what its
        ancestors brought may be known to it alone. Raises :class:`SourceDataError` for a data file without bounds.
        """
        return [
            self._arrival(snapshot, self._held(snapshot) if from_nothing and number == 0 else self._added(snapshot))
            for number, snapshot in enumerate(snapshots)
        ]

    def _arrival(self, snapshot: Snapshot, added: Iterator[DataFile]) -> Arrival:
        files = tuple(added)
        spans = [self._span(file) for file in files]
        return Arrival(
            snapshot.snapshot_id,
            files,
            Span(
                min((span.oldest for span in spans if span.oldest is not None), default=None),
                max((span.newest for span in spans if span.newest is not None), default=None),
            ),
        )

    def newest(self, arrivals: Sequence[Arrival], future: datetime) -> Iterator[datetime | None]:
        """The newest event time of each data file, and the one before what is after ``future``. Only files that hold
        such times are read.
        """
        for file in (file for arrival in arrivals for file in arrival.files):
            span = self._span(file)
            yield span.newest
            if span.newest is None or span.newest <= future:
                continue
            log.warning(
                "source %s: data file %s holds event times after %s, which is the future: these records open no "
                "barrier, and are read once they are due",
                self._source,
                file.file_path,
                future.isoformat(),
            )
            with self._table.io.new_input(file.file_path).open() as data:
                yield newest_up_to_parquet(data, self._column, future)

    def count_late(self, arrival: Arrival, after: datetime) -> int:
        """Return how many of its records have an event time up to ``after``. Only files that hold both kinds are
        read.
        """
        late = 0
        for file in arrival.files:
            span = self._span(file)
            if span.oldest is None or span.newest is None or span.oldest > after:
                continue
            if span.newest <= after and not self._nulls(file):
                late += file.record_count
                continue
            with self._table.io.new_input(file.file_path).open() as data:
                late += count_late_parquet(data, self._column, after)
        return late

    def _held(self, snapshot: Snapshot) -> Iterator[DataFile]:
        from pyiceberg.manifest import ManifestContent

        for manifest in snapshot.manifests(self._table.io):
            if manifest.content == ManifestContent.DATA:
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                    yield entry.data_file

    def _added(self, snapshot: Snapshot) -> Iterator[DataFile]:
        """Nothing for a compaction, which only writes rows anew."""
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
        from pyiceberg.table.snapshots import Operation

        if snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE:
            return
        for manifest in snapshot.manifests(self._table.io):
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(self._table.io):
                    if entry.status == ManifestEntryStatus.ADDED:
                        yield entry.data_file

    def _span(self, file: DataFile) -> Span:
        bounds = [self._bound(known) for known in (file.lower_bounds, file.upper_bounds)]
        if None in bounds and self._nulls(file) < file.record_count:
            raise SourceDataError(  # safety: bounds-of-event-times
                f"source {self._source}: expected bounds of {self._column} for data file {file.file_path}, found none; "
                f"set the table property 'write.metadata.metrics.column.{self._column}' to 'full' and have the file "
                "rewritten, or take the source by system time"
            )
        return Span(*bounds)

    def _bound(self, bounds: dict[int, bytes] | None) -> datetime | None:
        from pyiceberg.conversions import from_bytes

        raw = (bounds or {}).get(self._field.field_id)
        if raw is None:
            return None
        micros: Any = from_bytes(self._type, raw)
        return _EPOCH + timedelta(microseconds=min(max(micros, _FIRST), _LAST))

    def _nulls(self, file: DataFile) -> int:
        return (file.null_value_counts or {}).get(self._field.field_id, 0)
