"""What the protocol asks of an external source.

An adapter is a frozen dataclass with plain settings. It is constructed while a DAG is parsed, so its module imports
neither pyspark nor pyiceberg nor pyarrow at the top, and its constructor touches no network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import Field, dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.bounded import Limits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.protocol.credentials import Credentials


@dataclass(frozen=True)
class CutRequest:
    """The epoch that a cut is made for: after ``after`` (exclusive, None: from the beginning) up to ``until``, in UTC.

    ``start``: the ``end`` of the predecessor's cut, None at barrier 1. ``used`` answers which of some items are
    already in a cut of a barrier that counts. ``now``: the present moment, in UTC, which idle sources are judged by.
    ``catalog``: what tables of the deployment's catalog are read with (None for sources that need none).
    ``already``: at a source's first cut, what is in the jobs' tables before the epoch: the records up to a moment (UTC)
    or to a position in the adapter's own words. The cut uses that up without reading it.
    """

    topology: str
    barrier_id: int
    after: datetime | None
    until: datetime
    start: Mapping[str, Any] | None
    used: Callable[[Sequence[str]], set[str]]
    now: datetime
    catalog: SourceCatalog | None = None
    already: datetime | int | Mapping[str, Any] | None = None
    anew: str | None = None


@dataclass(frozen=True)
class NotReady:
    """A source whose watermark has not reached the barrier's timestamp yet: the barrier must not open yet."""

    source: str
    watermark: datetime | None
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartLag:
    """The topology's distance behind one part of a source, such as a partition.

    ``cut_end``: where the newest cut ended, None: nothing of it was cut. ``stable_end``: where a cut would end now.
    ``behind``: how much is in between, of which ``gone`` is not there any more. ``oldest``: the time (UTC) of the
    oldest record that was not read yet, None: there is none, or its time is not known. ``retention_left``: how long
    that one is kept at least, None: for ever, as far as is known.
    """

    part: str
    cut_end: int | None
    stable_end: int
    behind: int
    gone: int
    oldest: datetime | None
    retention_left: timedelta | None


@dataclass(frozen=True)
class Lag:
    """The topology's distance behind a source: ``behind`` in all, counted in ``unit``, by its ``parts``, which are
    each ``called`` so, such as `partition`.

    ``retention``: how long the source keeps a record, None: for ever, or it is not known. ``note``: what could not be
    found out, and why, or what of it nobody reads. ``fills``: the source keeps records up to a size, of which less than
    half is left.
    """

    unit: str
    called: str
    behind: int
    retention: timedelta | None
    parts: tuple[PartLag, ...]
    note: str | None = None
    fills: bool = False

    @property
    def worst(self) -> PartLag | None:
        """The part that is behind most, None: none is behind."""
        return max((part for part in self.parts if part.behind), key=lambda part: part.behind, default=None)

    @property
    def retention_left(self) -> timedelta | None:
        """The least of all parts."""
        return min((part.retention_left for part in self.parts if part.retention_left is not None), default=None)

    @property
    def is_urgent(self) -> bool:
        """Return whether something is gone, or will be: within a day and less than half of the retention, or with as
        much again as the source keeps now.
        """
        left, kept = self.retention_left, self.retention
        soon = left is not None and kept is not None and left < min(timedelta(days=1), kept / 2)
        return soon or self.fills or any(part.gone for part in self.parts)


def text_of(moment: datetime) -> str:
    """A moment in a cut: the same text whatever time zone it came in."""
    return moment.astimezone(timezone.utc).isoformat()


class SourceCatalog(Protocol):
    """The part of the tables' room that sources need. ``airflow_barrier.tables.iceberg.IcebergTables`` has it."""

    def load(self, table: str) -> Any:
        """The table (pyiceberg's) with its newest metadata. Raises MissingTableError."""
        ...

    def pin(self, table: str, ref: str, snapshot_id: int, ancestors: int = 0) -> None:
        """Hold ``snapshot_id`` and as many of its ancestors by a ref of that name, so that nobody's expiry takes them;
        again is fine.
        """
        ...

    def unpin(self, table: str, ref: str) -> None:
        """Take the ref away if it is there."""
        ...

    def location(self, *parts: str) -> str:
        """The URI of a file or folder beside the tables."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder; none if it is not there."""
        ...

    def exists(self, uri: str) -> bool: ...

    def read_text(self, uri: str) -> str:
        """Raises FileNotFoundError."""
        ...

    def created(self, uri: str) -> AbstractContextManager[Any]:
        """A new file, to be written piece by piece. Once the block has ended without an error it is there, and durable.

        After an error an object store may have a part of it.
        """
        ...

    def delete(self, uris: Iterable[str]) -> None:
        """Delete files, and local folders that are empty then; what cannot be deleted is left as it is."""
        ...

    def clear(self, folder: str) -> None:
        """Delete the files of a folder, and the folder; what cannot be deleted is left as it is."""
        ...


