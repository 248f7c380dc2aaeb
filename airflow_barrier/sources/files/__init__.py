"""Files in a landing folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from airflow_barrier.protocol import datasets
from airflow_barrier.protocol.ddl import Column, ddl_of, parse_ddl, quoted, timestamp_literal
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError
from airflow_barrier.protocol.names import one_line
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.files import cuts as file_cuts
from airflow_barrier.sources.files.cuts import EventTime, Reading
from airflow_barrier.sources.files.formats import Layout
from airflow_barrier.sources.files.listing import Folder, LandedFile, PathDate, literally, url_of
from airflow_barrier.sources.port import (
    ADDED,
    CutRequest,
    Delta,
    Lag,
    NotReady,
    SourceCatalog,
    declaration_of,
    declared_source,
)
from airflow_barrier.sources.text.csv_dialect import CsvDialect
from airflow_barrier.sources.times import MAX_FUTURE_SKEW, Times
from airflow_barrier.systems.roots import location_fault

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.protocol.credentials import Credentials

Format = Literal["parquet", "csv", "json"]
AttributeBy = Literal["mtime", "path", "event_time"]

# What Spark is told whatever the session says, so that an epoch reads the same everywhere: nothing malformed, damaged
# or missing is passed over, times without a zone are UTC, dates are of today's calendar, and folder names such as
# `date=…` add no columns.
_READ_OPTIONS = {
    "mode": "FAILFAST",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "recursiveFileLookup": "true",
    "timeZone": "UTC",
}
# at the first cut of a folder that others have filled for years
_BEGIN_LATER = (
    "if they are in the job's tables already, or are not to be read, say so by start_from in barrier.job(...) "
    '("latest", a datetime, {"files": [...]}; docs/adopting.md); else '
)


@dataclass(frozen=True)
class Files:
    """Files that land in a folder: Parquet, CSV, or JSON lines; text files may be compressed (``.gz``, ``.bz2``, …).

    Each file is in one epoch exactly. It is never read before it is in a cut, and must not be changed once it has
    landed: write it elsewhere and move it in. New content comes as a new file. Links, pipes, and paths with an empty
    part are refused by name; so are lines, nesting and compressed files beyond the limits of
    :mod:`~airflow_barrier.sources.bounded`, some of which the connection may raise.

    :param path: the folder, with whatever is under it: an absolute path, or a URL that fsspec here and Hadoop in Spark
        both know (``file://``, ``hdfs://``, ``gs://``, ``abfs://``, ``abfss://``, ``s3a://``, or ``s3://``, which Spark
        is given as ``s3a://``). Credentials come from the environment of either. Where it may lie the connection's
        ``source_roots`` say.
    :param name: unique in the topology. Default: the last part of the path.
    :param format: ``parquet``, ``csv`` or ``json`` (one object a line).
    :param schema: all columns, as Spark DDL: ``"userId BIGINT, price DECIMAL(10,2)"``. Files with other columns are
        refused; integers and decimals narrower than declared are read.
    :param attribute_by: what decides to which epoch something belongs.

        - ``mtime``: a file belongs to the first barrier whose timestamp is not before its modification time. Not for
          catching up over history: a folder that was filled today is swallowed whole by the first barrier after.
        - ``path``: a file belongs to the first barrier whose timestamp is not before the end of the period that its
          path names by ``path_date``.
        - ``event_time``: a *record* belongs to the first barrier whose timestamp is not before its ``event_time`` and
          that was opened after its file had landed. The barrier opens once the watermark (the newest event time seen
          less ``allowed_lateness``) has reached its timestamp, or once nothing has landed for ``idle_timeout``. Records
          without an event time belong to the epoch in which their file is first read. A record of more than
          ``max_future_skew`` after the present opens no barrier, so that one wrong clock ends nothing; it is read once
          it is due. Text files that are early are read through again by each cut: for a long history in CSV or JSON
          take ``path``.

        What comes late goes into the epoch that is cut next, and the cut counts it (``late``: files, or records by
        event time). Nothing is dropped.
    :param path_date: for ``path``: ``"date=%Y-%m-%d"``, see :class:`~airflow_barrier.sources.files.listing.PathDate`.
    :param event_time: for ``event_time``: a TIMESTAMP or TIMESTAMP_NTZ column. In text files ISO 8601; UTC where no
        zone is named.
    :param options: for CSV, as Spark calls them: ``header`` (default False), ``delimiter``, ``quote``, ``escape``
        (``'"'`` where a quote in quotes is doubled), ``nullValue``; and ``decimal_separator`` (``,`` or ``.``) and
        ``multiline`` (quoted values may hold line breaks; such a file is read by one task).
    :param ignore: of which names no file belongs to any epoch, such as ``("*.ok", "*.md5", "*_$folder$")``: patterns
        of :func:`fnmatch.fnmatchcase` (``*``, ``?``, ``[...]``; upper and lower case differ) for the last part of the
        path. Beside them is left out what Spark takes for no data: names that begin with ``_`` (unless ``=`` is in
        them) or ``.``, or end with ``._COPYING_``, and folders of such names. The log of the task that cuts says how
        many files were left out. What a pattern no longer matches is in the next epoch, as a late file.

    Raises :class:`ConfigurationError` for settings that contradict each other.

    >>> Files("s3://in/shopping/", schema="userId BIGINT, price DECIMAL(10,2)", attribute_by="path",
    ...       path_date="date=%Y-%m-%d").name
    'shopping'
    """

    kind: ClassVar[str] = "files"
    connections: ClassVar[Sequence[tuple[str, str]]] = ()
    secrets: ClassVar[Mapping[str, str]] = {}

    path: str
    name: str = ""
    format: Format = "parquet"
    schema: str = ""
    attribute_by: AttributeBy = "mtime"
    path_date: str | None = None
    event_time: str | None = None
    allowed_lateness: timedelta = timedelta(0)
    idle_timeout: timedelta | None = None
    max_future_skew: timedelta = field(default=MAX_FUTURE_SKEW, metadata=ADDED)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    ignore: Sequence[str] = field(default=(), metadata=ADDED)
    # not the author's to say, and no part of the declaration: see `within`
    _limits: Limits = field(default_factory=Limits, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", urlsplit(self.path).path.strip("/").split("/")[-1] or self.path)
        self._check_settings()
        object.__setattr__(self, "ignore", tuple(self.ignore))

    # --- the declaration --------------------------------------------------------------------------

    def declare(self) -> ExternalSource:
        return declaration_of(self)

    @classmethod
    def of(cls, declared: ExternalSource) -> Files:
        return declared_source(cls, declared)

    @property
    def location(self) -> str:
        return self.path

    def within(self, limits: Limits, *credentials: Credentials) -> Files:
        bounded = replace(self)
        object.__setattr__(bounded, "_limits", limits)
        return bounded

    def dataset(self, catalog: str) -> tuple[str, str]:
        return datasets.folder(self.path)

    def for_driver(self) -> ExternalSource:
        return self.declare()

    # --- on the worker ----------------------------------------------------------------------------

    def look(self, catalog: SourceCatalog) -> None:
        self._folder.files()

    def cut(self, request: CutRequest) -> Cut | NotReady:
        """The epoch's own files, never those of earlier ones. Raises SourceDataError if the folder is not there, and
        SourceUnavailableError.
        """
        cut, most = self._cut(request), self._limits.max_epoch_files
        if isinstance(cut, Cut) and len(cut.end["files"]) > most:
            raise SourceDataError(  # safety: files-of-a-cut
                f"source {self.name}: expected {most:,} new files in {self.path} for one epoch at most, found "
                f"{len(cut.end['files']):,}, the first of which is {cut.end['files'][0]['path']}; "
                f"{_BEGIN_LATER if request.start is None else ''}merge them, move some away and land them after the "
                "barrier has opened, or raise the connection's extra max_epoch_files"
            )
        return cut

    def _cut(self, request: CutRequest) -> Cut | NotReady:
        if request.already is not None:
            return self._first_cut(request, request.already)
        if self._by_event_time is not None:
            return file_cuts.cut_by_event_time(self.name, self._folder, request, self._by_event_time)
        return file_cuts.cut_by_position(self.name, self._folder, request, self._position)

    def check(self, cut: Cut) -> None:
        """Raise SourceDataError naming each file that is not what was cut or does not have the declared schema."""
        folder = self._folder
        files = file_cuts.pinned(cut)
        cut_as = {file.path: file for file in files}
        moved = file_cuts.moved(folder, files)
        wrong = {
            path: f"expected it as it was cut ({cut_as[path]}), found {found or 'no such file'}"
            for path, found in moved.items()
        }
        rest = [file for file in files if file.path not in moved]
        wrong.update(file_cuts.mismatches(folder, rest, self._layout))
        wrong.update(
            {
                path: f"its event times in {self.event_time}: {why}"
                for path, why in cut.end.get("unread", {}).items()
                if path not in wrong
            }
        )
        wrong.update(
            {
                file.path: f"expected a date as in {self.path_date!r} in the path, found none"
                for file in rest
                if self.attribute_by == "path" and self._position(file) is None
            }
        )
        if wrong:
            raise SourceDataError(self._refusal(wrong))  # safety: files-as-they-were-cut

    def lag(self, cut: Cut | None, now: datetime) -> Lag | None:
        """None: a folder keeps its files. But it is told of those that were overwritten before the newest cut."""
        told = cut.end.get("overwritten") if cut is not None else None
        return Lag("files", "folder", 0, None, (), told) if told is not None else None

    def repin(self, cut: Cut) -> Cut:
        return file_cuts.cut_anew(cut, self._folder, self._by_event_time)

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        """Files that are gone leave. A file joins the epoch of its modification time, of the date in its path, or of
        the earliest event time in it.
        """
        if self._by_event_time is not None:
            return file_cuts.recut_by_event_time(cuts, self._folder, used, self._by_event_time)
        return file_cuts.recut_by_position(cuts, self._folder, used, self._position)

    def check_held(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Nothing: :meth:`check` sees whether the files are there."""

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        return file_cuts.whole(cuts)

    def release(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Nothing: a cut holds no files, they are the landing folder's."""

    def _first_cut(self, request: CutRequest, already: datetime | int | Mapping[str, Any]) -> Cut | NotReady:
        """Cut the first epoch: what is in the jobs' tables is used up along with its files, and not read."""
        before = self._cut_of(request, already)
        if isinstance(before, NotReady):
            return before
        taken = set(before.items)

        def used(paths: Sequence[str]) -> set[str]:
            return request.used(paths) | taken.intersection(paths)

        after = datetime.fromisoformat(before.end["time"])
        cut = self._cut(replace(request, already=None, after=after, start=before.end, used=used))
        if isinstance(cut, NotReady):
            return cut
        items = (
            *before.items,  # safety: used-up-by-the-baseline
            *cut.items,
        )
        return Cut(cut.source, cut.start, cut.end, items)

    def _cut_of(self, request: CutRequest, already: datetime | int | Mapping[str, Any]) -> Cut | NotReady:
        if isinstance(already, datetime):
            return self._cut(replace(request, already=None, after=None, start=None, until=already))
        named = list(already["files"]) if isinstance(already, Mapping) and set(already) == {"files"} else None
        if named is None or not named or self.attribute_by == "event_time":
            raise ConfigurationError(
                f"source {self.name}: expected start_from {{'files': [paths under {self.path}]}} (by event time: a "
                f"datetime), found {already!r}"
            )
        landed = {file.path: file for file in self._folder.files()}
        if missing := sorted(set(named) - set(landed)):
            raise ConfigurationError(
                f"source {self.name}: expected files under {self.path} in start_from, found none of the name "
                f"{missing[0]!r}; paths are relative to it"
            )
        return file_cuts.cut_of(self.name, [landed[path] for path in named], self._position, request.until)

    # --- in the Spark driver ----------------------------------------------------------------------

    def readings(self, cut: Cut, after: datetime | None, until: datetime) -> list[Reading]:
        """Return which files are read, and which of their records."""
        if self.attribute_by == "event_time":
            return file_cuts.event_time_readings(cut, after, until)
        own = file_cuts.own_files(cut)
        return [Reading(own)] if own else []

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
        """The epoch's records with the declared columns. A malformed record fails the action that meets it; see
        :func:`~airflow_barrier.sources.spark_errors.source_error`.
        """
        frames = [self._read(spark, reading) for reading in self.readings(cut, after, until)]
        if not frames:
            return spark.createDataFrame([], ddl_of(self._columns))
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        urls = [url_of(self.path, path) for path in reading.files]
        frame = read_files(spark, urls, self.format, self._columns, self._dialect, self._what)
        condition = self._condition(reading)
        return frame if condition is None else frame.where(condition)

    def urls(self, cut: Cut) -> list[str]:
        """The files that the epoch reads."""
        return [url_of(self.path, file.path) for file in file_cuts.pinned(cut)]

    def size(self, cut: Cut) -> int:
        """The bytes of the files that the epoch reads."""
        return sum(file.size for file in file_cuts.pinned(cut))

    def read_in_order(self, spark: SparkSession, url: str) -> None:
        """Read one text file again, from its beginning and by one task, so that Spark's error names the line."""
        from airflow_barrier.sources.text.records import TextRecords

        records = TextRecords(self.format, self._columns, self._dialect, self._what, _READ_OPTIONS)
        if not self._dialect.multiline:
            records.read_in_order(spark, _url_in_spark(url)).write.format("noop").mode("overwrite").save()

    def _condition(self, reading: Reading) -> str | None:
        """The reading's part of the event times, as SQL that means the same in every session time zone."""
        if reading.until is None or self.event_time is None:
            return None
        column = quoted(self.event_time)
        upper = f"{column} <= {self._literal(reading.until)}"
        if reading.after is None:
            return f"{column} IS NULL OR {upper}"
        return f"{column} > {self._literal(reading.after)} AND {upper}"

    def _literal(self, moment: datetime) -> str:
        return timestamp_literal(moment, zoned=self._event_time_type == "TIMESTAMP")

    # --- parts ------------------------------------------------------------------------------------

    @cached_property
    def _columns(self) -> tuple[Column, ...]:
        return parse_ddl(self.schema)

    @cached_property
    def _dialect(self) -> CsvDialect:
        return CsvDialect.of(self.options)

    @property
    def _what(self) -> str:
        return f"source {self.name}"

    @cached_property
    def _layout(self) -> Layout:
        return Layout(self.format, self._columns, self._dialect, self._limits)

    @property
    def _folder(self) -> Folder:
        return Folder(self.path, self.ignore)

    @cached_property
    def _by_event_time(self) -> EventTime | None:
        if self.attribute_by != "event_time" or self.event_time is None:
            return None
        times = Times(self.max_future_skew, self.allowed_lateness, self.idle_timeout)
        return EventTime(self.event_time, self._layout, times)

    @cached_property
    def _event_time_type(self) -> str | None:
        return next((column.type.name for column in self._columns if column.name == self.event_time), None)

    @cached_property
    def _path_date(self) -> PathDate | None:
        return PathDate.of(self.path_date) if self.path_date is not None else None

    def _position(self, file: LandedFile) -> datetime | None:
        return self._path_date.end_of(file.path) if self._path_date is not None else file.modified

    def _refusal(self, wrong: Mapping[str, str]) -> str:
        named = [one_line(f"{url_of(self.path, path)}: {what}") for path, what in sorted(wrong.items())]
        more = f"; and {len(named) - 5} more" if len(named) > 5 else ""
        return (
            f"source {self.name}: {'; '.join(named[:5])}{more}. Mend or move away what is wrong and clear the "
            "task; what an attempt has read already has to be as it was cut, or the barrier to be aborted, so that the "
            "epoch is cut anew"
        )

    def _check_settings(self) -> None:
        where = f"Files({self.path!r})"
        if fault := location_fault(self.path):
            raise ConfigurationError(f"{where}: {fault}")
        if self.format not in ("parquet", "csv", "json"):
            raise ConfigurationError(f"{where}: expected format 'parquet', 'csv' or 'json', found {self.format!r}")
        if not self.schema:
            raise ConfigurationError(f"{where}: expected schema='userId BIGINT, …' with all columns, found none")
        if self.attribute_by not in ("mtime", "path", "event_time"):
            raise ConfigurationError(
                f"{where}: expected attribute_by 'mtime', 'path' or 'event_time', found {self.attribute_by!r}"
            )
        if (self.attribute_by == "path") != (self._path_date is not None):
            raise ConfigurationError(f"{where}: path_date and attribute_by='path' belong together; give both or none")
        self._check_ignore(where)
        self._check_event_time(where)
        self._check_csv(where)

    def _check_ignore(self, where: str) -> None:
        patterns: list[object] = [] if isinstance(self.ignore, str) else list(self.ignore)
        usable = [one for one in patterns if isinstance(one, str) and one.strip("*") and "/" not in one]
        if len(usable) != len(self.ignore):
            raise ConfigurationError(
                f"{where}: expected ignore to be patterns of file names, such as ('*.ok', '*.md5'), each without '/' "
                f"and none of all names, found {self.ignore!r}"
            )

    def _check_event_time(self, where: str) -> None:
        if (self.attribute_by == "event_time") != (self.event_time is not None):
            raise ConfigurationError(
                f"{where}: event_time and attribute_by='event_time' belong together; give both or none"
            )
        if self.event_time is None:
            if self.allowed_lateness or self.idle_timeout is not None:
                raise ConfigurationError(
                    f"{where}: allowed_lateness and idle_timeout are for attribute_by='event_time' only; leave them out"
                )
        elif self._event_time_type not in ("TIMESTAMP", "TIMESTAMP_NTZ"):
            raise ConfigurationError(
                f"{where}: expected event_time {self.event_time!r} to be a TIMESTAMP or TIMESTAMP_NTZ of the schema, "
                f"found {self._event_time_type or 'no such column'}"
            )

    def _check_csv(self, where: str) -> None:
        if self.options and self.format != "csv":
            raise ConfigurationError(f"{where}: expected options only for CSV, found {sorted(self.options)}")
        try:
            CsvDialect.of(self.options)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        nested = [column.name for column in self._columns if column.type.name in ("ARRAY", "MAP", "STRUCT")]
        if self.format == "csv" and nested:
            raise ConfigurationError(f"{where}: CSV has no nested columns, found {nested}; land JSON or Parquet")


def read_files(
    spark: SparkSession,
    urls: Sequence[str],
    form: str,
    columns: tuple[Column, ...],
    dialect: CsvDialect,
    what: str,
    header: str | None = None,
) -> DataFrame:
    """The records of files, or of folders with all that is in them, exactly as ``columns`` declare them.

    ``what`` the files are, for errors. A malformed record fails the action that meets it. ``header``: the first line
    that each CSV file has to have, where nobody has looked at them yet.
    """
    from airflow_barrier.sources.text.records import TextRecords

    there = [_url_in_spark(url) for url in urls]
    if form == "parquet":
        return spark.read.format(form).options(**_READ_OPTIONS).schema(ddl_of(columns)).load(there)
    return TextRecords(form, columns, dialect, what, _READ_OPTIONS).read(spark, there, header)


def names_in_files(spark: SparkSession, url: str, form: str, dialect: CsvDialect) -> list[str]:
    """The columns that Spark finds in files."""
    reader = spark.read.format(form).options(**_READ_OPTIONS)
    if form == "csv":
        reader = reader.options(**dialect.spark_options())
    return reader.load(_url_in_spark(url)).columns


def header_in_files(spark: SparkSession, url: str) -> str | None:
    """The first line of one of the CSV files; None if there is none."""
    lines = spark.read.format("text").options(**_READ_OPTIONS).load(_url_in_spark(url))
    first = lines.where("_metadata.file_block_start = 0").coalesce(1).first()
    return None if first is None else str(first.value)


def _url_in_spark(url: str) -> str:
    """The file as Hadoop names it."""
    url = literally(url)
    return "s3a://" + url.removeprefix("s3://") if url.startswith("s3://") else url
