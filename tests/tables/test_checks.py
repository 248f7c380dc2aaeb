"""What a publish, an attempt branch and a pin insist on, on tables that pyiceberg writes: quick, and one at a time."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from sqlalchemy import Engine, event, text
from sqlalchemy.dialects import postgresql

from airflow_barrier.protocol.errors import (
    CatalogUnavailableError,
    ForeignWriteError,
    SnapshotMissingError,
    StagedTableError,
)
from airflow_barrier.protocol.names import Stamp
from airflow_barrier.systems import sql
from airflow_barrier.tables._metadata import EMPTY_ROOT
from airflow_barrier.tables.iceberg import IcebergTables
from tests.support.replacing import replace_files
from tests.tables.lake import path_of, publication, stamp_of
from tests.tables.written import TABLE, Written

STAMP = stamp_of(1)


# --- publishing ---------------------------------------------------------------------------------------


@pytest.mark.kills("foreign-write", "only-compactions-are-absorbed")
def test_a_foreign_write_is_never_overwritten(table: Written) -> None:
    base = table.append()
    staged = table.stage(STAMP, base)
    foreign = table.append()
    with pytest.raises(ForeignWriteError, match=f"expected main at snapshot {base}, found snapshot {foreign}"):
        table.tables.currents({TABLE: base})
    with pytest.raises(ForeignWriteError, match=f"expected main at snapshot {base}, found snapshot {foreign}"):
        table.tables.publish([publication(TABLE, base, staged)])
    assert table.at("main") == foreign


@pytest.mark.kills("published-anew")
def test_only_a_compaction_keeps_the_rows_of_what_it_stands_on(table: Written) -> None:
    base = table.append()
    staged = table.stage(STAMP, base)
    table.append()
    document = table.document()
    with pytest.raises(ForeignWriteError):
        table.tables.currents({TABLE: base})
    document["snapshots"][-1]["summary"]["operation"] = "replace"
    table.rewrite(document)
    table.tables.publish([publication(TABLE, table.tables.currents({TABLE: base})[TABLE], staged)])
    assert table.at("main") == staged


@pytest.mark.kills("foreign-write-on-empty")
def test_what_was_written_to_an_empty_table_is_noticed_by_a_publish_of_nothing(table: Written) -> None:
    table.append()
    with pytest.raises(ForeignWriteError, match="expected main at no snapshot"):
        table.tables.publish([publication(TABLE, None, None)])


@pytest.mark.kills("never-back")
def test_main_never_returns_to_what_it_left(table: Written) -> None:
    base = table.append()
    staged = table.stage(STAMP, base)
    late = [publication(TABLE, base, staged)]
    table.tables.publish(late)
    table.edit(branches={"main": base})
    with pytest.raises(ForeignWriteError, match=f"has been at snapshot {staged} and has left it"):
        table.tables.publish(late)
    assert table.at("main") == base


@pytest.mark.kills("never-back")
def test_main_never_returns_to_what_it_stands_on_although_the_log_has_forgotten(table: Written) -> None:
    first, second = table.append(), table.append()
    table.rewrite({**table.document(), "snapshot-log": []})
    with pytest.raises(ForeignWriteError, match=f"has been at snapshot {first} and has left it"):
        table.tables.publish([publication(TABLE, second, first)])


@pytest.mark.kills("builds-on-expected")
def test_what_is_published_builds_on_what_is_expected(table: Written) -> None:
    first = table.append()
    second = table.append()
    staged = table.stage(STAMP, first)
    with pytest.raises(StagedTableError, match=f"staged snapshot {staged} to descend from snapshot {second}"):
        table.tables.publish([publication(TABLE, second, staged)])
    assert table.at("main") == second


@pytest.mark.kills("same-rows-by-compaction-only")
def test_what_stands_before_a_write_does_not_hold_its_rows(table: Written) -> None:
    """Two attempts on one base: only a compaction's parent is as good as the compaction itself."""
    base = table.append()
    staged = table.stage(STAMP, base)
    appended = table.append()
    with pytest.raises(StagedTableError, match=f"to descend from snapshot {appended}"):
        table.tables.publish([publication(TABLE, appended, staged)])


@pytest.mark.kills("new-snapshot-is-there", "published-snapshot-is-there")
def test_a_snapshot_that_is_gone_is_not_published(table: Written) -> None:
    base = table.append()
    with pytest.raises(SnapshotMissingError, match="expected snapshot 4711 in the table's metadata"):
        table.tables.publish([publication(TABLE, base, 4711)])
    document = table.document()
    table.rewrite({**document, "snapshots": []})
    with pytest.raises(SnapshotMissingError, match=f"expected snapshot {base} in the table's metadata"):
        table.tables.publish([publication(TABLE, base, base)])