class Delta(Protocol):
    """The changes of a table between two snapshots. ``airflow_barrier.spark.changes`` has it: sources stand below
    Spark's room and are given it.
    """

    def __call__(
        self, spark: SparkSession, table: str, start: int | None, end: int | None, mode: Literal["appends", "changes"]
    ) -> DataFrame:
        """Rows after snapshot ``start`` (None: from the empty table) up to ``end`` of ``table``, which is named with
        its catalog and quoted. With mode ``changes`` they carry ``_change_type`` and ``_weight``.
        """
        ...


class Source(Protocol):
    """An external source."""

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """Unique within a topology: what jobs call it and the key of its cut."""
        ...

    def declare(self) -> ExternalSource:
        """The declaration that is registered with the topology."""
        ...

    @classmethod
    def of(cls, declared: ExternalSource) -> Source:
        """The adapter again, from its declaration."""
        ...

    @property
    def location(self) -> str | None:
        """The folder or address that workers open, which the connection has to allow; None: the catalog's tables."""
        ...

    @property
    def connections(self) -> Sequence[tuple[str, str]]:
        """Id and type of each Airflow connection that it is entered by."""
        ...

    def within(self, limits: Limits, *credentials: Credentials) -> Source:
        """The same source, of which a worker reads no more at once than that, entered by the credentials of its
        ``connections``, in their order.
        """
        ...

    @property
    def secrets(self) -> Mapping[str, str]:
        """Return what Spark needs to enter the source, which no page may show; empty where it enters by what itself
        has.
        """
        ...

    def dataset(self, catalog: str) -> tuple[str, str]:
        """Namespace and name in OpenLineage, as :mod:`~airflow_barrier.protocol.datasets` has them; ``catalog``: the
        namespace of the deployment's own tables.
        """
        ...

    def for_driver(self) -> ExternalSource:
        """The declaration as the Spark driver of an attempt is told it, with what only a worker can ask for."""
        ...

    def look(self, catalog: SourceCatalog) -> None:
        """Raise the error of a source that cannot be cut at all: it is not there, or does not let anybody in. Writes
        nothing. Before a job joins, so that it fails that job and not the opening of everybody's next barrier.
        """
        ...

    def cut(self, request: CutRequest) -> Cut | NotReady:
        """Return which positions belong to the epoch. Reads listings and metadata, writes at most a ref that pins them.

        The cut's ``start`` repeats, under the same keys, what it builds on of the predecessor's ``end``.
        """
        ...

    def check(self, cut: Cut) -> None:
        """Raise SourceDataError naming the file (or table) that cannot be read as declared. Before Spark starts."""
        ...

    def lag(self, cut: Cut | None, now: datetime) -> Lag | None:
        """Return how far ``cut``, the newest that was made (None: none was), is behind what there is ``now``. None:
        such a number makes no sense here. A person waits for it, so it takes some seconds at most.

        Raises SourceUnavailableError and SourceDataError.
        """
        ...

    def repin(self, cut: Cut) -> Cut:
        """The cut anew, after a person mended what :meth:`check` refused: what changed is pinned as it is now, what
        is gone leaves. Only for a cut of which no attempt has closed yet: from then on its content is what it was.
        """
        ...

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        """The cuts of epochs that follow each other, made anew as the source is now, each with the bounds that it had.

        Items that are gone leave, those that changed are pinned as they are, and those of an epoch's time that are not
        ``used`` join it. What comes after these epochs stays as it was cut. Raises RevisionRefusedError where that
        cannot be: where the next cut begins at what would change, as it does in every source of positions.
        """
        ...

    def check_held(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Raise SourceDataError for positions that have been let go of since, for who reads a cut of long ago again."""
        ...

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        """One cut that reads what these do, which follow each other from the first on. For who computes everything in
        one epoch; its items are those that it reads.
        """
        ...

    def release(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Give up what holds the cut's positions. For the coordinator to call when the barrier's *successor* is
        COMMIT (the end of a cut is the start of the next one's), or when the barrier is aborted. Again is fine.
        """
        ...

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
        """The epoch's records, exactly those of ``cut``. Runs in a Spark driver: no pyiceberg, Airflow, SQLAlchemy.

        ``catalog`` is the name of the deployment's catalog in Spark, ``secrets`` what the worker's source has as that.
        """
        ...


@runtime_checkable
class Packaged(Protocol):
    """A source that Spark reads by packages which it does not bring."""

    @property
    def packages(self) -> Sequence[str]:
        """Names in :attr:`airflow_barrier.systems.spark_versions.SparkVersion.source_packages`."""
        ...


@runtime_checkable
class FileBacked(Protocol):
    """A source whose records Spark reads from files, which Spark's errors name."""

    def urls(self, cut: Cut) -> list[str]:
        """The files that ``cut`` reads."""
        ...

    def read_in_order(self, spark: SparkSession, url: str) -> None:
        """Read one file in one task, so that the error about a record of a text file has its line."""
        ...


@runtime_checkable
class Sized(Protocol):
    """A source whose cuts tell how much there is to read, by which an epoch is taken for a small one."""

    def size(self, cut: Cut) -> int:
        """The bytes, as they are stored, that ``cut`` reads."""
        ...


@runtime_checkable
class Tables(Protocol):
    """A source of several tables, which are cut together."""

    @property
    def tables(self) -> Sequence[str]:
        """Their names, as jobs name them after the source's."""
        ...

    def of_table(self, table: str | None) -> Source:
        """The same source, whose :meth:`Source.load` reads that table; None: the one that there is.

        Raises ConfigurationError for another.
        """
        ...


@runtime_checkable
class Kept(Protocol):
    """A source whose records lie beside the warehouse, since its system gives them once only. It can begin anew: see
    :attr:`CutRequest.anew`.
    """

    def keep_up(self, newest: Cut, catalog: SourceCatalog) -> None:
        """Take what has come since the newest cut, which no barrier may open for, so that its system need not hold it.

        Raises SourceUnavailableError and SourceDataError.
        """
        ...

    def let_go(self, oldest: Cut, catalog: SourceCatalog) -> None:
        """Delete what is from before ``oldest``, the oldest cut that is still read. Again is fine."""
        ...

    def leave(self, topology: str, catalog: SourceCatalog) -> None:
        """Have the system hold nothing any more for the topology, which reads the source no more. Again is fine.

        Raises SourceUnavailableError and SourceDataError, which say what a person has to do in place of it.
        """
        ...


@runtime_checkable
class DeadLetters(Protocol):
    """A source whose records may not decode, and go to a table of the topology if that is declared. The declaration's
    option ``dead_letters`` names it.
    """

    @property
    def dead_letters(self) -> str | None:
        """The table that takes them, and :meth:`Source.load` leaves them out; None: they fail the attempt."""
        ...

    def letters(self, spark: SparkSession, cut: Cut, until: datetime, secrets: Mapping[str, str]) -> DataFrame:
        """The records of ``cut`` that do not decode, and the ``reason``. Runs in a Spark driver."""
        ...


Sources = Sequence[Source]


def no_recut(what: str, kind: str, correct: str) -> RevisionRefusedError:
    """The error with which a source of positions answers :meth:`Source.recut`. ``correct``: what else a person can do
    about it.
    """
    return RevisionRefusedError(
        f"{what}: expected a source that is cut into items, such as files, found {kind}, where the next cut begins at "
        f"the position that this one ends at; say what replaces the epoch (--sql, --file), or {correct}, and the "
        "correction is in the epoch that is cut next"
    )


# --- an adapter's settings as its topology has them ------------------------------------------------

_S = TypeVar("_S", bound=Source)
#: Metadata of a setting that was added later: ``field(default=..., metadata=ADDED)``. A declaration leaves it out while
#: it has its default, so that a declaration from before it was added stays the same.
ADDED: Mapping[str, bool] = {"added": True}
#: Annotations of spans of time, as text: some others name classes that are imported for type checkers only.
_SPANS = ("timedelta", "timedelta | None")


def declaration_of(source: Source) -> ExternalSource:
    """Return the declaration of an adapter: all of its settings but the name, spans of time in seconds.

    ``source`` is a dataclass; a field that is no setting has ``init=False``.
    """
    options: dict[str, Any] = {}
    for each in _settings(source):
        value = getattr(source, each.name)
        if value != each.default or "added" not in each.metadata:
            options[each.name] = _plain(value)
    return ExternalSource(source.name, source.kind, options)


def _plain(value: Any) -> Any:
    """Return a setting as JSON has it. The codec would do, too, but DAG files need not load it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(name): each for name, each in value.items()}
    return list(value) if isinstance(value, tuple) else value


def declared_source(kind: type[_S], declared: ExternalSource) -> _S:
    """Return the adapter that :func:`declaration_of` made ``declared`` of.

    Raises KeyError for a setting that is missing, and TypeError for one that the adapter does not have.
    """
    settings = dict(declared.options)
    for each in _settings(kind):
        if each.name in settings or "added" not in each.metadata:
            value = settings[each.name]
            settings[each.name] = timedelta(seconds=value) if each.type in _SPANS and value is not None else value
    make: Callable[..., _S] = kind
    return make(name=declared.name, **settings)


def _settings(adapter: Any) -> list[Field[Any]]:
    return [each for each in fields(adapter) if each.init and each.name != "name"]
