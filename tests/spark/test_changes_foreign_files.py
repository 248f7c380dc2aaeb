"""`changes` of data files that Iceberg did not write: right as Iceberg reads the table, or refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from airflow_barrier.protocol.errors import InexactChangesError
from airflow_barrier.spark._fields import require_widened
from airflow_barrier.spark.changes import appends
from airflow_barrier.spark.driver import run_epoch
from airflow_barrier.spark.epoch import Epoch
from airflow_barrier.spark.identifiers import table_name
from tests.support.defaults import give_default
from tests.support.drawing import OPERATIONS
from tests.support.epochs import AMOUNT, CATALOG, SHOPPING, shopping_barriers
from tests.support.history import COW, MOR, REWRITE_ALL, History, modes
from tests.support.spark import SparkServer, session_on

pytestmark = [pytest.mark.drawn("histories"), pytest.mark.touches(*OPERATIONS["changes"])]

COLUMNS = "id BIGINT, v INT, p STRING, n INT, d DATE"
ROWS = """
    SELECT /*+ COALESCE(1) */ id, CAST(id AS INT) AS v, CASE WHEN id % 3 = 2 THEN NULL ELSE concat('a =/%2F+é ', id % 3)
    END AS p, CAST(id % 2 AS INT) AS n, DATE'2026-01-01' AS d FROM range(10, 22)"""
MERGE = """
    MERGE INTO {t} t USING (SELECT id FROM VALUES (12L), (99L) AS x (id)) x ON t.id = x.id
    WHEN MATCHED THEN UPDATE SET v = 0 WHEN NOT MATCHED THEN INSERT (id, v, p, n, d) VALUES (x.id, 1, 'new', 2, NULL)"""


def added(table: History, folder: Path, rows: str = ROWS, by: str = "") -> int:
    """Add the files that Spark writes of ``rows`` into ``folder``, a partition's in folders of their own."""
    writer = table.spark.sql(rows).write.format("parquet")
    (writer.partitionBy(*by.split()) if by else writer).save(str(folder))
    return table.call("add_files", f", source_table => '`parquet`.`{folder}`'")


def test_added_files_that_are_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    table = History(spark, "foreign_files", COLUMNS, "PARTITIONED BY (p, n, d)", **modes(COW))
    start = table.do("INSERT INTO {t} VALUES (1, 1, 'z', 0, NULL), (2, 2, NULL, 1, NULL)")
    there = added(table, tmp_path / "in", by="p n d")
    assert table.check(start, there).count() == 12
    assert appends(spark, table.name, start, there).groupBy("p").count().count() == 3
    deleted = table.do("DELETE FROM {t} WHERE id = 10")
    assert table.check(there, deleted).groupBy("p").agg(F.sum("_weight")).collect() == [("a =/%2F+é 1", -1)]
    merged = table.do("UPDATE {t} SET v = v + 1 WHERE id = 11", MERGE)
    table.check(start, merged)
    table.do("ALTER TABLE {t} RENAME COLUMN v TO w", "ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT")
    assert table.changes(start, there).columns[:5] == ["id", "v", "p", "n", "d"], "those of the end"
    table.check(merged, table.do("DELETE FROM {t} WHERE id = 13"), renamed={"v": "w"})


@pytest.mark.kills("files-have-field-ids")
def test_added_files_with_rows_that_are_deleted_by_position(spark: SparkSession, tmp_path: Path) -> None:
    """Iceberg's scans cannot tell these, and by path Spark would find no column."""
    table = History(spark, "foreign_files", COLUMNS, "PARTITIONED BY (p)", **modes(MOR))
    table.do("INSERT INTO {t} VALUES (1, 1, 'z', 0, NULL), (2, 2, 'z', 1, NULL)")
    there = added(table, tmp_path / "in", by="p")
    deleted = table.do("DELETE FROM {t} WHERE id = 10")
    with pytest.raises(InexactChangesError, match=r"expected data files with field ids, .* rewrite them once"):
        table.changes(there, deleted)
    # What is about other files is told.
    own = table.do("DELETE FROM {t} WHERE id = 1")
    assert table.check(deleted, own).count() == 1
    more = added(table, tmp_path / "more", ROWS.replace("range(10, 22)", "range(30, 33)"), by="p")
    assert more != own
    table.check(own, table.do("INSERT INTO {t} VALUES (5, 5, 'z', 0, NULL)", "DELETE FROM {t} WHERE id = 2"))
    last = table.call("rewrite_data_files", REWRITE_ALL)
    table.check(last, table.do("DELETE FROM {t} WHERE id = 13"))