@pytest.mark.kills("tag-is-ours")
def test_a_tag_of_the_barriers_name_that_somebody_else_made_is_left_alone(table: Written) -> None:
    base = table.append()
    staged = table.stage(STAMP, base)
    ours = publication(TABLE, base, staged)
    table.edit(tags={ours.tag: base})
    with pytest.raises(ForeignWriteError, match=f"expected no ref {ours.tag}, or a tag at snapshot {staged}"):
        table.tables.publish([ours])
    assert table.refs()[ours.tag] == table.at("main") == base


@pytest.mark.kills("branches-of-others-stay", "branches-of-later-barriers-stay")
def test_a_publish_drops_its_own_attempts_and_leaves_what_is_not_its_own(table: Written) -> None:
    base = table.append()
    others, later, own = stamp_of(1, topology="other"), stamp_of(2), stamp_of(1)
    for stamp in (others, later, own):
        table.tables.prepare({TABLE: base}, stamp)
    ours = publication(TABLE, base, base)
    table.tables.publish([ours])
    assert set(table.refs()) == {"main", ours.tag, others.branch, later.branch}


@pytest.mark.kills("branches-of-readers-stay")
def test_a_publish_leaves_the_branches_that_readers_hold(table: Written) -> None:
    base = table.append()
    stamps = {number: stamp_of(number) for number in (1, 2, 3, 4, 5)}
    for stamp in stamps.values():
        table.tables.prepare({TABLE: base}, stamp)
    left = publication(TABLE, base, base, barrier_id=4)
    table.tables.publish([replace(left, held=((1, 1), (3, 5)))])
    assert set(table.refs()) == {"main", left.tag, *(stamps[number].branch for number in (1, 3, 4, 5))}
    table.tables.give_back([TABLE], stamps[1].topology, ((4, 4),))
    assert set(table.refs()) == {"main", left.tag, stamps[4].branch}


# --- attempt branches ---------------------------------------------------------------------------------


@pytest.mark.kills("head-is-what-was-closed")
def test_the_head_of_the_branch_is_what_the_attempt_closed_with(table: Written) -> None:
    base = table.append()
    staged = table.stage(STAMP, base)
    table.tables.check_snapshot(TABLE, staged, STAMP, base)
    table.append(STAMP.branch, STAMP.properties())
    with pytest.raises(StagedTableError, match=f"to be snapshot {staged}, as the attempt said when it closed"):
        table.tables.check_snapshot(TABLE, staged, STAMP, base)


@pytest.mark.kills("branch-at-base", "base-is-there")
def test_an_attempt_starts_on_its_base_and_not_on_its_own_half(table: Written) -> None:
    base = table.append()
    table.stage(STAMP, base)
    with pytest.raises(StagedTableError, match="an earlier start of this attempt has written to it"):
        table.tables.prepare({TABLE: base}, STAMP)
    with pytest.raises(SnapshotMissingError, match="expected snapshot 4711"):
        table.tables.prepare({TABLE: 4711}, stamp_of(2))


@pytest.mark.kills("branch-is-there")
def test_a_branch_that_was_dropped_stages_nothing(table: Written) -> None:
    base = table.append()
    table.stage(STAMP, base)
    table.edit(drop=frozenset({STAMP.branch}))
    with pytest.raises(StagedTableError, match=f"expected branch {STAMP.branch}, found none"):
        table.tables.staged(TABLE, STAMP, base)


@pytest.mark.kills("ancestry")
def test_a_branch_on_another_base_stages_nothing(table: Written) -> None:
    first = table.append()
    second = table.append()
    table.stage(STAMP, first)
    with pytest.raises(StagedTableError, match=f"to descend from snapshot {second}"):
        table.tables.staged(TABLE, STAMP, second)


@pytest.mark.kills("stamp", "another-stamp-on-a-delete", "only-deletes-without-stamp")
@pytest.mark.parametrize("other", [stamp_of(2), stamp_of(1, 999), replace(STAMP, incarnation="another"), None])
def test_a_snapshot_with_another_stamp_or_none_is_refused(table: Written, other: Stamp | None) -> None:
    base = table.append()
    table.tables.prepare({TABLE: base}, STAMP)
    table.append(STAMP.branch, other.properties() if other else None)
    table.append(STAMP.branch, STAMP.properties())
    with pytest.raises(StagedTableError, match="bear the stamp"):
        table.tables.staged(TABLE, STAMP, base)


