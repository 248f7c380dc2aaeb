"""Publishing tables that Spark wrote, with Spark reading back and going on writing."""

from __future__ import annotations

import json

import pytest

from airflow_barrier.protocol.errors import ForeignWriteError, SnapshotMissingError, StagedTableError
from airflow_barrier.protocol.names import tag_name
from tests.tables.lake import Lake, path_of, publication, stamp_of

TAG = tag_name("shop", 1, 0)


def test_spark_reads_the_published_rows_the_tag_and_goes_on_writing(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    staged = lake.stage(table, stamp_of(1), base, [(2, "b")])
    ahead = lake.stage(table, stamp_of(2), staged, [(3, "c")])
    lake.spark.sql(f"ALTER TABLE lake.{table} CREATE BRANCH theirs")
    lake.tables.prepare({table: base}, stamp_of(1, topology="other"))

    lake.tables.publish([publication(table, base, staged)])

    assert lake.rows(table) == lake.rows(table, TAG) == [(1, "a"), (2, "b")]
    others = stamp_of(1, topology="other").branch
    assert lake.refs(table) == {"main": staged, TAG: staged, stamp_of(2).branch: ahead, "theirs": base, others: base}
    history = lake.spark.sql(f"SELECT snapshot_id, is_current_ancestor FROM lake.{table}.history").collect()
    assert [tuple(row) for row in history] == [(base, True), (staged, True)]
    lake.append(table, [(9, "z")])
    lake.spark.sql(f"UPDATE lake.{table} SET id = 10 WHERE id = 9")
    assert lake.rows(table) == [(1, "a"), (2, "b"), (10, "z")]
    assert lake.rows(table, TAG) == [(1, "a"), (2, "b")]


def test_an_empty_table_is_published_for_the_first_time(lake: Lake) -> None:
    table, still_empty = lake.create(), lake.create()
    staged = lake.stage(table, stamp_of(1), None, [(1, "a")])
    lake.tables.prepare({still_empty: None}, stamp_of(1))
    lake.tables.publish([publication(table, None, staged), publication(still_empty, None, None)])
    assert lake.rows(table) == lake.rows(table, TAG) == [(1, "a")]
    assert lake.tables.mains([table, still_empty]) == {table: staged, still_empty: None}
    assert lake.refs(still_empty) == {}
    lake.append(still_empty, [(2, "b")])
    with pytest.raises(ForeignWriteError, match=f"table {still_empty}: expected main at no snapshot, found snapshot"):
        lake.tables.publish([publication(still_empty, None, None, barrier_id=2)])


def test_what_an_older_catalog_does_not_know_is_found_again(lake: Lake) -> None:
    """The catalog comes back without the publish, and once more without the table."""
    table = lake.create(rows=[(1, "a")])
    base, before = lake.main(table), lake.location(table)
    staged = lake.stage(table, stamp_of(1), base, [(2, "b")])
    lake.tables.publish([publication(table, base, staged)])
    published, refs = lake.location(table), lake.refs(table)
    with lake.catalog() as rows:
        rows.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?", (before, published))
    assert lake.main(table) == base
    assert lake.tables.reattach({table: (published, staged)})
    assert lake.location(table) == published
    with lake.catalog() as rows:
        rows.execute("DELETE FROM iceberg_tables WHERE metadata_location = ?", (published,))
    assert lake.tables.reattach({table: (published, staged)})
    assert lake.refs(table) == refs
    lake.append(table, [(3, "c")])
    assert lake.rows(table) == [(1, "a"), (2, "b"), (3, "c")]
    assert lake.rows(table, TAG) == [(1, "a"), (2, "b")]


def test_row_lineage_goes_on_across_a_publish(lake: Lake) -> None:
    if lake.version == 2:
        assert "next-row-id" not in lake.document(lake.create())
        return
    table = lake.create()
    staged = lake.stage(table, stamp_of(1), None, [(1, "a"), (2, "b")])
    lake.tables.publish([publication(table, None, staged)])
    lake.append(table, [(3, "c")])
    rows = lake.spark.sql(f"SELECT id, _row_id FROM lake.{table} ORDER BY id").collect()
    assert len({row._row_id for row in rows}) == 3
    assert all(row._row_id is not None for row in rows)


def test_what_this_package_does_not_know_is_left_as_it_is(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    lake.spark.sql(f"CALL lake.system.compute_table_stats(table => '{table}')")
    lake.spark.sql(f"CALL lake.system.compute_partition_stats(table => '{table}')")
    base = lake.main(table)
    staged = lake.stage(table, stamp_of(1), base, [(2, "b")])
    before = lake.document(table)
    assert before["statistics"]
    assert before["partition-statistics"]
    before["x-of-a-newer-engine"] = {"nested": [1, 2.5, None, "é"]}
    before["snapshots"][0]["x-unknown"] = 2**62
    before["refs"]["main"]["min-snapshots-to-keep"] = 3
    path_of(lake.location(table)).write_text(json.dumps(before))

    lake.tables.publish([publication(table, base, staged)])

    after = lake.document(table)
    assert after["refs"]["main"] == {"snapshot-id": staged, "type": "branch", "min-snapshots-to-keep": 3}
    changed = {"refs", "current-snapshot-id", "snapshot-log", "metadata-log", "last-updated-ms"}
    assert {key for key in after if after[key] != before.get(key)} == changed
    assert before.keys() == after.keys()
    assert lake.rows(table) == [(1, "a"), (2, "b")]


def test_publishing_again_changes_nothing(lake: Lake) -> None:
    done, open_ = lake.create(rows=[(1, "a")]), lake.create(rows=[(1, "a")])
    bases = lake.tables.mains([done, open_])
    new = {table: lake.stage(table, stamp_of(1), base, [(2, "b")]) for table, base in bases.items()}
    lake.tables.publish([publication(done, bases[done], new[done])])
    location = lake.location(done)
    both = [publication(table, bases[table], new[table]) for table in (open_, done)]
    locations = lake.tables.publish(both)
    assert locations == {done: location, open_: lake.location(open_)}
    assert lake.tables.publish(both) == locations
    assert lake.tables.mains([done, open_]) == new


def test_a_carried_table_gets_its_tag_and_loses_its_attempts(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    lake.tables.prepare({table: base}, stamp_of(1))
    lake.tables.publish([publication(table, base, base)])
    assert lake.refs(table) == {"main": base, TAG: base}
    # A publish that comes late must still notice a foreign write.
    lake.append(table, [(2, "b")])
    with pytest.raises(ForeignWriteError, match=f"expected main at snapshot {base}, found snapshot"):
        lake.tables.publish([publication(table, base, base, barrier_id=2)])


def test_tags_that_the_policy_drops_go_in_the_same_commit(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    lake.tables.publish([publication(table, base, base)])
    staged = lake.stage(table, stamp_of(2), base, [(2, "b")])
    lake.spark.sql(f"ALTER TABLE lake.{table} CREATE BRANCH looks_like_a_tag")
    drop = (TAG, "never_there", "looks_like_a_tag", "main")
    lake.tables.publish([publication(table, base, staged, barrier_id=2, drop_tags=drop)])
    assert lake.refs(table) == {"main": staged, tag_name("shop", 2, 0): staged, "looks_like_a_tag": base}


@pytest.mark.parametrize(
    ("statement", "operation"),
    [("INSERT INTO {} VALUES (8, 'x')", "append"), ("UPDATE {} SET id = 8", "overwrite")],
    ids=["append", "overwrite"],
)
def test_a_foreign_write_is_noticed_and_kept(lake: Lake, statement: str, operation: str) -> None:
    table, other = lake.create(rows=[(1, "a")]), lake.create(rows=[(1, "a")])
    base, other_base = lake.main(table), lake.main(other)
    staged = lake.stage(table, stamp_of(1), base, [(2, "b")])
    lake.spark.sql(statement.format(f"lake.{table}"))
    foreign, rows = lake.main(table), lake.rows(table)
    said = rf"table {table}: expected main at snapshot {base}, found snapshot {foreign} \({operation} by .* UTC\)"
    with pytest.raises(ForeignWriteError, match=said):
        lake.tables.currents({other: other_base, table: base})
    with pytest.raises(ForeignWriteError, match=said):
        lake.tables.publish([publication(other, other_base, other_base), publication(table, base, staged)])
    assert lake.rows(table) == rows
    assert TAG not in lake.refs(other)


def test_a_foreign_compaction_is_absorbed(lake: Lake) -> None:
    table, carried = lake.create(rows=[(1, "a")]), lake.create(rows=[(1, "a")])
    for each in (table, carried):
        lake.append(each, [(2, "a")])
    bases = lake.tables.mains([table, carried])
    staged = lake.stage(table, stamp_of(1), bases[table], [(3, "b")])
    for each in (table, carried):
        compact(lake, each)
        lake.spark.sql(f"CALL lake.system.rewrite_manifests('{each}')")
    compacted = lake.tables.currents(bases)
    assert compacted == lake.tables.mains([table, carried])
    assert not compacted.items() & bases.items()

    # What the publish expects may be the compaction or what it compacted: the rows are the same.
    lake.tables.publish(
        [publication(table, compacted[table], staged), publication(carried, bases[carried], bases[carried])]
    )
    assert lake.tables.mains([table, carried]) == {table: staged, carried: compacted[carried]}
    assert lake.rows(table) == [(1, "a"), (2, "a"), (3, "b")]
    assert lake.refs(carried)[TAG] == bases[carried]

    # And a compaction of what was published does not undo the publish.
    lake.append(table, [(4, "b")], "main", stamp_of(1))
    published = lake.main(table)
    compact(lake, table)
    lake.tables.publish([publication(table, bases[table], published, barrier_id=2)])
    assert lake.main(table) not in (None, published)
    assert lake.refs(table)[tag_name("shop", 2, 0)] == published


def compact(lake: Lake, table: str) -> None:
    lake.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")


def test_main_never_returns_to_a_snapshot_that_it_left(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    staged = lake.stage(table, stamp_of(1), base, [(2, "b")])
    late = [publication(table, base, staged)]
    lake.tables.publish(late)
    lake.spark.sql(f"CALL lake.system.rollback_to_snapshot('{table}', {base})")
    with pytest.raises(ForeignWriteError, match=f"main has been at snapshot {staged} and has left it"):
        lake.tables.publish(late)
    assert lake.main(table) == base
    newer = lake.stage(table, stamp_of(2), base, [(3, "c")])
    lake.tables.publish([publication(table, base, newer, barrier_id=2)])
    with pytest.raises(ForeignWriteError, match=f"main has been at snapshot {base} and has left it"):
        lake.tables.publish([publication(table, newer, base, barrier_id=3)])
    assert lake.rows(table) == [(1, "a"), (3, "c")]


def test_what_cannot_be_published_is_refused(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a")])
    base = lake.main(table)
    staged = lake.stage(table, stamp_of(1), base, [(2, "b")])
    beside = lake.stage(table, stamp_of(1, 555), base, [(3, "c")])
    with pytest.raises(SnapshotMissingError, match="expected snapshot 4711 in the table's metadata"):
        lake.tables.publish([publication(table, base, 4711)])
    lake.spark.sql(f"ALTER TABLE lake.{table} CREATE TAG `{TAG}` AS OF VERSION {base}")
    with pytest.raises(ForeignWriteError, match=f"a tag at snapshot {staged}; found a tag at snapshot {base}"):
        lake.tables.publish([publication(table, base, staged)])
    lake.spark.sql(f"ALTER TABLE lake.{table} DROP TAG `{TAG}`")
    lake.tables.publish([publication(table, base, staged)])
    with pytest.raises(StagedTableError, match=f"staged snapshot {beside} to descend from snapshot {staged}"):
        lake.tables.publish([publication(table, staged, beside, barrier_id=2)])
    assert lake.rows(table) == [(1, "a"), (2, "b")]


def test_compressed_metadata_stays_compressed_and_old_files_go(lake: Lake) -> None:
    tables = lake.tables
    limits = {"write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true"}
    table = lake.create({"write.metadata.compression-codec": "gzip", **limits}, rows=[(1, "a")])
    base = lake.main(table)
    staged = lake.stage(table, stamp_of(1), base, [(2, "b")])
    tables.publish([publication(table, base, staged)])
    for number in range(3):
        tables.pin(table, f"pin_{number}", base)
    location = lake.location(table)
    assert location.endswith(".gz.metadata.json")
    assert path_of(location).name.startswith("00007-")
    left = sorted(path.name[:5] for path in path_of(location).parent.glob("*.metadata.json"))
    assert left == ["00005", "00006", "00007"]
    lake.append(table, [(3, "c")])
    assert lake.rows(table) == [(1, "a"), (2, "b"), (3, "c")]
