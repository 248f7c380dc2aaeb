"""A source that was corrected by taking files away and delivering others: its past epochs are cut anew."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_barrier.coordinator import opening
from airflow_barrier.coordinator.revisions.begin import begin_revision, plan_revision
from airflow_barrier.coordinator.revisions.plan import RevisionPlan, Wanted
from airflow_barrier.coordinator.revisions.publish import NotStaged, Swapped, cancel_revision
from airflow_barrier.protocol.codec import encode
from airflow_barrier.protocol.errors import RevisionRefusedError
from airflow_barrier.protocol.revisions import Revision, RevisionMode, TableCorrection
from airflow_barrier.spark.corrections import ReplaceByFile
from tests.revising.world import RevisedShop

SOURCE = "purchases"


def redeliver(shop: RevisedShop, day: int, name: str = "again.parquet") -> None:
    """The file of a day is replaced by one of another name, which holds its first purchase and a new one."""
    rows = [shop.landed[day][0], {"id": 10 * day + 9, "amount": 5, "price": 7}]
    shop.file(day).unlink()
    shop.deliver(day, rows, name)
    shop.landed[day] = rows


def plan(shop: RevisedShop, first: int, last: int | None = None, **wanted: Any) -> RevisionPlan:
    return plan_revision(shop.deployment, Wanted(shop.shop.name, first, last, **{"recut": [SOURCE], **wanted}))


def files_of(shop: RevisedShop, barrier_id: int, line: int = 0) -> list[str]:
    items = shop.deployment.meta.cuts.of(shop.shop.name, barrier_id, line)[SOURCE].items
    return [item.rpartition("/")[2] for item in items]


def finish(shop: RevisedShop, revision: Revision) -> None:
    shop.replay_all(revision)
    assert isinstance(shop.publish(revision), Swapped)


def test_a_file_that_was_deleted_and_one_that_was_delivered_again(shop: RevisedShop) -> None:
    shop.days(1, 4)
    before = {day: shop.expected(day) for day in range(1, 5)}
    redeliver(shop, 2)
    shop.file(3).unlink()
    shop.landed[3] = []
    revision = shop.begin(2, 3, recut=[SOURCE])
    shop.day(5)  # by the date in its path the redelivered file would be a late one of this epoch
    assert files_of(shop, 5) == ["part.parquet"]
    came = {table: rows - shop.expected(4)[table] for table, rows in shop.expected(5).items()}
    assert shop.at() == {table: rows + came[table] for table, rows in before[4].items()}
    for barrier in (2, 3, 4):
        shop.replay(revision, barrier)
    assert isinstance(shop.publish(revision), NotStaged)
    shop.replay(revision, 5)
    assert isinstance(shop.publish(revision), Swapped)
    for day in range(1, 6):
        assert shop.at(day) == shop.expected(day), day
        if day < 5:
            assert shop.at(day, revision=0) == before[day], day
    assert shop.mains() == shop.expected(5)
    assert [files_of(shop, day) for day in (2, 3)] == [["again.parquet"], []]
    shop.days(6, 6)
    assert shop.at() == shop.mains() == shop.expected(6)


def test_a_plan_says_what_leaves_and_what_joins(embedded: RevisedShop) -> None:
    embedded.days(1, 4)
    redeliver(embedded, 2)
    planned = plan(embedded, 2, 3)
    assert [(each.barrier_id, each.leaving, each.joining) for each in planned.recuts] == [
        (2, ("date=2040-01-03/part.parquet",), ("date=2040-01-03/again.parquet",)),
        (3, (), ()),
    ]
    assert planned.changed == ("load",)
    of_load = [(each.kind, each.barriers) for each in planned.inputs if each.job == "load"]
    assert of_load == [("recut", (2, 3)), ("cut", (4,))]
    assert files_of(embedded, 2) == ["part.parquet"], "nothing is stored"
    with pytest.raises(RevisionRefusedError, match=r"or replace it"):
        plan(embedded, 2, recut=[])


def test_the_cut_is_the_one_that_was_planned(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    redeliver(embedded, 2)
    planned = plan(embedded, 2)
    later = [{"id": 28, "amount": 1, "price": 1}]
    embedded.deliver(2, later, "later.parquet")
    revision = begin_revision(embedded.deployment, planned, reason="again", actor="person")
    assert revision.recut == (SOURCE,)
    finish(embedded, revision)
    assert embedded.at() == embedded.expected(3)
    embedded.landed[4] = later
    embedded.day(4)
    assert files_of(embedded, 4) == ["later.parquet"], "it is in one epoch, as a late one"
    assert embedded.at() == embedded.mains() == embedded.expected(4)


def test_a_file_that_somebody_took_since_the_plan(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    redeliver(embedded, 2)
    planned = plan(embedded, 2)
    embedded.day(4)
    assert files_of(embedded, 4) == ["again.parquet", "part.parquet"]
    with pytest.raises(RevisionRefusedError, match=r"found that one has date=2040-01-03/again.parquet; plan it again"):
        begin_revision(embedded.deployment, planned, reason="again", actor="person")
    assert embedded.deployment.meta.revisions.newest(embedded.shop.name, 1) == []
    assert plan(embedded, 2).recuts[0].joining == ()


def test_a_barrier_whose_look_came_before_the_revision(embedded: RevisedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded.days(1, 3)
    redeliver(embedded, 2)
    look, begun = opening.cut_sources, []

    def overtaken(*arguments: Any) -> Any:
        found = look(*arguments)
        if not begun:
            begun.append(embedded.begin(2, recut=[SOURCE]))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(opening, "cut_sources", overtaken)
        embedded.day(4)
    assert files_of(embedded, 4) == ["part.parquet"]
    finish_extended(embedded, begun[0])
    assert embedded.at() == embedded.expected(4)


def finish_extended(shop: RevisedShop, revision: Revision) -> None:
    shop.deployment.meta.revisions.extend(shop.shop.name, revision.revision, "person")
    finish(shop, revision)


def test_a_cancelled_one_lets_the_next_barrier_take_it(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    old = embedded.at()
    redeliver(embedded, 2)
    revision = embedded.begin(2, recut=[SOURCE])
    embedded.replay(revision, 2)
    cancel_revision(embedded.deployment, embedded.shop.name, revision.revision, reason="no", actor="person")
    assert embedded.at() == old
    embedded.day(4)
    assert files_of(embedded, 4) == ["again.parquet", "part.parquet"]
    assert [files_of(embedded, day) for day in (2, 3)] == [["part.parquet"], ["part.parquet"]]


def test_what_left_and_comes_back_is_late(embedded: RevisedShop) -> None:
    """And a later revision of its day leaves it where it was read."""
    embedded.days(1, 3)
    rows = embedded.landed[2]
    embedded.file(2).unlink()
    embedded.landed[2] = []
    finish(embedded, embedded.begin(2, recut=[SOURCE]))
    assert embedded.at() == embedded.expected(3)
    embedded.deliver(2, rows, "part.parquet")
    embedded.landed[4] = rows
    embedded.day(4)
    assert embedded.at() == embedded.expected(4)
    finish(embedded, embedded.begin(2, recut=[SOURCE]))
    assert [files_of(embedded, day) for day in (2, 4)] == [[], ["part.parquet"]]
    assert embedded.at(3) == embedded.expected(3)
    assert embedded.at() == embedded.expected(4)


@pytest.mark.kills("source-is-read", "recut-one-by-one", "recut-is-read", "positions-are-not-cut-anew")
def test_only_what_is_read_from_files_is_cut_anew(embedded: RevisedShop) -> None:
    embedded.days(1, 3)
    outlets = (embedded.shop.table("shopping"), embedded.shop.table("receipts"))
    by_file = [TableCorrection(2, table, encode(ReplaceByFile(table, "s3://mended/2.parquet"))) for table in outlets]
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("which are purchases, rates, found orders; correct the name", {"recut": ["orders"]}),
        ("source rates: .* found an Iceberg table, where the next cut begins", {"recut": ["rates"]}),
        (r"read all that came before it \(full\)", {"mode": RevisionMode.FULL}),
        ("at barrier 2, found that something stands in for that", {"reused": outlets}),
        ("at barrier 2, found that something stands in for that", {"corrections": by_file}),
    ]
    for match, wanted in refusals:
        with pytest.raises(RevisionRefusedError, match=match):
            plan(embedded, 2, **wanted)
    assert embedded.deployment.meta.revisions.newest(embedded.shop.name, 1) == []
