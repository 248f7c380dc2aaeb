"""Publishing what a revision computed aside: `main` goes over to another line of snapshots, and the old one stays.

Barriers 3 and 4 of a table are computed again by revision 7, from where barrier 2 stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from airflow_barrier.protocol.errors import ForeignWriteError, RefTakenError, SnapshotMissingError, StagedTableError
from airflow_barrier.protocol.names import tag_name
from airflow_barrier.protocol.states import Decision
from airflow_barrier.tables.port import Publication, Revised
from tests.support.replacing import replace_files
from tests.tables.lake import Lake, publication, stamp_of
from tests.tables.written import TABLE, Written

REVISION = 7
TAGS = {number: tag_name("shop", number, 0) for number in (2, 3, 4, 5)}
NEW_TAGS = {number: tag_name("shop", number, REVISION) for number in (3, 4)}


@dataclass
class Revision:
    """The table with its old line, published barrier by barrier; barrier n appends the row n."""

    table: Written

    def __post_init__(self) -> None:
        self.base: int | None = None
        self.publish_next(2)
        self.base = self.table.at("main")
        for number in (3, 4):
            self.publish_next(number)
        self.old = self.table.at("main")

    def publish_next(self, barrier_id: int) -> None:
        main = self.table.tables.mains([TABLE])[TABLE]
        staged = self.table.stage(stamp_of(barrier_id), main, barrier_id)
        self.table.tables.publish([publication(TABLE, main, staged, barrier_id)])

    def stage(self) -> list[int]:
        """The new line: barriers 3 and 4 append 30 and 40."""
        third = self.table.stage(stamp_of(3, revision=REVISION), self.base, 30)
        return [third, self.table.stage(stamp_of(4, revision=REVISION), third, 40)]

    def swap(self, new: int | None, third: int | None = None, **changes: Any) -> Publication:
        tags = {} if third is None else {NEW_TAGS[3]: third}
        swap = Publication(TABLE, "shop", 4, self.old, new, NEW_TAGS[4], revised=Revised(self.base, tags))
        return replace(swap, **changes)

    def publish(self, swap: Publication) -> None:
        self.table.tables.publish([swap])

    @property
    def location(self) -> str:
        return self.table.tables.load(TABLE).metadata_location


@pytest.fixture
def revision(table: Written) -> Revision:
    return Revision(table)


def test_main_goes_over_to_the_revision_and_the_old_line_stays_by_its_tags(revision: Revision) -> None:
    table = revision.table
    third, new = revision.stage()
    assert table.rows() == [2, 3, 4], "nothing is seen before it is published"
    revision.publish(revision.swap(new, third))
    assert table.at("main") == new
    assert {tag: table.rows(tag) for tag in table.refs()} == {
        "main": [2, 30, 40],
        TAGS[2]: [2],
        TAGS[3]: [2, 3],
        TAGS[4]: [2, 3, 4],
        NEW_TAGS[3]: [2, 30],
        NEW_TAGS[4]: [2, 30, 40],
    }


def test_publishing_again_changes_nothing_also_after_later_barriers(revision: Revision) -> None:
    third, new = revision.stage()
    swap = revision.swap(new, third)
    revision.publish(swap)
    published = revision.location
    revision.publish(swap)
    assert revision.location == published
    revision.publish_next(5)
    # by then an expiry may have taken what the earlier barriers had
    revision.table.tables.drop_tags([TABLE], [NEW_TAGS[3]])
    later = revision.location
    revision.publish(swap)
    assert revision.location == later
    assert revision.table.rows() == [2, 5, 30, 40]


def test_a_foreign_write_on_the_old_line_is_not_swapped_away(revision: Revision) -> None:
    third, new = revision.stage()
    foreign = revision.table.append(row=9)
    before = revision.location
    with pytest.raises(ForeignWriteError, match=f"expected main at snapshot {revision.old}, found snapshot {foreign}"):
        revision.publish(revision.swap(new, third))
    assert revision.location == before


def test_what_a_person_decided_against_is_set_aside(revision: Revision) -> None:
    third, new = revision.stage()
    foreign = revision.table.append(row=9)
    decided = revision.swap(new, third, expected=foreign, decision=Decision.KEEP_OURS, set_aside={"theirs": foreign})
    revision.publish(decided)
    assert revision.table.rows() == [2, 30, 40]
    assert revision.table.rows("theirs") == [2, 3, 4, 9]


def test_compactions_are_absorbed_on_the_old_line_and_below_the_base(revision: Revision) -> None:
    third, new = revision.stage()
    replace_files(revision.table.tables, TABLE, "main")
    revision.table.edit(branches={"compacted": revision.base})
    base = replace_files(revision.table.tables, TABLE, "compacted")
    revision.publish(revision.swap(new, third, revised=Revised(base)))
    assert revision.table.at("main") == new


def test_a_revision_that_added_nothing_brings_the_old_base_back_in_a_snapshot_of_its_own(revision: Revision) -> None:
    table, base = revision.table, revision.base
    assert base is not None
    swap = revision.swap(base, base)
    revision.publish(swap)
    published, location = table.at("main"), revision.location
    assert published not in (base, revision.old)
    assert table.rows() == [2]
    assert table.at(NEW_TAGS[3]) == table.at(NEW_TAGS[4]) == base
    revision.publish(swap)
    assert revision.location == location
    staged = table.stage(stamp_of(5, revision=REVISION), base, 50)
    table.tables.publish([publication(TABLE, base, staged, 5)])
    later = revision.location
    revision.publish(swap)
    assert revision.location == later
    assert table.rows() == [2, 50]


@pytest.mark.kills("set-back-is-no-publish")
@pytest.mark.parametrize("added", [True, False], ids=["rows", "nothing"])
def test_a_publisher_that_wakes_late_does_not_undo_that_somebody_set_main_back(
    revision: Revision, *, added: bool
) -> None:
    new = revision.stage()[-1] if added else revision.base
    swap = revision.swap(new)
    revision.publish(swap)
    revision.table.edit(branches={"main": revision.old})
    with pytest.raises(ForeignWriteError, match=f"main has been at snapshot {new} and has left it"):
        revision.publish(swap)
    assert revision.table.rows() == [2, 3, 4]


def test_a_table_that_the_revision_does_not_touch_is_only_tagged(revision: Revision) -> None:
    table = revision.table
    swap = revision.swap(revision.old, table.at(TAGS[3]))
    revision.publish(swap)
    assert table.at("main") == table.at(NEW_TAGS[4]) == revision.old
    assert table.rows(NEW_TAGS[3]) == [2, 3]
    compacted = replace_files(table.tables, TABLE, "main")
    again = replace(swap, tag=tag_name("shop", 4, 8), revised=Revised(revision.base))
    revision.publish(again)
    assert table.at("main") == compacted
    assert table.at(tag_name("shop", 4, 8)) == revision.old


@pytest.mark.kills("revised-snapshots-are-there")
def test_what_is_gone_is_neither_published_nor_tagged(revision: Revision) -> None:
    third, new = revision.stage()
    before = revision.location
    for swap in (revision.swap(4711, third), revision.swap(new, 4711)):
        with pytest.raises(SnapshotMissingError, match="expected snapshot 4711"):
            revision.publish(swap)
    assert revision.location == before


@pytest.mark.kills("revised-tags-are-ours")
@pytest.mark.parametrize("number", [3, 4])
def test_a_tag_of_that_name_which_somebody_else_made_is_left_alone(revision: Revision, number: int) -> None:
    third, new = revision.stage()
    revision.table.edit(tags={NEW_TAGS[number]: revision.base})
    with pytest.raises(RefTakenError, match=f"expected no ref {NEW_TAGS[number]}"):
        revision.publish(revision.swap(new, third))
    assert revision.table.at("main") == revision.old
    assert revision.table.at(NEW_TAGS[number]) == revision.base


@pytest.mark.kills("builds-on-the-revisions-base")
def test_what_is_published_was_built_on_the_revisions_base(revision: Revision) -> None:
    table = revision.table
    elsewhere = table.stage(stamp_of(4, revision=REVISION), None, 40)
    with pytest.raises(StagedTableError, match=f"to descend from snapshot {revision.base}, where the revision began"):
        revision.publish(revision.swap(elsewhere))
    assert table.at("main") == revision.old


@pytest.mark.kills("revision-from-an-empty-root", "root-is-of-the-topology", "root-is-not-the-old-lines")
def test_what_is_computed_anew_began_on_an_empty_root_of_its_own(revision: Revision) -> None:
    table = revision.table
    others = table.stage(stamp_of(4, topology="other", revision=REVISION), None, 40)
    on_the_old_line = table.stage(stamp_of(3, revision=REVISION), revision.base, 30)
    stranger = table.stage(stamp_of(4, revision=REVISION), None, 40)
    document = table.document()
    root = next(each for each in document["snapshots"] if each["snapshot-id"] == _parent(document, stranger))
    root["summary"]["total-records"] = "1"
    table.rewrite(document)
    for new in (others, on_the_old_line, stranger):
        with pytest.raises(StagedTableError, match="to descend from no snapshot, where the revision began"):
            revision.publish(revision.swap(new, revised=Revised(None)))
    assert table.at("main") == revision.old


def _parent(document: dict[str, Any], snapshot_id: int) -> int:
    (parent,) = [each["parent-snapshot-id"] for each in document["snapshots"] if each["snapshot-id"] == snapshot_id]
    return int(parent)


def test_all_is_computed_anew_from_an_empty_root_beside_main(revision: Revision) -> None:
    table = revision.table
    stamp = stamp_of(4, revision=REVISION)
    table.tables.prepare({TABLE: None}, stamp)
    assert table.tables.staged(TABLE, stamp, None) is None
    assert table.rows(stamp.branch) == []
    new = table.append(stamp.branch, stamp.properties(), row=40)
    table.tables.check_snapshot(TABLE, new, stamp, None)
    assert table.rows() == [2, 3, 4]
    revision.publish(revision.swap(new, revised=Revised(None)))
    assert table.rows() == [40]
    assert table.rows(TAGS[4]) == [2, 3, 4]
    revision.publish_next(5)
    assert table.rows() == [5, 40]


def test_a_revision_that_leaves_no_rows_publishes_an_empty_snapshot_that_is_as_good_as_none(revision: Revision) -> None:
    table = revision.table
    swap = revision.swap(None, revised=Revised(None), drop_tags=(TAGS[2],))
    revision.publish(swap)
    assert table.rows() == table.rows(NEW_TAGS[4]) == []
    assert TAGS[2] not in table.refs()
    location = revision.location
    revision.publish(swap)
    table.tables.publish([publication(TABLE, None, None, 5)])
    assert revision.location == location
    # the next barrier may be told what main is at, or that it has no rows
    found = table.tables.currents({TABLE: None})[TABLE]
    assert found == table.at("main")
    staged = table.stage(stamp_of(6), None, 6)
    table.tables.look([publication(TABLE, None, staged, 6)])
    table.tables.publish([publication(TABLE, found, staged, 6)])
    later = revision.location
    revision.publish(swap)
    assert revision.location == later
    assert table.rows() == [6]


@pytest.mark.kills("foreign-write-on-emptied")
def test_a_revision_that_leaves_no_rows_takes_nothing_of_others_away(revision: Revision) -> None:
    table = revision.table
    swap = revision.swap(None, revised=Revised(None))
    foreign = table.append(row=9)
    with pytest.raises(ForeignWriteError, match=f"expected main at snapshot {revision.old}, found snapshot {foreign}"):
        revision.publish(swap)
    table.edit(branches={"main": revision.old})
    revision.publish(swap)
    table.edit(branches={"main": revision.old})
    with pytest.raises(ForeignWriteError, match="and has left it"):
        revision.publish(swap)
    assert table.rows() == [2, 3, 4]


def test_a_table_that_never_had_rows_is_swapped_without_a_trace(table: Written) -> None:
    swap = Publication(TABLE, "shop", 4, None, None, NEW_TAGS[4], revised=Revised(None))
    table.tables.publish([swap])
    assert table.refs() == {}


# --- branches -----------------------------------------------------------------------------------------


@pytest.mark.kills("branches-of-revisions-stay")
def test_branches_of_revisions_that_are_being_staged_stay_with_every_publish(revision: Revision) -> None:
    table, base = revision.table, revision.base
    stamps = {(number, each): stamp_of(number, revision=each) for number in (3, 4, 5) for each in (0, REVISION, 8)}
    for stamp in stamps.values():
        table.tables.prepare({TABLE: base}, stamp)

    def left() -> set[tuple[int, int]]:
        return {key for key, stamp in stamps.items() if stamp.branch in table.refs()}

    old = publication(TABLE, revision.old, revision.old, 4)
    table.tables.publish([replace(old, kept_revisions=frozenset({REVISION, 8}))])
    assert left() == set(stamps) - {(3, 0), (4, 0)}
    # once it is published, only its branches of open barriers are needed
    revision.publish(revision.swap(revision.old, kept_revisions=frozenset({8})))
    assert left() == {(5, 0), (5, REVISION), (3, 8), (4, 8), (5, 8)}
    table.tables.give_back([TABLE], "shop", (), {8})
    assert left() == {(3, 8), (4, 8), (5, 8)}


@pytest.mark.kills("branches-of-other-revisions-stay")
def test_a_cancelled_revision_leaves_no_branch_and_the_others_stay(revision: Revision) -> None:
    table = revision.table
    gone = [stamp_of(number, revision=REVISION) for number in (3, 4)]
    stay = [stamp_of(5), stamp_of(4, revision=8), stamp_of(4, topology="other", revision=REVISION)]
    for stamp in (*gone, *stay):
        table.tables.prepare({TABLE: revision.base}, stamp)
    before = table.refs()
    table.tables.drop_revision([TABLE], "shop", REVISION)
    location = revision.location
    table.tables.drop_revision([TABLE], "shop", REVISION)
    assert revision.location == location
    assert before.keys() - table.refs().keys() == {stamp.branch for stamp in gone}


# --- what the table tells afterwards ------------------------------------------------------------------


def test_traces_tell_revisions_apart(revision: Revision) -> None:
    table = revision.table
    third, new = revision.stage()
    staging = table.tables.traces(TABLE, "shop")
    assert staging.tags == {(2, 0), (3, 0), (4, 0)}
    assert (staging.newest_attempt, staging.newest_revision) == (804, REVISION)
    revision.publish(revision.swap(new, third))
    found = table.tables.traces(TABLE, "shop")
    assert found.tags == {(2, 0), (3, 0), (4, 0), (3, REVISION), (4, REVISION)}
    assert (found.tagged, found.published, found.newest_revision) == ({2, 3, 4}, 4, REVISION)
    table.tables.drop_tags([TABLE], [TAGS[3], TAGS[4]])
    table.edit(tags={tag_name("shop", 4, 9): new, tag_name("other", 4, 12): new})
    assert table.tables.traces(TABLE, "shop").newest_revision == 9
    assert table.tables.origin(TABLE) == stamp_of(4, revision=REVISION)


def test_expiry_takes_nothing_of_either_line_nor_of_a_staging_revision(revision: Revision) -> None:
    table = revision.table
    third, new = revision.stage()
    table.edit(branches={"aside": third})
    untagged = table.append("aside", row=1)
    kept = _kept(table, TAGS[4])
    assert kept == {revision.base, table.at(TAGS[3]), revision.old, third, new, untagged}
    revision.publish(revision.swap(new, third))
    table.edit(drop=frozenset({"aside"}))
    assert _kept(table, NEW_TAGS[4]) == {revision.base, table.at(TAGS[3]), revision.old, third, new}


def _kept(table: Written, window_tag: str) -> set[int]:
    verdicts = table.tables.snapshot_verdicts(TABLE, window_tag)
    return {verdict.snapshot_id for verdict in verdicts if verdict.keep}


# --- Spark --------------------------------------------------------------------------------------------


def merge(lake: Lake, table: str, branch: str | None, rows: list[tuple[int, str]]) -> None:
    where = f"lake.{table}.branch_{branch}" if branch else f"lake.{table}"
    source = lake.spark.createDataFrame(rows, "id BIGINT, v STRING").alias("new")
    lake.spark.sql(
        f"MERGE INTO {where} AS t USING {{new}} AS n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET v = concat(n.v, '!') WHEN NOT MATCHED THEN INSERT *",
        new=source,
    )


def test_spark_computes_anew_on_an_empty_root_beside_main_and_goes_on_after_the_swap(lake: Lake) -> None:
    table = lake.create(rows=[(1, "a"), (2, "b")])
    old = lake.main(table)
    assert old is not None
    lake.tables.publish([publication(table, old, old, 4)])
    stamp = stamp_of(4, revision=REVISION)
    lake.tables.prepare({table: None}, stamp)
    assert lake.rows(table, stamp.branch) == []
    lake.append(table, [(1, "x"), (3, "y")], stamp.branch, stamp)
    new = lake.tables.staged(table, stamp, None)
    assert lake.rows(table) == [(1, "a"), (2, "b")]
    assert lake.rows(table, stamp.branch) == [(1, "x"), (3, "y")]

    lake.tables.publish([Publication(table, "shop", 4, old, new, NEW_TAGS[4], revised=Revised(None))])

    assert lake.rows(table) == lake.rows(table, NEW_TAGS[4]) == [(1, "x"), (3, "y")]
    assert lake.rows(table, TAGS[4]) == [(1, "a"), (2, "b")]
    merge(lake, table, None, [(3, "z"), (4, "w")])
    assert lake.rows(table) == [(1, "x"), (3, "z!"), (4, "w")]
    if lake.version == 3:
        ids = [row._row_id for row in lake.spark.sql(f"SELECT _row_id FROM lake.{table}").collect()]
        assert None not in ids
        assert len(set(ids)) == 3


def test_spark_goes_on_after_a_revision_that_left_nothing_or_added_nothing(lake: Lake) -> None:
    emptied, restored = lake.create(rows=[(1, "a")]), lake.create(rows=[(1, "a")])
    bases: Mapping[str, int | None] = lake.tables.mains([emptied, restored])
    for table, base in bases.items():
        staged = lake.stage(table, stamp_of(3), base, [(2, "b")])
        lake.tables.publish([publication(table, base, staged, 3)])
    old = lake.tables.mains([emptied, restored])
    base = bases[restored]
    lake.tables.publish(
        [
            Publication(emptied, "shop", 3, old[emptied], None, NEW_TAGS[3], revised=Revised(None)),
            Publication(restored, "shop", 3, old[restored], base, NEW_TAGS[3], revised=Revised(base)),
        ]
    )
    assert lake.rows(emptied) == lake.rows(emptied, NEW_TAGS[3]) == []
    assert lake.rows(restored) == lake.rows(restored, NEW_TAGS[3]) == [(1, "a")]
    assert lake.rows(emptied, TAGS[3]) == lake.rows(restored, TAGS[3]) == [(1, "a"), (2, "b")]
    for table in (emptied, restored):
        merge(lake, table, None, [(1, "x"), (9, "z")])
    assert lake.rows(emptied) == [(1, "x"), (9, "z")]
    assert lake.rows(restored) == [(1, "x!"), (9, "z")]
