"""An Iceberg table outside the topology as a source: real tables, written by Spark."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from airflow_barrier.protocol.codec import decode, encode
from airflow_barrier.protocol.errors import (
    BarrierError,
    ConfigurationError,
    MissingTableError,
    NotAppendOnlyError,
    RevisionRefusedError,
    SourceDataError,
)
from airflow_barrier.protocol.records import Cut
from airflow_barrier.protocol.topology import ExternalSource
from airflow_barrier.sources import source_of
from airflow_barrier.sources.iceberg_table import IcebergTable
from airflow_barrier.spark.changes import appends, changes
from airflow_barrier.spark.connect import connect_session, stop_session
from airflow_barrier.tables.iceberg import IcebergTables
from tests.sources.landing import OTHER_MEANINGS, Cutter, day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark import SparkServer

_numbers = itertools.count()
LONG_AGO = datetime(2000, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def tables(spark_server: SparkServer) -> Iterator[IcebergTables]:
    uri = f"sqlite:///{spark_server.catalog_db}"
    with IcebergTables.connect(uri, spark_server.warehouse.as_uri()) as tables:
        yield tables


class Outside:
    """Another team's table."""

    def __init__(self, spark: SparkSession, tables: IcebergTables, columns: str, version: int = 2) -> None:
        self.spark, self.tables = spark, tables
        self.name = f"crm.t{next(_numbers)}_{os.getpid()}"
        self.quoted = f"lake.{self.name}"
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.crm")
        spark.sql(f"CREATE TABLE {self.quoted} ({columns}) USING iceberg TBLPROPERTIES ('format-version'='{version}')")

    def sql(self, statement: str) -> datetime:
        """Run it on the table; when its commit came to `main`."""
        self.spark.sql(statement.format(t=self.quoted)).collect()
        millis = self.tables.load(self.name).history()[-1].timestamp_ms
        return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=millis)

    def insert(self, *values: str) -> datetime:
        """One commit, of one file."""
        return self.sql("INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES " + ", ".join(values))

    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.tables.load(self.name).snapshots()]

    def refs(self) -> set[str]:
        return set(self.tables.load(self.name).refs()) - {"main"}

    def expire(self) -> None:
        """What the owners' housekeeping does, at its harshest."""
        self.spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{self.name}', older_than => TIMESTAMP '2100-01-01', "
            "retain_last => 1)"
        ).collect()


def delta(spark: SparkSession, table: str, start: int | None, end: int | None, mode: str) -> DataFrame:
    return (appends if mode == "appends" else changes)(spark, table, start, end)


def ids(barriers: Cutter, spark: SparkSession, cut: Cut) -> list[Any]:
    """What the newest barrier's epoch reads, first columns only."""
    until = barriers.cuts[-1][0]
    after = barriers.cuts[-2][0] if len(barriers.cuts) > 1 else None
    cut = Cut(cut.source, json.loads(json.dumps(cut.start)), json.loads(json.dumps(cut.end)), cut.items)
    return sorted(row[0] for row in barriers.source.load(spark, cut, after, until, "lake", delta, {}).collect())


# --- by system time -------------------------------------------------------------------------------