@pytest.mark.kills("stamp", "another-stamp-on-a-delete", "only-deletes-without-stamp")
def test_a_delete_may_bear_no_stamp_but_not_another_one(table: Written) -> None:
    base = table.append()
    table.tables.prepare({TABLE: base}, STAMP)
    deleted = table.delete(STAMP.branch)
    assert table.tables.staged(TABLE, STAMP, base) == deleted
    compacted = replace_files(table.tables, TABLE, STAMP.branch)
    assert table.tables.staged(TABLE, STAMP, base) == compacted
    table.append(STAMP.branch, STAMP.properties())
    table.delete(STAMP.branch, stamp_of(2).properties())
    with pytest.raises(StagedTableError, match=r"\(delete\) on branch .* to bear the stamp"):
        table.tables.staged(TABLE, STAMP, base)


@pytest.mark.kills("root-has-no-parent", "root-is-the-attempts")
def test_an_empty_table_is_staged_on_a_root_of_the_attempts_own(table: Written) -> None:
    table.tables.prepare({TABLE: None}, STAMP)
    assert table.tables.staged(TABLE, STAMP, None) is None
    table.edit(branches={stamp_of(2).branch: table.at(STAMP.branch)})
    with pytest.raises(StagedTableError, match="to descend from no snapshot"):
        table.tables.staged(TABLE, stamp_of(2), None)
    with pytest.raises(StagedTableError, match="an earlier start"):
        table.tables.prepare({TABLE: None}, stamp_of(2))


@pytest.mark.kills("root-has-no-parent", "root-is-the-attempts")
def test_a_root_that_stands_on_something_is_no_root(table: Written) -> None:
    """Whoever copies all properties of a snapshot copies the mark of the root as well."""
    table.tables.prepare({TABLE: None}, STAMP)
    table.append(STAMP.branch, {**STAMP.properties(), EMPTY_ROOT: "true"})
    with pytest.raises(StagedTableError, match="bear the stamp"):
        table.tables.staged(TABLE, STAMP, None)


# --- pins ---------------------------------------------------------------------------------------------


@pytest.mark.kills(
    "ref-is-ours", "pin-is-ours", "pinned-snapshot-is-there", "unpin-leaves-main", "unpin-leaves-branches"
)
def test_a_pin_takes_no_name_that_is_taken_and_no_snapshot_that_is_gone(table: Written) -> None:
    first, second = table.append(), table.append()
    table.edit(tags={"held": first})
    for ancestors in (0, 1):
        with pytest.raises(ForeignWriteError, match="expected no ref held"):
            table.tables.pin(TABLE, "held", second, ancestors)
    with pytest.raises(SnapshotMissingError, match="4711"):
        table.tables.pin(TABLE, "mine", 4711)
    assert table.refs() == {"main": second, "held": first}


@pytest.mark.kills(
    "ref-is-ours", "pin-is-ours", "pinned-snapshot-is-there", "unpin-leaves-main", "unpin-leaves-branches"
)
def test_unpinning_takes_pins_only(table: Written) -> None:
    base = table.append()
    document = table.document()
    document["refs"]["main"]["min-snapshots-to-keep"] = 5
    table.rewrite(document)
    table.edit(branches={"theirs": base})
    table.tables.pin(TABLE, "ours", base)
    for ref in ("main", "theirs", "ours"):
        table.tables.unpin(TABLE, ref)
    assert set(table.refs()) == {"main", "theirs"}


# --- the catalog's rows -------------------------------------------------------------------------------


@pytest.mark.kills("pointer-row-lock", "pointer-lock-order")
def test_rows_are_locked_in_the_order_of_their_names(local: IcebergTables) -> None:
    """Seen in what PostgreSQL would be asked: two publishers that lock in different orders wait for each other."""
    names = [f"shop.t{number}" for number in range(3)]
    for name in names:
        local.catalog.create_table(name, Schema(NestedField(1, "id", LongType(), required=False)))
    asked: list[str] = []

    def listen(connection: object, element: Any, *_: object) -> None:
        asked.append(str(element.compile(dialect=postgresql.dialect())))

    pointers = local._committer._pointers
    event.listen(Engine, "before_execute", listen)
    try:
        with pointers.transaction() as connection:
            pointers.lock(connection, reversed(names))
    finally:
        event.remove(Engine, "before_execute", listen)
    (lock,) = [each for each in asked if "FROM iceberg_tables" in each]
    assert " ".join(lock.split()).endswith(
        "ORDER BY iceberg_tables.table_namespace, iceberg_tables.table_name FOR UPDATE"
    )