def test_files_with_field_ids_and_without_the_column_of_their_partition(spark: SparkSession, tmp_path: Path) -> None:
    table = History(spark, "foreign_files", "id BIGINT, p STRING", "PARTITIONED BY (p)", **modes(MOR))
    start = table.do("INSERT INTO {t} VALUES (1, 'z')")
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    for number, part in enumerate(("a", "b%20c", "__HIVE_DEFAULT_PARTITION__")):
        folder = tmp_path / f"in/p={part}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [10 + number, 20 + number, 30 + number]}, schema=schema), folder / "a.parquet")
    there = table.call("add_files", f", source_table => '`parquet`.`{tmp_path}/in`'")
    assert table.check(start, there).count() == 9
    deleted = table.do("DELETE FROM {t} WHERE id IN (10, 12)")
    assert table.check(there, deleted).count() == 2
    table.check(deleted, start)
    # Where all names are looked for by id, metrics still say which files lack a column.
    spark.sql(f"ALTER TABLE {table.name} UNSET TBLPROPERTIES ('schema.name-mapping.default')")
    assert table.check(there, deleted).count() == 2
    assert table.check(start, deleted).count() == 7


@pytest.mark.kills("partition-values-of-columns")
def test_a_partition_by_a_field_within_a_column(spark: SparkSession) -> None:
    settings = {**modes(MOR), "write.metadata.metrics.default": "none"}  # so that no file is known to hold it
    table = History(spark, "foreign_files", "id INT, s STRUCT<p: STRING>", "PARTITIONED BY (s.p)", **settings)
    start = table.do("INSERT INTO {t} VALUES (1, named_struct('p', 'a')), (2, named_struct('p', 'a'))")
    end = table.do("INSERT INTO {t} VALUES (3, named_struct('p', 'b'))")
    table.check(start, end)
    with pytest.raises(InexactChangesError, match="expected partitions by columns, found one by field 3"):
        table.changes(end, table.do("DELETE FROM {t} WHERE id = 1"))


@pytest.mark.kills("only-parquet", "scans-give-columns-of-now", "scans-know-no-deletes")
def test_files_other_than_parquet(spark: SparkSession) -> None:
    table = History(spark, "foreign_files", "id BIGINT, v INT", **modes(COW), **{"write.format.default": "orc"})
    first = table.do("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 1 FROM range(4)")
    second = table.do("DELETE FROM {t} WHERE id = 1", "UPDATE {t} SET v = 2 WHERE id = 2")
    assert table.check(first, second).count() == 3
    third = table.do("INSERT INTO {t} VALUES (7, 7)")
    table.check(first, third)
    assert [row.id for row in appends(spark, table.name, second, third).collect()] == [7]
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('write.delete.mode' = '{MOR}')")
    by_position = table.do("DELETE FROM {t} WHERE id = 3")
    refused = r"expected Parquet files, found .*\.orc \(ORC\)"
    with pytest.raises(InexactChangesError, match=refused):
        table.changes(third, by_position)
    with pytest.raises(InexactChangesError, match=refused):
        table.changes(third, first)
    # Iceberg's scans give the columns of now.
    table.do("ALTER TABLE {t} DROP COLUMN v")
    with pytest.raises(InexactChangesError, match=refused):
        table.changes(first, second)


@pytest.mark.kills("types-spark-can-read")
def test_columns_of_a_type_that_spark_cannot_read_from_a_file(spark: SparkSession) -> None:
    table = History(spark, "foreign_files", "id BIGINT, v VARIANT", format_version="3", **modes(COW))
    start = table.do("INSERT INTO {t} SELECT 1, parse_json('1')")
    end = table.do("INSERT INTO {t} SELECT 2, parse_json('2')")
    [row] = table.changes(start, end).selectExpr("id", "to_json(v) AS v", "_weight").collect()
    assert tuple(row) == (2, "2", 1)
    with pytest.raises(InexactChangesError, match=r"column v: expected one of .*, found 'variant'"):
        table.changes(end, table.do("DELETE FROM {t} WHERE id = 1"))


