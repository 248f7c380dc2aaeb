"""A stream of Pravega, whose events each epoch takes from stream cut to stream cut into files beside the warehouse.

    purchases = Pravega("purchases", scope="shop", conn_id="pravega", schema="user_id BIGINT, price DECIMAL(10,2)")
    barrier.job(SparkEpochOperator(task_id="purchases", ...), inlets=[purchases], outlets=["shop.purchases"])

and in a job ``epoch.source("purchases")``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from airflow_barrier.protocol.changes import SEQUENCE
from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.errors import ConfigurationError, SourceDataError, SourceUnavailableError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.files import read_files
from airflow_barrier.sources.messages.records import RecordFormat, broken, decoded
from airflow_barrier.sources.port import (
    CutRequest,
    Delta,
    Lag,
    SourceCatalog,
    declaration_of,
    declared_source,
    no_recut,
)
from airflow_barrier.sources.text.csv_dialect import CsvDialect
from airflow_barrier.systems import pravega

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.sources.pravega.cuts import Reading

#: An event's number among all of the source stands for its offset, which its segment alone would make one.
_AS_RECORDS = (
    "{stream} AS topic",
    "CAST(segment & 2147483647 AS INT) AS partition",  # the upper half of its number is when it began
    "seq AS offset",
    "CAST(NULL AS TIMESTAMP) AS timestamp",
    "CAST(NULL AS BINARY) AS key",
    "value",
    "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
)
_SEQ = "seq"
_PLACE = "concat('stream ', topic, ', event ', offset)"


@dataclass(frozen=True)
class Pravega:
    """A stream. Each event is in one epoch exactly; events of transactions that were aborted are in none.

    An epoch has the events up to the stream's end at the moment when its barrier opens. They are taken out once, by the
    worker, into Parquet files beside the warehouse: attempts, other jobs and revisions read these, so Spark needs
    neither a connector nor a way to Pravega, and the stream's retention may take them then. Groups of readers, by which
    nobody reads, keep the ends of the newest epochs at Pravega (``airflow-barrier-…``).

    The stream may scale at any time. Pravega keeps the order of events of one routing key, and so does the column
    ``_seq``, which can be asked for. It keeps no routing keys and no times: what a job needs of them has to be in the
    event.

    Pravega was archived by the CNCF in September 2025. Its last Python client (0.3.8) runs on Python 3.10 and 3.11 on
    x86-64, and reads nothing from an event without a byte on: its barriers do not open. Here it enters servers without
    TLS and without logins.

    :param stream: its name.
    :param scope: the stream's.
    :param conn_id: an Airflow connection of type `generic` with the controller's host and port (default: 9090).
    :param name: unique in the topology. Default: the stream.
    :param format: of an event: ``json`` (one object), ``avro``, or ``binary``: the column ``value`` as it is.
    :param schema: for ``json``: all columns, as Spark DDL: ``"user_id BIGINT, price DECIMAL(10,2)"``.
    :param avro_schema: for ``avro``: the schema's JSON text.
    :param writer_schemas: for ``avro`` in Confluent's wire format: id -> the JSON text of the schema that it stands
        for. Events are read as ``avro_schema`` has it.
    :param metadata: ``("seq",)``: each event's number among all of the source comes as the column ``_seq``, too. Of two
        events of one routing key the later one's is the greater; between events of different keys it says nothing.
    :param dead_letters: the table, ``namespace.table``, that takes the events that do not decode, as for
        :class:`~airflow_barrier.sources.kafka.Kafka`; ``topic`` is the stream there, ``partition`` the segment's
        number without its epoch, and ``offset`` the event's number. Without it such an event fails the attempt.

    Raises :class:`ConfigurationError` for settings that contradict each other.

    >>> Pravega("purchases", scope="shop", schema="user_id BIGINT, price DECIMAL(10,2)").name
    'purchases'
    """

    kind: ClassVar[str] = "pravega"
    location: ClassVar[None] = None
    secrets: ClassVar[Mapping[str, str]] = {}

    stream: str
    scope: str
    conn_id: str = "pravega_default"
    name: str = ""
    format: str = "json"
    schema: str = ""
    avro_schema: str = ""
    writer_schemas: Mapping[int, str] = field(default_factory=dict, hash=False)
    metadata: Sequence[str] = ()
    dead_letters: str | None = None
    # not the author's to say, and no part of the declaration: see `within`
    _credentials: Credentials | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.stream)
        where = f"Pravega({self.stream!r})"
        for setting in ("stream", "scope"):
            if fault := pravega.name_fault(getattr(self, setting)):
                raise ConfigurationError(f"{where}: {setting}: {fault}")
        object.__setattr__(self, "metadata", tuple(self.metadata))
        if self.metadata not in ((), (_SEQ,)):
            raise ConfigurationError(f"{where}: expected metadata to be () or ({_SEQ!r},), found {self.metadata!r}")
        try:
            _ = self._format
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None

    # --- the declaration --------------------------------------------------------------------------

    def declare(self) -> ExternalSource:
        return declaration_of(self)

    @classmethod
    def of(cls, declared: ExternalSource) -> Pravega:
        return declared_source(cls, declared)

    @property
    def connections(self) -> Sequence[tuple[str, str]]:
        return [(self.conn_id, pravega.CONN_TYPE)]

    @property
    def packages(self) -> Sequence[str]:
        return ["avro"] if self.format == "avro" else []

    def within(self, limits: Limits, *credentials: Credentials) -> Pravega:
        entered = replace(self)
        for each in credentials:
            object.__setattr__(entered, "_credentials", each)
        return entered

    def dataset(self, catalog: str) -> tuple[str, str]:
        return pravega.dataset(self.scope, self.stream, self._credentials)

    def for_driver(self) -> ExternalSource:
        return self.declare()

    # --- on the worker ----------------------------------------------------------------------------

    def look(self, catalog: SourceCatalog) -> None:
        """Raises SourceDataError for a stream that is not there, SourceUnavailableError and ConfigurationError."""
        from airflow_barrier.sources.pravega.cuts import check_there

        with self._client() as client:
            check_there(client, self.scope, self.stream)

    def cut(self, request: CutRequest) -> Cut:
        """Take out the events since the predecessor's cut, and cut behind them.

        Raises SourceDataError where some of them are gone, SourceUnavailableError and ConfigurationError.
        """
        from airflow_barrier.sources.pravega.cuts import cut

        if request.catalog is None:
            raise ConfigurationError(f"{self._what}: expected a warehouse to put events beside, found none")
        return cut(self._reading(request.catalog, request.topology), request)

    def check(self, cut: Cut) -> None:
        """Nothing: what the epoch reads lies beside the warehouse, as it was taken out."""

    def lag(self, cut: Cut | None, now: datetime) -> Lag | None:
        """Counted in bytes, with their headers. Raises SourceUnavailableError and SourceDataError."""
        from airflow_barrier.sources.pravega.cuts import lag

        with self._client() as client:
            return lag(client, self.scope, self.stream, cut)

    def repin(self, cut: Cut) -> Cut:
        return cut

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        raise no_recut(self._what, "a stream", "send the correction to it")  # safety: positions-are-not-cut-anew

    def check_held(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Raise SourceDataError for files that are gone."""
        if gone := [file["uri"] for file in cut.end["files"] if not catalog.exists(file["uri"])]:
            raise SourceDataError(  # safety: taken-changes-are-kept
                f"{self._what}: expected the events of its epoch as they were taken out of the stream, found that "
                f"{len(gone)} files are gone, such as {gone[0]}: its barrier expired, or somebody deleted them. "
                "Replace the epoch by a revision (--sql, --file)"
            )

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        """Join cuts: the files of all of them, from where the first begins."""
        files = [file for cut in cuts for file in cut.end["files"]]
        return Cut(cuts[-1].source, cuts[0].start, {**cuts[-1].end, "files": files})

    def release(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Nothing: Pravega forgets an epoch's end when the second one after it is cut."""

    def keep_up(self, newest: Cut, catalog: SourceCatalog) -> None:
        """Nothing: the stream's own retention decides what it holds."""

    def let_go(self, oldest: Cut, catalog: SourceCatalog) -> None:
        """See :class:`~airflow_barrier.sources.port.Kept`."""
        from airflow_barrier.sources.pravega.cuts import let_go

        let_go(oldest, catalog)

    def leave(self, topology: str, catalog: SourceCatalog) -> None:
        """Have Pravega forget the ends of all epochs of the topology that it knows."""
        from airflow_barrier.sources.pravega.cuts import leave

        leave(self._reading(catalog, topology))

    def size(self, cut: Cut) -> int:
        return sum(file["bytes"] for file in cut.end["files"])

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
        """The epoch's events, with the columns of the format and of ``metadata``."""
        records = self._records(spark, cut)
        found = decoded(records, self._format, self._what, skip_broken=self.dead_letters is not None, place=_PLACE)
        found = found.withColumnRenamed("_offset", SEQUENCE) if self.metadata else found.drop("_offset")
        return found.drop("key") if self.format == "binary" else found

    def letters(self, spark: SparkSession, cut: Cut, until: datetime, secrets: Mapping[str, str]) -> DataFrame:
        """Return those of the epoch's events that do not decode."""
        return broken(self._records(spark, cut), self._format, self._what)

    def _records(self, spark: SparkSession, cut: Cut) -> DataFrame:
        """The epoch's events as records of a log."""
        from airflow_barrier.protocol.ddl import ddl_of, literal
        from airflow_barrier.sources.pravega.cuts import COLUMNS

        uris = [file["uri"] for file in cut.end["files"]]
        if uris:
            events = read_files(spark, uris, "parquet", COLUMNS, CsvDialect.of({}), self._what)
        else:
            events = spark.createDataFrame([], ddl_of(COLUMNS))
        return events.selectExpr(*(each.format(stream=literal(self.stream)) for each in _AS_RECORDS))

    # --- parts ------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"source {self.name}"

    @cached_property
    def _format(self) -> RecordFormat:
        return RecordFormat(self.format, self.schema, self.avro_schema, ("offset",), self.writer_schemas)

    def _client(self) -> pravega.Client:
        return pravega.Client(self._what, self._credentials, SourceUnavailableError)

    def _reading(self, catalog: SourceCatalog, topology: str) -> Reading:
        from airflow_barrier.sources.pravega.cuts import Reading

        folder = catalog.location("_barrier", topology, "sources", self.name)
        return Reading(self._client(), self.name, self.scope, self.stream, catalog, folder)