def test_an_epoch_is_what_was_committed_up_to_the_timestamp(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT", version=3)
    moments = [table.insert(f"({number})") for number in range(4)]
    # cut long after, as in catch-up over history
    barriers = Cutter(IcebergTable(table.name), tables)
    assert ids(barriers, spark, barriers.cut(moments[0] - timedelta(milliseconds=1))) == []
    assert ids(barriers, spark, barriers.cut(moments[1])) == [0, 1]
    assert ids(barriers, spark, barriers.cut(moments[2])) == [2]
    barriers.abort()
    assert ids(barriers, spark, barriers.cut(moments[3])) == [2, 3]
    assert ids(barriers, spark, barriers.cut(moments[3] + timedelta(seconds=1))) == []


def test_changes_of_a_table_that_is_updated(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT, name STRING")
    barriers = Cutter(IcebergTable(table.name, read="changes"), tables)
    strict = Cutter(IcebergTable(table.name, name="strict"), tables)
    inserted = table.insert("(1, 'a')", "(2, 'b')")
    barriers.cut(inserted)
    strict.cut(inserted)
    until = table.sql("UPDATE {t} SET name = 'c' WHERE id = 2")
    cut = barriers.cut(until)
    frame = barriers.source.load(spark, cut, barriers.cuts[0][0], until, "lake", delta, {})
    assert sorted((row.id, row.name, row._weight) for row in frame.collect()) == [(2, "b", -1), (2, "c", 1)]
    second = strict.cut(until)
    with pytest.raises(NotAppendOnlyError):
        ids(strict, spark, second)


def test_the_first_epoch_of_an_old_table_is_all_its_rows(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT, at TIMESTAMP")
    table.insert("(1, TIMESTAMP '2017-01-01 06:00:00+00:00')", "(2, TIMESTAMP '2017-01-02 06:00:00+00:00')")
    table.sql("UPDATE {t} SET id = 3 WHERE id = 1")
    moment = table.insert("(4, TIMESTAMP '2017-01-01 06:00:00+00:00')")
    table.expire()
    barriers = Cutter(IcebergTable(table.name), tables)
    assert ids(barriers, spark, barriers.cut(moment)) == [2, 3, 4]
    timely = Cutter(IcebergTable(table.name, name="timely", event_time="at", idle_timeout=timedelta(0)), tables)
    now = moment + timedelta(seconds=1)
    assert ids(timely, spark, timely.cut(day(1), now)) == [3, 4]
    assert ids(timely, spark, timely.cut(day(2), now)) == [2]


def test_a_table_without_snapshots_is_an_empty_epoch(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT")
    barriers = Cutter(IcebergTable(table.name), tables)
    cut = barriers.cut(LONG_AGO)
    assert (cut.end["snapshot"], cut.end["ref"]) == (None, None)
    assert ids(barriers, spark, cut) == []
    barriers.source.release(cut, tables)


def test_a_missing_table_is_named(tables: IcebergTables) -> None:
    with pytest.raises(MissingTableError, match=r"crm\.nowhere"):
        Cutter(IcebergTable("crm.nowhere"), tables).cut(LONG_AGO)


# --- held while it is needed ----------------------------------------------------------------------


@pytest.mark.kills("source-is-pinned")
def test_the_owners_may_expire_snapshots_and_the_epoch_stays(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT")
    barriers = Cutter(IcebergTable(table.name), tables)
    first = barriers.cut(table.insert("(1)"))
    table.insert("(2)")
    second = barriers.cut(table.insert("(3)"))
    table.insert("(4)")
    table.expire()
    assert ids(barriers, spark, second) == [2, 3]

    # barrier 2 is COMMIT: barrier 1's end was its start and is not needed any more
    barriers.source.release(first, tables)
    barriers.source.release(first, tables)
    assert table.refs() == {second.end["ref"]}
    third = barriers.cut(table.insert("(5)"))
    table.expire()
    assert first.end["snapshot"] not in table.snapshots()
    assert ids(barriers, spark, third) == [4, 5]
    barriers.source.release(second, tables)
    barriers.source.release(third, tables)
    table.expire()
    assert table.refs() == set()
    assert len(table.snapshots()) == 1


def test_releasing_a_barrier_leaves_what_the_next_one_holds(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT")
    barriers = Cutter(IcebergTable(table.name), tables)
    moment = table.insert("(1)")
    first = barriers.cut(moment)
    second = barriers.cut(moment + timedelta(hours=1))
    assert first.end["snapshot"] == second.end["snapshot"]
    barriers.source.release(first, tables)
    assert table.refs() == {second.end["ref"]}


# --- by event time --------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_by_event_time_each_record_is_read_once(spark_server: SparkServer, tables: IcebergTables, column: str) -> None:
    session = connect_session(spark_server.url)
    for name, value in OTHER_MEANINGS.items():
        session.conf.set(name, value)
    try:
        table = Outside(session, tables, f"id INT, at {column}")
        source = IcebergTable(table.name, event_time="at", idle_timeout=timedelta(0))
        barriers = Cutter(source, tables)
        now = datetime(2100, 1, 1, tzinfo=timezone.utc)

        def event(number: int, at: datetime | None) -> str:
            if at is None:
                return f"({number}, CAST(NULL AS {column}))"
            zone = "+00:00" if column == "TIMESTAMP_LTZ" else ""
            return f"({number}, {column} '{at:%Y-%m-%d %H:%M:%S.%f}{zone}')"

        edge = timedelta(microseconds=1)
        table.insert(event(1, day(0.1)))
        table.insert(event(2, day(0.5)), event(3, day(1)), event(4, day(1) + edge), event(5, None), event(6, day(3.5)))
        table.insert(event(7, day(1.5)))  # holds early records only
        first = barriers.cut(day(1), now)
        assert ids(barriers, session, first) == [1, 2, 3, 5]
        assert list(first.end["held"].values()) == [day(3.5).isoformat()]
        table.expire()

        table.insert(event(8, day(0.2)), event(9, day(1)), event(10, day(9)), event(11, None))
        second = barriers.cut(day(2), now)
        assert ids(barriers, session, second) == [4, 7, 8, 9, 11]
        assert second.end["late"] == 2
        source.release(first, tables)
        table.expire()

        aborted = barriers.cut(day(3), now)
        assert ids(barriers, session, aborted) == []
        barriers.abort()
        table.sql("CALL lake.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))")
        fourth = barriers.cut(day(4), now)
        assert ids(barriers, session, fourth) == [6]
        assert fourth.end["late"] == 0
        source.release(second, tables)
        source.release(aborted, tables)
        table.expire()
        assert ids(barriers, session, barriers.cut(day(10), now)) == [10]
        assert barriers.cuts[-1][1].end["held"] == {}
    finally:
        stop_session(session)


def test_the_watermark_gates_the_timestamp(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT, at TIMESTAMP")
    source = IcebergTable(
        table.name, event_time="at", allowed_lateness=timedelta(hours=1), idle_timeout=timedelta(hours=6)
    )
    barriers = Cutter(source, tables)
    moment = table.insert("(1, TIMESTAMP '2017-01-02 00:59:00+00:00')")
    waits = barriers.waits(day(1), now=moment)
    assert waits.watermark == day(1) - timedelta(minutes=1)
    assert "its watermark is 2017-01-01T23:59:00+00:00, the barrier's timestamp 2017-01-02T00:00:00" in waits.reason
    assert table.refs() == set()
    barriers.cut(day(1), now=moment + timedelta(hours=6))
    barriers.abort()
    moment = table.insert("(2, TIMESTAMP '2017-01-02 01:00:00+00:00')")
    assert barriers.cut(day(1), now=moment).end["newest"] == (day(1) + timedelta(hours=1)).isoformat()


def test_a_wrong_clock_opens_no_barrier(
    spark: SparkSession, tables: IcebergTables, caplog: pytest.LogCaptureFixture
) -> None:
    table = Outside(spark, tables, "id INT, at TIMESTAMP")
    barriers = Cutter(IcebergTable(table.name, event_time="at"), tables)
    # Spark's own last year, too
    table.insert("(1, TIMESTAMP '2017-01-01 12:00:00+00:00')", "(2, TIMESTAMP '+294247-01-10 04:00:00+00:00')")
    table.insert("(3, TIMESTAMP '2017-10-28 00:00:00+00:00')")
    assert barriers.waits(day(1), now=day(1)).watermark == day(0.5)
    assert caplog.text.count("holds event times after 2017-01-02T00:05:00+00:00, which is the future") == 2
    table.insert("(4, TIMESTAMP '2017-01-02 06:00:00+00:00')", "(5, TIMESTAMP '2017-01-01 18:00:00+00:00')")
    assert ids(barriers, spark, barriers.cut(day(1), now=day(1.5))) == [1, 5]
    # what it left for later epochs opens none of them
    assert barriers.waits(day(2), now=day(2)).watermark == day(1.25)
    table.insert("(6, TIMESTAMP '2017-01-03 00:00:00+00:00')")
    assert ids(barriers, spark, barriers.cut(day(2), now=day(2))) == [4, 6]
    assert ids(barriers, spark, barriers.cut(day(300), now=day(300))) == [3]


@pytest.mark.kills("event-time-is-a-timestamp", "bounds-of-event-times")
def test_event_times_that_are_not_to_be_had_are_an_error(spark: SparkSession, tables: IcebergTables) -> None:
    table = Outside(spark, tables, "id INT, at TIMESTAMP")
    spark.sql(f"ALTER TABLE {table.quoted} SET TBLPROPERTIES ('write.metadata.metrics.column.at' = 'none')")
    table.insert("(1, current_timestamp())")
    with pytest.raises(SourceDataError, match=r"expected bounds of at for data file .*\.parquet, found none"):
        Cutter(IcebergTable(table.name, event_time="at"), tables).cut(day(1))
    with pytest.raises(SourceDataError, match="expected event_time 'id' to be a timestamp of the table, found int"):
        Cutter(IcebergTable(table.name, event_time="id"), tables).cut(day(1))


# --- declarations ---------------------------------------------------------------------------------


def test_a_source_comes_back_from_its_declaration() -> None:
    source = IcebergTable("crm.customers", name="who", event_time="at", allowed_lateness=timedelta(minutes=5))
    assert source_of(decode(ExternalSource, json.loads(json.dumps(encode(source.declare()))))) == source


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"table": "customers"}, "expected namespace.table"),
        ({"read": "all"}, "expected read 'appends' or 'changes', found 'all'"),
        ({"read": "changes", "event_time": "at"}, "expected read='appends' together with event_time"),
        ({"idle_timeout": timedelta(1)}, "go with event_time"),
    ],
)
def test_settings_that_cannot_work_are_refused_while_the_dag_is_parsed(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        IcebergTable(**{"table": "crm.customers", **settings})


def test_a_kind_of_another_version_is_refused() -> None:
    known = r"\['files', 'iceberg_table', 'kafka', 'postgresql', 'postgresql_rows', 'pravega'\]"
    with pytest.raises(BarrierError, match=rf"expected a kind of {known}, found 'pulsar'"):
        source_of(ExternalSource("orders", "pulsar"))


def test_a_cut_that_the_next_one_begins_at_is_not_made_anew() -> None:
    cut = Cut("crm.customers", None, {"snapshot": 1, "ref": None})
    with pytest.raises(RevisionRefusedError, match="the next cut begins at the position that this one ends at; say wh"):
        IcebergTable("crm.customers").recut([cut], lambda items: set())
