"""A topic of Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_barrier.protocol.credentials import Credentials
from airflow_barrier.protocol.ddl import timestamp_literal
from airflow_barrier.protocol.errors import (
    ConfigurationError,
    SourceDataError,
    SourceUnavailableError,
)
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources.bounded import Limits
from airflow_barrier.sources.messages.records import RecordFormat, broken, decoded
from airflow_barrier.sources.port import (
    CutRequest,
    Delta,
    Lag,
    NotReady,
    SourceCatalog,
    declaration_of,
    declared_source,
    no_recut,
)
from airflow_barrier.sources.times import MAX_FUTURE_SKEW, Times
from airflow_barrier.systems import kafka_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_barrier.sources.kafka.log import Log

AttributeBy = Literal["offset", "timestamp", "event_time"]
#: Offsets that one task reads at most, so that a partition with a long backlog is read by several.
_PER_TASK = 1_000_000


@dataclass(frozen=True)
class Kafka:
    """A topic. Each record is in one epoch exactly; records of transactions that were aborted are in none.

    What an epoch reads is fixed when its barrier opens: of each partition the offsets from where the barrier before
    ended up to the last stable offset, before which no transaction is open. Every attempt reads just these, by Spark's
    executors. Nothing is held in Kafka: neither a consumer group nor committed offsets.

    :param topic: its name.
    :param conn_id: an Airflow connection of type `kafka`, whose extra is librdkafka's configuration.
    :param name: unique in the topology. Default: the topic.
    :param format: of a record's value: ``json`` (one object), ``avro``, or ``binary``: key and value as they are.
    :param schema: for ``json``: all columns, as Spark DDL: ``"userId BIGINT, price DECIMAL(10,2)"``.
    :param avro_schema: for ``avro``: the schema's JSON text.
    :param writer_schemas: for ``avro`` in Confluent's wire format, where each value begins with the id of the schema
        that it was written with: id -> that schema's JSON text. They are read as ``avro_schema`` has it.
    :param registry: for ``avro`` in Confluent's wire format, instead of ``writer_schemas``: an Airflow connection of
        type `http` of a schema registry that speaks Confluent's API, with who enters as login and password. Each
        attempt begins by asking it for the schemas. ``avro_schema`` says the columns also then, whatever a producer
        registers.
    :param subject: under which the schemas of the topic's values are in the registry. Default: ``<topic>-value``.
    :param metadata: which of ``key``, ``headers``, ``partition``, ``offset`` and ``timestamp`` come as columns, too,
        called ``_key``, ``_headers``, and so on.
    :param attribute_by: what decides to which epoch a record belongs.

        - ``offset``: whatever is there when the barrier opens. Not for catching up over history: the first barrier
          takes all that is retained.
        - ``timestamp``: of each partition the records before the first one whose timestamp is later than the barrier's.
          A record behind that one whose timestamp is earlier belongs to the next epoch. A record of more than
          ``max_future_skew`` after the present ends no epoch, so that one wrong clock holds up nothing.
        - ``event_time``: a record belongs to the first barrier whose timestamp is not before its own, and the barrier
          opens once each partition has a record that is later than its timestamp and ``allowed_lateness``. A record
          that comes behind that one is late: it is in the epoch that is cut next. A partition whose newest record is
          older than ``idle_timeout`` is not waited for (None: it is). The time is the record's timestamp, which its
          producer gave it, or the broker (``message.timestamp.type``).

    :param fail_on_data_loss: what a barrier does when records that it begins at are gone, by retention or since the
        topic was made anew. True: the jobs of this source stop with an error that names the offsets. False: the epoch
        begins at what is there, and a warning says what is lost.
    :param dead_letters: the table, ``namespace.table``, that takes the records that do not decode, which are left out
        of what jobs read then. It is an outlet of one of the jobs that read the source, and gets the letters in the
        same epoch; see :meth:`airflow_barrier.spark.epoch.Epoch.dead_letters` for its columns. Without it such a
        record fails the attempt.

    Raises :class:`ConfigurationError` for settings that contradict each other.

    >>> Kafka("purchases", schema="userId BIGINT, price DECIMAL(10,2)", attribute_by="timestamp").name
    'purchases'
    """

    kind: ClassVar[str] = "kafka"
    location: ClassVar[None] = None

    topic: str
    conn_id: str = "kafka_default"
    name: str = ""
    format: str = "json"
    schema: str = ""
    avro_schema: str = ""
    writer_schemas: Mapping[int, str] = field(default_factory=dict, hash=False)
    registry: str | None = None
    subject: str = ""
    metadata: Sequence[str] = ()
    attribute_by: AttributeBy = "offset"
    allowed_lateness: timedelta = timedelta(0)
    idle_timeout: timedelta | None = None
    max_future_skew: timedelta = MAX_FUTURE_SKEW
    fail_on_data_loss: bool = True
    dead_letters: str | None = None
    # not the author's to say, and no part of the declaration: see `within`
    _credentials: Credentials | None = field(default=None, init=False, repr=False, compare=False)
    _registry: Credentials | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.topic)
        object.__setattr__(self, "metadata", tuple(self.metadata))
        where = f"Kafka({self.topic!r})"
        if fault := kafka_settings.topic_fault(self.topic):
            raise ConfigurationError(f"{where}: {fault}")
        if self.attribute_by not in ("offset", "timestamp", "event_time"):
            raise ConfigurationError(
                f"{where}: expected attribute_by 'offset', 'timestamp' or 'event_time', found {self.attribute_by!r}"
            )
        if self.attribute_by != "event_time" and (self.allowed_lateness or self.idle_timeout is not None):
            raise ConfigurationError(
                f"{where}: allowed_lateness and idle_timeout are for attribute_by='event_time' only; leave them out"
            )
        if self.registry is not None and (self.format != "avro" or self.writer_schemas):
            raise ConfigurationError(
                f"{where}: registry is for format='avro' without writer_schemas, which come from there; leave one out"
            )
        if self.subject and self.registry is None:
            raise ConfigurationError(f"{where}: subject is one of a schema registry; name its connection by registry=")
        try:
            _ = self._format
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None

    # --- the declaration --------------------------------------------------------------------------

    def declare(self) -> ExternalSource:
        return declaration_of(self)

    @classmethod
    def of(cls, declared: ExternalSource) -> Kafka:
        return declared_source(cls, declared)

    @property
    def connections(self) -> Sequence[tuple[str, str]]:
        own = (self.conn_id, kafka_settings.CONN_TYPE)
        return [own] if self.registry is None else [own, (self.registry, "http")]

    @property
    def packages(self) -> Sequence[str]:
        return ["kafka", "avro"] if self.format == "avro" else ["kafka"]

    def within(self, limits: Limits, *credentials: Credentials) -> Kafka:
        entered = replace(self)
        for name, each in zip(("_credentials", "_registry"), credentials, strict=False):
            object.__setattr__(entered, name, each)
        return entered

    def dataset(self, catalog: str) -> tuple[str, str]:
        return kafka_settings.dataset(self.topic, self._credentials)

    def for_driver(self) -> ExternalSource:
        """Declare it with the schemas that the registry has by now: an id's never changes, so all attempts decode
        alike.

        Raises SourceUnavailableError, SourceDataError and ConfigurationError.
        """
        if self.registry is None:
            return self.declare()
        from airflow_barrier.sources.kafka.registry import writer_schemas

        subject = self.subject or f"{self.topic}-value"
        found = writer_schemas(self._what, subject, self._registry)
        try:
            return replace(self, registry=None, subject="", writer_schemas=found).declare()
        except ConfigurationError as error:  # the rest of it was so before
            raise SourceDataError(f"subject {subject} of the schema registry: {error}") from None

    @property
    def secrets(self) -> Mapping[str, str]:
        return kafka_settings.spark_settings(self._what, self._credentials)

    # --- on the worker ----------------------------------------------------------------------------

    def look(self, catalog: SourceCatalog) -> None:
        """Raises SourceDataError for a topic that is not there or that we may not read, or schemas that are not in the
        registry, SourceUnavailableError and ConfigurationError.
        """
        self._log().look()
        self.for_driver()

    def cut(self, request: CutRequest) -> Cut | NotReady:
        """Raises SourceDataError where records between the barriers are gone, and SourceUnavailableError."""
        from airflow_barrier.sources.kafka import cuts as kafka_cuts

        times = {
            "offset": None,
            "timestamp": Times(self.max_future_skew),
            "event_time": Times(self.max_future_skew, self.allowed_lateness, self.idle_timeout),
        }[self.attribute_by]
        if times and times.lateness is not None and isinstance(request.already, datetime):
            raise ConfigurationError(
                f"{self._what}: expected start_from {{'offsets': {{partition: offset}}}} of a topic that is read by "
                "event time, found a datetime"
            )
        return kafka_cuts.cut(self._log(), request, times, self.fail_on_data_loss)

    def check(self, cut: Cut) -> None:
        """Raise SourceDataError naming the offsets of the cut that are gone."""
        from airflow_barrier.sources.kafka import cuts as kafka_cuts

        kafka_cuts.check(self._log(), cut)

    def lag(self, cut: Cut | None, now: datetime) -> Lag:
        """Counted in offsets, of which those of control records and of aborted transactions are read by nobody.

        Raises SourceDataError, also for a topic that was made anew or truncated since, and SourceUnavailableError.
        """
        from airflow_barrier.sources.kafka import lag

        return lag.lag(self._log(lag.PATIENCE), cut, now)

    def repin(self, cut: Cut) -> Cut:
        return cut

    def recut(self, cuts: Sequence[Cut], used: Callable[[Sequence[str]], set[str]]) -> list[Cut]:
        raise no_recut(self._what, "a topic", "send the correction to it")  # safety: positions-are-not-cut-anew

    def check_held(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Raise SourceDataError for offsets that are gone, and for a topic that is compacted."""
        from airflow_barrier.sources.kafka import cuts as kafka_cuts

        kafka_cuts.check_kept(self._log(), cut)

    def whole(self, cuts: Sequence[Cut]) -> Cut:
        from airflow_barrier.sources.kafka import cuts as kafka_cuts

        return kafka_cuts.whole(cuts)

    def release(self, cut: Cut, catalog: SourceCatalog) -> None:
        """Nothing: a cut holds nothing in Kafka, where retention decides."""

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
        """The epoch's records, with the columns of the format and of ``metadata``."""
        records = self._records(spark, cut, until, secrets)
        return decoded(records, self._format, self._what, skip_broken=self.dead_letters is not None)

    def letters(self, spark: SparkSession, cut: Cut, until: datetime, secrets: Mapping[str, str]) -> DataFrame:
        """Return those of the epoch's records that do not decode."""
        return broken(self._records(spark, cut, until, secrets), self._format, self._what)

    def _records(self, spark: SparkSession, cut: Cut, until: datetime, secrets: Mapping[str, str]) -> DataFrame:
        """Read the epoch's records as the connector has them."""
        begin, end = cut.end["begin"], cut.end["offsets"]
        own = self._read(spark, {int(each): (begin[each], end[each]) for each in end}, secrets)
        if left := cut.end.get("held"):
            own = own.where(f"NOT ({' OR '.join(_within(entry, until, None) for entry in left)})")
        before = (cut.start or {}).get("held")
        if not before:
            return own
        # of a source that left and came back, what it comes after is longer ago than the barrier before
        since = datetime.fromisoformat((cut.start or {})["time"])
        spans: dict[int, tuple[int, int]] = {}
        for entry in before:
            begins, ends = spans.get(entry["partition"], (entry["from"], entry["to"]))
            spans[entry["partition"]] = min(begins, entry["from"]), max(ends, entry["to"])
        due = self._read(spark, spans, secrets).where(" OR ".join(_within(entry, since, until) for entry in before))
        return own.unionByName(due)

    def _read(self, spark: SparkSession, spans: Mapping[int, tuple[int, int]], secrets: Mapping[str, str]) -> DataFrame:
        """The records of each partition from an offset to before another one."""
        kafka_settings.keep_off_pages(spark)
        reading = {str(partition): span for partition, span in sorted(spans.items()) if span[0] < span[1]}
        if not reading:
            return spark.createDataFrame([], _COLUMNS)
        options = {
            "assign": json.dumps({self.topic: [int(partition) for partition in reading]}),
            "startingOffsets": json.dumps({self.topic: {partition: span[0] for partition, span in reading.items()}}),
            "endingOffsets": json.dumps({self.topic: {partition: span[1] for partition, span in reading.items()}}),
            "failOnDataLoss": "true",
            "includeHeaders": "true",
            "maxRecordsPerPartition": str(_PER_TASK),
        }
        return (
            spark.read.format("kafka")
            .options(**secrets, **options)
            .option("kafka.isolation.level", "read_committed")  # safety: committed-records-only
            .load()
        )

    # --- parts ------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"source {self.name}"

    @cached_property
    def _format(self) -> RecordFormat:
        return RecordFormat(self.format, self.schema, self.avro_schema, tuple(self.metadata), self.writer_schemas)

    def _log(self, patience: float | None = None) -> Log:
        try:
            from airflow_barrier.sources.kafka.log import Log
            from airflow_barrier.systems.kafka import Cluster
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{self._what}: expected Kafka's client on this worker, found no module {error.name}; install "
                "'airflow-provider-barrier[kafka]'"
            ) from error
        cluster = Cluster(self._what, self._credentials, SourceUnavailableError, patience)
        return Log(cluster, self.name, self.topic)


#: What Spark's connector reads, where there is nothing to be read.
_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP_LTZ, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def _within(entry: Mapping[str, Any], after: datetime, until: datetime | None) -> str:
    """SQL for the records that ``entry`` of a cut's ``held`` is about, of those after ``after`` and up to ``until``."""
    last = datetime.fromisoformat(entry["until"])
    upper = timestamp_literal(last if until is None else min(last, until), zoned=True)
    return (
        f"(partition = {entry['partition']:d} AND offset >= {entry['from']:d} AND offset < {entry['to']:d} "
        f"AND timestamp > {timestamp_literal(after, zoned=True)} AND timestamp <= {upper})"
    )
