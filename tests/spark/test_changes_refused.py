"""`changes` refuses what it cannot tell exactly; `appends` refuses anything but appended rows."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_barrier.protocol.errors import (
    InexactChangesError,
    MissingTableError,
    NotAppendOnlyError,
    SnapshotMissingError,
)
from airflow_barrier.spark._fields import parquet_schema
from airflow_barrier.spark.changes import appends, changes
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.equality_deletes import commit_equality_delete
from tests.support.history import CATALOG, COLUMNS, MOR, REWRITE_ALL, History, insert, modes, names, read_files
from tests.support.spark import SparkServer


@pytest.mark.kills("no-equality-deletes")
def test_equality_deletes(spark: SparkSession, spark_server: SparkServer) -> None:
    table = History(spark, "refused", "id BIGINT", format_version="2", **modes(MOR))
    start = table.do("INSERT INTO {t} VALUES (1), (2), (3)")
    commit_equality_delete(spark_server, table, "id", 2)
    deleted = table.do()
    assert sorted(row["id"] for row in table.rows(deleted)) == [1, 3]
    with pytest.raises(InexactChangesError, match=f"snapshots {start} and {deleted}, found equality deletes"):
        table.changes(start, deleted)
    # What was only appended later, no older delete is about.
    appended = table.do("INSERT INTO {t} VALUES (2), (4)")
    assert table.check(deleted, appended).count() == 2
    with pytest.raises(InexactChangesError, match="equality deletes"):
        table.changes(appended, table.do("DELETE FROM {t} WHERE id = 4"))
    table.check(None, appended)


@pytest.mark.kills("same-files-by-path", "each-file-once")
def test_files_that_are_hidden_to_spark_and_files_that_are_listed_twice(
    spark: SparkSession, spark_server: SparkServer
) -> None:
    """Not made by Spark itself: whoever adds files by hand may name them anything, and add them again. Iceberg's scans
    know them, but no way back.
    """
    table = History(spark, "refused", "id BIGINT")
    start = table.do("INSERT INTO {t} VALUES (1)")
    hidden, twice = (spark_server.warehouse / f"{name}.parquet" for name in ("_hidden", "twice"))
    for path in (hidden, twice):
        pq.write_table(pa.table({"id": [2]}), path)
    with IcebergTables.connect(f"sqlite:///{spark_server.catalog_db}", spark_server.warehouse.as_uri()) as tables:
        added = tables.load(table.name.replace("`", "").removeprefix(f"{CATALOG}."))
        added.add_files([hidden.as_uri()])
        between = table.do()
        assert table.check(start, between).count() == 1
        with pytest.raises(InexactChangesError, match="are hidden to Spark"):
            table.changes(between, start)
        for _ in range(2):
            added.add_files([twice.as_uri()], check_duplicate_files=False)
        end = table.do()
        assert table.check(between, end).count() == 2
        with pytest.raises(InexactChangesError, match=r"twice\.parquet listed 2 times more"):
            table.changes(end, between)


@pytest.mark.kills("columns-with-initial-default")
def test_columns_that_older_files_have_by_default() -> None:
    """Read by path; see test_changes_foreign_files for what Iceberg's own scans make of them."""
    nested = {"type": "struct", "fields": [{"id": 2, "name": "d", "type": "int", "initial-default": 5}]}
    with pytest.raises(
        InexactChangesError, match=r"t: column s\.d: expected a column without an initial default, found 5"
    ):
        parquet_schema("t", [{"id": 1, "name": "s", "type": nested}])


@pytest.mark.kills("snapshot-to-read-is-there", "changes-have-an-end")
def test_snapshots_and_tables_that_are_not_there(spark: SparkSession) -> None:
    table = History(spark, "refused", "id BIGINT")
    start = table.do("INSERT INTO {t} VALUES (1)")
    end = table.do("INSERT INTO {t} VALUES (2)")
    with pytest.raises(SnapshotMissingError, match="expected snapshot 12, found only 2 others"):
        table.changes(12, end)
    with pytest.raises(SnapshotMissingError, match="expected snapshot 13"):
        table.changes(None, 13)
    with pytest.raises(InexactChangesError, match="expected a snapshot to end at"):
        table.changes(start, None)
    table.call("expire_snapshots", f", snapshot_ids => ARRAY({start})")
    with pytest.raises(SnapshotMissingError, match=f"expected snapshot {start}"):
        table.changes(start, end)
    with pytest.raises(MissingTableError, match=re.escape("lake.refused.nowhere: expected an Iceberg table")):
        changes(spark, "lake.refused.nowhere", None, 1)


def test_appends_are_the_appended_rows(spark: SparkSession) -> None:
    table = History(spark, "refused", COLUMNS, format_version="2")
    assert appends(spark, table.name, None, None).count() == 0
    first = table.do(insert(0, 3))
    second = table.do(insert(3, 5))
    table.call("rewrite_data_files", REWRITE_ALL)
    compacted = table.files(table.main())
    third = table.do(insert(5, 6))
    frame = appends(spark, table.name, first, third)
    assert frame.columns == ["id", "v", "s"]
    assert sorted(row.id for row in frame.collect()) == [3, 4, 5]
    assert not read_files(frame) & names(compacted)
    assert appends(spark, table.name, second, table.heads[2]).count() == 0, "a compaction appends nothing"
    assert sorted(row.id for row in appends(spark, table.name, None, third).collect()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.kills("appends-know-their-chain", "appends-only")
@pytest.mark.parametrize(
    ("statement", "operation"),
    [("UPDATE {t} SET v = 0 WHERE id = 1", "overwrite"), ("DELETE FROM {t} WHERE id = 1", "delete")],
)
def test_appends_refuse_updates_and_deletes(spark: SparkSession, statement: str, operation: str) -> None:
    table = History(spark, "refused", COLUMNS, format_version="2", **modes(MOR))
    start = table.do(insert(0, 3))
    culprit = table.do(statement)
    end = table.do(insert(3, 4))
    said = f"found snapshot {culprit} with operation '{operation}'; use epoch.changes"
    with pytest.raises(NotAppendOnlyError, match=said):
        appends(spark, table.name, start, end)
    with pytest.raises(NotAppendOnlyError, match=said):
        appends(spark, table.name, None, end)
    assert appends(spark, table.name, culprit, end).count() == 1


@pytest.mark.kills("appends-know-their-chain", "appends-only")
def test_appends_refuse_what_they_cannot_know(spark: SparkSession) -> None:
    table = History(spark, "refused", COLUMNS, format_version="2")
    start = table.do(insert(0, 3))
    between = table.do(insert(3, 4))
    end = table.do(insert(4, 5))
    with pytest.raises(NotAppendOnlyError, match=f"{start} does not descend from {end}"):
        appends(spark, table.name, end, start)
    table.call("expire_snapshots", f", snapshot_ids => ARRAY({between})")
    with pytest.raises(NotAppendOnlyError, match="a snapshot between them was expired"):
        appends(spark, table.name, start, end)
