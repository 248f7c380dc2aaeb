"""An Iceberg table outside the topology."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_barrier.protocol.ddl import quoted, timestamp_literal
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.names import table_fault
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.port import (
    ADDED,
    CutRequest,
    Delta,
    NotReady,
    SourceCatalog,
    declaration_of,
    declared_source,
    no_recut,
    text_of,
)
from airflow_barrier.sources.times import MAX_FUTURE_SKEW, Times

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.protocol.credentials import Credentials
    from airflow_barrier.sources.iceberg_table.history import Arrival


@dataclass(frozen=True)
class IcebergTable:
    """A table that nobody in the topology writes, in the deployment's own catalog. A job sees what came to its `main`.

    What an epoch reads is held by a ref on the table until the next barrier is COMMIT, so that its owners may expire
    snapshots as they like.

    :param table: ``namespace.table``, without the catalog.
    :param name: unique in the topology. Default: the table.
    :param read: ``appends``: the rows that were appended; the job fails if any were updated or deleted. ``changes``:
        all rows that came and went, with ``_change_type`` and ``_weight``.
    :param event_time: None: by system time. An epoch is what was committed to `main` up to the barrier's timestamp,
        also when it is cut long after. Else a timestamp column, with ``read="appends"`` only: a record belongs to the
        first barrier whose timestamp is not before its event time and that was opened after it was committed. The
        barrier opens once the watermark (the newest event time seen less ``allowed_lateness``) has reached its
        timestamp, or once nothing has been committed for ``idle_timeout``. What comes late goes into the epoch that is
        cut next, and the cut counts it (``late``). Records without an event time go with the commit they came in. A
        record of more than ``max_future_skew`` after the present opens no barrier, so that one wrong clock ends
        nothing; it is read once it is due.

    Raises :class:`ConfigurationError` for settings that contradict each other.

    >>> IcebergTable("crm.customers", read="changes").name
    'crm.customers'
    """

    kind: ClassVar[str] = "iceberg_table"
    connections: ClassVar[Sequence[tuple[str, str]]] = ()
    secrets: ClassVar[Mapping[str, str]] = {}

    table: str
    name: str = ""
    read: Literal["appends", "changes"] = "appends"
    event_time: str | None = None
    allowed_lateness: timedelta = timedelta(0)
    idle_timeout: timedelta | None = None
    max_future_skew: timedelta = field(default=MAX_FUTURE_SKEW, metadata=ADDED)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.table)
        where = f"IcebergTable({self.table!r})"
        if fault := table_fault(self.table):
            raise ConfigurationError(f"{where}: expected namespace.table, without the catalog, found {fault}")
        if self.read not in ("appends", "changes"):
            raise ConfigurationError(f"{where}: expected read 'appends' or 'changes', found {self.read!r}")
        if self.event_time is not None and self.read != "appends":
            raise ConfigurationError(
                f"{where}: expected read='appends' together with event_time, found {self.read!r}: an update has no "
                "event time of its own; leave event_time out"
            )
        if self.event_time is None and (self.allowed_lateness or self.idle_timeout is not None):
            raise ConfigurationError(f"{where}: allowed_lateness and idle_timeout go with event_time; leave them out")

    # --- the declaration --------------------------------------------------------------------------

    def declare(self) -> ExternalSource:
        return declaration_of(self)

    @classmethod
    def of(cls, declared: ExternalSource) -> IcebergTable:
        return declared_source(cls, declared)

    @property
    def location(self) -> None:
        """It is the catalog's."""

    def within(self, limits: Limits, *credentials: Credentials) -> IcebergTable:
        """Itself: its rows lie in the catalog, and none of them is read on a worker."""
        return self

    def dataset(self, catalog: str) -> tuple[str, str]:
        return catalog, self.table

    def for_driver(self) -> ExternalSource:
        return self.declare()

    # --- on the worker ----------------------------------------------------------------------------

    def look(self, catalog: SourceCatalog) -> None:
        catalog.load(self.table)

    def cut(self, request: CutRequest) -> Cut | NotReady:
        """Cut from the predecessor's snapshot to the newest that belongs to the epoch, which is pinned.

        Raises MissingTableError, CatalogUnavailableError, and SourceDataError if event times are not to be had.
        """
        from airflow_barrier.sources.iceberg_table.history import main_at

        if request.catalog is None:
            raise ConfigurationError(
                f"source {self.name}: expected a catalog to find table {self.table} in, found none"
            )
        if request.already is not None:
            return self._first_cut(request, request.catalog, request.already)
        table: Table = request.catalog.load(self.table)
        if self.event_time is not None:
            return self._cut_by_event_time(request, request.catalog, table)
        start = (request.start or {}).get("snapshot")
        end = main_at(table, request.until)
        return self._cut(request, request.catalog, table, start, end.snapshot_id if end else start, {}, {})

    def check(self, cut: Cut) -> None:
        """Nothing: the table's schema is its own, and what the epoch reads is pinned."""

    def lag(self, cut: Cut | None, now: datetime) -> None:
        """None: snapshots are held from the first cut on."""

    def repin(self, cut: Cut) -> Cut:
        return cut

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        what = f"source {self.name}"
        raise no_recut(what, "an Iceberg table", "correct it")  # safety: positions-are-not-cut-anew

    def check_held(self, cut: Cut, catalog: SourceCatalog) -> None:
        table: Table = catalog.load(self.table)
        start, end = (cut.start or {}).get("snapshot"), cut.end["snapshot"]
        snapshot = table.snapshot_by_id(end) if end is not None else None
        at = end
        # without a start it is read as it was at the end, and the steps to there do not matter
        while start is not None and snapshot is not None and at != start:
            at = snapshot.parent_snapshot_id
            snapshot = table.snapshot_by_id(at) if at is not None else None
        if end is not None and snapshot is None:
            raise SourceDataError(  # safety: source-is-still-held
                f"source {self.name}: expected each snapshot of {self.table} from {start or 'the first'} to {end}, "
                f"found that {at or start} is gone: it was expired since"
            )

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        return Cut(cuts[-1].source, cuts[0].start, cuts[-1].end, cuts[-1].items)

    def release(self, cut: Cut, catalog: SourceCatalog) -> None:
        for ref in (cut.end["ref"], cut.end.get("already_ref")):
            if ref is not None:
                catalog.unpin(self.table, ref)

    # --- in the Spark driver ----------------------------------------------------------------------

    def load(
        self,
        spark: SparkSession,
        cut: Cut,
        after: datetime | None,
        until: datetime,
        catalog: str,
        delta: Delta,
        secrets: Mapping[str, str],
    ) -> DataFrame:
        """The rows that the epoch's snapshots brought; by event time those of them that are due, and those of earlier
        ones that have become due since.
        """
        table = ".".join(quoted(part) for part in (catalog, *self.table.split(".")))
        start = cut.start or {}
        own = self._delta(spark, table, start.get("snapshot"), cut.end["snapshot"], delta)
        if self.event_time is None:
            return own
        column = quoted(self.event_time)
        zoned = own.schema[self.event_time].dataType.typeName() == "timestamp"
        upper = f"{column} <= {timestamp_literal(until, zoned)}"
        due = own.where(f"{column} IS NULL OR {upper}")
        if not start.get("held"):
            return due
        held = self._delta(spark, table, start["held_after"], start["snapshot"], delta)
        # of a source that left and came back, what it comes after is longer ago than the barrier before
        since = datetime.fromisoformat(start["time"])
        return due.unionByName(held.where(f"{column} > {timestamp_literal(since, zoned)} AND {upper}"))

    def _delta(self, spark: SparkSession, table: str, start: int | None, end: int | None, delta: Delta) -> DataFrame:
        if start is None and self.read == "appends":
            # what was updated or expired before the first barrier does not matter: its rows are those at its end
            return delta(spark, table, None, end, "changes").drop("_change_type", "_weight")
        return delta(spark, table, start, end, self.read)

    # --- after what is in the jobs' tables already ------------------------------------------------

    def _first_cut(
        self, request: CutRequest, catalog: SourceCatalog, already: datetime | int | Mapping[str, Any]
    ) -> Cut | NotReady:
        before = self._cut_of(request, catalog, already)
        if isinstance(before, NotReady):
            return before
        after = datetime.fromisoformat(before.end["time"])
        cut = self.cut(replace(request, already=None, after=after, start=before.end))
        if isinstance(cut, NotReady):
            return cut
        return Cut(cut.source, cut.start, {**cut.end, "already_ref": before.end["ref"]}, cut.items)

    def _cut_of(
        self, request: CutRequest, catalog: SourceCatalog, already: datetime | int | Mapping[str, Any]
    ) -> Cut | NotReady:
        from airflow_barrier.sources.iceberg_table.history import chain, main_as_of

        from_nothing = replace(request, already=None, after=None, start=None)
        table: Table = catalog.load(self.table)
        if isinstance(already, datetime):
            if self.event_time is None:
                main_as_of(self.table, table, already)
            return self.cut(replace(from_nothing, until=already))
        position = already["snapshot"] if isinstance(already, Mapping) and "snapshot" in already else already
        snapshot = next((s for s in chain(table, table.current_snapshot(), None) if s.snapshot_id == position), None)
        if snapshot is None or self.event_time is not None:
            raise ConfigurationError(
                f"source {self.name}: expected start_from to be a snapshot in the history of {self.table}'s main "
                f"(by event time: a datetime), found {position!r}; see SELECT * FROM {self.table}.history"
            )
        at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc)
        return self._cut(replace(from_nothing, until=at), catalog, table, None, snapshot.snapshot_id, {}, {})

    # --- by event time ----------------------------------------------------------------------------

    def _cut_by_event_time(self, request: CutRequest, catalog: SourceCatalog, table: Table) -> Cut | NotReady:
        """Cut up to the last snapshot that holds records up to the timestamp; ``held`` are those that hold early ones
        too, by id with their newest event time, and ``held_after`` is the snapshot before the first of them.
        """
        from airflow_barrier.sources.iceberg_table.history import EventTimes, chain

        times = EventTimes(self.name, table, self.event_time or "")
        before = request.start or {}
        start: int | None = before.get("snapshot")
        there = table.current_snapshot()
        new = chain(table, there, start)
        arrivals = times.arrivals(new, from_nothing=start is None)
        ends = Times(self.max_future_skew, self.allowed_lateness, self.idle_timeout)
        known = [before.get("newest"), *before.get("held", {}).values()]
        newest = ends.newest(
            [
                *times.newest(arrivals, ends.future(request.now)),
                *(datetime.fromisoformat(moment) for moment in known if moment),
            ],
            request.now,
        )
        watermark = ends.watermark(newest)
        if (watermark is None or watermark < request.until) and not self._idle(there, request.now):
            return NotReady(
                self.name,
                watermark,
                f"its watermark is {watermark.isoformat() if watermark else 'unknown (no event time seen yet)'}, "
                f"the barrier's timestamp {request.until.isoformat()}",
            )
        taken = _up_to_the_last_due(arrivals, request.until)
        end = taken[-1].snapshot_id if taken else start
        held = {
            **{id_: at for id_, at in before.get("held", {}).items() if datetime.fromisoformat(at) > request.until},
            **_early(taken, request.until),
        }
        late = sum(times.count_late(arrival, request.after) for arrival in taken) if request.after else 0
        more = {
            "newest": text_of(newest) if newest else None,
            "held": held,
            "held_after": _before_the_first(table, end, held),
            "late": late,
        }
        was = {"held": before.get("held", {}), "held_after": before.get("held_after")}
        return self._cut(request, catalog, table, start, end, was, more)

    def _idle(self, newest: Snapshot | None, now: datetime) -> bool:
        """Return whether nothing has been committed for so long that the watermark is not waited for any more."""
        if self.idle_timeout is None or newest is None:
            return self.idle_timeout is not None
        return datetime.fromtimestamp(newest.timestamp_ms / 1000, timezone.utc) <= now - self.idle_timeout

    # --- parts ------------------------------------------------------------------------------------

    def _cut(
        self,
        request: CutRequest,
        catalog: SourceCatalog,
        table: Table,
        start: int | None,
        end: int | None,
        was: Mapping[str, Any],
        more: Mapping[str, Any],
    ) -> Cut:
        ref = None
        if end is not None:
            ref = self._ref(request, end)
            catalog.pin(self.table, ref, end, _ancestors_in_use(table, start, end, more))  # safety: source-is-pinned
        return Cut(
            self.name,
            {"time": text_of(request.after), "snapshot": start, **was} if request.after else None,
            {"time": text_of(request.until), "snapshot": end, "ref": ref, **more},
        )

    def _ref(self, request: CutRequest, end: int) -> str:
        """A name that another cut has only if it holds the very same: so no release takes what another one needs."""
        name = re.sub(r"[^A-Za-z0-9-]", "_", self.name)
        times = "_".join(f"{moment:%Y%m%dT%H%M%S%f}" for moment in (request.after, request.until) if moment)
        return f"barrier_{request.topology}_source_{name}_{times}_{end}"