@pytest.mark.kills("pointer-compare-and-set", "pointer-count")
def test_a_pointer_moves_only_from_where_it_was_seen(table: Written) -> None:
    pointers, location = table.tables._committer._pointers, table.tables.load(TABLE).metadata_location
    refused = pytest.raises(
        CatalogUnavailableError, match="expected each row in the catalog to stay locked, found 1 of 1"
    )
    with refused, pointers.transaction() as connection:
        pointers.move(connection, {TABLE: ("file:///elsewhere.json", "file:///ours.json")})
    assert table.tables.load(TABLE).metadata_location == location


def test_many_pointers_move_by_few_statements_and_none_if_one_has_moved(local: IcebergTables) -> None:
    """Also of two tables that are registered at one document."""
    local.catalog.create_table(TABLE, Schema(NestedField(1, "id", LongType())))
    pointers, moves = local._committer._pointers, {}
    for number in range(250):
        table = f"many.t{number:03}"
        moves[table] = (f"file:///{max(number, 1)}.json", f"file:///{number}-after.json")
    copy = text(
        "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
        "VALUES ('lake', 'many', :name, :at)"
    )
    asked = []

    def listen(_1: object, _2: object, statement: str, *_: object) -> None:
        asked.append(statement)

    with pointers.transaction() as connection:
        connection.execute(copy, [{"name": table.partition(".")[2], "at": at} for table, (at, _) in moves.items()])
        connection.execute(copy, [{"name": "beside", "at": "file:///7.json"}])
    event.listen(Engine, "before_cursor_execute", listen)
    try:
        with pointers.transaction() as connection:
            pointers.move(connection, moves)
            pointers.move(connection, {})
    finally:
        event.remove(Engine, "before_cursor_execute", listen)
    assert len([each for each in asked if "UPDATE" in each]) == 3
    after = {table: new for table, (_, new) in moves.items()}
    assert pointers.read([*moves, "many.beside"]) == {**after, "many.beside": "file:///7.json"}
    with pointers.transaction() as connection:
        before = "SELECT table_name, previous_metadata_location FROM iceberg_tables WHERE table_name LIKE 't%'"
        found = {row.table_name: row.previous_metadata_location for row in connection.execute(text(before))}
    assert found == {table.partition(".")[2]: old for table, (old, _) in moves.items()}
    back = {table: (new, old) for table, (old, new) in moves.items()}
    refused = pytest.raises(CatalogUnavailableError, match="stay locked, found 1 of 50 changed")
    with refused, pointers.transaction() as connection:
        pointers.move(connection, {**back, "many.t249": ("file:///249.json", "file:///x.json")})
    assert pointers.read(moves) == after


@pytest.mark.kills("pointer-write-lock")
def test_on_sqlite_a_publish_is_the_only_writer_from_its_first_look(tmp_path: Path) -> None:
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", str(tmp_path / "warehouse")) as tables:
        Written(tables)
        another = closing(sqlite3.connect(tmp_path / "catalog.db", timeout=0))
        refused = pytest.raises(sqlite3.OperationalError, match="locked")
        with tables._committer._pointers.transaction(), another as writer, refused:
            writer.execute("BEGIN IMMEDIATE")


@pytest.mark.kills("files-of-an-unknown-commit")
def test_files_stay_when_nobody_knows_whether_the_pointers_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's COMMIT fails while somebody reads; from elsewhere a failed COMMIT may have come through all the same."""
    monkeypatch.setattr(sql, "LOCK_TIMEOUT", 0)
    with IcebergTables.connect(f"sqlite:///{tmp_path}/catalog.db", str(tmp_path / "warehouse")) as tables:
        written = Written(tables)
        base = written.append()
        staged = written.stage(STAMP, base)
        folder = path_of(tables.load(TABLE).metadata_location).parent
        before = set(folder.glob("*.metadata.json"))
        with closing(sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM iceberg_tables").fetchall()
            with pytest.raises(CatalogUnavailableError, match="locked"):
                tables.publish([publication(TABLE, base, staged)])
        assert set(folder.glob("*.metadata.json")) > before
        tables.publish([publication(TABLE, base, staged)])
        assert written.at("main") == staged
