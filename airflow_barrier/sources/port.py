"""What the protocol asks of an external source.

An adapter is a frozen dataclass with plain settings. It is constructed while a DAG is parsed, so its module imports
neither pyspark nor pyiceberg nor pyarrow at the top, and its constructor touches no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class CutRequest:
    """For which epoch a cut is made: after ``after`` (exclusive, None: from the beginning) up to ``until``, in UTC.

    ``start``: the predecessor's end, None at barrier 1. ``used`` answers which of some items are already in a cut
    of a barrier that counts. ``catalog`` is what tables of the deployment's catalog are read with (None for
    sources that need none).
    """

    topology: str
    barrier_id: int
    after: datetime | None
    until: datetime
    start: Mapping[str, Any] | None
    used: Any  # Callable[[Sequence[str]], set[str]]
    catalog: Any = None


@dataclass(frozen=True)
class NotReady:
    """A source whose watermark has not reached the barrier's timestamp yet: the barrier must not open yet."""

    source: str
    watermark: datetime | None
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)


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

    def cut(self, request: CutRequest) -> Cut | NotReady:
        """Which positions belong to the epoch. Reads listings and metadata, writes at most a ref that pins them."""
        ...

    def check(self, cut: Cut) -> None:
        """Raise SourceDataError naming the file (or table) that cannot be read as declared. Before Spark starts."""
        ...

    def load(self, spark: SparkSession, cut: Cut, after: datetime | None, until: datetime, catalog: str) -> DataFrame:
        """The epoch's records, exactly those of ``cut``. Runs in a Spark driver: no pyiceberg, Airflow, SQLAlchemy."""
        ...


Sources = Sequence[Source]