def _up_to_the_last_due(arrivals: Sequence[Arrival], until: datetime) -> Sequence[Arrival]:
    """Drop the newest commits that hold early records only: they are left for a later cut."""
    count = len(arrivals)
    while count and (oldest := arrivals[count - 1].span.oldest) is not None and oldest > until:
        count -= 1
    return arrivals[:count]


def _early(arrivals: Sequence[Arrival], until: datetime) -> dict[str, str]:
    return {
        str(arrival.snapshot_id): text_of(arrival.span.newest)
        for arrival in arrivals
        if arrival.span.newest is not None and arrival.span.newest > until
    }


def _ancestors_in_use(table: Table, start: int | None, end: int, more: Mapping[str, Any]) -> int:
    """Return how many snapshots before ``end`` this epoch reads through, and the next one for records that are held.

    What is read from nothing is read of its last snapshot alone.
    """
    from airflow_barrier.sources.iceberg_table.history import chain

    last = table.snapshot_by_id(end)
    ancestors = len(chain(table, last, start)) - 1 if start is not None else 0
    if more.get("held") and more["held_after"] is not None:
        ancestors = max(ancestors, len(chain(table, last, more["held_after"])))
    return max(ancestors, 0)


def _before_the_first(table: Table, end: int | None, held: Mapping[str, str]) -> int | None:
    """The parent of the oldest that is held; None where that is not known any more: all before it came with it."""
    from airflow_barrier.sources.iceberg_table.history import chain

    snapshots = chain(table, table.snapshot_by_id(end), None) if end is not None else []
    first = next((snapshot for snapshot in snapshots if str(snapshot.snapshot_id) in held), None)
    if first is None:
        return end
    known = first.parent_snapshot_id is not None and table.snapshot_by_id(first.parent_snapshot_id) is not None
    return first.parent_snapshot_id if known else None
