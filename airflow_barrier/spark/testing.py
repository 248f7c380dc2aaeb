"""Epochs for unit tests of jobs: DataFrames go in; the outlets are real Iceberg tables that vanish with the session.

def test_amount(spark):
    epoch = epoch_of(
        spark,
        changes={"shop.shopping": spark.createDataFrame([(1, 7, Decimal("2.50"))], SHOPPING)},
        outlets={"shop.user_item_amount": spark.createDataFrame([], AMOUNT)},
    )
    amount(epoch)
    assert epoch.read("shop.user_item_amount").collect() == [Row(userId=1, itemId=7, totalAmount=Decimal("2.50"))]
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_barrier.protocol.errors import ConfigurationError, NotAppendOnlyError
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.identifiers import quoted
from airflow_barrier.spark.spec import EpochSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Frames = Mapping[str, "DataFrame"]


def epoch_of(
    spark: SparkSession,
    *,
    changes: Frames | None = None,
    read: Frames | None = None,
    previous: Frames | None = None,
    sources: Frames | None = None,
    outlets: Frames | None = None,
    timestamp: datetime = datetime(2026, 1, 2, tzinfo=timezone.utc),
    previous_timestamp: datetime | None = datetime(2026, 1, 1, tzinfo=timezone.utc),
    seed: int = 0,
) -> Epoch:
    """An epoch whose input is given, for calling a job with.

    ``changes``: inlet -> delta; without column ``_change_type`` its rows count as inserted, else it says ``insert``
    or ``delete``. ``appends`` reads the same delta. ``read``, ``previous``: inlet -> rows as of this barrier and the
    one before. ``sources``: external source -> records. ``outlets``: outlet -> its rows before the epoch (an empty
    frame with the table's schema in the first). What the job wrote is in ``epoch.read(outlet)``, and outlets that it
    called unchanged are in ``epoch.declared_unchanged``.

    ``spark`` is any local session with Iceberg's runtime jar. Raises ConfigurationError for input that is not given.
    """
    tables = {*(changes or {}), *(read or {}), *(previous or {})}
    catalog = _scratch_catalog(spark)
    names = {outlet: quoted(catalog, *outlet.split(".")) for outlet in outlets or {}}
    spec = EpochSpec(
        job="job under test",
        topology="test",
        barrier_id=1,
        revision=0,
        attempt_id=1,
        incarnation="test",
        timestamp=timestamp,
        previous_timestamp=previous_timestamp,
        catalog=catalog,
        inputs=dict.fromkeys(tables),
        previous=dict.fromkeys(tables),
        bases={outlet: _create(spark, names[outlet], frame) for outlet, frame in (outlets or {}).items()},
        externals={name: ExternalSource(name, "frame") for name in sources or {}},
        cuts={name: Cut(name, None, {}) for name in sources or {}},
        closing_uri="",
        seed=seed,
        nonce="",
    )
    return _EpochOfFrames(spark, spec, names, changes or {}, read or {}, previous or {}, sources or {})


class _EpochOfFrames(Epoch):
    def __init__(
        self,
        spark: SparkSession,
        spec: EpochSpec,
        names: Mapping[str, str],
        changes: Frames,
        read: Frames,
        previous: Frames,
        sources: Frames,
    ) -> None:
        super().__init__(spark, spec)
        self._names = names
        self._frames = {"changes": changes, "read": read, "previous": previous, "sources": sources}

    def changes(self, table: str) -> DataFrame:
        from pyspark.sql import functions as f

        self._inlet(table)
        frame = self._given("changes", table)
        if "_change_type" not in frame.columns:
            frame = frame.withColumn("_change_type", f.lit("insert"))
        return frame.withColumn("_weight", f.expr("CASE _change_type WHEN 'delete' THEN -1 ELSE 1 END"))

    def appends(self, table: str) -> DataFrame:
        frame = self.changes(table)
        if frame.where("_change_type <> 'insert'").limit(1).count():
            raise NotAppendOnlyError(  # safety: appends-in-unit-tests
                f"{table}: expected appended rows only, found deleted ones; use epoch.changes({table!r})"
            )
        return frame.drop("_change_type", "_weight")

    def read(self, table: str) -> DataFrame:
        if table in self._names:
            return super().read(table)
        self._inlet(table)
        return self._given("read", table)

    def previous(self, table: str) -> DataFrame:
        if table in self._names:
            return super().previous(table)
        self._inlet(table)
        return self._given("previous", table)

    def source(self, name: str, table: str | None = None) -> DataFrame:
        given = name if table is None else f"{name}.{table}"
        if given not in self._frames["sources"]:
            return super().source(name, table)
        return self._given("sources", given)

    def target(self, table: str) -> str:
        self._check_outlet(table)
        return self._names[table]

    def _given(self, what: str, name: str) -> DataFrame:
        if name not in self._frames[what]:
            raise ConfigurationError(
                f"epoch_of: the job asks for {what} of {name!r}, which the test does not give; add "
                f"{what}={{{name!r}: …}}"
            )
        return self._frames[what][name]


def _scratch_catalog(spark: SparkSession) -> str:
    """A catalog of its own in Spark's memory, so that tests can neither meet each other nor leave files behind."""
    name = f"scratch_{uuid.uuid4().hex[:12]}"
    spark.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"spark.sql.catalog.{name}.catalog-impl", "org.apache.iceberg.inmemory.InMemoryCatalog")
    spark.conf.set(f"spark.sql.catalog.{name}.warehouse", f"memory://{name}")
    return name


def _create(spark: SparkSession, name: str, frame: DataFrame) -> int:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.rpartition('.')[0]}")
    frame.writeTo(name).using("iceberg").create()
    return int(spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").collect()[0][0])