def test_a_column_that_older_files_have_by_default(spark: SparkSession) -> None:
    table = History(spark, "foreign_files", "id BIGINT", format_version="3", **modes(COW))
    first = table.do("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id FROM range(3)")
    table.do("ALTER TABLE {t} ADD COLUMN late INT")
    give_default(spark, table.name, "late", 5)
    second = table.do("DELETE FROM {t} WHERE id = 1")
    [gone] = table.changes(first, second).collect()
    assert (gone.id, gone.late, gone["_weight"]) == (1, 5, -1)
    spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('write.delete.mode' = '{MOR}')")
    with pytest.raises(InexactChangesError, match="expected a column without an initial default, found 5"):
        table.changes(second, table.do("DELETE FROM {t} WHERE id = 2"))


@pytest.mark.kills("types-only-widen")
def test_a_table_that_was_replaced_by_one_of_another_type(spark: SparkSession) -> None:
    """Spark by itself would read the days of dates as they lie there."""
    table = History(spark, "foreign_files", "id BIGINT, v DATE")
    start = table.do("INSERT INTO {t} VALUES (1, DATE'2026-01-01')")
    end = table.do("CREATE OR REPLACE TABLE {t} (id BIGINT, v INT) USING iceberg", "INSERT INTO {t} VALUES (2, 2)")
    with pytest.raises(InexactChangesError, match="expected column v to have kept its type or to have got a wider one"):
        table.changes(start, end)
    table.check(end, table.do("INSERT INTO {t} VALUES (3, 3)"))


