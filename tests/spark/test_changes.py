"""`changes` turns one state of a table into the other exactly, and reads only the files that were touched."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.drawing import OPERATIONS
from tests.support.history import COLUMNS, COW, MERGE, MOR, REWRITE_ALL, History, insert, modes, names, read_files
from tests.support.spark import SINCE_4_1

pytestmark = [pytest.mark.drawn("histories"), pytest.mark.touches(*OPERATIONS["changes"])]


@pytest.mark.parametrize(
    ("version", "mode", "clause"),
    [("2", COW, ""), ("2", MOR, "PARTITIONED BY (s)"), ("3", MOR, ""), ("3", COW, "PARTITIONED BY (bucket(2, id))")],
)
def test_every_kind_of_write(spark: SparkSession, version: str, mode: str, clause: str) -> None:
    table = History(spark, "changes", COLUMNS, clause, format_version=version, **modes(mode))
    heads = [table.do(insert(0, 10))]
    heads.append(table.do("UPDATE {t} SET v = v + 1 WHERE id < 4"))
    heads.append(table.do("DELETE FROM {t} WHERE id = 7"))
    heads.append(table.do(MERGE))
    table.call("rewrite_data_files", REWRITE_ALL)
    assert "replace" in table.operations()
    heads.append(table.do("DELETE FROM {t} WHERE id = 9", insert(20, 22)))
    heads.append(table.do("DELETE FROM {t} WHERE s = 's0'"))
    heads.append(table.do("INSERT OVERWRITE {t} SELECT 1L, 2, 's1'"))

    for start, end in pairwise(heads):
        table.check(start, end)
        assert table.check_told(start, end)
    table.check(None, heads[3])
    table.check(heads[0], heads[-1])


def test_an_append_reads_the_new_files_only(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2")
    start, end = table.do(insert(0, 10)), table.do(insert(10, 12))
    frame = table.check(start, end)
    assert read_files(frame) == names(table.files(end) - table.files(start))
    assert reads_nothing_else(frame, table)


def test_copy_on_write_reads_the_rewritten_file_and_its_rewrite(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2", **modes(COW))
    table.do(insert(0, 10))
    start = table.do(insert(10, 20))
    end = table.do("UPDATE {t} SET v = -1 WHERE id = 13")
    frame = table.check(start, end)
    assert read_files(frame) == names(table.files(end) ^ table.files(start))
    assert len(read_files(frame)) == 2
    assert frame.count() == 2, "carried-over rows are not changes"


@pytest.mark.parametrize(
    ("version", "granularity"), [("2", "file"), ("2", "partition"), ("3", "file")], ids=["v2", "v2-partition", "v3"]
)
def test_merge_on_read_reads_the_files_under_new_deletes(spark: SparkSession, version: str, granularity: str) -> None:
    settings = {"write.delete.granularity": granularity, **modes(MOR)}
    table = History(spark, "changes", COLUMNS, format_version=version, **settings)
    first = table.do(insert(0, 10))
    table.do(insert(10, 20))
    touched = table.files(table.heads[-1]) - table.files(first)
    start = table.do(insert(20, 30))
    table.do("DELETE FROM {t} WHERE id = 13")
    end = table.do("DELETE FROM {t} WHERE id = 14")
    frame = table.check(start, end)
    assert read_files(frame) == names(touched)
    assert reads_nothing_else(frame, table)
    assert frame.count() == 2
    # Back again, between snapshots of which neither follows from the other.
    assert table.check(end, start).count() == 2


def test_a_delete_file_over_several_data_files(spark: SparkSession) -> None:
    settings = {"write.delete.granularity": "partition", **modes(MOR)}
    table = History(spark, "changes", COLUMNS, format_version="2", **settings)
    table.do(insert(0, 10))
    table.do(insert(10, 20))
    start = table.do(insert(20, 30))
    end = table.do("DELETE FROM {t} WHERE id IN (3, 13)")
    assert table.check(start, end).count() == 2
    after = table.call("rewrite_data_files", ", where => 'id < 10'" + REWRITE_ALL)
    later = table.do("DELETE FROM {t} WHERE id IN (4, 14)")  # on top of a delete file that is about a file long gone
    assert table.check(end, later).count() == 2
    assert table.check(end, after).count() == 0
    table.call("rewrite_position_delete_files", REWRITE_ALL)
    table.check(start, table.do("DELETE FROM {t} WHERE id IN (5, 15)"))


def test_compaction_is_not_read(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2", **modes(MOR))
    table.do(insert(0, 10))
    start = table.do(insert(10, 20))
    middle = table.do(insert(20, 22))
    appended = table.files(middle) - table.files(start)
    table.call("rewrite_data_files", REWRITE_ALL)
    assert table.operations()[-1] == "replace"
    assert table.check(middle, table.main()).count() == 0
    before = table.files(table.main())
    end = table.do(insert(22, 23))
    frame = table.check(start, end)
    assert read_files(frame) == names(appended | (table.files(end) - before))


def test_a_table_upgraded_from_v2_to_v3(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2", **modes(MOR))
    heads = [table.do(insert(0, 10)), table.do("DELETE FROM {t} WHERE id IN (2, 3)")]
    heads.append(table.do("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')", "DELETE FROM {t} WHERE id = 4"))
    heads.append(table.do("UPDATE {t} SET v = 9 WHERE id IN (5, 6)"))
    table.call("rewrite_data_files", REWRITE_ALL)
    heads.append(table.do(MERGE))
    for start, end in pairwise(heads):
        table.check(start, end)
    table.check(heads[0], heads[-1])
    table.check(heads[1], heads[3])


def test_branches(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2", **modes(MOR))
    base = table.do(insert(0, 10))
    table.do("ALTER TABLE {t} CREATE BRANCH one", "ALTER TABLE {t} CREATE BRANCH two")
    branch = f"{table.name}.branch_"
    spark.sql(f"UPDATE {branch}one SET v = 7 WHERE id < 3")
    spark.sql(f"INSERT INTO {branch}one VALUES (100, 1, 'x')")
    spark.sql(f"DELETE FROM {branch}two WHERE id IN (1, 8)")
    refs = {row.name: row.snapshot_id for row in spark.sql(f"SELECT * FROM {table.name}.refs").collect()}
    assert refs["main"] == base
    table.check(base, refs["one"])
    table.check(refs["one"], refs["two"])
    table.check(refs["two"], base)
    table.check(None, refs["two"])


@SINCE_4_1  # older ones with that conf read no snapshot, and say so
def test_the_session_reads_and_writes_another_branch(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, **{"format-version": "2", "write.wap.enabled": "true", **modes(MOR)})
    start, end = table.do(insert(0, 10)), table.do("DELETE FROM {t} WHERE id = 3")
    table.do("ALTER TABLE {t} CREATE BRANCH attempt")
    spark.sql(f"INSERT INTO {table.name}.branch_attempt VALUES (100, 1, 'x')")
    spark.conf.set("spark.wap.branch", "attempt")
    try:
        table.check(start, end)
        assert spark.table(table.name).where("id = 100").count() == 1
    finally:
        spark.conf.unset("spark.wap.branch")


def test_a_snapshot_between_was_expired(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2", **modes(COW))
    start = table.do(insert(0, 10))
    gone = table.do("UPDATE {t} SET v = 5 WHERE id = 1")
    end = table.do("DELETE FROM {t} WHERE id = 2")
    table.call("expire_snapshots", f", snapshot_ids => ARRAY({gone})")
    table.check(start, end)


def test_nothing_changed(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2")
    nothing = table.changes(None, None)
    assert nothing.columns == ["id", "v", "s", "_change_type", "_weight"]
    assert nothing.count() == 0
    head = table.do(insert(0, 1))
    table.check(head, head)
    empty = table.do("DELETE FROM {t} WHERE id = 50", "INSERT INTO {t} SELECT * FROM {t} WHERE false")
    table.check(head, empty)


def test_a_row_written_again_as_it_was_is_no_change(spark: SparkSession) -> None:
    table = History(spark, "changes", COLUMNS, format_version="2", **modes(MOR))
    start = table.do(insert(0, 3), insert(0, 3))
    end = table.do("UPDATE {t} SET v = v", "DELETE FROM {t} WHERE id = 1", "INSERT INTO {t} VALUES (1, 1, 's1')")
    rows = table.check(start, end).collect()
    assert [(row.id, row._weight) for row in rows] == [(1, -1)]


def reads_nothing_else(frame: DataFrame, table: History) -> bool:
    """Whether the plan scans no rows by Iceberg: only files by path, and positions of deletes."""
    said = StringIO()
    with redirect_stdout(said):
        frame.explain()
    return f"BatchScan {table.name.replace('`', '')}[" not in said.getvalue()
