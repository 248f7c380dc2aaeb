"""Attempt branches, written and read by Spark: preparing them and checking what was staged on them."""

from __future__ import annotations

import pytest

from airflow_barrier.protocol.errors import SnapshotMissingError, StagedTableError
from tests.tables.lake import Lake, stamp_of

STAMP = stamp_of(1)
B = STAMP.branch


def test_a_branch_is_prepared_once_and_main_stays(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    lake.tables.prepare({table: base}, STAMP)
    location = lake.location(table)
    lake.tables.prepare({table: base}, STAMP)
    assert lake.location(table) == location
    assert lake.refs(table) == {"main": base, B: base}
    assert lake.tables.staged(table, STAMP, base) is None


def test_a_staged_snapshot_is_found_and_main_stays(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    staged = lake.stage(table, STAMP, base, [(2, "b")])
    lake.append(table, [(3, "c")], B, STAMP)
    head = lake.tables.staged(table, STAMP, base)
    assert head not in (None, staged)
    lake.tables.check_snapshot(table, head, STAMP, base)
    assert lake.rows(table, B) == [(1, "a"), (2, "b"), (3, "c")]
    assert lake.rows(table) == [(1, "a")]
    with pytest.raises(
        StagedTableError, match=f"snapshot {staged}, as the attempt said when it closed, found snapshot"
    ):
        lake.tables.check_snapshot(table, staged, STAMP, base)


def test_an_empty_table_is_read_and_merged_into_on_its_branch(lake: Lake) -> None:
    table = lake.create({"write.merge.mode": "merge-on-read"})
    lake.tables.prepare({table: None}, STAMP)
    location = lake.location(table)
    lake.tables.prepare({table: None}, STAMP)
    assert lake.location(table) == location
    assert lake.main(table) is None
    assert lake.tables.currents({table: None}) == {table: None}
    assert lake.tables.staged(table, STAMP, None) is None
    assert lake.rows(table, B) == []
    for rows in ([(1, "a"), (2, "b")], [(2, "b"), (3, "c")]):
        where = f"lake.{table}.branch_{B}"
        source = lake.spark.createDataFrame(rows, "id BIGINT, v STRING").alias("new")
        lake.spark.sql(
            f"MERGE INTO {where} AS t USING {{new}} AS n ON t.id = n.id "
            "WHEN MATCHED THEN UPDATE SET v = concat(n.v, '!') WHEN NOT MATCHED THEN INSERT *",
            new=source,
        )
    assert lake.rows(table, B) == [(1, "a"), (2, "b!"), (3, "c")]
    assert lake.rows(table) == []
    with pytest.raises(StagedTableError, match=r"bear the stamp .* found none"):
        lake.tables.staged(table, STAMP, None)


def test_an_empty_table_is_staged_on_the_attempts_own_root(lake: Lake) -> None:
    table = lake.create()
    staged = lake.stage(table, STAMP, None, [(1, "a")])
    assert lake.tables.staged(table, STAMP, None) == staged
    with pytest.raises(StagedTableError, match="an earlier start of this attempt has written"):
        lake.tables.prepare({table: None}, STAMP)


def test_a_root_that_the_attempt_did_not_prepare_is_refused(lake: Lake) -> None:
    """Spark makes a branch that is not there, in the way that unchanged jobs write."""
    table = lake.create()
    lake.spark.sql(f"ALTER TABLE lake.{table} CREATE BRANCH `{B}`")
    with pytest.raises(StagedTableError, match="to descend from no snapshot, found snapshot"):
        lake.tables.staged(table, STAMP, None)
    with pytest.raises(StagedTableError, match="an earlier start"):
        lake.tables.prepare({table: None}, STAMP)


def test_whole_file_deletes_without_a_stamp_are_accepted(lake: Lake) -> None:
    """As a Spark without the guard makes them: to such a snapshot Iceberg gives no properties of the session."""
    table = lake.create(rows=[(1, "a"), (2, "b")])
    base = lake.main(table)
    lake.tables.prepare({table: base}, STAMP)
    lake.spark.sql(f"DELETE FROM lake.{table}.branch_{B} WHERE v = 'b'")
    with lake.session_of(STAMP) as session:
        session.sql(f"UPDATE lake.{table}.branch_{B} SET id = 7")
    head = lake.tables.staged(table, STAMP, base)
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in lake.document(table)["snapshots"]}
    deleted = by_id[by_id[head]["parent-snapshot-id"]]["summary"]
    assert deleted["operation"] == "delete"
    assert "barrier.id" not in deleted
    assert by_id[head]["summary"]["barrier.attempt"] == str(STAMP.attempt_id)
    assert lake.rows(table, B) == [(7, "a")]


@pytest.mark.parametrize("other", [stamp_of(2), stamp_of(1, 999), None], ids=["barrier", "attempt", "none"])
def test_another_stamp_is_refused(lake: Lake, other) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    lake.tables.prepare({table: base}, STAMP)
    lake.append(table, [(2, "b")], B, other)
    lake.append(table, [(3, "c")], B, STAMP)
    with pytest.raises(StagedTableError, match=rf"table {table}: expected snapshot \d+ \(append\) on branch {B}"):
        lake.tables.staged(table, STAMP, base)


def test_a_branch_on_another_base_or_gone_is_refused(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    first = lake.main(table)
    lake.append(table, [(2, "b")])
    second = lake.main(table)
    staged = lake.stage(table, STAMP, first, [(3, "c")])
    with pytest.raises(StagedTableError, match=f"to descend from snapshot {second}, found snapshot {staged}"):
        lake.tables.staged(table, STAMP, second)
    with pytest.raises(StagedTableError, match=rf"{B} at snapshot {first}, found snapshot {staged} \(append"):
        lake.tables.prepare({table: first}, STAMP)
    lake.spark.sql(f"ALTER TABLE lake.{table} DROP BRANCH `{B}`")
    assert lake.refs(table) == {"main": second}
    with pytest.raises(StagedTableError, match=f"expected branch {B}, found none"):
        lake.tables.staged(table, STAMP, first)
    with pytest.raises(SnapshotMissingError, match=f"table {table}: expected snapshot 4711"):
        lake.tables.prepare({table: 4711}, STAMP)