INT, LONG, TEXT = ({"id": 7, "name": "v", "type": kind} for kind in ("int", "long", "string"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (INT, TEXT),
        (LONG, INT),
        ({**INT, "type": "decimal(9, 2)"}, {**INT, "type": "decimal(9, 4)"}),
        ({**INT, "type": "decimal(18, 2)"}, {**INT, "type": "decimal(9, 2)"}),
        (INT, {**INT, "type": {"type": "struct", "fields": []}}),
        *(
            ({**INT, "id": 1, "type": one}, {**INT, "id": 1, "type": other})
            for one, other in (
                ({"type": "struct", "fields": [INT]}, {"type": "struct", "fields": [TEXT]}),
                (
                    {"type": "list", "element-id": 7, "element": "int"},
                    {"type": "list", "element-id": 7, "element": "float"},
                ),
                (
                    {"type": "map", "key-id": 6, "key": "int", "value-id": 7, "value": "int"},
                    {"type": "map", "key-id": 6, "key": "int", "value-id": 7, "value": "date"},
                ),
            )
        ),
    ],
)
def test_types_that_are_not_wider(old: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.raises(InexactChangesError, match="expected column v"):
        require_widened("t", [old], [new])
    require_widened("t", [old], [old])
    require_widened("t", [old], [{**new, "id": 8, "type": "int"}])


@pytest.mark.kills("narrower-types-are-read")
def test_a_spark_that_does_not_widen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    for old, new in (("int", "long"), ("decimal(9, 2)", "decimal(18, 2)")):
        with pytest.raises(InexactChangesError, match=rf"Spark 4\.0 .* column v from .* is {re.escape(old)}"):
            require_widened("t", [{**INT, "type": old}], [{**INT, "type": new}])
    require_widened("t", [{**INT, "type": "float"}], [{**INT, "type": "double"}])
    require_widened("t", [INT], [INT])
    require_widened("t", [INT], [])


def test_a_table_that_was_replaced_by_one_of_wider_types(spark: SparkSession) -> None:
    columns = "id INT, f FLOAT, d DECIMAL(9, 2), s STRUCT<a: INT>"
    table = History(spark, "foreign_files", columns)
    start = table.do("INSERT INTO {t} VALUES (1, 1.5, 2.25, named_struct('a', 1)), (2, 2.5, NULL, NULL)")
    wider = columns.replace("INT", "BIGINT").replace("FLOAT", "DOUBLE").replace("(9", "(18")
    end = table.do(
        f"CREATE OR REPLACE TABLE {{t}} ({wider}) USING iceberg",
        "INSERT INTO {t} VALUES (1, 1.5, 2.25, named_struct('a', 1))",
    )
    assert [(row.id, row["_weight"]) for row in table.check(start, end).collect()] == [(2, -1)]


def test_an_epoch_of_added_files(spark: SparkSession, spark_server: SparkServer, tmp_path: Path) -> None:
    barriers = shopping_barriers(spark, tmp_path)
    name = table_name(CATALOG, SHOPPING)
    spark.sql(f"ALTER TABLE {name} ADD PARTITION FIELD userId")
    spark.sql(
        "SELECT id, id % 2 AS userId, 1L AS itemId, CAST(1 AS DECIMAL(18, 2)) AS amount FROM range(0, 6, 1, 1)"
    ).write.partitionBy("userId").parquet(str(tmp_path / "in"))
    add = f"CALL {CATALOG}.system.add_files(table => '{SHOPPING}', source_table => '`parquet`.`{tmp_path}/in`')"
    barriers.write(1, SHOPPING, "INSERT INTO {t} VALUES (7, 0, 1, 1.00)")
    barriers.write(2, SHOPPING, add, f"ALTER TABLE {{t}} SET TBLPROPERTIES ('write.delete.mode' = '{COW}')")
    barriers.write(3, SHOPPING, "DELETE FROM {t} WHERE id = 2")

    def job(epoch: Epoch) -> None:
        delta = epoch.changes(SHOPPING).groupBy("userId", "itemId").agg(F.expr("sum(amount * _weight)").alias("d"))
        rows = delta.selectExpr("userId", "itemId", "CAST(d AS DECIMAL(38, 2)) AS totalAmount")
        rows.writeTo(epoch.target(AMOUNT)).append()

    for barrier in (1, 2, 3):
        spec = barriers.begin(barrier, inlets=[SHOPPING], outlets=[AMOUNT])
        with session_on(spark_server) as session:
            barriers.publish(spec, run_epoch(session, spec, job))
    summed = spark.table(table_name(CATALOG, AMOUNT)).groupBy("userId").agg(F.sum("totalAmount"))
    assert {row[0]: int(row[1]) for row in summed.collect()} == {0: 3, 1: 3}


def test_of_a_tables_own_file_nobody_is_told_to_move_it_away(
    spark: SparkSession, spark_server: SparkServer, tmp_path: Path
) -> None:
    barriers = shopping_barriers(spark, tmp_path)
    barriers.write(1, SHOPPING, "INSERT INTO {t} VALUES (1, 1, 1, 1.00)")
    barriers.write(2, SHOPPING, "INSERT INTO {t} VALUES (2, 1, 1, 1.00)")
    files = spark.sql(f"SELECT file_path FROM {table_name(CATALOG, SHOPPING, 'files')}").collect()
    for (file,) in files:
        path = Path(urlparse(file).path)
        path.write_bytes(b"PAR1 torn PAR1")
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)

    rows = "SELECT 5L AS id, 1L AS userId, 1L AS itemId, CAST(1 AS DECIMAL(18, 2)) AS amount"
    spark.sql(rows).write.parquet(str(tmp_path / "in"))
    add = f"CALL {CATALOG}.system.add_files(table => '{SHOPPING}', source_table => '`parquet`.`{tmp_path}/in`')"

    def job(epoch: Epoch) -> None:
        epoch.changes(SHOPPING).select("userId", "itemId", F.col("amount").alias("totalAmount")).writeTo(
            epoch.target(AMOUNT)
        ).append()

    with session_on(spark_server) as session:
        with pytest.raises(Exception, match="FAILED_READ_FILE") as raised:
            run_epoch(session, barriers.begin(2, inlets=[SHOPPING], outlets=[AMOUNT]), job)
        # Without a name mapping it shows only when a row is read.
        barriers.write(3, SHOPPING, add, "ALTER TABLE {t} UNSET TBLPROPERTIES ('schema.name-mapping.default')")
        with pytest.raises(InexactChangesError, match=r"attempt .*: expected data files with field ids .* and no name"):
            run_epoch(session, barriers.begin(3, inlets=[SHOPPING], outlets=[AMOUNT]), job)
    assert not re.search("[Mm]end the file|move it away", str(raised.value))
